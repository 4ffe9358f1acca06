"""What the kernel families' rules share: which dtypes are served, and how arguments become a kernel's views."""
from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from ..dispatch.plan import Arg, Call, Decline, KernelCall, Number, Operand, Out, Reason, View
from .layout import coalesce
from .shapes import broadcast_shape, elementwise_out, settled

ENGINE_FLOATS = frozenset((torch.float32, torch.bfloat16, torch.float16))      # of the tensor engine
FLOATS = ENGINE_FLOATS | {torch.float64}        # float64 is computed in float32: the policy of config.float64
INTEGERS = frozenset((torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8))
NUMBERS = FLOATS | INTEGERS | {torch.bool}


def aten(name: str) -> torch._ops.OpOverload:
    """The overload of a name such as "add.Tensor" or "mm". Raises AttributeError if there is none."""
    packet, _, overload = name.partition(".")
    return getattr(getattr(torch.ops.aten, packet), overload or "default")


def forms(name: str) -> Iterator[torch._ops.OpOverload]:
    """An op with its in-place and out= forms, as far as PyTorch has them: add.Tensor, add_.Tensor, add.out."""
    op = aten(name)
    yield op
    packet, _, overload = name.partition(".")
    inputs = [(a.name, str(a.type)) for a in op._schema.arguments]
    in_place = getattr(torch.ops.aten, packet + "_", None)
    if in_place is not None and (overload or "default") in in_place.overloads():
        yield getattr(in_place, overload or "default")
    for other in op.overloadpacket.overloads():
        candidate = getattr(op.overloadpacket, other)
        arguments = candidate._schema.arguments
        if any(a.is_out for a in arguments) and [(a.name, str(a.type)) for a in arguments if not a.is_out] == inputs:
            yield candidate


def unsupported(tensors: Sequence[Arg | Out], allowed: frozenset[torch.dtype], what: str = "") -> Decline | None:
    """A Decline that names the first dtype that is not served, or None."""
    for t in tensors:
        if t.dtype not in allowed:
            return Decline(Reason.DTYPE, f"{what or 'the kernel'} does not take {t.dtype}")
    return None


def is_integer(dtype: torch.dtype) -> bool:
    return not (dtype.is_floating_point or dtype.is_complex)


def operand(value: Any, dtype: torch.dtype) -> Operand:
    """A Python number as data for a kernel that computes in `dtype`: exact where both are integers."""
    kind = value.type if isinstance(value, Number) else type(value)
    if is_integer(dtype):
        return Operand(value, "float32" if kind is float else "int64")
    if dtype is torch.float64:
        return Operand(value, "float64" if kind is float else "int64")
    return Operand(value)


def compact(out: Out, items: Sequence[Arg | View | Operand], order: bool = True) -> tuple[Out, list[View | Operand]]:
    """Destination and inputs of an elementwise kernel with as few dimensions as their strides allow, at least one.

    Operands stay as they are: the kernel repeats them.
    """
    views = [i.broadcast(out.shape) if isinstance(i, (Arg, View)) else i for i in items]
    tensors = [v for v in views if isinstance(v, View)]
    shape, strides = coalesce(out.shape, [out.strides, *(v.strides for v in tensors)], order)
    if not shape:
        shape, strides = (1,), [(1,)] * len(strides)
    rest = iter(strides[1:])
    return (replace(out, seen=(shape, strides[0])),
            [replace(v, shape=shape, strides=next(rest)) if isinstance(v, View) else v for v in views])


