"""The route table: which way an op takes on neuron, and why.

    kernel          a registered kernel; where its rule declines a call, that call takes the fallback
    view            metadata only, PyTorch's own code
    decomposition   PyTorch's own decomposition into ops that have a route
    fallback        the CPU kernel
"""
from __future__ import annotations

import difflib
import enum
import functools
import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from ..device import views
from ..errors import KernelSignatureError, UnknownOpError
from . import special
from .reasons import Decline, Reason
from .schema import OpOverload, by_name, signature

if TYPE_CHECKING:
    from .plan import Call, KernelCall, Rule


class Kind(enum.Enum):
    KERNEL = "kernel"
    VIEW = "view"
    DECOMPOSITION = "decomposition"
    FALLBACK = "fallback"

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True)
class Route:
    """Where an op goes. `kernel`, `can_run` and `reference` as given to `register_kernel`; `rule` serves the calls."""

    kind: Kind
    why: str
    kernel: Any = None
    rule: Rule | None = None
    can_run: Callable[..., Any] | None = None
    reference: Callable[..., Any] | None = None


_kernels: dict[OpOverload, Route] = {}
_replaced: dict[OpOverload, Route | None] = {}      # the package's own kernel, where `register_kernel` took its place
_loaders: dict[str, Callable[[], None]] = {}        # op name -> what registers its kernel, run at the op's first use
_provided: list[Callable[[str], None]] = []         # called when an op has been provided for
_changed: list[Callable[[OpOverload], None]] = []   # called when an op's route changes


# ---- ops by name

def resolve(op: OpOverload | torch._ops.OpOverloadPacket | str) -> OpOverload:
    """The overload that `op` means: an overload, a packet (its default overload), "aten::mm", "aten.add.Tensor", "mm".

    Raises:
        UnknownOpError: there is no such op, or a packet without default overload is meant.
    """
    if isinstance(op, OpOverload):
        return op
    name = op._qualified_op_name if isinstance(op, torch._ops.OpOverloadPacket) else str(op)
    name = name.removeprefix("torch.ops.")
    if "::" not in name:
        namespace, _, rest = name.partition(".")
        foreign = rest and hasattr(torch.ops, namespace) and not _is_aten(name)
        name = f"{namespace}::{rest}" if foreign else f"aten::{name}"
    try:
        overload = by_name(name.removesuffix(".default"))
        torch._C._dispatch_find_schema_or_throw(overload._schema.name, overload._schema.overload_name)
        return overload
    except (AttributeError, RuntimeError):      # no such op, or one that only TorchScript knows
        pass
    raise UnknownOpError(op=str(op), nearest=nearest(name))


def _is_aten(name: str) -> bool:
    """Whether "add.Tensor" means aten::add.Tensor, rather than an op `Tensor` of a namespace `add`."""
    return hasattr(torch.ops.aten, name.partition(".")[0]) and name.partition(".")[0] != "aten"


def nearest(name: str) -> str:
    packet = name.partition(".")[0]
    every = torch._C._dispatch_get_all_op_names()
    same = [n for n in every if n.partition(".")[0] == packet]
    close = same or difflib.get_close_matches(name, every, n=3)
    return f" (there is {', '.join(sorted(close)[:8])})" if close else ""


def unknown(name: str) -> str | None:
    """What is said of a name that is neither an op's nor a packet's; None if it is one. As in `config.force_cpu`."""
    try:
        resolve(name)
    except UnknownOpError as error:
        namespace, _, packet = name.replace("::", ".").rpartition(".")
        home = getattr(torch.ops, namespace or "aten")
        return None if packet in dir(home) or hasattr(home, packet) else str(error)
    return None


# ---- the table

@functools.cache
def load_kernels() -> None:
    """Enter the kernels of this package, at the first op: importing them takes longer than importing the package."""
    from .. import kernels
    for op, rule in kernels.served():
        _kernels.setdefault(op, Route(Kind.KERNEL, f"a kernel, by the rule {_label(rule)}", rule, rule))


