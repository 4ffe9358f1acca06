"""Neuron tensors between processes: by value. Device memory is private to a process; a receiver gets a copy.

Queues, pipes and arguments of `torch.multiprocessing` pickle through `ForkingPickler`, which has its own table of
reducers; ordinary pickles and `torch.save` do not pass here.
"""
from __future__ import annotations

from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch
import torch.multiprocessing.reductions as reductions

from . import devices, memory
from .storage import storage_bytes


def _rebuild(cls: type, content: bytes, dtype: torch.dtype, shape: tuple[int, ...], index: int,
             requires_grad: bool) -> torch.Tensor:
    cpu = torch.empty(shape, dtype=dtype, device="cpu")
    if content:
        cpu.view(-1).view(torch.uint8).copy_(torch.frombuffer(bytearray(content), dtype=torch.uint8))
    tensor = memory.to_neuron(cpu, devices.valid(index))
    if cls is torch.nn.Parameter:
        return torch.nn.Parameter(tensor, requires_grad)
    return tensor.requires_grad_(requires_grad)


def _reduce(tensor: torch.Tensor) -> Any:
    if tensor.device.type != devices.NAME:
        return reductions.reduce_tensor(tensor)
    if tensor.requires_grad and not tensor.is_leaf:
        raise RuntimeError("a tensor that is part of an autograd graph can not be sent to another process: the graph "
                           "stays behind. Call detach() first")
    # bytes, not a temporary CPU tensor: that would be shared by a file descriptor that closes with the temporary
    cpu = memory.to_cpu(tensor).resolve_conj().resolve_neg().contiguous()
    content = cpu.view(-1).view(torch.uint8).numpy().tobytes() if cpu.numel() else b""
    return _rebuild, (type(tensor), content, cpu.dtype, tuple(cpu.shape), tensor.device.index, tensor.requires_grad)


def _rebuild_storage(content: bytes, index: int) -> torch.UntypedStorage:
    return _rebuild(torch.Tensor, content, torch.uint8, (len(content),), index, False).untyped_storage()


def _reduce_storage(storage: torch.UntypedStorage) -> Any:
    if storage.device.type != devices.NAME:
        return reductions.reduce_storage(storage)
    return _rebuild_storage, (storage_bytes(storage).numpy().tobytes(), storage.device.index)


def register() -> None:
    ForkingPickler.register(torch.UntypedStorage, _reduce_storage)
    ForkingPickler.register(torch.Tensor, _reduce)
    ForkingPickler.register(torch.nn.Parameter, _reduce)
