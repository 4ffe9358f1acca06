"""Element types of memory to and from registers: float32, exact integers, raw bits.

In memory a value has one of the element types of `irtypes.ELEMENTS`; in registers it is float32, an integer of 32 or
64 bits, or its own bits ("raw": an integer of the element's size). Rules, those of the interpreter: float to a
narrower float rounds to nearest even, once, with denormals; overflow gives infinity, or NaN where the type has none
(float8_e4m3fn). Float to integer rounds to nearest even and saturates, NaN gives 0; float to bool is x != 0. Integer
to integer wraps. Integer to float rounds to float32 first. Results do not depend on what the CPU has: an instruction
that is not exact (bfloat16 stores flush denormals) is only used where it is.
"""
from __future__ import annotations

from dataclasses import dataclass

from llvmlite import ir

from .irtypes import (
    BF16,
    F16,
    F32,
    F64,
    I1,
    I8,
    I16,
    I32,
    I64,
    INTS,
    Value,
    const,
    declare,
    element,
    element_of,
    lanes_of,
    like,
    suffix,
)
from .target import Target


@dataclass(frozen=True)
class Float8:
    """An 8-bit float: stored mantissa bits, exponent bias, codes of the largest finite, infinity (or None), NaN."""

    mantissa: int
    bias: int
    largest: int
    infinity: int | None
    nan: int


FLOAT8 = {"float8_e4m3": Float8(3, 7, 0x77, 0x78, 0x7C), "float8_e4m3fn": Float8(3, 7, 0x7E, None, 0x7F),
          "float8_e5m2": Float8(2, 15, 0x7B, 0x7C, 0x7E)}