def route(op: OpOverload) -> Route:
    """The op's route, and why it is that one."""
    load_kernels()
    load = _loaders.get(op._name)
    if load is not None:
        for name in [n for n, other in _loaders.items() if other is load]:
            del _loaders[name]      # before it registers kernels, which looks their ops up here
        load()
    if op in _kernels:
        return _kernels[op]
    name = op._name
    if name.removeprefix("aten::") in views.counts:
        return Route(Kind.VIEW, "changes sizes, strides or the storage pointer only")
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    if name in special.DECOMPOSED:
        return Route(Kind.DECOMPOSITION, "neuron_eager.dispatch.special composes it of other ops")
    if name in special.ON_CPU:
        return Route(Kind.FALLBACK, "no kernel; neuron_eager.dispatch.special says what it computes on the CPU")
    if has(name, "CPU"):
        return Route(Kind.FALLBACK, "no kernel; PyTorch has one for the CPU")
    if has(name, "CompositeImplicitAutograd"):
        return Route(Kind.DECOMPOSITION, "PyTorch composes it of other ops (CompositeImplicitAutograd)")
    if has(name, "CompositeExplicitAutograd") or has(name, "CompositeExplicitAutogradNonFunctional"):
        return Route(Kind.DECOMPOSITION, "PyTorch composes it of other ops (CompositeExplicitAutograd)")
    return Route(Kind.FALLBACK, "neither a kernel nor a decomposition nor a CPU kernel: calls raise NoKernelError")


def register_kernel(op: OpOverload | torch._ops.OpOverloadPacket | str, kernel: Any, *,
                    can_run: Callable[..., Any] | None = None, reference: Callable[..., Any] | None = None) -> None:
    """Let a kernel serve an op on neuron, in place of its present route.

    Args:
        op: an overload, a packet (its default overload) or a name: torch.ops.aten.mm.default, "aten::mm",
            "aten.add.Tensor".
        kernel: one of
            - an `nki.jit` kernel: called with the op's tensors and other arguments in schema order, the others as
              compile-time constants; the new HBM tensors that it returns are the results (of an in-place op, the
              argument that it wrote);
            - a function with the op's own arguments, which gets and returns neuron tensors;
            - a `Rule`.
        can_run: asked with the op's arguments, once per kind of call (shapes, strides, dtypes, static arguments), so it
            must look at metadata only. True, or why not: a str or a `Decline`. Then that call goes to the CPU.
        reference: a function with the op's arguments on CPU tensors, to verify the kernel against.

    Raises:
        UnknownOpError: there is no such op.
        KernelSignatureError: the kernel, can_run or reference can not be called with the op's arguments.
    """
    overload = resolve(op)
    rule = _rule(overload, kernel)
    for name, function in (("can_run", can_run), ("reference", reference)):
        if function is not None:
            _check_signature(overload, function, name)
    route(overload)         # enters the package's own kernel
    _replaced.setdefault(overload, _kernels.get(overload))
    _set(overload, Route(Kind.KERNEL, f"kernel {_label(kernel)}", kernel, rule, can_run, reference))


def provide(ops: Iterable[str], load: Callable[[], None]) -> None:
    """Have `load()` register the kernels of `ops` (names such as aten::mm) when the first of them is used.

    Raises:
        ValueError: an op is provided for twice.
    """
    for name in ops:
        if name in _loaders:
            raise ValueError(f"{name} is provided for twice")
        _loaders[name] = load
        for listener in _provided:
            listener(name)


def unregister_kernel(op: OpOverload | torch._ops.OpOverloadPacket | str) -> None:
    """Take a registered kernel back: the op takes the route it would have without.

    An op of which nothing was registered loses the kernel that this package has for it.
    """
    overload = resolve(op)
    gone, own = _kernels.pop(overload, None), _replaced.pop(overload, None)
    if own is not None:
        _kernels[overload] = own
    if gone is not None:
        _notify(overload)


def on_change(listener: Callable[[OpOverload], None]) -> None:
    _changed.append(listener)


def on_provide(listener: Callable[[str], None]) -> None:
    for name in _loaders:
        listener(name)
    _provided.append(listener)


