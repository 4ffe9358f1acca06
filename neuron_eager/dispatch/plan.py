"""What a kernel family sees of a call, and what it answers: the interface between dispatch and kernels.

A `Rule` is asked once per kind of call (shapes, strides, dtypes, static arguments). It sees metadata only, and answers
with a `KernelCall`, which says how the kernel sees each argument, or with a `Decline`, which says why the call goes to
the CPU. Type promotion, broadcasting, `out=`, in-place and the results' shapes and strides are PyTorch's own: a call is
first run on meta tensors (`Call.outputs`), which also raises PyTorch's errors.
"""
from __future__ import annotations

import functools
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import torch

from .reasons import Decline, Reason
from .schema import OpOverload, Parameter, Signature, signature

__all__ = ["Arg", "Call", "Decline", "KernelCall", "Number", "Operand", "Out", "Reason", "Rule", "View", "contiguous",
           "reshaped", "result_type"]

Strides = tuple[int, ...]
Shape = tuple[int, ...]


@dataclass(frozen=True)
class Arg:
    """Metadata of one tensor argument. Strides in elements."""

    name: str                   # of the parameter; of all its tensors if it is a list
    position: int               # among all arguments in schema order, lists expanded
    shape: Shape
    strides: Strides
    dtype: torch.dtype
    device_index: int | None    # None: a CPU tensor without dimensions, which a kernel may read like any other
    written: bool = False

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @functools.cached_property
    def numel(self) -> int:
        return _product(self.shape)

    @property
    def is_contiguous(self) -> bool:
        return all(n == 1 or s == c for n, s, c in zip(self.shape, self.strides, contiguous(self.shape)))

    def view(self, shape: Sequence[int] | None = None, strides: Sequence[int] | None = None, offset: int = 0,
             dtype: torch.dtype | None = None) -> View:
        """The argument as a kernel shall see it; by default as it is. Strides and offset in elements."""
        if shape is None:
            shape, strides = self.shape, self.strides
        elif strides is None:
            strides = reshaped(self.shape, self.strides, shape)
            if strides is None:
                raise ValueError(f"{self.name}{list(self.shape)} with strides {list(self.strides)} has no view "
                                 f"{list(shape)}")
        return View(self, tuple(shape), tuple(strides), offset, dtype or self.dtype)

    def broadcast(self, shape: Sequence[int]) -> View:
        """The argument repeated to a larger shape, by strides of 0."""
        return self.view().broadcast(shape)


@dataclass(frozen=True)
class Number:
    """A Python number that the rule takes as data (`Rule.operands`): its type is known, its value is not."""

    name: str
    position: int
    type: type                  # bool, int, float or complex


@dataclass(frozen=True)
class View:
    """How the kernel sees an argument: same memory, other shape, strides (elements), offset (elements), dtype."""

    arg: Arg
    shape: Shape
    strides: Strides
    offset: int
    dtype: torch.dtype

    def broadcast(self, shape: Sequence[int]) -> View:
        lead = len(shape) - len(self.shape)
        own = zip(self.shape, self.strides, shape[lead:])
        strides = (0,) * lead + tuple(0 if n == 1 and m != 1 else s for n, s, m in own)
        return replace(self, shape=tuple(shape), strides=strides)

    def reshape(self, shape: Sequence[int]) -> View | None:
        """The same elements under another shape, or None if strides can not say it."""
        strides = reshaped(self.shape, self.strides, shape)
        return None if strides is None else replace(self, shape=tuple(shape), strides=strides)

    def permute(self, *order: int) -> View:
        return replace(self, shape=tuple(self.shape[i] for i in order), strides=tuple(self.strides[i] for i in order))


@dataclass(frozen=True)
class Operand:
    """A number as data: the kernel sees an HBM tensor [1, 1].

    value: a `Number`, read at every call and no part of the key, or a Python number that is always the same.
    """

    value: Number | int | float
    kind: str = "float32"       # or "float64", for a float; or "int64", for an integer


@dataclass(frozen=True)
class Out:
    """One result: shape, strides and dtype as PyTorch has it, and as the kernel sees it.

    into: the argument that is written (in place, `out=`), or None for a fresh tensor.
    bits: the dtype under which the kernel sees the memory, where it moves bits only.
    """

    shape: Shape
    strides: Strides
    dtype: torch.dtype
    into: Arg | None = None
    seen: tuple[Shape, Strides] | None = None
    bits: torch.dtype | None = None

    @property
    def layout(self) -> tuple[Shape, Strides]:
        """Shape and strides as the kernel sees them."""
        return self.seen or (self.shape, self.strides)

    def reshape(self, shape: Sequence[int]) -> Out | None:
        """The same result, which the kernel sees under another shape; None if strides can not say it."""
        strides = reshaped(*self.layout, shape)
        return None if strides is None else replace(self, seen=(tuple(shape), strides))

    def view(self, shape: Sequence[int]) -> Out:
        """As `reshape`, where strides are known to say it: of fresh results, and for added dimensions of size 1."""
        seen = self.reshape(shape)
        if seen is None:
            raise ValueError(f"a result {list(self.shape)} with strides {list(self.strides)} has no view {list(shape)}")
        return seen

    def permute(self, *order: int) -> Out:
        shape, strides = self.layout
        return replace(self, seen=(tuple(shape[i] for i in order), tuple(strides[i] for i in order)))


