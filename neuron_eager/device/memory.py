"""Neuron tensors over host memory: how they are made, how they are seen as CPU tensors, and how much memory they hold.

A neuron tensor is a plain `torch.Tensor` whose storage is host memory under the device type PrivateUse1. DLPack moves a
tensor between the two device types without copying: its header is one struct, and the device is one 64-bit word in it.
Ownership passes through DLPack's deleter, so the memory lives as long as either side.

Memory figures count storages. Each storage made here gets a weak reference that takes its bytes off the books when the
last tensor on it dies (0.6 µs for a storage's whole life). Once the native runtime is loaded (`use_native`), it makes
the tensors and counts them, in a quarter of the time; the figures are the sums.
"""
from __future__ import annotations

import ctypes
import weakref
from collections.abc import Sequence
from typing import Any

import torch

from . import devices

CPU, NEURON = 1, 12     # kDLCPU, kDLExtDev in dlpack.h
_cpu = torch.device("cpu")

_capsule_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_capsule_pointer.restype = ctypes.c_void_p
_capsule_pointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
_word_at = ctypes.c_int64.from_address
_to_dlpack, _from_dlpack = torch._C._to_dlpack, torch._C._from_dlpack


def retag(tensor: torch.Tensor, device_type: int, index: int = 0) -> torch.Tensor:
    """`tensor`'s memory, shape and strides under another device type. No copy; conj and neg bits are lost."""
    capsule = _to_dlpack(tensor)
    # DLTensor begins {void* data; int32 device_type; int32 device_id}, so the device is the second word (little endian)
    _word_at(_capsule_pointer(capsule, b"dltensor") + 8).value = device_type | index << 32
    return _from_dlpack(capsule)


# Words of a device's usage record, in Python's books and in the native runtime's (native/allocator.py, U_...)
ALLOCATED, FREED, PEAK, ALLOCATIONS, FREES, ELSEWHERE = range(6)


class Usage:
    """What one device holds: bytes, and counts of allocations and frees. Written under the GIL only."""

    __slots__ = ("own", "native", "start")

    def __init__(self) -> None:
        self.own = [0] * 6                      # what Python accounts for
        self.native: Any = self.own             # where the peak is, and what native code accounts for: see `join`
        self.start = [0] * 6                    # the totals at the last reset

    def join(self, native: Any) -> None:
        """Keep the peak, from here on, in a record that native code adds to as well."""
        native[PEAK], native[ELSEWHERE] = self.peak, self.allocated
        self.native = native

    def add(self, nbytes: int) -> None:
        own, native = self.own, self.native
        own[ALLOCATIONS] += 1
        own[ALLOCATED] += nbytes
        live = native[ELSEWHERE] = own[ALLOCATED] - own[FREED]
        if native is not own:
            live += native[ALLOCATED] - native[FREED]
        if live > native[PEAK]:
            native[PEAK] = live

    def remove(self, nbytes: int) -> None:
        own = self.own
        own[FREES] += 1
        own[FREED] += nbytes
        self.native[ELSEWHERE] = own[ALLOCATED] - own[FREED]

    def _sum(self, word: int) -> int:
        return self.own[word] + (0 if self.native is self.own else self.native[word])

    @property
    def allocated(self) -> int:
        return self._sum(ALLOCATED) - self._sum(FREED)

    @property
    def peak(self) -> int:
        return self.native[PEAK]

    @property
    def total_allocated(self) -> int:
        return self._sum(ALLOCATED) - self.start[ALLOCATED]

    @property
    def total_freed(self) -> int:
        return self._sum(FREED) - self.start[FREED]

    @property
    def allocations(self) -> int:
        return self._sum(ALLOCATIONS) - self.start[ALLOCATIONS]

    @property
    def frees(self) -> int:
        return self._sum(FREES) - self.start[FREES]

    def reset_peak(self) -> None:
        self.native[PEAK] = self.allocated

    def reset_totals(self) -> None:
        self.start = [self._sum(word) for word in range(6)]