def _set(op: OpOverload, new: Route) -> None:
    _kernels[op] = new
    _notify(op)


def _notify(op: OpOverload) -> None:
    for listener in _changed:
        listener(op)


def registered() -> dict[OpOverload, Route]:
    """The ops with a kernel. Loads all kernels."""
    load_kernels()
    for load in set(_loaders.values()):
        load()
    _loaders.clear()
    return dict(_kernels)


# ---- kernels as rules

class KernelRule:
    """An `nki.jit` kernel as a rule: tensors in order, everything else a compile-time constant."""

    operands = ()

    def __init__(self, kernel: Any):
        self.kernel = kernel

    def lower(self, call: Call) -> KernelCall | Decline:
        from .plan import Arg, KernelCall
        names = list(self.kernel.signature.parameters)
        inputs: dict[str, Any] = {}
        constants: dict[str, Any] = {}
        for p, name, value in zip(call.signature.parameters, names, call.args.values()):
            if isinstance(value, Arg):
                inputs[name] = value
            elif p.type == "Tensor":
                return Decline(Reason.SHAPE, f"{p.keyword} is a Python number, and the kernel takes a tensor")
            elif isinstance(value, list) and any(isinstance(v, Arg) for v in value):
                if None in value:
                    return Decline(Reason.SHAPE, f"{name} has missing tensors")
                inputs[name] = tuple(value)
            else:
                constants[name] = value
        return KernelCall(self.kernel, inputs, constants=constants)


class FunctionRule:
    """A function with the op's own arguments as a rule. There is nothing to lower: the call itself runs it."""

    operands = ()

    def __init__(self, function: Callable[..., Any]):
        self.function = function

    def lower(self, call: Call) -> KernelCall | Decline:
        raise AssertionError("a function is called as it is")


def _rule(op: OpOverload, kernel: Any) -> Rule:
    if hasattr(kernel, "lower"):
        return kernel
    if hasattr(kernel, "func") and hasattr(kernel, "signature"):       # an nki.jit kernel, without importing nki
        _check_kernel(op, kernel)
        return KernelRule(kernel)
    if not callable(kernel):
        raise KernelSignatureError(
            op=op._name, kernel=_label(kernel), schema=op._schema,
            detail=f"it is of type {type(kernel).__name__}, and not an nki.jit kernel, a function or a Rule")
    _check_signature(op, kernel, "kernel")
    return FunctionRule(kernel)


def _check_kernel(op: OpOverload, kernel: Any) -> None:
    wanted = len(op._schema.arguments)
    parameters = list(kernel.signature.parameters.values())
    least = sum(p.default is p.empty for p in parameters)
    if any(p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in parameters) or not least <= wanted <= len(parameters):
        raise KernelSignatureError(
            op=op._name, kernel=_label(kernel), schema=op._schema,
            detail=f"it takes {_count(least, len(parameters))} and the op has {wanted}; an nki.jit kernel takes the "
                   "op's arguments in order")


def _check_signature(op: OpOverload, function: Callable[..., Any], what: str) -> None:
    sig = signature(op)
    try:
        inspect.signature(function).bind(*(None for _ in sig.positional), **{p.keyword: None for p in sig.keywords})
    except TypeError as error:
        raise KernelSignatureError(op=op._name, kernel=f"{_label(function)} ({what})", schema=op._schema,
                                   detail=f"it can not be called with the op's arguments: {error}") from None
    except ValueError:
        pass        # a builtin without a signature


def _count(least: int, most: int) -> str:
    return f"{most} arguments" if least == most else f"{least} to {most} arguments"


def _label(kernel: Any) -> str:
    """module.name of a kernel or function; of a rule its class, and what it maps over elements if it says so."""
    name = getattr(kernel, "__qualname__", None) or getattr(kernel, "name", None) or type(kernel).__qualname__
    function = getattr(kernel, "function", None) if hasattr(kernel, "lower") else None
    of = "" if function is None else f"({getattr(function, '__name__', function)})"
    module = getattr(kernel, "__module__", None)
    return f"{module}.{name}{of}" if module else f"{name}{of}"
