"""Registration with PyTorch's dispatcher. An op's entry is generated when the op is first called."""
from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any

import torch

from .. import logs
from ..config import config
from ..device.kernels import untraced
from ..errors import UnsupportedTorchError
from ..kernels import COMPOSITES
from . import call, host, native, routes, special
from .schema import OpOverload, by_name

KEY, AUTOGRAD = "PrivateUse1", "AutogradPrivateUse1"

_entries: dict[str, Callable[..., Any]] = {}
_libraries: dict[str, Any] = {}


def register() -> None:
    """Give every aten op with a CPU kernel a registration, and every other op a boxed fallback.

    An explicit registration is needed: a fallback is outranked by PyTorch's decompositions (CompositeExplicitAutograd),
    which would turn x + y into an allocation and add.out.
    """
    if not host.check_layout():
        raise UnsupportedTorchError(version=torch.__version__, missing="DLPack capsules as known",
                                    supported="2.13 to 2.14")
    logs.apply()
    taken = set(torch._C._dispatch_get_registrations_for_dispatch_key(KEY))
    served = {*torch._C._dispatch_get_registrations_for_dispatch_key("CPU"), *special.ON_CPU, *COMPOSITES} - taken
    for name in served - special.BEHIND_AUTOGRAD:
        if name.startswith("aten::"):
            install(name, _first_call(name))
    for name, function in special.DECOMPOSED.items():
        install(name, function, KEY if name in special.BEHIND_AUTOGRAD else AUTOGRAD)
    _library("_").fallback(KEY, untraced(_boxed), False)
    for key, (kind, ops) in special.REFUSED_LAYOUTS.items():
        for name in ops:
            install(f"aten::{name}", special.refuse_layout(kind, name), key)
    _use_up_override_warning()
    for name, in_front in special.IN_FRONT.items():
        install(name, in_front(functools.partial(entry, by_name(name))))
    routes.on_change(_replace)
    routes.on_provide(_stand_in)
    config.listeners.extend((logs.apply, _settings_changed))
    _follow_default_dtype()


def install(name: str, function: Callable[..., Any], key: str = KEY) -> None:
    """Make `function` what PyTorch calls for an op on neuron tensors."""
    namespace, _, rest = name.partition("::")
    _library(namespace).impl(rest, key, untraced(function), False)


def _library(namespace: str) -> Any:
    """The registrar of a namespace; kept for ever, as its registrations live as long as it does."""
    if namespace not in _libraries:
        _libraries[namespace] = torch._C._dispatch_library("IMPL", namespace, "", __file__, 0)
    return _libraries[namespace]


def entry(op: OpOverload) -> Callable[..., Any]:
    """What runs an op, by its route; generated once."""
    made = _entries.get(op._name)
    if made is None:
        native.load()
        route = routes.route(op)
        made = call.kernel_entry(op, route) if route.kind is routes.Kind.KERNEL else call.fallback_entry(op)
        _entries[op._name] = made
    return made


def _first_call(name: str) -> Callable[..., Any]:
    """What stands in for an op until its first call."""
    def first_call(*args: Any, **kwargs: Any) -> Any:
        made = entry(by_name(name))
        install(name, made)
        return made(*args, **kwargs)
    return first_call


def _boxed(op: OpOverload, *args: Any, **kwargs: Any) -> Any:
    """Ops without a registration: custom ops, and ops of other libraries."""
    return entry(op)(*args, **kwargs)


def _replace(op: OpOverload) -> None:
    """An op's route has changed."""
    _entries.pop(op._name, None)
    if routes.route(op).kind in (routes.Kind.KERNEL, routes.Kind.FALLBACK):
        _stand_in(op._name)


def _stand_in(name: str) -> None:
    """Register what finds out the op's route at its next call."""
    composed = torch._C._dispatch_has_kernel_for_dispatch_key(name, "CompositeImplicitAutograd")
    if composed and name not in special.DECOMPOSED:
        install(name, special.unless_recorded(by_name(name)), AUTOGRAD)
    _entries.pop(name, None)
    if name not in special.IN_FRONT:
        install(name, _first_call(name))


_decided_by: tuple[Any, ...] = ()


def _settings_changed() -> None:
    """Decide anew for every call, if a setting has changed that decisions depend on."""
    global _decided_by
    now = config.force_cpu, config.float64, config.executor
    if now != _decided_by:
        _decided_by = now
        _forget_decisions()


def _forget_decisions() -> None:
    native.clear()
    call.clear_plans()


def _follow_default_dtype() -> None:
    # Plans know the default dtype, to which integers are promoted; torch.set_default_dtype calls this C function.
    original = torch._C._set_default_dtype

    def set_default_dtype(dtype: torch.dtype) -> None:
        original(dtype)
        _forget_decisions()
    torch._C._set_default_dtype = set_default_dtype


def _use_up_override_warning() -> None:
    # PyTorch warns once per process when a registration is replaced, which is what every first call does here.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        install("aten::_make_dep_token", _first_call("aten::_make_dep_token"))
