"""From an op call to what runs: key → dict → run; and on a miss, the decision.

Every op has an entry, a function generated from its schema that looks a call's kind up and runs what was decided for
it. Entries of ops without a kernel know shapes and dtypes (for the report); entries of ops with one also know strides
and static arguments, because a kernel is specialised for them.
"""
from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from ..config import config
from ..errors import FallbackError, Float64Error
from . import fallback, functions, routes, tracking
from .host import Number
from .reasons import Decline, Reason
from .routes import FunctionRule, Route
from .schema import OpOverload, Parameter, Signature, signature
from .tracking import Record

fallback_log = logging.getLogger("neuron_eager.dispatch.fallback")
log = logging.getLogger(__name__)

_VARIABLE = b"NEURON_EAGER_FALLBACK"
# The environment as bytes: one dict look-up (25 ns) where os.environ.get takes 0.7 µs.
_environment: Any = getattr(os.environ, "_data", {})


class Watch:
    """Whether warm calls need attention: fallbacks are errors, or calls are timed.

    A call compares the environment's value with `quiet`, so that a variable set after import is seen.
    """

    def __init__(self) -> None:
        self.scopes = 0             # open track_ops() scopes
        self.refresh()
        config.listeners.append(self.refresh)

    def refresh(self) -> None:
        self.quiet = _environment.get(_VARIABLE)
        self.strict = config.fallback == "error"
        if self.strict or self.scopes:
            self.quiet = self       # never what the environment holds


watch = Watch()


# ---- entries

def fallback_entry(op: OpOverload) -> Callable[..., Any]:
    """The function to register for an op that has no kernel: find the record, count, run the CPU kernel."""
    sig = signature(op)
    held = [p for p in sig.parameters if p.tensor or p.tensors]
    records: dict[Any, Record] = {}

    def find(*args: Any, **kwargs: Any) -> Record:
        values = _by_name(sig, args, kwargs)
        key = tuple(part for p in held for part in _shape_key(p, values[p.name], p is not held[0]))
        record = records.get(key)
        if record is None:
            decline = _forced(sig.name) or Decline(Reason.NO_KERNEL)
            scattered = _on_other_device(sig, values) is not None
            record = tracking.add(records, key, fallback_record(op, values, decline, doubtful=scattered))
        return record

    keys = [_shape_source(p, p is not held[0]) for p in held]
    names: dict[str, Any] = {}
    return _entry(sig, keys, fallback.head(sig, names, "run"), names, records, find, rest=True)


def kernel_entry(op: OpOverload, route: Route) -> Callable[..., Any]:
    """The function to register for an op with a kernel: find the plan for this kind of call, count, run it."""
    sig = signature(op)
    operands = frozenset(getattr(route.rule, "operands", ()))
    records: dict[Any, Record] = {}

    def find(*args: Any, **kwargs: Any) -> Record:
        values = _by_name(sig, args, kwargs)
        key = tuple(part for p in sig.parameters for part in _kind_key(p, values[p.name], p.name in operands))
        record = records.get(key)
        if record is None:
            record = tracking.add(records, key, decide(op, route, values))
        return record

    keys = [_kind_source(p, p.name in operands) for p in sig.parameters]
    names: dict[str, Any] = {}
    entry = _entry(sig, keys, fallback.head(sig, names, "run", explicit=True), names, records, find, rest=False)
    _clears.append(records.clear)
    return native_entry(sig, operands, entry, find) or entry


def _entry(sig: Signature, keys: list[str], head: str, names: dict[str, Any], records: dict[Any, Record],
           find: Callable[..., Record], rest: bool) -> Callable[..., Any]:
    given = [p.name for p in sig.positional]
    given += [f"{p.keyword}={p.name}" for p in sig.keywords if not rest or fallback.converted(p)]
    if rest and any(not fallback.converted(p) for p in sig.keywords):
        given.append("**rest")
    everything = ", ".join(given)
    text = f"""\
{head}
    try:
        record = records[({"".join(k + ", " for k in keys)})]
    except (KeyError, AttributeError, TypeError):
        record = None
    if record is None:
        record = find({everything})
    if environment(variable) is not watch.quiet:
        return attended(record, {everything})
    result = record.run({everything})
    record.calls += 1
    return result
"""
    names |= {"records": records, "find": find, "environment": _environment.get, "variable": _VARIABLE, "watch": watch,
              "attended": attended, "shapes_of": shapes_of, "kinds_of": kinds_of, "exact": exact}
    return fallback.compile_source(f"<neuron_eager entry {sig.name}>", text, names)


