"""Warm calls without Python code: plans installed in native entries (`neuron_eager.native.entry`).

A native entry calls the Python entry for every call it has no plan for, so nothing here decides anything. Where the
native runtime is unavailable the Python entries run everything.
"""
from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..config import config
from ..device import memory
from ..device.kernels import untraced
from ..errors import Unavailable
from . import host
from .schema import Signature
from .tracking import Record

if TYPE_CHECKING:
    from .build import Plan, Source
    from .plan import Arg

log = logging.getLogger(__name__)

LONG = 1 << 22      # elements of a result from which on the GIL is released around the kernel: about a millisecond

entries: list[Any] = []
_enabled = True


@functools.cache
def _runtime() -> Any:
    """The native runtime, which then also makes tensors, views and the device guard's answers; or None, with the reason
    logged."""
    try:
        from ..native import guard, views
        from ..native.runtime import runtime
        native = runtime()
    except (Unavailable, ImportError) as reason:
        log.info("warm ops take the Python path: %s", reason)
        return None
    memory.use_native(native)
    host.use_native(native)
    for what, take in (("views", views.register_views), ("the device guard", guard.install_guard)):
        try:
            take(native)
        except Unavailable as reason:
            log.info("%s stay in Python: %s", what, reason)
    return native


def load() -> None:
    """Load the native runtime, if it can be."""
    if config.hot_path:
        _runtime()


def view_calls() -> dict[str, int]:
    """How often each view op ran that is registered natively."""
    if _runtime.cache_info().currsize == 0:
        return {}
    from ..native import views
    return views.calls()


def clear_view_calls() -> None:
    if view_calls():
        from ..native import views
        views.clear_calls()


def entry(sig: Signature, operands: frozenset[str], python: Callable[..., Any],
          find: Callable[..., Record]) -> Callable[..., Any] | None:
    """A builtin to register for an op, or None. python: the entry for everything else; find: a call's record."""
    if not config.hot_path or (runtime := _runtime()) is None:
        return None
    from ..native.entry import Entry
    if len(sig.keywords) > 6 or any(r.kind in ("tensors", "value") for r in sig.results):
        return None

    def miss(*args: Any, **kwargs: Any) -> Any:
        record = find(*args, **kwargs)
        if record.plan is not None and record.plan.native:
            install(native, sig, record, args, kwargs)
        return python(*args, **kwargs)

    native = Entry(
        runtime, sig.name, untraced(miss),
        operands={i for i, p in enumerate(sig.positional) if p.name in operands}
        | {p.keyword for p in sig.keywords if p.name in operands},
        keywords=tuple(p.keyword for p in sig.keywords))
    native.on_evict = _forget
    native.enabled = _enabled
    entries.append(native)
    return native.call


def install(native: Any, sig: Signature, record: Record, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Let a native entry run calls like this one."""
    from ..native.entry import Argument, Output
    plan: Plan = record.plan
    leaves = _leaves(sig, args, kwargs)
    index = next((a.device_index for a in plan.call.tensors if a.device_index is not None), 0)
    outputs = [Argument(leaves[o.into.name, _element(plan, o.into)]) if o.into is not None
               else Output(o.shape, o.strides, o.dtype, index) for o in plan.outputs]
    pointers = [_pointer(s, plan, leaves, outputs) for s in plan.sources]
    pairs = [(leaves[a.name, _element(plan, a)], leaves[b.name, _element(plan, b)], same)
             for a, b, same in plan.disjoint]
    installed = native.install(
        args, kwargs, plan.executable.address, plan.executable.r0, plan.executable.r1, pointers=pointers,
        results=[outputs[r] for r in plan.results if r is not None], disjoint=pairs, user=record,
        nogil=any(a.numel >= LONG for a in plan.call.tensors))
    if installed is not None:
        record.natives.append(installed)


def _leaves(sig: Signature, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[tuple[str, int | None], int]:
    """The number of each leaf of a call as PyTorch hands it over: (parameter, element of a list) → leaf."""
    leaves: dict[tuple[str, int | None], int] = {}
    names = {p.keyword: p.name for p in sig.keywords}
    given = [*zip((p.name for p in sig.positional), args), *((names[k], v) for k, v in kwargs.items())]
    for name, value in given:
        for element in range(len(value)) if type(value) is list else (None,):
            leaves[name, element] = len(leaves)
    return leaves


def _pointer(s: Source, plan: Plan, leaves: Mapping[tuple[str, int | None], int], outputs: Sequence[Any]) -> Any:
    from ..native.entry import Argument, Constant, constant
    if s.kind == "output":
        return outputs[s.index]
    if s.kind == "tensor":
        return Argument(leaves[s.name, s.element], s.offset)
    at = 0 if s.slot == "float32" else 8        # an operand is {float32, 4 bytes, its exact 64 bits}
    if s.kind == "number" and (s.name, None) in leaves:
        return Argument(leaves[s.name, None], at)
    value = s.value if s.kind == "constant" else plan.call.default(s.name)
    return Constant(constant(int(value) if s.slot == "int64" else float(value)).address + at)


def _element(plan: Plan, arg: Arg) -> int | None:
    value = plan.call[arg.name]
    return next(i for i, a in enumerate(value) if a is arg) if isinstance(value, list) else None


def _forget(plan: Any) -> None:
    record: Record = plan.user
    record.natives.remove(plan)
    record.calls += plan.hits


def enable(on: bool) -> None:
    """Let native entries run warm calls, or send every call through Python (to be timed)."""
    global _enabled
    _enabled = on
    for e in entries:
        e.enabled = on


def clear() -> None:
    """Forget all plans."""
    for e in entries:
        e.clear()


__all__ = ["clear", "enable", "entries", "entry", "install"]
