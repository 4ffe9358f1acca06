"""From an op call to its record, and from there to what runs."""
from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ..config import config
from ..errors import FallbackError
from . import fallback, tracking
from .schema import OpOverload, Signature, signature
from .tracking import Record

log = logging.getLogger("neuron_eager.dispatch.fallback")

_VARIABLE = b"NEURON_EAGER_FALLBACK"
# The environment as bytes: one dict look-up (25 ns) where os.environ.get takes 0.7 µs.
_environment: Any = getattr(os.environ, "_data", {})


class Watch:
    """Whether warm calls need attention: fallbacks are errors, or calls are timed.

    A call compares the environment's value with `quiet`, so that a variable set after import is seen.
    """

    def __init__(self) -> None:
        self.scopes: list[Any] = []
        self.refresh()
        config.listeners.append(self.refresh)

    def refresh(self) -> None:
        self.quiet = _environment.get(_VARIABLE)
        self.strict = config.fallback == "error"
        if self.strict or self.scopes:
            self.quiet = self           # never what the environment holds


watch = Watch()
_announced: set[tuple[str, str]] = set()


def metas(tensors: Sequence[torch.Tensor | None] | None) -> Any:
    """Shapes and dtypes of a list of tensors, as a part of a key."""
    if tensors is None:
        return None
    return tuple(None if t is None else (t.shape, t.dtype) for t in tensors)


def fallback_entry(op: OpOverload) -> Callable[..., Any]:
    """The function to register for an op that has no kernel: count the call, run the fallback."""
    sig = signature(op)
    records: dict[Any, Record] = {}

    def find(*args: Any, **kwargs: Any) -> Record:
        key, tensors, numbers = _key(sig, args, kwargs)
        record = records.get(key)
        if record is None:
            record = Record(
                sig.name, "fallback", fallback.runner(op, numbers), tuple(t.dtype for t in tensors),
                tuple(tuple(t.shape) for t in tensors), reason="no kernel", nbytes=sum(t.nbytes for t in tensors))
            record.place = tracking.user_place()
            announce(record)
            records[key] = record
            tracking.records.append(record)
        return record

    text, names = _source(sig)
    names |= {"records": records, "find": find, "environment": _environment.get, "variable": _VARIABLE, "watch": watch,
              "attended": attended, "metas": metas}
    return fallback._compile(f"<neuron_eager entry {sig.name}>", text, names)


def _source(sig: Signature) -> tuple[str, dict[str, Any]]:
    names: dict[str, Any] = {}
    parts = []
    for p in sig.parameters:
        if p.tensors:
            parts.append(f"metas({p.name})")
        elif p.tensor and p.optional:
            parts.append(f"None if {p.name} is None else ({p.name}.shape, {p.name}.dtype)")
        elif p.tensor:
            parts.append(f"{p.name}.shape, {p.name}.dtype")
    given = [p.name for p in sig.positional]
    keywords = [f"{p.keyword}={p.name}" for p in sig.keywords if fallback._converted(p)]
    if any(not fallback._converted(p) for p in sig.keywords):
        keywords.append("**rest")
    everything = ", ".join([*given, *keywords])
    return f"""\
{fallback.head(sig, names, "run")}
    try:
        record = records[{", ".join(parts) or "()"}{"," if len(parts) == 1 and "," not in parts[0] else ""}]
    except (KeyError, AttributeError):
        record = None
    if record is None:
        record = find({everything})
    record.calls += 1
    if environment(variable) is not watch.quiet:
        return attended(record, {everything})
    return record.run({everything})
""", names


def _key(sig: Signature, args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[Any, list[torch.Tensor], bool]:
    """(key as the generated source builds it, the tensors, whether a number stands in a tensor's place)."""
    key: list[Any] = []
    tensors: list[torch.Tensor] = []
    numbers = False
    values = dict(zip((p.name for p in sig.positional), args))
    for p in sig.parameters:
        value = values.get(p.name) if not p.keyword_only else kwargs.get(p.keyword, p.default)
        if p.tensors:
            key.append(metas(value))
            tensors += [t for t in value or () if t is not None]
        elif p.tensor and isinstance(value, torch.Tensor):
            key += [(value.shape, value.dtype)] if p.optional else [value.shape, value.dtype]
            tensors.append(value)
        elif p.tensor:
            numbers |= value is not None
            key += [None] if value is None and p.optional else [type(value), None]
    return tuple(key), tensors, numbers


def attended(record: Record, /, *args: Any, **kwargs: Any) -> Any:
    """A call that is timed, or refused because a fallback is an error here."""
    watch.refresh()
    if watch.strict and record.route == "fallback":
        record.calls -= 1
        raise FallbackError(op=record.name, reason=record.reason + (f" ({record.detail})" if record.detail else ""),
                            arguments=tracking.describe(record.dtypes, record.shapes), place=tracking.user_place() or "?",
                            next_step=next_step(record))
    return record.run(*args, **kwargs)


def next_step(record: Record) -> str:
    return f"neuron_eager.register_kernel({record.name!r}, ...) gives it a kernel; NEURON_EAGER_FALLBACK=warn allows it"


def announce(record: Record) -> None:
    """Log a fallback, once per op and reason."""
    if (record.name, record.reason) in _announced or config.fallback != "warn":
        return
    _announced.add((record.name, record.reason))
    log.warning("%s runs on the CPU (only this op): %s%s. Arguments: %s. First at %s. %s", record.name, record.reason,
                f" ({record.detail})" if record.detail else "", tracking.describe(record.dtypes, record.shapes),
                record.place or "?", next_step(record))
