"""Ops that touch metadata only: PyTorch's own CPU code for them, run on the neuron tensor.

They read and write sizes, strides and the storage pointer, never the elements, so that views share storage, `_base` and
version counter as on any device.
"""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from . import memory

CPU_KEY = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)

VIEWS = ("as_strided", "view", "_reshape_alias", "unfold", "view_as_real", "view_as_complex")
SET = ("set_.source_Tensor", "set_.source_Storage", "set_.source_Storage_storage_offset", "is_set_to")

counts = dict.fromkeys((*VIEWS, *SET, "set_"), 0)      # how often each ran, by overload name


def overload(name: str) -> torch._ops.OpOverload:
    """The aten overload that a name such as "set_.source_Tensor" or "view" (its default overload) means."""
    packet, _, which = name.partition(".")
    return getattr(getattr(torch.ops.aten, packet), which or "default")


def _on_metadata(name: str) -> Callable[..., Any]:
    redispatch = overload(name).redispatch

    def run(*args: Any, **kwargs: Any) -> Any:
        counts[name] += 1
        return redispatch(CPU_KEY, *args, **kwargs)

    return run


def _set_to_nothing(self: torch.Tensor) -> torch.Tensor:
    # the CPU code would take an empty CPU storage
    counts["set_"] += 1
    nothing = memory.allocate(0, self.device.index)
    return overload("set_.source_Storage_storage_offset").redispatch(CPU_KEY, self, nothing, 0, (0,))


def register(library: torch.library.Library) -> None:
    for name in VIEWS + SET:
        library.impl(name, _on_metadata(name), "PrivateUse1")
    library.impl("set_", _set_to_nothing, "PrivateUse1")
