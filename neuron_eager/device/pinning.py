"""Pinned memory: the device reads host memory as it is, so pinning a CPU tensor copies it once and marks the copy."""
from __future__ import annotations

import weakref
from typing import Any

import torch

_pinned: weakref.WeakKeyDictionary[torch.UntypedStorage, bool] = weakref.WeakKeyDictionary()


def pin_memory(self: torch.Tensor, device: Any = None) -> torch.Tensor:
    pinned = self.clone()
    _pinned[pinned.untyped_storage()] = True
    return pinned


def is_pinned(self: torch.Tensor, device: Any = None) -> bool:
    return self.untyped_storage() in _pinned


def refuse_to_pin(self: torch.Tensor, device: Any = None) -> torch.Tensor:
    raise RuntimeError(f"cannot pin '{self.type()}' only dense CPU tensors can be pinned")


def is_not_pinned(self: torch.Tensor, device: Any = None) -> bool:
    return False


def register(library: torch.library.Library) -> None:
    for key, pin, ask in (("CPU", pin_memory, is_pinned), ("PrivateUse1", refuse_to_pin, is_not_pinned)):
        library.impl("_pin_memory", pin, key)
        library.impl("is_pinned", ask, key)