Item = View | Arg | Operand


@dataclass(frozen=True)
class KernelCall:
    """One kernel for one kind of call.

    The kernel's first parameters are `outputs`, which it writes; then come `inputs`, by parameter name or in order,
    each an item, a tuple of items or None; then `constants`. Without outputs, the kernel returns its results as new
    tensors.
    returns: indices into `outputs` of the op's results, where that is not all of them in order; None for a result that
    the call does not ask for.
    same_view: whether an output may be the very view that an input is (elementwise kernels); or the names of the
    parameters that may. Any other overlap of an output with another argument sends the call to the CPU.
    """

    kernel: Any
    inputs: Mapping[str, Item | Sequence[Item] | None] | Sequence[Item | Sequence[Item] | None]
    outputs: Sequence[Out] = ()
    constants: Mapping[str, Any] = field(default_factory=dict)
    returns: Sequence[int | None] | None = None
    same_view: bool | Collection[str] = False

    def may_be_output(self, arg: Arg) -> bool:
        return self.same_view if isinstance(self.same_view, bool) else arg.name in self.same_view


class Rule(Protocol):
    """How a kernel family serves an op.

    A rule may have an attribute `exact`: true where float64 values are moved and not computed with in float32.
    """

    @property
    def operands(self) -> Sequence[str]:
        """Names of parameters whose Python numbers are data, not part of the key; none without the attribute."""

    def lower(self, call: Call) -> KernelCall | Decline: ...


class Call:
    """One kind of call of one op: `call["self"]` is an Arg, a list of Args (and None), a Number, or a plain value."""

    def __init__(self, op: OpOverload, values: Mapping[str, Any], operands: Sequence[str] = ()):
        """values: every parameter by name, tensors and all; only their metadata is looked at."""
        self.op, self.signature = op, signature(op)
        self._values = values
        self._position = 0
        self._args: dict[str, Any] = {
            p.name: self._seen(p, values[p.name], operands) for p in self.signature.parameters}

    def __getitem__(self, name: str) -> Any:
        return self._args[name]

    def get(self, name: str, default: Any = None) -> Any:
        value = self._args.get(name, default)
        return default if value is None else value

    @property
    def name(self) -> str:
        return self.signature.name

    def default(self, name: str) -> Any:
        """The value that the schema gives a parameter."""
        return next(p.default for p in self.signature.parameters if p.name == name)

    @property
    def args(self) -> dict[str, Any]:
        """All arguments in schema order."""
        return self._args

    @functools.cached_property
    def tensors(self) -> list[Arg]:
        """All tensor arguments, lists expanded."""
        return list(_args_in(self._args.values()))

    @property
    def inputs(self) -> list[Arg]:
        """The tensor arguments that are not `out=`."""
        outs = {p.name for p in self.signature.parameters if p.out}
        return [a for a in self.tensors if a.name not in outs]

    @functools.cached_property
    def outputs(self) -> list[Out]:
        """The op's results with PyTorch's own shapes, strides and dtypes. Raises what PyTorch raises for the call."""
        values = {name: _on_meta(value) for name, value in self._values.items()}
        positional = [values[p.name] for p in self.signature.positional]
        keywords = {p.keyword: values[p.name] for p in self.signature.keywords if p.tensor
                    or values[p.name] != p.default and not p.type.endswith(("Device", "Device]", "Generator]"))}
        numbers = any(p.type == "Tensor" and isinstance(values[p.name], (bool, int, float, complex))
                      for p in self.signature.parameters)
        results = (self.op.overloadpacket if numbers else self.op)(*positional, **keywords)
        if not isinstance(results, (list, tuple)):
            results = [results]
        return [self._out(r.argument, t) for r, t in zip(_per_tensor(self.signature, results), _flat(results))]

    def result_type(self, *names: str) -> torch.dtype:
        """The dtype to which PyTorch promotes these arguments (tensors and numbers)."""
        return result_type(self._values[n] for n in names)

    def release(self) -> None:
        """Let go of the tensors; metadata stays. Plans outlive calls."""
        self._values = {}

    def _seen(self, p: Parameter, value: Any, operands: Sequence[str]) -> Any:
        if p.tensors and value is not None:
            return [None if t is None else self._arg(p, t) for t in value]
        if isinstance(value, torch.Tensor):
            return self._arg(p, value)
        position, self._position = self._position, self._position + 1
        if p.name in operands and isinstance(value, (bool, int, float, complex)):
            return Number(p.name, position, type(value))
        return value

    def _arg(self, p: Parameter, t: torch.Tensor) -> Arg:
        position, self._position = self._position, self._position + 1
        index = None if t.is_cpu else t.device.index
        return Arg(p.name, position, tuple(t.shape), t.stride(), t.dtype, index, p.written)

    def _out(self, argument: str | None, result: torch.Tensor) -> Out:
        into = None if argument is None else self._args[argument]
        return Out(tuple(result.shape), result.stride(), result.dtype, into)


