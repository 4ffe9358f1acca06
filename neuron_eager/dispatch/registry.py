"""Registration with PyTorch's dispatcher. An op's function is generated when the op is first called."""
from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch

from .. import logs
from ..config import config
from ..device.kernels import untraced
from . import call, special
from .schema import OpOverload, by_name

_KEY = "PrivateUse1"
_entries: dict[str, Callable[..., Any]] = {}
_libraries: dict[str, Any] = {}


def library(namespace: str) -> Any:
    """The registrar of a namespace; kept for ever, as its registrations live as long as it does."""
    if namespace not in _libraries:
        _libraries[namespace] = torch._C._dispatch_library("IMPL", namespace, "", __file__, 0)
    return _libraries[namespace]


def install(name: str, function: Callable[..., Any]) -> None:
    """Make `function` what PyTorch calls for the op on neuron tensors."""
    namespace, _, rest = name.partition("::")
    library(namespace).impl(rest, _KEY, untraced(function), False)


def register() -> None:
    """Give every aten op with a CPU kernel a registration, and everything else a boxed fallback."""
    logs.apply()
    config.listeners.append(logs.apply)
    taken = set(torch._C._dispatch_get_registrations_for_dispatch_key(_KEY))
    for name in {*torch._C._dispatch_get_registrations_for_dispatch_key("CPU"), *special.ON_CPU}:
        if name.startswith("aten::") and name not in taken:
            install(name, _first_call(name))
    library("_").fallback(_KEY, untraced(_boxed), False)
    for key, kind in special.REFUSED_LAYOUTS.items():
        library("_").fallback(key, special.refuse_layout(kind), False)
    _use_up_override_warning()


def _first_call(name: str) -> Callable[..., Any]:
    """What stands in for an op until its first call: generates the real function and registers it."""
    def first_call(*args: Any, **kwargs: Any) -> Any:
        entry = _entries.get(name)
        if entry is None:
            entry = _entries[name] = call.fallback_entry(by_name(name))
            install(name, entry)
        return entry(*args, **kwargs)
    return first_call


def _boxed(op: OpOverload, *args: Any, **kwargs: Any) -> Any:
    """Ops without a registration: custom ops, and ops of other libraries."""
    entry = _entries.get(op._name)
    if entry is None:
        entry = _entries[op._name] = call.fallback_entry(op)
    return entry(*args, **kwargs)


def _use_up_override_warning() -> None:
    # PyTorch warns once per process when a registration is replaced, which is what every first call does here.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        install("aten::_make_dep_token", _first_call("aten::_make_dep_token"))
