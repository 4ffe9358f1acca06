"""`explain(op, *args)`: which way a call would go, and why."""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from . import call, routes
from .reasons import Decline, Reason
from .routes import FunctionRule, Kind, Route
from .schema import Signature, signature

if TYPE_CHECKING:
    from .plan import KernelCall


@dataclass(frozen=True)
class Explanation:
    """route: "kernel" | "view" | "decomposition" | "fallback". why: one sentence. reason: of a fallback."""

    op: str
    route: str
    why: str
    reason: Reason | None = None

    def __str__(self) -> str:
        return f"{self.op}: {self.route}: {self.why}"


def explain(op: Any, *args: Any, **kwargs: Any) -> Explanation:
    """Which route an op takes on neuron, and why; with arguments (neuron or CPU tensors), which one this call takes.

    Nothing runs. op: as for `register_kernel`.

    Raises:
        UnknownOpError: there is no such op.
        TypeError: these are not the op's arguments. RuntimeError and others: PyTorch refuses them.
    """
    overload = routes.resolve(op)
    name, route = overload._name, routes.route(overload)
    if route.kind is not Kind.KERNEL or not (args or kwargs):
        reason = Reason.NO_KERNEL if route.kind is Kind.FALLBACK else None
        return Explanation(name, str(route.kind), route.why, reason)
    sig = signature(overload)
    _check(sig, args, kwargs)
    values = call._by_name(sig, args, kwargs)
    decline = (call._forced(name) or call._on_other_device(sig, values) or call._policy(name, values)
               or call._asked(sig, route, values))
    if decline is None and route.rule is not None and not isinstance(route.rule, FunctionRule):
        from .plan import Call
        lowered = route.rule.lower(Call(overload, values, getattr(route.rule, "operands", ())))
        if not isinstance(lowered, Decline):
            return Explanation(name, "kernel", _chosen(lowered, route))
        decline = lowered
    if decline is None:
        return Explanation(name, "kernel", route.why)
    return Explanation(name, "fallback", f"{route.why}, declines: {decline.reason}"
                       + (f" ({decline.detail})" if decline.detail else ""), decline.reason)


def _check(sig: Signature, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Raises TypeError unless the arguments are those of the op."""
    given = {p.keyword for p in sig.positional[:len(args)]} | kwargs.keys()
    missing = [p.keyword for p in sig.parameters if not p.has_default and p.keyword not in given]
    unknown = kwargs.keys() - {p.keyword for p in sig.parameters}
    if missing or unknown or len(args) > len(sig.positional):
        raise TypeError(f"{sig.name} takes {', '.join(p.keyword for p in sig.parameters)}"
                        + (f"; {', '.join(missing)} is missing" if missing else ""))


def _chosen(lowered: KernelCall, route: Route) -> str:
    """The NKI kernel of a call, its place, what it is specialised for, and the rule that says so."""
    kernel = lowered.kernel
    constants = ", ".join(f"{n}={getattr(v, '__name__', v)}" for n, v in lowered.constants.items() if v is not None)
    return (f"NKI kernel {kernel.name} ({kernel.loc})" + (f" with {constants}" if constants else "")
            + ("" if kernel is route.kernel else f"; {route.why.removeprefix('a kernel, ')}"))


__all__ = ["Explanation", "explain"]
