"""`torch.neuron.memory`: how much memory neuron tensors hold. Bytes; per device; the current device by default."""
from __future__ import annotations

from collections import OrderedDict
from typing import Any

from . import devices, memory

_CORE = ("allocated_bytes", "reserved_bytes", "active_bytes")


def _usage(device: Any) -> memory.Usage:
    return memory.usages[devices.index_of(device)]


def memory_allocated(device: Any = None) -> int:
    """Bytes that live neuron tensors hold: the sizes of their storages, each counted once."""
    return _usage(device).allocated


def max_memory_allocated(device: Any = None) -> int:
    """The most bytes held at one time, since the start or `reset_peak_memory_stats`."""
    return _usage(device).peak


def memory_reserved(device: Any = None) -> int:
    """Bytes taken from the system. Host memory is returned when a storage dies, so what is allocated."""
    return _usage(device).allocated


def max_memory_reserved(device: Any = None) -> int:
    """The most bytes taken from the system at one time."""
    return _usage(device).peak


def reset_peak_memory_stats(device: Any = None) -> None:
    """Let the peak begin at what is allocated."""
    _usage(device).reset_peak()


def reset_accumulated_memory_stats(device: Any = None) -> None:
    """Let the totals of bytes and requests begin at 0."""
    _usage(device).reset_totals()


def memory_stats(device: Any = None) -> dict[str, Any]:
    """All figures: `allocated_bytes`, `reserved_bytes`, `active_bytes`, each {current, peak, allocated, freed}, in
    bytes; and counts of requests."""
    usage = _usage(device)
    figures = {"current": usage.allocated, "peak": usage.peak,
               "allocated": usage.total_allocated, "freed": usage.total_freed}
    return {**{name: dict(figures) for name in _CORE},
            "allocation_requests": usage.allocations, "num_tensor_frees": usage.frees,
            "num_alloc_retries": 0, "num_ooms": 0}


def accelerator_memory_stats(device: Any = None) -> OrderedDict[str, Any]:
    """The figures under the flat names of `torch.accelerator.memory_stats`."""
    usage = _usage(device)
    flat: OrderedDict[str, Any] = OrderedDict()
    for name in _CORE:
        flat |= {f"{name}.all.current": usage.allocated, f"{name}.all.peak": usage.peak,
                 f"{name}.all.allocated": usage.total_allocated, f"{name}.all.freed": usage.total_freed}
    live = usage.allocations - usage.frees
    flat |= {"allocation.all.current": live, "allocation.all.allocated": usage.allocations,
             "allocation.all.freed": usage.frees, "num_alloc_retries": 0, "num_ooms": 0}
    return flat


def memory_summary(device: Any = None, abbreviated: bool = False) -> str:
    """The figures as a table of text; `abbreviated` leaves the totals out."""
    index = devices.index_of(device)
    usage = memory.usages[index]
    rows = [("now", usage.allocated), ("peak", usage.peak)]
    if not abbreviated:
        rows += [("allocated in all", usage.total_allocated), ("freed in all", usage.total_freed)]
    lines = [f"memory of neuron:{index}"] + [f"  {name:<18}{size:>16,} bytes" for name, size in rows]
    if not abbreviated:
        lines += [f"  {'requests':<18}{usage.allocations:>16,}", f"  {'frees':<18}{usage.frees:>16,}"]
    return "\n".join(lines)


def get_memory_info(device: Any = None) -> tuple[int, int]:
    """(free, total) bytes of the machine's memory, which is the device's."""
    devices.index_of(device)
    return available_memory(), total_memory()


def total_memory() -> int:
    """Bytes of memory in this machine."""
    import os
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def available_memory() -> int:
    """Bytes that are free in this machine."""
    import os
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def empty_cache() -> None:
    """Return the free blocks that the native runtime keeps for reuse to the system."""
    memory.empty_cache()
