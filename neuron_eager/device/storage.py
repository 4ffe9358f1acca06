"""Storages on neuron: construction, resizing, their bytes.

PyTorch's C++ code asks for an allocator that a backend written in Python can not give, and would crash. The Python
constructor and `resize_` of `torch.UntypedStorage` therefore take neuron storages out of its hands.
"""
from __future__ import annotations

from typing import Any

import torch

from . import devices, memory, views


def storage_bytes(storage: torch.UntypedStorage) -> torch.Tensor:
    """The bytes of a neuron storage as a CPU uint8 tensor that shares its memory."""
    whole = memory.retag(torch.empty(0, dtype=torch.uint8), memory.NEURON, storage.device.index)
    torch.ops.aten.set_.source_Storage_storage_offset.redispatch(
        views.CPU_KEY, whole, storage, 0, (storage.nbytes(),), (1,))
    return memory.retag(whole, memory.CPU)


def resize_storage(storage: torch.UntypedStorage, nbytes: int) -> None:
    """Give a neuron storage another size and keep its first bytes. Tensors on it see the change."""
    kept = min(nbytes, storage.nbytes())
    fresh = memory.empty((nbytes,), torch.uint8, storage.device.index)
    if kept:
        memory.retag(fresh, memory.CPU)[:kept].copy_(storage_bytes(storage)[:kept])
    _swap_memory(storage, fresh.untyped_storage())
    memory.resized(storage)


def _swap_memory(a: torch.UntypedStorage, b: torch.UntypedStorage) -> None:
    # _swap_data_ptr_ wants equal sizes, or one side without memory: so through a third, empty storage
    if a.nbytes():
        empty = memory.retag(torch.empty(0, dtype=torch.uint8), memory.NEURON, a.device.index)
        a._swap_data_ptr_(empty.untyped_storage())
    if b.nbytes():
        a._swap_data_ptr_(b)


def patch_untyped_storage() -> None:
    """Let `torch.UntypedStorage(n, device="neuron")` and `resize_` of such a storage work."""
    plain_new, plain_resize = torch.UntypedStorage.__new__, torch.UntypedStorage.resize_

    def new(cls: type, *args: Any, **kwargs: Any) -> Any:
        device = kwargs.get("device")
        if device is None or torch.device(device).type != devices.NAME:
            return plain_new(cls, *args, **kwargs)
        index = devices.index_of(device)
        content = args[0] if args else kwargs.get("size", 0)
        if isinstance(content, int):
            return memory.allocate(content, index)
        return memory.to_neuron(torch.tensor(list(content), dtype=torch.uint8, device="cpu"), index).untyped_storage()

    def resize_(self: torch.UntypedStorage, size: int) -> torch.UntypedStorage:
        if self.device.type != devices.NAME:
            return plain_resize(self, size)
        if size != self.nbytes():
            resize_storage(self, size)
        return self

    torch.UntypedStorage.__new__ = new
    torch.UntypedStorage.resize_ = resize_
