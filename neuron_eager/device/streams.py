"""`Stream` and `Event` of a device on which every op has finished when it returns.

They are what PyTorch code expects to find: a stream is always idle, an event has happened as soon as it is recorded,
and the time between two events is the time that passed between their recordings.
"""
from __future__ import annotations

import itertools
import threading
import time
from types import TracebackType
from typing import Any

import torch

from . import devices
from .names import stand_in


class Stream(torch._C.Stream):
    """A stream of a neuron device.

    Args:
        device: the device; the current one by default.
        priority: kept, and without effect.
        stream_id, device_index, device_type: as in `torch.Stream`, to name an existing stream.
    """

    def __new__(cls, device: Any = None, priority: int = 0, **kwargs: Any) -> Stream:
        if "stream_id" not in kwargs:
            index = devices.index_of(device)
            kwargs = {"stream_id": next(_ids), "device_index": index, "device_type": devices.PRIVATE_USE_1}
        return super().__new__(cls, priority=priority, **kwargs)

    def __init__(self, device: Any = None, priority: int = 0, **kwargs: Any) -> None:
        self._outer: list[tuple[int, Stream | None]] = []

    def synchronize(self) -> None:
        """Return at once: nothing is ever pending."""

    def query(self) -> bool:
        """Whether all work of this stream has finished: True."""
        return True

    def wait_event(self, event: Any) -> None:
        """Let later work of this stream wait for `event`: it has happened already."""

    def wait_stream(self, stream: Any) -> None:
        """Let later work of this stream wait for the work of `stream`: it has finished already."""

    def record_event(self, event: Event | None = None) -> Event:
        """Record `event`, or a fresh one, and return it."""
        event = Event() if event is None else event
        event.record(self)
        return event

    def __enter__(self) -> Stream:
        self._outer.append((devices.exchange(self.device_index), _current.streams.get(self.device_index)))
        _current.streams[self.device_index] = self
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        index, stream = self._outer.pop()
        if stream is None:
            _current.streams.pop(self.device_index, None)
        else:
            _current.streams[self.device_index] = stream
        devices.exchange(index)

    def __repr__(self) -> str:
        return f"<torch.neuron.Stream device={self.device} stream_id={self.stream_id:#x}>"


_ids = itertools.count(1)       # 0 is the default stream


class _Current(threading.local):
    def __init__(self) -> None:
        self.streams: dict[int, Stream] = {}


_current = _Current()
_default: dict[int, Stream] = {}


class Event(torch._C.Event):
    """A point in time on a stream.

    Args:
        enable_timing: whether `elapsed_time` may be asked.
        blocking, interprocess: kept, and without effect.
    """

    def __new__(cls, device: Any = None, *, enable_timing: bool = False, blocking: bool = False,
                interprocess: bool = False) -> Event:
        # The base class makes events of a real accelerator only with a stream at record(): all is done here instead
        return super().__new__(cls, torch.device(devices.NAME), enable_timing=enable_timing, blocking=blocking)

    def __init__(self, device: Any = None, *, enable_timing: bool = False, blocking: bool = False,
                 interprocess: bool = False) -> None:
        self.enable_timing = enable_timing
        self._recorded: float | None = None
        self._device = torch.device(devices.NAME, devices.index_of(device))

    @property
    def device(self) -> torch.device:
        return self._device

    @property
    def event_id(self) -> int:
        return id(self) if self._recorded is not None else 0

    def record(self, stream: Any = None) -> None:
        """Note the time."""
        if stream is not None:
            self._device = stream.device
        self._recorded = time.perf_counter()

    def wait(self, stream: Any = None) -> None:
        """Let later work of `stream` wait for this event: it has happened already."""

    def synchronize(self) -> None:
        """Return at once: the event has happened already."""

    def query(self) -> bool:
        """Whether the event has happened: True, also if it was never recorded, as for any accelerator."""
        return True

    def elapsed_time(self, end_event: Event) -> float:
        """Milliseconds from this event to `end_event`.

        Raises:
            ValueError: an event without `enable_timing=True`.
            RuntimeError: an event that was not recorded.
        """
        if not (self.enable_timing and end_event.enable_timing):
            raise ValueError("elapsed_time needs both events made with enable_timing=True")
        if self._recorded is None or end_event._recorded is None:
            raise RuntimeError("elapsed_time needs both events recorded")
        return (end_event._recorded - self._recorded) * 1e3

    def __repr__(self) -> str:
        return f"<torch.neuron.Event device={self._device} recorded={self._recorded is not None}>"


def default_stream(device: Any = None) -> Stream:
    """The stream that a device starts with."""
    index = devices.index_of(device)
    if index not in _default:
        _default[index] = Stream(stream_id=0, device_index=index, device_type=devices.PRIVATE_USE_1)
    return _default[index]


def current_stream(device: Any = None) -> Stream:
    """The stream that is current in this thread."""
    index = devices.index_of(device)
    return _current.streams.get(index) or default_stream(index)


def set_stream(stream: Any) -> None:
    """Make `stream` (and its device) current in this thread; None changes nothing."""
    if stream is not None:
        devices.exchange(stream.device_index)
        _current.streams[stream.device_index] = stream


class StreamContext:
    """Selects a stream for a block; None selects nothing."""

    def __init__(self, stream: Stream | None):
        self.stream = stream

    def __enter__(self) -> Stream | None:
        if self.stream is not None:
            self.stream.__enter__()
        return self.stream

    def __exit__(self, *error: Any) -> None:
        if self.stream is not None:
            self.stream.__exit__(*error)


def patch_names() -> None:
    """Put the classes of this module behind `torch.Stream` and `torch.Event`, which ask for a C++ runtime otherwise."""
    torch.Stream = stand_in("Stream", torch._C.Stream, Stream, default=devices.NAME)
    torch.Event = stand_in("Event", torch._C.Event, Event, default=devices.NAME)
