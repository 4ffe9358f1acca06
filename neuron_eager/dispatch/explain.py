"""`explain(op, *args)`: which way a call would go, and why."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from . import call, routes
from .reasons import Decline, Reason
from .routes import FunctionRule, Kind
from .schema import signature


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
    """
    overload = routes.resolve(op)
    name, route = overload._name, routes.route(overload)
    if route.kind is not Kind.KERNEL or not (args or kwargs):
        reason = Reason.NO_KERNEL if route.kind is Kind.FALLBACK else None
        return Explanation(name, str(route.kind), route.why, reason)
    sig = signature(overload)
    values = call._by_name(sig, args, kwargs)
    decline = call._forced(name) or call._policy(name, values) or call._asked(sig, route, values)
    from .plan import Call
    if decline is None and route.rule is not None and not isinstance(route.rule, FunctionRule):
        lowered = route.rule.lower(Call(overload, values, getattr(route.rule, "operands", ())))
        decline = lowered if isinstance(lowered, Decline) else None
    if decline is None:
        return Explanation(name, "kernel", route.why)
    return Explanation(name, "fallback", f"{route.why} declines: {decline.reason}"
                       + (f" ({decline.detail})" if decline.detail else ""), decline.reason)


__all__ = ["Explanation", "explain"]
