"""The few ops that other ops stand on: allocation, resizing, copies between devices, reading one element."""
from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from . import devices, memory, views
from .storage import resize_storage

aten = torch.ops.aten


def empty(size: Sequence[int], *, dtype: torch.dtype | None = None, layout: Any = None, device: Any = None,
          pin_memory: bool | None = None, memory_format: torch.memory_format | None = None) -> torch.Tensor:
    return memory.empty(size, dtype, devices.index_of(device), memory_format)


def empty_strided(size: Sequence[int], stride: Sequence[int], *, dtype: torch.dtype | None = None, layout: Any = None,
                  device: Any = None, pin_memory: bool | None = None) -> torch.Tensor:
    return memory.empty_strided(size, stride, dtype, devices.index_of(device))


def efficient_zero_tensor(size: Sequence[int], *, dtype: torch.dtype | None = None, layout: Any = None,
                          device: Any = None, pin_memory: bool | None = None) -> torch.Tensor:
    # A ZeroTensor has no memory and DLPack can not carry its dispatch key, so a kernel would read a null pointer:
    # real zeros instead.
    return memory.to_neuron(torch.zeros(size, dtype=dtype, device="cpu"), devices.index_of(device))


def resize_(self: torch.Tensor, size: Sequence[int], *,
            memory_format: torch.memory_format | None = None) -> torch.Tensor:
    stride = _strides(size, memory_format)
    last = sum((n - 1) * s for n, s in zip(size, stride)) if math.prod(size) else -1
    need = (self.storage_offset() + last + 1) * self.element_size()
    storage = self.untyped_storage()
    if last >= 0 and storage.nbytes() < need:
        resize_storage(storage, need)
    aten.set_.source_Storage_storage_offset.redispatch(
        views.CPU_KEY, self, storage, self.storage_offset(), tuple(size), stride)
    return self


def _strides(size: Sequence[int], memory_format: torch.memory_format | None) -> tuple[int, ...]:
    if memory_format in (None, torch.contiguous_format, torch.preserve_format):
        strides, step = [], 1
        for n in reversed(size):
            strides.append(step)
            step *= max(n, 1)
        return tuple(reversed(strides))
    return torch.empty(size, device="meta", memory_format=memory_format).stride()


def copy_from(self: torch.Tensor, dst: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    source = memory.to_cpu(self) if self.device.type == devices.NAME else self
    target = memory.to_cpu(dst) if dst.device.type == devices.NAME else dst
    target.copy_(source)
    return dst


def copy_from_and_resize(self: torch.Tensor, dst: torch.Tensor) -> torch.Tensor:
    if self.shape != dst.shape:
        dst.resize_(self.shape)
    return copy_from(self, dst)


def local_scalar_dense(self: torch.Tensor) -> int | float | bool | complex:
    return memory.to_cpu(self).item()


def record_stream(self: torch.Tensor, s: torch.Stream) -> None:
    """Nothing to wait for: every op has finished when it returns."""


def register(library: torch.library.Library) -> None:
    for name, kernel in {
        "empty.memory_format": empty,
        "empty_strided": empty_strided,
        "_efficientzerotensor": efficient_zero_tensor,
        "resize_": resize_,
        "_copy_from": copy_from,
        "_copy_from_and_resize": copy_from_and_resize,
        "_local_scalar_dense": local_scalar_dense,
        "record_stream": record_stream,
    }.items():
        library.impl(name, kernel, "PrivateUse1")
    # Copying a conjugated, negated or zero tensor must reach the kernel above as it is: these keys' own fallback would
    # resolve the tensor first, by a copy, without end.
    for name in ("_copy_from", "_copy_from_and_resize"):
        for key in ("Conjugate", "Negative", "ZeroTensor"):
            library.impl(name, torch.library.fallthrough_kernel, key)
