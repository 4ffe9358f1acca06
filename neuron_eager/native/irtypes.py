"""LLVM types and constants of the code generator, and the element types of memory.

Importing this module imports llvmlite; whatever runs on a warm cache must import it inside the functions that compile.
"""
from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

from llvmlite import ir

F16, F32, F64 = ir.HalfType(), ir.FloatType(), ir.DoubleType()
I1, I8, I16, I32, I64 = (ir.IntType(n) for n in (1, 8, 16, 32, 64))
VOID, PTR = ir.VoidType(), ir.PointerType()
INTS = {1: I8, 2: I16, 4: I32, 8: I64}
Value = Any          # an llvmlite value: llvmlite carries no types


class BFloat(ir.types.Type):
    """LLVM's bfloat, which llvmlite lacks. Values of it are only made by bitcast."""

    intrinsic_name = "bf16"

    def __str__(self) -> str:
        return "bfloat"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, BFloat)

    def __hash__(self) -> int:
        return hash(BFloat)


BF16 = BFloat()


class Splat(ir.Constant):
    """A vector constant with equal lanes, in LLVM's short form: a list of lanes is several times slower to parse."""

    def __init__(self, vector: ir.VectorType, literal: str, number: float) -> None:
        ir.Constant.__init__(self, vector, ir.Undefined)
        self.literal, self.number = literal, number

    def get_reference(self) -> str:
        return f"splat ({self.type.element} {self.literal})"


@dataclass(frozen=True)
class Element:
    """An element type of memory: how many bytes, "f" float / "i" signed / "u" unsigned / "b" bool."""

    name: str
    size: int
    kind: str


ELEMENTS = {e.name: e for e in (
    Element("float32", 4, "f"), Element("tfloat32", 4, "f"), Element("float64", 8, "f"), Element("float16", 2, "f"),
    Element("bfloat16", 2, "f"), Element("float8_e4m3", 1, "f"), Element("float8_e4m3fn", 1, "f"),
    Element("float8_e5m2", 1, "f"), Element("float8_e8m0fnu", 1, "f"),
    Element("int8", 1, "i"), Element("int16", 2, "i"), Element("int32", 4, "i"), Element("int64", 8, "i"),
    Element("uint8", 1, "u"), Element("uint16", 2, "u"), Element("uint32", 4, "u"), Element("bool", 1, "b"))}


def element(dtype: str) -> Element:
    try:
        return ELEMENTS[str(dtype)]
    except KeyError:
        raise NotImplementedError(f"native code has no element type {dtype}") from None


def vector(t: ir.Type, lanes: int | None) -> ir.Type:
    """<lanes x t>, or t itself for lanes None."""
    return t if lanes is None else ir.VectorType(t, lanes)


def lanes_of(v: Value) -> int | None:
    """Number of lanes of a value or type; None for a scalar."""
    t = getattr(v, "type", v)
    return t.count if isinstance(t, ir.VectorType) else None


def width_of(v: Value) -> int:
    """Number of lanes of a vector; 1 for a scalar."""
    return lanes_of(v) or 1


def element_of(v: Value) -> ir.Type:
    """Element type of a vector, the type itself of a scalar; of a value or a type."""
    t = getattr(v, "type", v)
    return t.element if isinstance(t, ir.VectorType) else t


def like(v: Value, t: ir.Type) -> ir.Type:
    """The type with v's lanes and elements of type t."""
    return vector(t, lanes_of(v))


def float_literal(t: ir.Type, value: float) -> str:
    """A float constant as LLVM reads it: the bits of the value, rounded to t, written as a double."""
    if isinstance(t, ir.FloatType):
        try:
            value, = struct.unpack("f", struct.pack("f", value))
        except OverflowError:
            value = float("inf") if value > 0 else float("-inf")
    return f"0x{struct.unpack('Q', struct.pack('d', value))[0]:x}"


def const(t: ir.Type, value: float) -> Value:
    """A constant of type t, the same in every lane."""
    e = element_of(t)
    if isinstance(e, ir.IntType):
        number = int(value) % (1 << e.width)
        number -= (number >> (e.width - 1)) << e.width if e.width > 1 else 0
        return Splat(t, str(number), number) if isinstance(t, ir.VectorType) else ir.Constant(t, number)
    if isinstance(t, ir.VectorType):
        return Splat(t, float_literal(e, value), value)
    return ir.Constant(t, value)


def number_of(v: Value) -> float | None:
    """The number that a constant holds in every lane; None for anything else."""
    if isinstance(v, Splat):
        return v.number
    number = getattr(v, "constant", None) if isinstance(v, ir.Constant) else None
    return number if isinstance(number, int | float) else None


def k64(value: int) -> Value:
    return ir.Constant(I64, value)


def suffix(t: ir.Type) -> str:
    """The type suffix in the name of an overloaded intrinsic."""
    e = element_of(t)
    name = {"half": "f16", "float": "f32", "double": "f64", "bfloat": "bf16"}.get(str(e), str(e))
    return f"v{t.count}{name}" if isinstance(t, ir.VectorType) else name


def declare(module: ir.Module, name: str, result: ir.Type, *arguments: ir.Type) -> ir.Function:
    """The function of this name in the module, declared once."""
    f = module.globals.get(name)
    if f is None:
        f = ir.Function(module, ir.FunctionType(result, arguments), name)
        if not name.startswith("llvm."):
            f.attributes.add("nounwind")
    return f