class Convert:
    def __init__(self, builder: ir.IRBuilder, target: Target) -> None:
        self.b, self.target = builder, target

    # ---- float32

    def to_float(self, raw: Value, dtype: str) -> Value:
        """float32 from the bits of an element."""
        b, f32 = self.b, like(raw, F32)
        e = element(dtype)
        if dtype in ("float32", "tfloat32"):
            return b.bitcast(raw, f32)
        if dtype == "bfloat16":
            wide = like(raw, I32)
            return b.bitcast(b.shl(b.zext(raw, wide), const(wide, 16)), f32)
        if dtype == "float16":
            return b.fpext(b.bitcast(raw, like(raw, F16)), f32)
        if dtype == "float64":
            return b.fptrunc(b.bitcast(raw, like(raw, F64)), f32)
        if dtype in FLOAT8:
            return self._from_float8(raw, FLOAT8[dtype])
        if dtype == "float8_e8m0fnu":
            return self._from_exponent(raw)
        if e.kind == "b":
            return b.uitofp(self._nonzero(raw), f32)
        if e.size < 4:
            raw = (b.sext if e.kind == "i" else b.zext)(raw, like(raw, I32))
            return b.sitofp(raw, f32)
        return (b.sitofp if e.kind == "i" else b.uitofp)(raw, f32)

    def from_float(self, v: Value, dtype: str) -> Value:
        """The bits of an element, from float32."""
        b, e = self.b, element(dtype)
        if dtype in ("float32", "tfloat32"):
            return b.bitcast(v, like(v, I32))
        if dtype == "bfloat16":
            return self._to_bfloat16(v)
        if dtype == "float16":
            return b.bitcast(b.fptrunc(v, like(v, F16)), like(v, I16))
        if dtype == "float64":
            return b.bitcast(b.fpext(v, like(v, F64)), like(v, I64))
        if dtype in FLOAT8:
            return b.trunc(self._to_float8(v, FLOAT8[dtype]), like(v, I8))
        if e.kind == "f":
            raise NotImplementedError(f"native code does not store {dtype}")
        return self.float_to_int(v, dtype)

    def round(self, v: Value, dtype: str) -> Value:
        """float32 rounded as a store to dtype and a load back would round it."""
        if dtype in ("float32", "tfloat32", "float64"):
            return v
        if dtype == "bfloat16":
            wide = like(v, I32)
            return self.b.bitcast(self.b.and_(self._rounded_up(v), const(wide, -0x10000)), v.type)
        return self.to_float(self.from_float(v, dtype), dtype)

    def float_to_int(self, v: Value, dtype: str) -> Value:
        """The bits of an integer element: nearest even, saturating, NaN to 0; bool is v != 0."""
        b, e = self.b, element(dtype)
        if e.kind == "b":
            return b.zext(b.fcmp_unordered("!=", v, const(v.type, 0)), like(v, I8))
        whole = self._call("roundeven", v.type, v)
        wide = like(v, I64 if e.size == 8 else I32)
        if dtype == "uint32":
            return self._saturate("fptoui.sat", whole, wide)
        r = self._saturate("fptosi.sat", whole, wide)
        if e.size >= 4:
            return r
        bits = 8 * e.size
        low, high = (0, (1 << bits) - 1) if e.kind == "u" else (-1 << (bits - 1), (1 << (bits - 1)) - 1)
        r = self._call("smin", wide, r, const(wide, high))
        return b.trunc(self._call("smax", wide, r, const(wide, low)), like(v, INTS[e.size]))

    # ---- integers

    def to_int(self, raw: Value, dtype: str, t: ir.Type = I64) -> Value:
        """An integer of type t from the bits of an element; floats by the rule for float to integer."""
        b, e, wide = self.b, element(dtype), like(raw, t)
        if e.kind == "b":
            return b.zext(self._nonzero(raw), wide)
        if e.kind == "f":
            return self.float_to_int(self.to_float(raw, dtype), "int64" if t == I64 else "int32")
        if element_of(raw).width == t.width:
            return raw
        if element_of(raw).width > t.width:
            return b.trunc(raw, wide)
        return (b.sext if e.kind == "i" else b.zext)(raw, wide)

    def from_int(self, v: Value, dtype: str) -> Value:
        """The bits of an element from a signed integer of 32 or 64 bits: integers wrap, bool is v != 0."""
        b, e = self.b, element(dtype)
        if dtype == "float64":
            return b.bitcast(b.sitofp(v, like(v, F64)), like(v, I64))
        if e.kind == "f":
            return self.from_float(b.sitofp(v, like(v, F32)), dtype)
        if e.kind == "b":
            return b.zext(self._nonzero(v), like(v, I8))
        width, have = 8 * e.size, element_of(v).width
        if width == have:
            return v
        return b.trunc(v, like(v, INTS[e.size])) if width < have else b.sext(v, like(v, INTS[e.size]))

    def from_predicate(self, p: Value, dtype: str) -> Value:
        """The bits of 1 or 0 in dtype."""
        e = element(dtype)
        if e.kind != "f":
            return self.b.zext(p, like(p, INTS[e.size]))
        return self.from_float(self.b.uitofp(p, like(p, F32)), dtype)

    def store_bits(self, v: Value, dtype: str) -> Value:
        """The bits of an element from any register form: float32, predicate (i1), integer of 32 or 64 bits."""
        t = element_of(v)
        if t == F32:
            return self.from_float(v, dtype)
        if t == I1:
            return self.from_predicate(v, dtype)
        return self.from_int(v, dtype)

    # ---- pieces

    def _nonzero(self, raw: Value) -> Value:
        return self.b.icmp_unsigned("!=", raw, const(raw.type, 0))

    def _call(self, name: str, result: ir.Type, *args: Value) -> Value:
        f = declare(self.b.module, f"llvm.{name}.{suffix(args[0].type)}", result, *(a.type for a in args))
        return self.b.call(f, args)

    def _saturate(self, name: str, v: Value, result: ir.Type) -> Value:
        f = declare(self.b.module, f"llvm.{name}.{suffix(result)}.{suffix(v.type)}", result, v.type)
        return self.b.call(f, [v])

    def _rounded_up(self, v: Value) -> Value:
        """i32 whose high half is v as bfloat16: half a unit added, less the last bit where the tie is to go down."""
        b, wide = self.b, like(v, I32)
        u = b.bitcast(v, wide)
        odd = b.icmp_signed("!=", b.and_(u, const(wide, 0x10000)), const(wide, 0))
        r = b.add(u, b.select(odd, const(wide, 0x8000), const(wide, 0x7FFF)))
        return b.select(b.fcmp_unordered("uno", v, v), const(wide, 0x7FC00000), r)

    def _to_bfloat16(self, v: Value) -> Value:
        """The instruction of AVX-512 flushes denormals, so vectors that have some take the integer way, by a branch."""
        b, lanes = self.b, lanes_of(v)

        def by_integers() -> Value:
            return b.trunc(b.lshr(self._rounded_up(v), const(like(v, I32), 16)), like(v, I16))

        if not self.target.bf16_dot or lanes not in (8, 16):
            return by_integers()
        fast = b.bitcast(b.fptrunc(v, like(v, BF16)), like(v, I16))
        classify = declare(b.module, f"llvm.x86.avx512.fpclass.ps.{32 * lanes}", like(v, I1), v.type, I32)
        denormal = b.bitcast(b.call(classify, [v, ir.Constant(I32, 0x20)]), ir.IntType(lanes))
        start = b.block
        rare, done = b.append_basic_block("denormal"), b.append_basic_block("rounded")
        b.cbranch(b.icmp_unsigned("!=", denormal, ir.Constant(denormal.type, 0)), rare, done).set_weights([1, 1000])
        b.position_at_end(rare)
        slow = by_integers()
        b.branch(done)
        b.position_at_end(done)
        merged = b.phi(fast.type)
        merged.add_incoming(fast, start)
        merged.add_incoming(slow, rare)
        return merged

    def _to_float8(self, v: Value, f: Float8) -> Value:
        """8-bit float in the low byte of i32."""
        b, wide = self.b, like(v, I32)

        def c(n: int) -> Value:
            return const(wide, n)

        u = b.bitcast(v, wide)
        magnitude = b.and_(u, c(0x7FFFFFFF))
        shift = 23 - f.mantissa
        odd = b.and_(b.lshr(magnitude, c(shift)), c(1))
        normal = b.lshr(b.add(b.add(magnitude, c((1 << (shift - 1)) - 1)), odd), c(shift))
        normal = b.sub(normal, c((127 - f.bias) << f.mantissa))
        # below the normal range: adding 2^23 units of the smallest denormal leaves their count in the low bits
        unit = (127 + 24 - f.bias - f.mantissa) << 23
        counted = b.fadd(b.bitcast(magnitude, v.type), b.bitcast(c(unit), v.type))
        denormal = b.sub(b.bitcast(counted, wide), c(unit))
        r = b.select(b.icmp_signed("<", magnitude, c((128 - f.bias) << 23)), denormal, normal)
        r = b.select(b.icmp_signed(">", r, c(f.largest)), c(f.nan if f.infinity is None else f.infinity), r)
        r = b.select(b.fcmp_unordered("uno", v, v), c(f.nan), r)
        return b.or_(r, b.lshr(b.and_(u, c(-0x80000000)), c(24)))

    def _from_float8(self, raw: Value, f: Float8) -> Value:
        b, wide = self.b, like(raw, I32)

        def c(n: int) -> Value:
            return const(wide, n)

        i = b.zext(raw, wide)
        code = b.and_(i, c(0x7F))
        # the exponent is off by the difference of the biases: one exact multiplication, which also normalises denormals
        v = b.bitcast(b.shl(code, c(23 - f.mantissa)), like(raw, F32))
        u = b.bitcast(b.fmul(v, const(v.type, 2.0 ** (127 - f.bias))), wide)
        if f.infinity is None:
            u = b.select(b.icmp_signed("==", code, c(f.nan)), c(0x7FC00000), u)
        else:
            u = b.select(b.icmp_signed(">=", code, c(f.infinity)), b.or_(u, c(0x7F800000)), u)
        return b.bitcast(b.or_(u, b.shl(b.and_(i, c(0x80)), c(24))), like(raw, F32))

    def _from_exponent(self, raw: Value) -> Value:
        """float8_e8m0fnu: 2^(code - 127), code 255 is NaN."""
        b, wide = self.b, like(raw, I32)
        i = b.zext(raw, wide)
        u = b.select(b.icmp_signed("==", i, const(wide, 0)), const(wide, 0x00400000), b.shl(i, const(wide, 23)))
        u = b.select(b.icmp_signed("==", i, const(wide, 255)), const(wide, 0x7FC00000), u)
        return b.bitcast(u, like(raw, F32))