# ---- helpers for rules

def contiguous(shape: Sequence[int]) -> Strides:
    """Strides of a contiguous tensor."""
    strides, step = [], 1
    for n in reversed(shape):
        strides.append(step)
        step *= max(n, 1)
    return tuple(reversed(strides))


def reshaped(shape: Sequence[int], strides: Sequence[int], new: Sequence[int]) -> Strides | None:
    """Strides under which a tensor has the shape `new`, or None where only a copy has (as Tensor.view decides)."""
    if _product(shape) != _product(new):
        raise ValueError(f"shape {list(shape)} has not as many elements as {list(new)}")
    if not _product(shape):
        return contiguous(new)
    # runs of dimensions that are one dimension in memory: [elements, innermost stride]
    runs: list[list[int]] = []
    for n, s in zip(shape, strides):
        if n == 1:
            continue
        if runs and runs[-1][1] == s * n:
            runs[-1] = [runs[-1][0] * n, s]
        else:
            runs.append([n, s])
    result: list[int] = []
    rest = list(new)
    for count, stride in runs:
        sizes = []
        while count > 1 or rest and rest[0] == 1:
            if not rest or count % rest[0]:
                return None
            count //= rest[0]
            sizes.append(rest.pop(0))
        result += [stride * s for s in contiguous(sizes)]
    return (*result, *(1 for _ in rest))


def result_type(values: Any) -> torch.dtype:
    """PyTorch's type promotion for any number of tensors and Python numbers (ATen/native/TypeProperties.cpp)."""
    by_priority: list[torch.dtype | None] = [None, None, None]     # with dimensions, without, Python numbers
    for v in values:
        if isinstance(v, torch.Tensor):
            level, dtype = (0 if v.dim() else 1), v.dtype
        else:
            level, dtype = 2, _number_type(v)
        known = by_priority[level]
        by_priority[level] = dtype if known is None else torch.promote_types(known, dtype)
    with_dims, without, numbers = by_priority
    result = _combine(with_dims, _combine(without, numbers))
    if result is None:
        raise ValueError("no tensor and no number to take the dtype from")
    return result


def _combine(higher: torch.dtype | None, lower: torch.dtype | None) -> torch.dtype | None:
    if higher is None or lower is None:
        return higher if lower is None else lower
    if higher.is_complex:
        return higher
    if higher.is_floating_point:
        return higher.to_complex() if lower.is_complex else higher
    if higher is torch.bool or lower.is_floating_point or lower.is_complex:
        return torch.promote_types(higher, lower)
    return higher


def _number_type(v: Any) -> torch.dtype:
    if isinstance(v, bool):
        return torch.bool
    if isinstance(v, int):
        return torch.int64
    return torch.get_default_dtype() if isinstance(v, float) else torch.get_default_dtype().to_complex()


def _product(shape: Sequence[int]) -> int:
    n = 1
    for m in shape:
        n *= m
    return n


def _args_in(values: Any) -> Iterator[Arg]:
    for v in values:
        if isinstance(v, Arg):
            yield v
        elif isinstance(v, list):
            yield from _args_in(v)


def _on_meta(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")
    if isinstance(value, (list, tuple)) and any(isinstance(v, torch.Tensor) for v in value):
        return [_on_meta(v) for v in value]
    return value


def _flat(results: Sequence[Any]) -> list[torch.Tensor]:
    return [t for r in results for t in (r if isinstance(r, (list, tuple)) else [r])]


def _per_tensor(sig: Signature, results: Sequence[Any]) -> Iterator[Any]:
    if sig.single and sig.results[0].kind == "tensors":
        yield from (sig.results[0] for _ in results)
        return
    for r, value in zip(sig.results, results):
        yield from (r for _ in (value if isinstance(value, (list, tuple)) else [value]))