usages = tuple(Usage() for _ in range(devices.count()))


class _Record(weakref.ref):
    """The weak reference that accounts for one storage."""

    __slots__ = ("nbytes", "usage")
    nbytes: int
    usage: Usage


_records: set[_Record] = set()      # a weak reference that dies before its referent never calls back
_native: Any = None                 # the native runtime, once it is loaded


def use_native(runtime: Any) -> None:
    """Let the native runtime make neuron tensors and account for them. What lives already stays on Python's books."""
    global _native
    if _native is None:
        for index, usage in enumerate(usages):
            usage.join(runtime.usage(index))
        _native = runtime


def empty_cache() -> None:
    """Return the native runtime's free blocks to the system."""
    if _native is not None:
        _native.empty_cache()


def _forget(record: Any) -> None:
    _records.discard(record)
    record.usage.remove(record.nbytes)


def account(tensor: torch.Tensor, index: int) -> torch.Tensor:
    """Put the storage of a neuron tensor on the books of its device, until it dies."""
    storage = tensor.untyped_storage()
    record = _Record(storage, _forget)
    record.nbytes = nbytes = storage.nbytes()
    record.usage = usage = usages[index]
    usage.add(nbytes)
    _records.add(record)
    return tensor


def resized(storage: torch.UntypedStorage) -> None:
    """Correct the books after a storage has changed its size."""
    for record in weakref.getweakrefs(storage):
        if type(record) is _Record:
            record.usage.remove(record.nbytes)
            if _native is None:
                record.nbytes = storage.nbytes()
                record.usage.add(record.nbytes)
            else:                               # its memory is native by now
                _records.discard(record)


def to_neuron(tensor: torch.Tensor, index: int = 0) -> torch.Tensor:
    """A neuron tensor that takes over the memory of a dense CPU tensor: same shape and strides, no copy, no autograd.

    A conjugated or negated view is resolved first, as the result owns plain values.
    """
    if _native is not None:
        return _native.to_neuron(tensor, index)
    if tensor.is_conj() or tensor.is_neg():
        tensor = tensor.resolve_conj().resolve_neg()
    if tensor.requires_grad:
        tensor = tensor.detach()
    return account(retag(tensor, NEURON, index), index)


def to_cpu(tensor: torch.Tensor) -> torch.Tensor:
    """A CPU tensor on the memory of a neuron tensor: same shape, strides, conj and neg bits; no copy, no autograd.

    Writing to either is seen by both. The result's storage can not be resized.
    """
    if _native is not None:
        return _native.to_cpu(tensor)
    alias = retag(tensor.detach() if tensor.requires_grad else tensor, CPU)
    if tensor.is_conj():
        alias = alias.conj()
    return torch._neg_view(alias) if tensor.is_neg() else alias


def empty(size: Sequence[int], dtype: torch.dtype | None = None, index: int = 0,
          memory_format: torch.memory_format | None = None) -> torch.Tensor:
    """An uninitialised neuron tensor of this shape."""
    if memory_format is None or memory_format is torch.contiguous_format:
        if _native is not None:
            return _native.empty(size, None, dtype or torch.get_default_dtype(), index)
        cpu = torch.empty(size, dtype=dtype, device=_cpu)
    else:
        cpu = torch.empty(size, dtype=dtype, device=_cpu, memory_format=memory_format)
    return account(retag(cpu, NEURON, index), index)


def empty_strided(size: Sequence[int], stride: Sequence[int], dtype: torch.dtype | None = None,
                  index: int = 0) -> torch.Tensor:
    """An uninitialised neuron tensor of this shape and these strides (in elements)."""
    if _native is not None:
        return _native.empty(size, stride, dtype or torch.get_default_dtype(), index)
    return account(retag(torch.empty_strided(size, stride, dtype=dtype, device="cpu"), NEURON, index), index)


def allocate(nbytes: int, index: int = 0) -> torch.UntypedStorage:
    """A fresh storage of `nbytes` bytes on a device."""
    return empty((nbytes,), torch.uint8, index).untyped_storage()