def widened(out: Out, views: Sequence[View]) -> tuple[Out, list[View]]:
    """A move of bits in elements of four bytes, where contiguous runs of narrower ones allow it: as fast as float32.

    All views and the output have one dtype, of which nothing is computed.
    """
    factor = 4 // out.dtype.itemsize if out.dtype.itemsize < 4 else 1
    layouts = [(*out.layout, 0), *((v.shape, v.strides, v.offset) for v in views)]
    even = all(shape[-1] % factor == 0 and shape[-1] >= 32 and strides[-1] == 1 and offset % factor == 0
               and all(n == 1 or s % factor == 0 for n, s in zip(shape[:-1], strides))
               for shape, strides, offset in layouts)
    if factor == 1 or not even:
        return out, list(views)

    def wide(shape: Sequence[int], strides: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        return (*shape[:-1], shape[-1] // factor), (*(s // factor for s in strides[:-1]), 1)

    return replace(out, seen=wide(*out.layout), bits=torch.int32), [
        View(v.arg, *wide(v.shape, v.strides), v.offset // factor, torch.int32) for v in views]


def rows_by_columns(out: Out, x: Arg, dim: int) -> tuple[Out, View]:
    """Both as [..., rows, columns] with `dim` as the columns and as few row dimensions as their strides allow."""
    if not x.shape:
        return replace(out, seen=((1, 1), (1, 1))), View(x, (1, 1), (1, 1), 0, x.dtype)
    dim %= x.ndim
    rest = [d for d in range(x.ndim) if d != dim]
    shape, (out_strides, in_strides) = coalesce(
        [x.shape[d] for d in rest], [[out.strides[d] for d in rest], [x.strides[d] for d in rest]])
    if not shape:
        shape, out_strides, in_strides = (1,), (x.shape[dim],), (x.shape[dim],)
    shape = (*shape, x.shape[dim])
    return (replace(out, seen=(shape, (*out_strides, out.strides[dim]))),
            View(x, shape, (*in_strides, x.strides[dim]), 0, x.dtype))


def dimensions(dim: Any, rank: int) -> list[int]:
    """Normalised dimensions of a `dim=` argument; None and [] mean all."""
    if dim is None or isinstance(dim, (list, tuple)) and not dim:
        return list(range(rank))
    dims = list(dim) if isinstance(dim, (list, tuple)) else [dim]
    return sorted(d % rank if rank else 0 for d in dims) if rank else []


class Elementwise:
    """Serves ops whose result depends on one element of each input.

    function: an op token or a tile function.
    inputs: the parameters that are its operands, in order; Python numbers among them are data, not part of the key.
    result: "common", the dtype that the operands promote to; "float", where integers become the default dtype; "bool",
    a comparison of operands brought to their common dtype.
    promoted: the inputs that take part in promotion; by default all but factors (alpha, value).
    keep: operands keep their dtypes, because the function moves bits.
    """

    FACTORS = frozenset(("alpha", "value"))

    def __init__(self, function: Any, inputs: Sequence[str] = ("self",), *, result: str = "common",
                 promoted: Sequence[str] | None = None, keep: bool = False,
                 allowed: frozenset[torch.dtype] = NUMBERS) -> None:
        self.function, self.inputs, self.result, self.keep, self.allowed = function, inputs, result, keep, allowed
        self.promoted = [n for n in inputs if n not in self.FACTORS] if promoted is None else promoted
        self.operands = tuple(inputs)

    def lower(self, call: Call) -> KernelCall | Decline:
        from .elementwise import elementwise
        given = [call[name] for name in self.inputs]
        if any(isinstance(v, Number) and v.type is complex or isinstance(v, complex) for v in given):
            return Decline(Reason.DTYPE, f"{call.name} with a complex number")
        common = call.result_type(*self.promoted)
        out = self.out(call, common)
        declined = unsupported([out, *(a for a in given if isinstance(a, Arg))], self.allowed, call.name)
        if declined:
            return declined
        dtype = common if self.result == "bool" else out.dtype
        items = [value if isinstance(value, Arg) else operand(value, dtype) for value in given]
        mixed = any(isinstance(a, Arg) and is_integer(a.dtype) for a in given)
        constants = dict(self.constants(dtype, mixed))
        if constants.get("compute") == "int64" and any(
                (a.dtype if isinstance(a, Arg) else torch.int64) != dtype for a in given):
            constants["through"] = str(dtype).removeprefix("torch.")
        out, views = compact(out, items)
        return KernelCall(elementwise, {"ins": tuple(views)}, [out], constants, same_view=True)

    def out(self, call: Call, common: torch.dtype) -> Out:
        """The result as PyTorch has it. Asks PyTorch where the call may be an error."""
        integral = is_integer(common)
        dtype = {"float": torch.get_default_dtype() if integral else common, "bool": torch.bool}.get(
            self.result, common)
        factors = [call[name] for name in self.inputs if name not in self.promoted]
        odd = integral and any(isinstance(v, Number) and v.type is not int for v in factors)
        if odd or dtype is torch.bool and self.result == "common" or not self.valid(call):
            return call.outputs[0]
        return elementwise_out(call, self.inputs, dtype) or call.outputs[0]

    def valid(self, call: Call) -> bool:
        """Whether the arguments are surely such as the op takes, their shapes aside."""
        return True

    def constants(self, dtype: torch.dtype, mixed: bool) -> Mapping[str, Any]:
        """Integers are computed in int64, which wraps as every narrower type does; comparisons in the common dtype.

        mixed: there are integers among the operands; with 16-bit floats they are rounded before they take part.
        """
        constants: dict[str, Any] = {"function": self.function}
        if self.keep:
            return constants
        if is_integer(dtype):
            constants["compute"] = "int64"
            constants["result"] = "bool" if self.result == "bool" else "int64"
        elif self.result == "bool":
            constants["compute"], constants["result"] = str(dtype).removeprefix("torch."), "bool"
        elif mixed and dtype.itemsize == 2:
            constants["compute"] = str(dtype).removeprefix("torch.")
        return constants


class Selection(Elementwise):
    """where and masked_fill: one of two values, bit by bit."""

    def __init__(self, function: Any, inputs: Sequence[str], mask: str, promoted: Sequence[str]) -> None:
        super().__init__(function, inputs, promoted=promoted, keep=True)
        self.mask = mask

    def lower(self, call: Call) -> KernelCall | Decline:
        value = call.get("value")
        if isinstance(value, (Number, Arg)) and is_integer(call["self"].dtype) and not (
                value.type is not float if isinstance(value, Number) else is_integer(value.dtype)):
            return Decline(Reason.DTYPE, f"{call.name} of integers with a fraction")
        return super().lower(call)

    def out(self, call: Call, common: torch.dtype) -> Out:
        if self.mask == "mask" and self.valid(call):        # masked_fill makes a contiguous copy first
            shape = broadcast_shape([call["self"].shape, call["mask"].shape])
            return shape is not None and settled(call, shape, common) or call.outputs[0]
        return super().out(call, common)

    def valid(self, call: Call) -> bool:
        value = call.get("value")
        return call[self.mask].dtype is torch.bool and not (isinstance(value, Arg) and value.shape)


def product(sizes: Iterable[int]) -> int:
    return math.prod(sizes)