def attended(record: Record, /, *args: Any, **kwargs: Any) -> Any:
    """A call while something is watched: refuse a fallback where it is an error, take the time in a scope."""
    watch.refresh()
    if watch.strict and record.route == "fallback" and not isinstance(record.run, Doubtful):
        raise refused(record)
    if not watch.scopes:
        result = record.run(*args, **kwargs)
        record.calls += 1
        return result
    return tracking.timed(record, args, kwargs)


def refused(record: Record) -> FallbackError:
    return FallbackError(op=record.name, reason=record.why, arguments=record.arguments,
                         place=tracking.user_place() or "unknown", next_step=next_step(record))


# ---- the decision, on a miss

def decide(op: OpOverload, route: Route, values: Mapping[str, Any]) -> Record:
    """What runs calls of this kind: a kernel's plan, or the fallback with a reason."""
    from . import build
    from .plan import Call
    name, sig = op._name, signature(op)

    elsewhere: list[Record] = []

    def overlapped(*args: Any, **kwargs: Any) -> Any:
        """A call of this kind whose arguments overlap in memory: the CPU's business, or its error."""
        if not elsewhere:
            elsewhere.append(fallback_record(op, _by_name(sig, args, kwargs),
                                             Decline(Reason.SHAPE, "arguments overlap in memory")))
            tracking.records.append(elsewhere[0])
        record.calls -= 1       # its caller counts it as a kernel's
        return attended(elsewhere[0], *args, **kwargs)

    scattered = _on_other_device(sig, values)
    if scattered is not None:
        return fallback_record(op, values, scattered, doubtful=True)
    decline = _forced(name) or _policy(name, values) or _asked(sig, route, values)
    plan = None
    if decline is None and not isinstance(route.rule, FunctionRule):
        assert route.rule is not None
        call = Call(op, values, getattr(route.rule, "operands", ()))
        try:
            lowered = route.rule.lower(call)
            found = lowered if isinstance(lowered, Decline) else build.build(call, lowered, _executor(), overlapped)
        except (RuntimeError, IndexError, TypeError, ValueError) as error:
            if _from_pytorch(error) and isinstance(error, NotImplementedError):
                return fallback_record(op, values, Decline(Reason.SHAPE, "the shape of its result depends on values"))
            if _from_pytorch(error):
                # PyTorch refuses the call: its CPU kernel says so in its own words
                return fallback_record(op, values, Decline(Reason.SHAPE, str(error).partition("\n")[0]), doubtful=True)
            if isinstance(error, TypeError):
                raise functions.type_error(name, values, error) from error
            raise
        finally:
            call.release()
        decline, plan = (found, None) if isinstance(found, Decline) else (None, found)
    if decline is not None:
        return fallback_record(op, values, decline)
    run = functions.checked(sig, route.rule.function) if isinstance(route.rule, FunctionRule) else plan.run  # type: ignore[union-attr]
    record = Record(name, "kernel", run, _tensors(values), why=route.why)
    record.plan = plan
    if plan is not None and not getattr(route.rule, "exact", False):
        _warn_of_float64(name, values)
    log.debug("%s(%s): %s", name, record.arguments, route.why)
    return record


class Doubtful:
    """The fallback of a call that PyTorch probably refuses: nothing is said of it before it has succeeded once."""

    def __init__(self, record: Record, run: Callable[..., Any]):
        self.record, self.run = record, run

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        result = self.run(*args, **kwargs)
        self.record.run = self.run
        if watch.strict:
            raise refused(self.record)
        announce(self.record)
        return result


def fallback_record(op: OpOverload, values: Mapping[str, Any], decline: Decline, doubtful: bool = False) -> Record:
    numbers = any(p.type == "Tensor" and isinstance(values[p.name], Number) for p in signature(op).parameters)
    run = fallback.runner(op, numbers)
    record = Record(op._name, "fallback", run, _tensors(values), decline.reason, decline.detail)
    if doubtful:
        record.run = Doubtful(record, run)
    else:
        announce(record)
    return record


