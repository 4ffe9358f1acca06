"""Operators on values: the ALU of the engines, conversions, and bit patterns; the counterpart of
`nki/semantics/alu.py`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..nki.tensor import NkiTensor
from .lift import Lift
from .values import COMPARISONS, KIND, SIZE, Bail, V

Args = dict[str, Any]
Handler = Callable[[Lift, Args], None]
HANDLERS: dict[str, Handler] = {}
LOGICAL = {"logical_and": "and_bool", "logical_or": "or_bool", "logical_xor": "xor_bool"}
BITWISE = frozenset({"bitwise_and", "bitwise_or", "bitwise_xor", "left_shift", "right_shift", "invert"})
UNARY = frozenset({"abs", "square", "relu", "rsqrt", "reciprocal", "invert", "bypass"})
FRACTIONAL = frozenset({"power", "divide", "rsqrt", "reciprocal"})  # always computed in float32
INTEGERS = frozenset({"int8", "int16", "int32", "uint8", "uint16", "uint32", "int64", "bool"})
ADDRESSES = frozenset({"int32", "uint32"})


def handler(f: Handler) -> Handler:
    HANDLERS[f.__name__] = f
    return f


def apply(L: Lift, op: str, x: V, y: V | None = None) -> V:
    """An ALU operator on operands of one kind. Comparisons and logic give truth values."""
    g = L.g
    if op == "bypass":
        return x
    if op in UNARY:
        if op == "relu":
            return g.ew("maximum", x, g.const(0, x.kind))
        if op == "square":
            return g.ew("multiply", x, x)
        return g.ew(op, x)
    assert y is not None
    if op in COMPARISONS:
        return g.ew(op, x, y, kind="b")
    if op in LOGICAL:
        return g.ew(LOGICAL[op], g.cvt(x, "b"), g.cvt(y, "b"))
    if op in ("abs_max", "abs_min"):
        larger = g.ew("greater" if op == "abs_max" else "less", g.ew("abs", x), g.ew("abs", y), kind="b")
        return g.ew("select", larger, x, y, kind=x.kind)
    if op in ("add", "subtract", "multiply", "maximum", "minimum", "power", "divide", "mod", "fmod"):
        return g.ew(op, x, y)
    raise Bail(f"operator {op}")


def chain(L: Lift, op: Any, x: V, y: V | None, reverse: bool) -> V:
    """`x op y`, or `y op x`; the result of a comparison becomes a number of x's kind."""
    name = op.name
    if name in UNARY:
        return apply(L, name, x)
    assert y is not None
    r = apply(L, name, y, x) if reverse else apply(L, name, x, y)
    return L.g.cvt(r, x.kind)


def convert(L: Lift, v: V, src: str, dst: str) -> V:
    """What a copy between dtypes does: the same bits if they are equal, else through float32, except for int64 and
    float64."""
    if src == dst:
        return v
    if src in ("int64", "float64") or dst in ("int64", "float64"):
        return L.g.to(v, dst)
    return L.g.to(L.g.cvt(v, "f"), dst)


def exact_integers(*operands: Any) -> bool:
    tiles = [t.dtype for t in operands if isinstance(t, NkiTensor)]
    return all(d in INTEGERS for d in tiles) and "int64" in tiles


def integer(L: Lift, operand: Any, kind: str) -> V:
    """An operand of an exact integer instruction, wrapped to the kind."""
    if isinstance(operand, NkiTensor):
        v = L.read(operand)
        if v.kind in (kind, "b"):  # a truth value in an integer tile computes as the integer it is
            v = L.g.cvt(v, kind)
        else:
            v = L.g.cvt(v, "l") if kind == "l" else L.g.to(v, "int32" if kind == "i" else "uint32")
        return v
    if isinstance(operand, float) and not operand.is_integer():
        raise Bail("a fraction as an integer operand")
    return L.g.const(wrapped(int(operand), 64 if kind == "l" else 32, kind != "u"), kind)


def column(L: Lift, operand: Any, kind: str) -> V:
    v = integer(L, operand, kind)
    return v if v.F is None else L.g.bcast(v)


def wrapped(value: int, bits: int, signed: bool = True) -> int:
    value %= 1 << bits
    return value - (1 << bits) if signed and value >> (bits - 1) else value


def pattern_bits(L: Lift, operand: Any, dt: str, wide: int) -> V:
    """The bits of an operand of dtype `dt`, zero-extended: kind u, or l if `wide` is 8 bytes."""
    g = L.g
    if not isinstance(operand, NkiTensor):
        size = 8 * SIZE[dt]
        return g.const(
            wrapped(operand, 64) if wide == 8 else operand & ((1 << min(size, 32)) - 1), "l" if wide == 8 else "u"
        )
    v = L.read(operand)
    if v.kind == "b":
        v = g.cvt(v, KIND[dt])
    if KIND[dt] == "f":
        v = g.bits(v, dt, {4: "uint32", 2: "uint16", 1: "uint8"}[SIZE[dt]])
    if v.kind == "i":
        v = g.ew("to", v, at=("uint32",), kind="u")
        if dt in ("int8", "int16"):
            v = g.ew("bitwise_and", v, g.const((1 << 8 * SIZE[dt]) - 1, "u"))
    if wide == 8 and v.kind == "u":
        v = g.cvt(v, "l")
    return v


def bit_op(L: Lift, op: str, x: V, y: V | None, size: int) -> V:
    """A bit operator on patterns of `size` bytes."""
    g = L.g
    full = (1 << 8 * size) - 1
    if op == "bypass":
        return x
    if op == "invert":
        x = g.ew("invert", x)
    else:
        assert y is not None
        if op in ("left_shift", "right_shift") and size < 4:
            inside = g.ew("less", y, g.const(8 * size, x.kind), kind="b")
            x = g.ew("select", inside, g.ew(op, x, y), g.const(0, x.kind), kind=x.kind)
        else:
            x = g.ew(op, x, y)
    return g.ew("bitwise_and", x, g.const(full, x.kind)) if op in ("invert", "left_shift") and size < 4 else x


def store_bits(L: Lift, dst: NkiTensor, v: V) -> None:
    """Patterns cut to the destination and taken as its dtype."""
    dt = dst.dtype
    if KIND[dt] == "f" or dt == "bool":
        size = {8: "int64", 4: "uint32", 2: "uint16", 1: "uint8"}[SIZE[dt]]
        v = L.g.bits(L.g.to(v, size), size, dt)
    L.write(dst, v)


def prepared(L: Lift, op: str, dst: NkiTensor, data: NkiTensor) -> tuple[str, V]:
    """The operands of a reduction in the arithmetic that it works in, and the operator on them."""
    g = L.g
    if op in ("bitwise_and", "bitwise_or", "bitwise_xor"):
        return op, pattern_bits(L, data, data.dtype, SIZE[data.dtype])
    v = L.read(data)
    if op in LOGICAL:
        return {"logical_and": "minimum", "logical_or": "maximum", "logical_xor": "bitwise_xor"}[op], g.cvt(
            g.cvt(v, "b"), "i"
        )
    return op, g.cvt(v, "l" if exact_integers(dst, data) else "f")
