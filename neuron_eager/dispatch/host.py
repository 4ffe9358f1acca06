"""Neuron tensors seen as host tensors, and back: what the CPU fallback does to every argument and result.

Nothing is copied: a host alias is the same memory under the device type CPU. `device.memory` says how; the functions
here are its inner loop again, written for one call per argument of every fallback op.
"""
from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import torch

from ..device import devices, memory, storage
from ..errors import UnsupportedLayoutError

_to_dlpack, _from_dlpack = torch._C._to_dlpack, torch._C._from_dlpack
_is_alias_of = torch._C._is_alias_of
_CPU, _NEURON = memory.CPU, memory.NEURON

# All of the address space as 64-bit words. A capsule's pointer is the first field behind its object header; the device
# is the second word of what it points to (DLTensor). Checked by `check_layout` when the dispatch layer is registered.
_WORDS = (ctypes.c_int64 * (1 << 44)).from_address(0)
_POINTER = object.__basicsize__

Number = (bool, int, float, complex)


class OnHost(Exception):
    """A tensor is on the host where a neuron tensor is needed. Turned into PyTorch's own message by `refuse`."""


def _python_alias(tensor: torch.Tensor) -> torch.Tensor:
    """The host alias of a neuron tensor, with its conj and neg bits."""
    capsule = _to_dlpack(tensor)
    _WORDS[(_WORDS[(id(capsule) + _POINTER) >> 3] + 8) >> 3] = _CPU
    alias = _from_dlpack(capsule)
    if tensor.is_conj():
        alias = alias.conj()
    return torch._neg_view(alias) if tensor.is_neg() else alias


def _python_neuron(tensor: torch.Tensor, index: int) -> torch.Tensor:
    """A neuron tensor on the memory of a CPU tensor."""
    if tensor.is_conj() or tensor.is_neg():
        tensor = tensor.resolve_conj().resolve_neg()
    capsule = _to_dlpack(tensor)
    _WORDS[(_WORDS[(id(capsule) + _POINTER) >> 3] + 8) >> 3] = _NEURON | index << 32
    return memory.account(_from_dlpack(capsule), index)


_alias, _neuron = _python_alias, _python_neuron


def use_native(runtime: Any) -> None:
    """Let the native runtime make aliases."""
    global _alias, _neuron
    _alias, _neuron = runtime.to_cpu, runtime.to_neuron


def host(tensor: Any) -> Any:
    """The host alias of a neuron tensor. Python numbers and CPU tensors without dimensions are taken as they are."""
    try:
        if not tensor.is_cpu:
            return _alias(tensor)
    except AttributeError:
        return tensor               # a number, or None for a tensor that is missing
    except (RuntimeError, BufferError, TypeError):
        raise _cannot_alias(tensor) from None
    if tensor.dim() == 0:
        return tensor
    raise OnHost


def host_written(tensor: torch.Tensor) -> torch.Tensor:
    """The host alias of a tensor that the op writes: it must be on neuron."""
    if tensor.is_cpu:
        raise OnHost
    return host(tensor)


def host_or_cpu(tensor: Any) -> Any:
    """The host alias of a neuron tensor, or a CPU tensor as it is: for arguments that may be on either."""
    return tensor if tensor is None or tensor.is_cpu else host(tensor)


def host_out(tensor: torch.Tensor) -> torch.Tensor:
    """What an op gets for its `out`: an alias, or, where PyTorch would resize without a word, something resizable."""
    if tensor.is_cpu:
        raise OnHost
    if tensor.numel():
        return host(tensor)
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="cpu")