def _forced(name: str) -> Decline | None:
    forced = config.force_cpu
    if forced:
        for unseen in forced - _named:
            _named.add(unseen)
            wrong = routes.unknown(unseen)
            if wrong is not None:
                log.warning("NEURON_EAGER_FORCE_CPU: %s", wrong)
        packet = name.partition(".")[0]
        forms = {form for n in (name, packet) for form in (n, n.replace("::", "."), n.removeprefix("aten::"))}
        if forms & forced:
            return Decline(Reason.FORCED, "config.force_cpu")
    return None


def _on_other_device(sig: Signature, values: Mapping[str, Any]) -> Decline | None:
    """Arguments on several devices. The fallback raises PyTorch's error for them, or knows that they are allowed."""
    devices = {t.device for t in _tensors(values) if not (t.is_cpu and t.dim() == 0)}
    if len(devices) > 1 or any(p.written and isinstance(values[p.name], torch.Tensor) and values[p.name].is_cpu
                               for p in sig.parameters):
        return Decline(Reason.SHAPE, f"arguments on {', '.join(sorted(map(str, devices)))}")
    return None


def _policy(name: str, values: Mapping[str, Any]) -> Decline | None:
    """What `config.float64` says of float64 tensors with dimensions."""
    if not any(t.dtype is torch.float64 and not t.is_cpu for t in _tensors(values)):
        return None
    if config.float64 == "error":
        raise Float64Error(op=name, place=tracking.user_place() or "unknown")
    if config.float64 == "cpu":
        return Decline(Reason.POLICY, "float64 runs on the CPU: config.float64")
    return None


def _warn_of_float64(name: str, values: Mapping[str, Any]) -> None:
    """A kernel computes float64 tensors in float32: say so, once per op."""
    if ("float64", name) in _said or not any(t.dtype is torch.float64 and not t.is_cpu for t in _tensors(values)):
        return
    _said.add(("float64", name))
    log.warning("%s computes float64 tensors in float32; their dtype stays float64. NEURON_EAGER_FLOAT64=cpu computes "
                "them exactly, on the CPU; =error refuses them. At %s", name, tracking.user_place() or "unknown")


def _asked(sig: Signature, route: Route, values: Mapping[str, Any]) -> Decline | None:
    if route.can_run is None:
        return None
    keywords = {p.keyword: values[p.name] for p in sig.keywords}
    answer = route.can_run(*(values[p.name] for p in sig.positional), **keywords)
    if answer is True:
        return None
    if isinstance(answer, Decline):
        return answer
    return Decline(Reason.SHAPE, answer if isinstance(answer, str) else f"can_run returned {answer!r}")


def _from_pytorch(error: BaseException) -> bool:
    """Whether an error was raised in a meta kernel, called by `Call.outputs`, rather than by a rule's own code."""
    from .plan import Call
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code is Call.outputs.func.__code__:     # type: ignore[attr-defined]
            return True
        trace = trace.tb_next
    return False


def _executor() -> Any:
    from .. import executors
    return executors.current()


_said: set[tuple[str, str]] = set()
_named: set[str] = set()            # names in `config.force_cpu` that were looked up
_clears: list[Callable[[], None]] = []


def clear_plans() -> None:
    """Decide anew for every op with a kernel: a setting has changed that decisions depend on."""
    for clear in _clears:
        clear()


def announce(record: Record) -> None:
    """Log a fallback, once per op and reason."""
    said = (record.name, str(record.reason))
    if said in _said or config.fallback != "warn":
        return
    _said.add(said)
    fallback_log.warning("%s runs on the CPU, only this op: %s. Arguments: %s. At %s. %s", record.name, record.why,
                         record.arguments, record.place or "unknown", next_step(record))


