"""`torch.accelerator` on neuron: its C++ side asks for an allocator and a runtime that a Python backend has not."""
from __future__ import annotations

from collections import OrderedDict
from typing import Any

import torch
import torch.accelerator

from . import api, devices, streams, usage


class device_index:
    """Makes a device index current for a block; None makes no difference."""

    def __init__(self, device: int | None, /) -> None:
        self.idx = device
        self.prev_idx = -1

    def __enter__(self) -> None:
        if self.idx is not None:
            self.prev_idx = devices.exchange(self.idx)

    def __exit__(self, *error: object) -> None:
        if self.idx is not None:
            devices.exchange(self.prev_idx)


def current_device_index() -> int:
    return devices.current()


def set_device_index(device: Any, /) -> None:
    if not (isinstance(device, int) and device < 0):    # a negative index changes nothing, by torch.accelerator's rule
        devices.exchange(devices.index_of(device))


def synchronize(device: Any = None, /) -> None:
    api.synchronize(device)


def current_stream(device: Any = None, /) -> streams.Stream:
    return streams.current_stream(device)


def set_stream(stream: torch.Stream) -> None:
    streams.set_stream(stream)


def get_device_capability(device: Any = None, /) -> dict[str, Any]:
    return api.get_device_capability(device)


def memory_stats(device_index: Any = None, /) -> OrderedDict[str, Any]:
    return usage.accelerator_memory_stats(device_index)


def empty_host_cache() -> None:
    """Host memory is not cached."""


_MEMORY = {
    "empty_cache": usage.empty_cache,
    "empty_host_cache": empty_host_cache,
    "get_memory_info": usage.get_memory_info,
    "max_memory_allocated": usage.max_memory_allocated,
    "max_memory_reserved": usage.max_memory_reserved,
    "memory_allocated": usage.memory_allocated,
    "memory_reserved": usage.memory_reserved,
    "memory_stats": memory_stats,
    "reset_accumulated_memory_stats": usage.reset_accumulated_memory_stats,
    "reset_peak_memory_stats": usage.reset_peak_memory_stats,
}
_DEVICE = {
    "current_device_idx": current_device_index,
    "current_device_index": current_device_index,
    "current_stream": current_stream,
    "device_index": device_index,
    "get_device_capability": get_device_capability,
    "set_device_idx": set_device_index,
    "set_device_index": set_device_index,
    "set_stream": set_stream,
    "synchronize": synchronize,
}


def patch_accelerator() -> None:
    for name, function in _MEMORY.items():
        setattr(torch.accelerator, name, function)
        setattr(torch.accelerator.memory, name, function)
    for name, value in _DEVICE.items():
        setattr(torch.accelerator, name, value)