def fresh_out(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty(0, dtype=tensor.dtype, device="cpu")


def cannot_resize(error: RuntimeError) -> bool:
    return "resize storage that is not resizable" in str(error)


def settle_out(out: torch.Tensor, result: torch.Tensor) -> None:
    """Give `out` the shape that the op gave its stand-in, and the values if it was not an alias."""
    if result.shape == out.shape:
        return
    if result.numel() and result.data_ptr() == out.data_ptr():
        out.as_strided_(result.shape, result.stride(), out.storage_offset())
        return
    out.resize_(result.shape)
    if result.stride() != out.stride():
        out.as_strided_(result.shape, result.stride(), out.storage_offset())
    host(out).copy_(result)


def neuron(tensor: Any, index: int = 0) -> Any:
    """A neuron tensor on the memory of a fresh CPU tensor."""
    if tensor is None:
        return None
    try:
        return _neuron(tensor, index)
    except (RuntimeError, BufferError, TypeError):
        raise _cannot_alias(tensor) from None


def overlaps(written: torch.Tensor, other: Any, same: bool = False) -> bool:
    """Whether a tensor other than `written`, or one of a list, shares a storage with it. same: or is `written` itself.

    PyTorch's own overlap checks need both aliases on one storage then.
    """
    if isinstance(other, (list, tuple)):
        return any(overlaps(written, t, same) for t in other)
    return (same or other is not written) and isinstance(other, torch.Tensor) and _is_alias_of(written, other)


def on_one_storage(written: torch.Tensor, *others: Any, resizable: bool = False) -> list[Any]:
    """Host aliases of `written` and of tensors and lists of tensors, where those that share the storage of `written`
    share one on the host. resizable: on a copy of that storage."""
    memory_of_all = storage.storage_bytes(written.untyped_storage())
    base = (memory_of_all.clone() if resizable else memory_of_all).untyped_storage()
    first: list[torch.Tensor] = []

    def alias(t: Any) -> Any:
        if isinstance(t, (list, tuple)):
            return [alias(element) for element in t]
        if t is written and first:
            return first[0]
        if isinstance(t, torch.Tensor) and _is_alias_of(written, t):
            whole = torch.empty(0, dtype=t.dtype, device="cpu")
            return whole.set_(base, t.storage_offset(), t.shape, t.stride())
        return host(t)
    first.append(alias(written))
    return [*first, *(alias(t) for t in others)]


def apart(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether the memory from first to last element of one tensor ends before the other's begins."""
    (start_a, end_a), (start_b, end_b) = _range(a), _range(b)
    return end_a <= start_b or end_b <= start_a


def _range(t: torch.Tensor) -> tuple[int, int]:
    elements = 1 + sum((n - 1) * s for n, s in zip(t.shape, t.stride()))
    return t.data_ptr(), t.data_ptr() + elements * t.element_size()


def index_of(*values: Any) -> int:
    """The device index that the tensors among `values` (tensors, lists of tensors, other things) agree on."""
    found = None
    for value in values:
        for tensor in value if isinstance(value, (list, tuple)) else (value,):
            if isinstance(tensor, torch.Tensor) and not tensor.is_cpu:
                if found is not None and tensor.device.index != found:
                    raise OnHost
                if found is None:
                    found = tensor.device.index
    return devices.current() if found is None else found


def refusal(name: str, arguments: Sequence[tuple[str, Any]]) -> RuntimeError:
    """The error for arguments on different devices, in PyTorch's words."""
    tensors = [(label, t) for label, value in arguments
               for t in (value if isinstance(value, (list, tuple)) else (value,)) if isinstance(t, torch.Tensor)]
    first = next((t for _, t in tensors if not t.is_cpu), None)
    device = torch.device(devices.NAME, devices.current()) if first is None else first.device
    label, other = next(((label, t) for label, t in tensors if t.device != device), (None, None))
    where = "" if other is None else f" (when checking argument for argument {label} in method {name})"
    return RuntimeError(f"Expected all tensors to be on the same device, but found at least two devices, {device} and "
                        f"{'cpu' if other is None else other.device}!{where}")


def _cannot_alias(tensor: torch.Tensor) -> UnsupportedLayoutError:
    kind = str(tensor.layout).removeprefix("torch.") if tensor.layout != torch.strided else str(tensor.dtype)
    return UnsupportedLayoutError(kind=kind, op=f"a result or argument of shape {tuple(tensor.shape)}")


def check_layout() -> bool:
    """Whether a capsule's pointer is where this module reads it."""
    tensor = torch.empty(2, 3)
    capsule = _to_dlpack(tensor)
    pointer = memory._capsule_pointer(capsule, b"dltensor")
    return _WORDS[(id(capsule) + _POINTER) >> 3] == pointer and _WORDS[pointer >> 3] == tensor.data_ptr()