def next_step(record: Record) -> str:
    if record.reason is Reason.FORCED:
        return "Take it out of NEURON_EAGER_FORCE_CPU to run its kernel"
    if record.reason is Reason.POLICY:
        return "NEURON_EAGER_FLOAT64=float32 runs its kernel"
    if record.reason is Reason.NO_KERNEL:
        return f"neuron_eager.register_kernel({record.name!r}, kernel) gives it one"
    return f"neuron_eager.explain({record.name!r}, ...) says what its kernel takes"


# ---- keys

def _by_name(sig: Signature, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    values = {p.name: p.default for p in sig.parameters}
    values.update(zip((p.name for p in sig.positional), args))
    values.update({p.name: kwargs[p.keyword] for p in sig.keywords if p.keyword in kwargs})
    return values


def _tensors(values: Mapping[str, Any]) -> list[torch.Tensor]:
    flat = (t for v in values.values() for t in (v if isinstance(v, (list, tuple)) else (v,)))
    return [t for t in flat if isinstance(t, torch.Tensor)]


def shapes_of(tensors: Sequence[torch.Tensor | None] | None) -> Any:
    """Shapes and dtypes of a list of tensors, as a part of a key."""
    return None if tensors is None else tuple(None if t is None else (t.shape, t.dtype) for t in tensors)


def kinds_of(tensors: Sequence[torch.Tensor | None] | None) -> Any:
    """What plans depend on in a list of tensors."""
    return None if tensors is None else tuple(
        None if t is None else (t.shape, t.stride(), t.dtype, t.get_device()) for t in tensors)


def exact(value: Any) -> Any:
    """A number as a part of a key: 1, 1.0 and True differ, as do 0.0 and -0.0; NaN equals itself."""
    return type(value), repr(value)


def _shape_source(p: Parameter, number: bool) -> str:
    """number: a Python number is likely in this tensor's place."""
    if p.tensors:
        return f"shapes_of({p.name})"
    one = f"{p.name}.shape, {p.name}.dtype"
    if p.optional:
        return f"None if {p.name} is None else ({one})"
    return f"float if type({p.name}) is float else ({one})" if number else one


def _shape_key(p: Parameter, value: Any, number: bool) -> tuple[Any, ...]:
    """What the source above makes of a value, for the values it can not read as well."""
    if p.tensors:
        return (shapes_of(value),)
    if isinstance(value, torch.Tensor):
        return ((value.shape, value.dtype),) if p.optional or number else (value.shape, value.dtype)
    return (None,) if value is None else (type(value),)


def _kind_source(p: Parameter, operand: bool) -> str:
    n = p.name
    if p.tensors:
        return f"kinds_of({n})"
    if p.tensor:
        kind = f"{n}.shape, {n}.stride(), {n}.dtype, {n}.get_device()"
        if p.optional:
            return f"None if {n} is None else ({kind})"
        return f"float if type({n}) is float else ({kind})" if operand else kind
    if operand:
        return f"type({n})"
    if "number" in p.type or "float" in p.type:
        return f"None if {n} is None else tuple(map(exact, {n}))" if "List" in p.type else f"exact({n})"
    if "List" in p.type:
        return f"None if {n} is None else tuple({n})"
    return f"{n} is None" if "Generator" in p.type else n


def _kind_key(p: Parameter, value: Any, operand: bool) -> tuple[Any, ...]:
    """What the source above makes of a value, for the values it can not read as well."""
    if p.tensors:
        return (kinds_of(value),)
    if p.tensor:
        if isinstance(value, torch.Tensor):
            kind = (value.shape, value.stride(), value.dtype, value.get_device())
            return (kind,) if p.optional or operand else kind
        if value is None:
            return (None,)
        return (type(value),) if operand else (*exact(value), None, None)
    if operand:
        return (type(value),)
    if "number" in p.type or "float" in p.type:
        if "List" in p.type:
            return (None if value is None else tuple(map(exact, value)),)
        return (exact(value),)
    if "List" in p.type:
        return (None if value is None else tuple(value),)
    return (value is None,) if "Generator" in p.type else (value,)


# ---- the native path

def native_entry(sig: Signature, operands: frozenset[str], entry: Callable[..., Any],
                 find: Callable[..., Record]) -> Callable[..., Any] | None:
    """A builtin that runs warm calls without Python code, and calls `entry` for the others; or None."""
    from . import native
    return native.entry(sig, operands, entry, find)
