"""Neuron tensors over host memory: how they are made, how they are seen as CPU tensors, and how much memory they hold.

A neuron tensor is a plain `torch.Tensor` whose storage is host memory under the device type PrivateUse1. DLPack moves a
tensor between the two device types without copying: its header is one struct, and the device is one 64-bit word in it.
Ownership passes through DLPack's deleter, so the memory lives as long as either side.

Memory figures count storages. Each storage made here gets a weak reference that takes its bytes off the books when the
last tensor on it dies (0.6 µs for a storage's whole life).
"""
from __future__ import annotations

import ctypes
import weakref
from collections.abc import Sequence
from typing import Any

import torch

from . import devices

CPU, NEURON = 1, 12     # kDLCPU, kDLExtDev in dlpack.h

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


class Usage:
    """What one device holds. Bytes, except the two counts. Written under the GIL only."""

    __slots__ = ("allocated", "peak", "total_allocated", "total_freed", "allocations", "frees")

    def __init__(self) -> None:
        self.allocated = self.peak = self.total_allocated = self.total_freed = self.allocations = self.frees = 0

    def add(self, nbytes: int) -> None:
        self.allocations += 1
        self.total_allocated += nbytes
        self.allocated += nbytes
        if self.allocated > self.peak:
            self.peak = self.allocated

    def remove(self, nbytes: int) -> None:
        self.frees += 1
        self.total_freed += nbytes
        self.allocated -= nbytes

    def reset_peak(self) -> None:
        self.peak = self.allocated

    def reset_totals(self) -> None:
        self.total_allocated = self.total_freed = self.allocations = self.frees = 0


usages = tuple(Usage() for _ in range(devices.count()))


class _Record(weakref.ref):
    """The weak reference that accounts for one storage."""

    __slots__ = ("nbytes", "usage")


_records: set[_Record] = set()      # a weak reference that dies before its referent never calls back


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
            record.nbytes = storage.nbytes()
            record.usage.add(record.nbytes)


def to_neuron(tensor: torch.Tensor, index: int = 0) -> torch.Tensor:
    """A neuron tensor that takes over the memory of a dense CPU tensor: same shape and strides, no copy, no autograd.

    A conjugated or negated view is resolved first, as the result owns plain values.
    """
    if tensor.is_conj() or tensor.is_neg():
        tensor = tensor.resolve_conj().resolve_neg()
    if tensor.requires_grad:
        tensor = tensor.detach()
    return account(retag(tensor, NEURON, index), index)


def to_cpu(tensor: torch.Tensor) -> torch.Tensor:
    """A CPU tensor on the memory of a neuron tensor: same shape, strides, conj and neg bits; no copy, no autograd.

    Writing to either is seen by both. The result's storage can not be resized.
    """
    alias = retag(tensor.detach() if tensor.requires_grad else tensor, CPU)
    if tensor.is_conj():
        alias = alias.conj()
    return torch._neg_view(alias) if tensor.is_neg() else alias


def empty(size: Sequence[int], dtype: torch.dtype | None = None, index: int = 0,
          memory_format: torch.memory_format | None = None) -> torch.Tensor:
    """An uninitialised neuron tensor of this shape."""
    if memory_format is None:
        memory_format = torch.contiguous_format
    cpu = torch.empty(size, dtype=dtype, device="cpu", memory_format=memory_format, requires_grad=False)
    return account(retag(cpu, NEURON, index), index)


def empty_strided(size: Sequence[int], stride: Sequence[int], dtype: torch.dtype | None = None,
                  index: int = 0) -> torch.Tensor:
    """An uninitialised neuron tensor of this shape and these strides (in elements)."""
    return account(retag(torch.empty_strided(size, stride, dtype=dtype, device="cpu"), NEURON, index), index)


def allocate(nbytes: int, index: int = 0) -> torch.UntypedStorage:
    """A fresh storage of `nbytes` bytes on a device."""
    return empty((nbytes,), torch.uint8, index).untyped_storage()
