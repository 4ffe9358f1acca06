"""Which neuron devices there are and which one is current. A device is an index; the current one is per thread."""
from __future__ import annotations

import threading
from typing import Any

import torch

from ..config import config
from ..errors import InvalidDeviceError

NAME = "neuron"
PRIVATE_USE_1 = 20      # c10::DeviceType::PrivateUse1

_count = config.device_count     # a device can not appear or vanish while tensors live: read once


class _Selection(threading.local):
    index = 0


_selection = _Selection()


def count() -> int:
    """How many neuron devices there are."""
    return _count


def current() -> int:
    """The index that a device without an index stands for in this thread."""
    return _selection.index


def exchange(index: int) -> int:
    """Make `index` current in this thread and return the index that was."""
    before = _selection.index
    _selection.index = valid(index)
    return before


def valid(index: int) -> int:
    if 0 <= index < _count:
        return index
    raise InvalidDeviceError(index=index, count=_count, last=_count - 1)


def index_of(device: Any = None) -> int:
    """The index that `device` names: None (the current one), an int, a string such as "neuron:1", a torch.device.

    Raises:
        InvalidDeviceError: no such neuron device.
        ValueError: a device of another type.
    """
    if device is None:
        return _selection.index
    if isinstance(device, int):
        return valid(device)
    if not isinstance(device, torch.device):
        device = torch.device(device)
    if device.type != NAME:
        raise ValueError(f"expected a {NAME} device, got {device}")
    index = device.index
    return _selection.index if index is None else valid(index)
