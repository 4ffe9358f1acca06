"""`torch.neuron`: the device module, with the names that TorchNeuron's has."""
from __future__ import annotations

from typing import Any

import torch

from . import autocast, devices
from . import usage as memory
from .random import (
    default_generators,
    get_rng_state,
    get_rng_state_all,
    initial_seed,
    manual_seed,
    manual_seed_all,
    seed,
    seed_all,
    set_rng_state,
    set_rng_state_all,
)
from .streams import Event, Stream, StreamContext, current_stream, default_stream, set_stream
from .usage import (
    empty_cache,
    get_memory_info,
    max_memory_allocated,
    max_memory_reserved,
    memory_allocated,
    memory_reserved,
    memory_stats,
    memory_summary,
    reset_accumulated_memory_stats,
    reset_peak_memory_stats,
)

__all__ = [
    "DeviceProperties", "Event", "Stream", "StreamContext", "current_device", "current_stream", "default_generators",
    "default_stream", "device", "device_count", "device_of", "empty_cache", "get_amp_supported_dtype",
    "get_device_capability", "get_device_name", "get_device_properties", "get_dynamo_metrics", "get_memory_info",
    "get_rng_state", "get_rng_state_all", "init", "initial_seed", "is_available", "is_bf16_supported", "is_initialized",
    "manual_seed", "manual_seed_all", "max_memory_allocated", "max_memory_reserved", "memory", "memory_allocated",
    "memory_reserved", "memory_stats", "memory_summary", "query", "record_event", "reset_accumulated_memory_stats",
    "reset_dynamo_metrics", "reset_peak_memory_stats", "seed", "seed_all", "set_device", "set_rng_state",
    "set_rng_state_all", "set_stream", "stream", "synchronize", "wait_event", "wait_stream",
]


# ---- devices

class DeviceProperties:
    """What a device is: `name`; `total_memory`, in bytes."""

    def __init__(self, name: str, total_memory: int):
        self.name, self.total_memory = name, total_memory

    def __repr__(self) -> str:
        return f"DeviceProperties(name={self.name!r}, total_memory={self.total_memory})"


def is_available() -> bool:
    """Whether there is a neuron device: True."""
    return True


_initialized = True         # torch.utils.checkpoint saves the generators' states of devices that say so


def is_initialized() -> bool:
    """Whether the device is ready for use: True, it needs no start."""
    return True


def init() -> None:
    """Make the device ready for use: it is."""


_lazy_init = init


def _is_in_bad_fork() -> bool:
    """Whether this process can not use the device because it was forked: never."""
    return False


def device_count() -> int:
    """How many neuron devices there are (NEURON_EAGER_DEVICE_COUNT)."""
    return devices.count()


def current_device() -> int:
    """The index of the device that is current in this thread."""
    return devices.current()


def set_device(device: Any) -> None:
    """Make a device current in this thread; None changes nothing.

    Raises:
        InvalidDeviceError: no such device.
    """
    if device is not None:
        devices.exchange(devices.index_of(device))


class device:
    """Makes a device current for a block; None makes no difference."""

    def __init__(self, device: Any):
        self.index = None if device is None else devices.index_of(device)
        self._before: list[int] = []

    def __enter__(self) -> device:
        self._before.append(devices.current() if self.index is None else devices.exchange(self.index))
        return self

    def __exit__(self, *error: Any) -> None:
        devices.exchange(self._before.pop())


class device_of(device):
    """Makes the device of a tensor or storage current for a block; of one elsewhere, makes no difference."""

    def __init__(self, obj: Any):
        super().__init__(obj.device if obj.is_neuron else None)


def _exchange_device(index: int) -> int:
    return devices.exchange(index) if index >= 0 else -1


_maybe_exchange_device = _exchange_device


def get_device_name(device: Any = 0) -> str:
    """The name of a device, such as "neuron:0"."""
    return f"{devices.NAME}:{devices.index_of(device)}"


def get_device_properties(device: Any = None) -> DeviceProperties:
    """Name and memory of a device."""
    return DeviceProperties(get_device_name(device), memory.total_memory())


def get_device_capability(device: Any = None) -> dict[str, Any]:
    """`supported_dtypes`: the dtypes that tensors on the device may have."""
    devices.index_of(device)
    return {"supported_dtypes": {d for d in vars(torch).values() if isinstance(d, torch.dtype)} - _QUANTIZED}


_QUANTIZED = {torch.qint8, torch.quint8, torch.qint32, torch.quint4x2, torch.quint2x4}


def get_amp_supported_dtype() -> list[torch.dtype]:
    """The dtypes `torch.autocast("neuron", dtype=...)` takes."""
    autocast.register()
    return [torch.float32, torch.float16, torch.bfloat16]


def is_bf16_supported(including_emulation: bool = True) -> bool:
    """Whether bfloat16 works: True."""
    return True


# ---- streams

def synchronize(device: Any = None) -> None:
    """Wait until all work has finished: it has."""
    devices.index_of(device)


def stream(stream: Stream | None) -> StreamContext:
    """A context that makes `stream` current."""
    return StreamContext(stream)


def wait_stream(stream: Stream) -> None:
    """Let the current stream wait for `stream`."""
    current_stream().wait_stream(stream)


def wait_event(event: Event) -> None:
    """Let the current stream wait for `event`."""
    current_stream().wait_event(event)


def record_event(event: Event | None = None) -> Event:
    """Record an event on the current stream."""
    return current_stream().record_event(event)


def query() -> bool:
    """Whether the current stream's work has finished: True."""
    return current_stream().query()


def _sleep(cycles: int) -> None:
    """Keep the device busy for `cycles` cycles: no effect."""


# ---- torch.compile

def get_dynamo_metrics() -> list[Any]:
    """Compilation records of torch.compile: none, its graphs run op by op."""
    return []


def reset_dynamo_metrics() -> None:
    """Forget the records of `get_dynamo_metrics`."""
