"""Names of `torch` that stand for a C++ class which can not make objects for a device written in Python."""
from __future__ import annotations

from typing import Any

import torch

from . import devices


class _StandIn(type):
    """The metaclass: calling makes an object of the device's class, `isinstance` and `issubclass` ask the C++ class."""

    plain: type
    ours: type
    default: str

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        device = args[0] if args else kwargs.get("device")
        if isinstance(device, (str, torch.device)):
            kind = torch.device(device).type
        elif "device_type" in kwargs:       # torch.Stream(stream_id=, device_index=, device_type=)
            kind = devices.NAME if kwargs["device_type"] == devices.PRIVATE_USE_1 else "other"
        else:
            kind = cls.default
        return (cls.ours if kind == devices.NAME else cls.plain)(*args, **kwargs)

    def __instancecheck__(cls, obj: object) -> bool:
        return isinstance(obj, cls.plain)

    def __subclasscheck__(cls, kind: type) -> bool:
        return issubclass(kind, cls.plain)


def stand_in(name: str, plain: type, ours: type, default: str) -> type:
    """A class for the place `torch.<name>`, which holds `plain`.

    It makes `ours` where the first argument, or `device`, is a neuron device, or says none and `default` is "neuron";
    `plain` otherwise.
    """
    body = {"plain": plain, "ours": ours, "default": default, "__module__": "torch", "__doc__": plain.__doc__}
    return _StandIn(name, (), body)
