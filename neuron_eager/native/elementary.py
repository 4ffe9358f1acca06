"""The elementary part of `vmath`, where the rules are: arithmetic, exponentials, logarithms, powers, trigonometry."""
from __future__ import annotations

import math
import struct
from collections.abc import Callable, Sequence

from llvmlite import ir

from .irtypes import F32, F64, I1, I32, I64, Value, const, declare, element_of, lanes_of, like, number_of, suffix

CONTRACT = ("contract",)
ROUND_MAGIC = 12582912.0          # 1.5 * 2^23: adding it rounds |x| < 2^22 to an integer, held in the low mantissa bits
ORDERED = {"equal": "==", "greater": ">", "greater_equal": ">=", "less": "<", "less_equal": "<="}
LARGE_ANGLE = 1e5                 # beyond, three-word range reduction loses bits and sin/cos/tan go to libm, per lane

PI_TAIL = 1.2246467991473532e-16  # pi minus its double


class Elementary:
    """Emits at the position of one IRBuilder. scale: the CPU has AVX-512's vscalef, x 2^n in one instruction."""

    def __init__(self, builder: ir.IRBuilder, scale: bool = False) -> None:
        self.b, self.scale = builder, scale

    # ---- constants, intrinsics, predicates

    def c(self, x: Value, value: float) -> Value:
        """A float constant shaped like x."""
        return const(x.type, value)

    def ci(self, x: Value, value: int) -> Value:
        """An i32 constant shaped like x."""
        return const(like(x, I32), value)

    def bits(self, x: Value) -> Value:
        return self.b.bitcast(x, like(x, I32))

    def from_bits(self, i: Value) -> Value:
        return self.b.bitcast(i, like(i, F32))

    def intrinsic(self, name: str, *args: Value, nsz: bool = False) -> Value:
        t = args[0].type
        f = declare(self.b.module, f"llvm.{name}.{suffix(t)}", t, *(a.type for a in args))
        return self.b.call(f, args, fastmath=("nsz",) if nsz else ())

    def fma(self, x: Value, y: Value, z: Value) -> Value:
        return self.intrinsic("fma", x, y, z)

    def horner(self, x: Value, coefficients: Sequence[float]) -> Value:
        """Polynomial in x, highest coefficient first."""
        r = self.c(x, coefficients[0])
        for k in coefficients[1:]:
            r = self.fma(r, x, self.c(x, k))
        return r

    def is_nan(self, x: Value) -> Value:
        return self.b.fcmp_unordered("uno", x, x)

    def compare(self, op: str, x: Value, y: Value) -> Value:
        """Predicate (i1 lanes) of a comparison token; NaN is unequal to everything."""
        if op == "not_equal":
            return self.b.fcmp_unordered("!=", x, y)
        return self.b.fcmp_ordered(ORDERED[op], x, y)

    def truth(self, x: Value) -> Value:
        """Predicate x != 0 (NaN is true)."""
        return x if element_of(x) == I1 else self.compare("not_equal", x, self.c(x, 0))

    def as_float(self, predicate: Value) -> Value:
        """1.0 where true, else 0.0."""
        t = like(predicate, F32)
        return self.b.select(predicate, const(t, 1), const(t, 0))

    def any(self, predicate: Value) -> Value:
        """One i1: true in some lane."""
        lanes = lanes_of(predicate)
        if lanes is None:
            return predicate
        f = declare(self.b.module, f"llvm.vector.reduce.or.v{lanes}i1", I1, predicate.type)
        return self.b.call(f, [predicate])

    def clamp(self, x: Value, low: float, high: float) -> Value:
        """x limited to [low, high]; NaN stays NaN."""
        hi, lo = self.c(x, high), self.c(x, low)
        x = self.b.select(self.b.fcmp_ordered("<", hi, x), hi, x)
        return self.b.select(self.b.fcmp_ordered(">", lo, x), lo, x)

    def copysign(self, magnitude: Value, sign: Value) -> Value:
        return self.intrinsic("copysign", magnitude, sign)

    # ---- arithmetic; each exact

    def add(self, x: Value, y: Value) -> Value:
        return self.b.fadd(x, y, flags=CONTRACT)

    def subtract(self, x: Value, y: Value) -> Value:
        return self.b.fsub(x, y, flags=CONTRACT)

    def multiply(self, x: Value, y: Value) -> Value:
        return self.b.fmul(x, y, flags=CONTRACT)

    def divide(self, x: Value, y: Value) -> Value:
        return self.b.fdiv(x, y)

    def reciprocal(self, x: Value) -> Value:
        return self.b.fdiv(self.c(x, 1), x)

    def negative(self, x: Value) -> Value:
        return self.b.fneg(x)

    def abs(self, x: Value) -> Value:
        return self.intrinsic("fabs", x)

    def square(self, x: Value) -> Value:
        return self.multiply(x, x)

    def sqrt(self, x: Value) -> Value:
        return self.intrinsic("sqrt", x)

    def maximum(self, x: Value, y: Value) -> Value:
        """NaN if either is NaN; which zero of +-0 is unspecified."""
        return self.intrinsic("maximum", x, y, nsz=True)

    def minimum(self, x: Value, y: Value) -> Value:
        return self.intrinsic("minimum", x, y, nsz=True)

    def abs_max(self, x: Value, y: Value) -> Value:
        """The operand of larger magnitude, with its sign; y on a tie."""
        return self.b.select(self.b.fcmp_ordered(">", self.abs(x), self.abs(y)), x, y)

    def abs_min(self, x: Value, y: Value) -> Value:
        return self.b.select(self.b.fcmp_ordered("<", self.abs(x), self.abs(y)), x, y)

    def relu(self, x: Value) -> Value:
        return self.maximum(x, self.c(x, 0))

    def prelu(self, x: Value, slope: Value) -> Value:
        """x where x > 0, else slope * x."""
        return self.b.select(self.b.fcmp_ordered(">", x, self.c(x, 0)), x, self.multiply(x, slope))

    def sign(self, x: Value) -> Value:
        """-1, 0 or 1; 0 for NaN, as torch."""
        b, zero = self.b, self.c(x, 0)
        r = b.select(b.fcmp_ordered("<", x, zero), self.c(x, -1), zero)
        return b.select(b.fcmp_ordered(">", x, zero), self.c(x, 1), r)

    def floor(self, x: Value) -> Value:
        return self.intrinsic("floor", x)

    def ceil(self, x: Value) -> Value:
        return self.intrinsic("ceil", x)

    def trunc(self, x: Value) -> Value:
        return self.intrinsic("trunc", x)

    def round(self, x: Value) -> Value:
        """To the nearest integer, ties to even."""
        return self.intrinsic("roundeven", x)

    def rsqrt(self, x: Value) -> Value:
        """1.5 ulp."""
        return self.b.fdiv(self.c(x, 1), self.sqrt(x))

    def fmod(self, x: Value, y: Value) -> Value:
        """Exact remainder with the sign of x (C fmod). Quotients above 2^22 go lane by lane to fmodf."""
        b = self.b
        magnitude, divisor = self.abs(x), self.abs(y)
        quotient = b.fdiv(magnitude, divisor)
        plain = b.and_(b.fcmp_ordered("<", quotient, self.c(x, 4194304.0)),
                       b.and_(b.fcmp_ordered("<", divisor, self.c(x, 1.7e38)),
                              b.fcmp_ordered(">", divisor, self.c(x, 1e-30))))
        r = self.fma(b.fneg(self.trunc(quotient)), divisor, magnitude)
        r = b.select(b.fcmp_ordered("<", r, self.c(x, 0)), b.fadd(r, divisor), r)       # the quotient was rounded up
        r = b.select(b.fcmp_ordered(">=", r, divisor), b.fsub(r, divisor), r)
        return self._rarely(b.not_(plain), "fmodf", (x, y), self.copysign(r, x))

    def mod(self, x: Value, y: Value) -> Value:
        """Exact remainder with the sign of y (Python %, torch.remainder)."""
        b = self.b
        r, zero = self.fmod(x, y), self.c(x, 0)
        differ = b.xor(b.fcmp_ordered("<", r, zero), b.fcmp_ordered("<", y, zero))
        return b.select(b.and_(self.compare("not_equal", r, zero), differ), b.fadd(r, y), r)

    # ---- exponentials and logarithms

    def exp(self, x: Value) -> Value:
        """1.3 ulp, denormal results included. x = n ln2 + r, |r| <= ln2/2 (Cody and Waite)."""
        b = self.b
        x = self.clamp(x, -104.0, 89.0)
        t = self.fma(x, self.c(x, 1.4426950408889634), self.c(x, ROUND_MAGIC))
        n = b.fsub(t, self.c(x, ROUND_MAGIC))
        r = self.fma(n, self.c(x, -0.693145751953125), x)
        r = self.fma(n, self.c(x, -1.42860682030941723e-6), r)
        p = self.horner(r, (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1,
                            5.0000001201e-1))
        p = self.fma(b.fmul(p, r), r, b.fadd(r, self.c(x, 1)))
        if self.scale and lanes_of(x) in (8, 16):
            return self._scalef(p, n)
        k = b.sub(self.bits(t), self.ci(x, 0x4B400000))
        half = b.ashr(k, self.ci(x, 1))             # 2^n as two factors, so that denormals and overflow come out right
        for e in (half, b.sub(k, half)):
            p = b.fmul(p, self.from_bits(b.shl(b.add(e, self.ci(x, 127)), self.ci(x, 23))))
        return p

    def _scalef(self, x: Value, n: Value) -> Value:
        """x 2^n, rounded once."""
        wide = lanes_of(x) == 16
        name = f"llvm.x86.avx512.mask.scalef.ps.{512 if wide else 256}"
        mask = ir.IntType(16 if wide else 8)
        rounding = [ir.Constant(I32, 4)] if wide else []             # that of the current mode
        f = declare(self.b.module, name, x.type, x.type, x.type, x.type, mask, *(r.type for r in rounding))
        return self.b.call(f, [x, n, const(x.type, 0), ir.Constant(mask, -1), *rounding])

    def expm1(self, x: Value) -> Value:
        """2.2 ulp."""
        b = self.b
        p = self.horner(x, (1.9849879e-4, 1.39961822e-3, 8.33357871e-3, 4.16653566e-2, 1.66666642e-1, 5.0000006e-1))
        near = self.copysign(self.fma(b.fmul(p, x), x, x), x)
        far = b.fsub(self.exp(x), self.c(x, 1))
        return b.select(b.fcmp_ordered("<", self.abs(x), self.c(x, 0.5)), near, far)

    def log(self, x: Value) -> Value:
        """0.9 ulp, denormal arguments included. x = 2^e (1 + f), 2/3 <= 1 + f < 4/3."""
        b = self.b
        inf = math.inf
        tiny = b.fcmp_ordered("<", x, self.c(x, 1.17549435e-38))
        scaled = b.select(tiny, b.fmul(x, self.c(x, 8388608.0)), x)
        bias = b.select(tiny, self.c(x, -23.0), self.c(x, 0.0))
        i = self.bits(scaled)
        e = b.and_(b.sub(i, self.ci(x, 0x3F2AAAAB)), self.ci(x, -8388608))
        f = b.fsub(self.from_bits(b.sub(i, e)), self.c(x, 1))
        n = self.fma(b.sitofp(e, x.type), self.c(x, 1.19209290e-7), bias)
        r = self.horner(f, (-0.130310059, 0.140869141, -0.121483512, 0.139814854, -0.166846126, 0.200120345,
                            -0.249996200, 0.333331972, -0.5))
        r = self.fma(n, self.c(x, 0.693147182), self.fma(r, b.fmul(f, f), f))
        r = b.select(b.fcmp_ordered("<", x, self.c(x, inf)), r, b.fadd(x, x))
        r = b.select(b.fcmp_ordered("<", x, self.c(x, 0)), self.c(x, math.nan), r)
        return b.select(b.fcmp_ordered("==", x, self.c(x, 0)), self.c(x, -inf), r)

    def log1p(self, x: Value) -> Value:
        """1.5 ulp: log(u) + (x - (u - 1)) / u with u = 1 + x rounded, where the quotient repairs the rounding."""
        b = self.b
        u = b.fadd(x, self.c(x, 1))
        repaired = b.fadd(self.log(u), b.fdiv(b.fsub(x, b.fsub(u, self.c(x, 1))), u))
        finite = b.and_(b.fcmp_ordered(">", u, self.c(x, 0)), b.fcmp_ordered("<", u, self.c(x, math.inf)))
        r = b.select(finite, repaired, self.log(u))
        return b.select(b.fcmp_ordered("==", x, self.c(x, 0)), x, r)

    def log2(self, x: Value) -> Value:
        """2 ulp."""
        return self.b.fmul(self.log(x), self.c(x, 1.4426950408889634))

    def log10(self, x: Value) -> Value:
        """2 ulp."""
        return self.b.fmul(self.log(x), self.c(x, 0.4342944819032518))

    def power(self, x: Value, y: Value) -> Value:
        """0.6 ulp: exp(y log|x|) in double. Signs, zeros and infinities as C pow.

        A constant exponent for which torch.pow takes a product, root or quotient takes the same: 1.5 ulp.
        """
        b, short = self.b, number_of(y)
        if short in SHORT_POWERS:
            return SHORT_POWERS[short](self, x)
        one, zero, inf = self.c(x, 1), self.c(x, 0), self.c(x, math.inf)
        magnitude = self.abs(x)
        wide = like(x, F64)
        r = b.fptrunc(self._exp64(b.fmul(b.fpext(y, wide), self._log64(b.fpext(magnitude, wide)))), x.type)
        y_up = b.fcmp_ordered(">", y, zero)
        base_small = b.fcmp_ordered("==", magnitude, zero)
        base_large = b.fcmp_ordered("==", magnitude, inf)
        r = b.select(base_small, b.select(y_up, zero, inf), r)
        r = b.select(base_large, b.select(y_up, inf, zero), r)
        y_infinite = b.fcmp_ordered("==", self.abs(y), inf)
        grows = b.xor(b.fcmp_ordered("<", magnitude, one), y_up)
        r = b.select(y_infinite, b.select(grows, inf, zero), r)
        whole = b.fcmp_ordered("==", self.trunc(y), y)
        half = b.fmul(y, self.c(x, 0.5))
        odd = b.and_(whole, self.compare("not_equal", self.trunc(half), half))
        odd = b.and_(odd, b.not_(y_infinite))
        negative = b.icmp_signed("<", self.bits(x), self.ci(x, 0))
        r = b.select(b.and_(negative, odd), b.fneg(r), r)
        not_real = b.and_(b.and_(b.fcmp_ordered("<", x, zero), b.not_(whole)), b.not_(base_large))
        r = b.select(not_real, self.c(x, math.nan), r)
        r = b.select(b.or_(self.is_nan(x), self.is_nan(y)), self.c(x, math.nan), r)
        r = b.select(b.and_(b.fcmp_ordered("==", magnitude, one), y_infinite), one, r)
        return b.select(b.or_(b.fcmp_ordered("==", x, one), b.fcmp_ordered("==", y, zero)), one, r)

    def _log64(self, x: Value) -> Value:
        """log of positive finite doubles (widened float32), relative error 2^-40: 2 atanh((m - 1) / (m + 1))."""
        b = self.b
        it = like(x, I64)
        i = b.bitcast(x, it)
        e = b.and_(b.sub(i, const(it, 0x3FE6A09E667F3BCD)), const(it, -1 << 52))
        m = b.bitcast(b.sub(i, e), x.type)
        n = b.sitofp(b.trunc(b.ashr(e, const(it, 52)), like(x, I32)), x.type)
        s = b.fdiv(b.fsub(m, self.c(x, 1)), b.fadd(m, self.c(x, 1)))
        z = b.fmul(s, s)
        p = self.horner(z, tuple(2 / k for k in (15, 13, 11, 9, 7, 5, 3)))
        r = self.fma(b.fmul(p, z), s, b.fmul(s, self.c(x, 2)))
        return self.fma(n, self.c(x, math.log(2)), r)

    def _exp64(self, x: Value) -> Value:
        """exp of doubles, relative error 2^-36, limited to results that round to float32 zero or infinity."""
        b = self.b
        it = like(x, I64)
        x = self.clamp(x, -110.0, 90.0)
        magic = self.c(x, 6755399441055744.0)
        t = self.fma(x, self.c(x, 1 / math.log(2)), magic)
        r = self.fma(b.fsub(t, magic), self.c(x, -math.log(2)), x)
        p = self.horner(r, tuple(1 / math.factorial(k) for k in range(10, -1, -1)))
        return b.fmul(p, b.bitcast(b.shl(b.add(b.bitcast(t, it), const(it, 1023)), const(it, 52)), x.type))

    # ---- trigonometry

    def sin(self, x: Value) -> Value:
        """2 ulp. Three-word reduction by pi; lanes beyond 1e5 go to libm."""
        r, n = self._reduce(x, math.pi, offset=0.0)
        y = self._sin_reduced(r)
        y = self.from_bits(self.b.xor(self.bits(y), self.b.shl(n, self.ci(x, 31))))
        y = self.b.select(self.b.fcmp_ordered("==", x, self.c(x, 0)), x, y)
        return self._rarely(self._large(x), "sinf", (x,), y)

    def cos(self, x: Value) -> Value:
        """2.1 ulp."""
        r, n = self._reduce(x, math.pi, offset=0.5)
        y = self._sin_reduced(r)
        flip = self.b.shl(self.b.xor(n, self.ci(x, 1)), self.ci(x, 31))
        y = self.from_bits(self.b.xor(self.bits(y), flip))
        return self._rarely(self._large(x), "cosf", (x,), y)

    def tan(self, x: Value) -> Value:
        """3 ulp. Reduction by pi/2; -1/tan in the odd quadrants."""
        b = self.b
        r, n = self._reduce(x, math.pi / 2, offset=0.0)
        z = b.fmul(r, r)
        p = self.horner(z, (0.00938658044, 0.00311795762, 0.0244313441, 0.0534109473, 0.133388028, 0.333331555))
        t = self.fma(b.fmul(p, z), r, r)
        odd = b.icmp_signed("!=", b.and_(n, self.ci(x, 1)), self.ci(x, 0))
        y = b.select(odd, b.fdiv(self.c(x, -1), t), t)
        y = b.select(b.fcmp_ordered("==", x, self.c(x, 0)), x, y)
        return self._rarely(self._large(x), "tanf", (x,), y)

    def arctan(self, x: Value) -> Value:
        """1.8 ulp. 1/|x| for |x| > 1."""
        b = self.b
        a = self.abs(x)
        big = b.fcmp_ordered(">", a, self.c(x, 1))
        t = b.select(big, b.fdiv(self.c(x, -1), a), a)
        z = b.fmul(t, t)
        p = self.horner(z, (0.00292043132, -0.0163668878, 0.0432101786, -0.0755207315, 0.10665939, -0.142110392,
                            0.199937716, -0.333331525))
        r = self.fma(b.fmul(p, z), t, t)
        r = b.select(big, b.fadd(r, self.c(x, math.pi / 2)), r)
        return b.select(self.is_nan(x), x, self.copysign(r, x))

    def _large(self, x: Value) -> Value:
        return self.b.fcmp_ordered(">", self.abs(x), self.c(x, LARGE_ANGLE))

    def _reduce(self, x: Value, period: float, offset: float) -> tuple[Value, Value]:
        """x - (n + offset) * period with n the nearest integer, and n as i32. The period is held in three words."""
        b = self.b
        high = _float32(period)
        middle = _float32(period - high)
        words = (high, middle, period - high - middle + period / math.pi * PI_TAIL)
        scaled = self.fma(x, self.c(x, 1 / period), self.c(x, -offset)) if offset else b.fmul(x, self.c(x, 1 / period))
        t = b.fadd(scaled, self.c(x, ROUND_MAGIC))
        n = b.fsub(t, self.c(x, ROUND_MAGIC))
        if offset:
            n = b.fadd(n, self.c(x, offset))
        r = x
        for word in words:
            r = self.fma(n, self.c(x, -word), r)
        return r, self.bits(t)

    def _sin_reduced(self, r: Value) -> Value:
        """sin on |r| <= pi/2."""
        z = self.b.fmul(r, r)
        p = self.horner(z, (-2.38887843e-08, 2.75253774e-06, -0.000198408685, 0.00833333097, -0.166666672))
        return self.fma(self.b.fmul(p, z), r, r)

    # ---- lanes that need a library call

    def _rarely(self, where: Value, function: str, args: tuple[Value, ...], usual: Value) -> Value:
        """`usual`, but libm's `function` in the lanes of `where`; one branch skips it when there are none."""
        b = self.b
        slow = self._lane_by_lane(function, args)
        start = b.block
        call, done = b.append_basic_block("rare"), b.append_basic_block("usual")
        b.cbranch(self.any(where), call, done).set_weights([1, 1000])
        b.position_at_end(call)
        replaced = b.select(where, b.call(slow, args), usual)
        b.branch(done)
        b.position_at_end(done)
        merged = b.phi(usual.type)
        merged.add_incoming(usual, start)
        merged.add_incoming(replaced, call)
        return merged

    def _lane_by_lane(self, function: str, args: tuple[Value, ...]) -> ir.Function:
        """A function of this module that calls a scalar libm function in every lane; one per name and width."""
        module, t = self.b.module, args[0].type
        lanes = lanes_of(t)
        scalar = declare(module, function, F32, *(F32 for _ in args))
        if lanes is None:
            return scalar
        name = f"each_{function}_{lanes}"
        if name in module.globals:
            return module.globals[name]
        f = ir.Function(module, ir.FunctionType(t, [t] * len(args)), name)
        f.linkage = "internal"
        f.attributes.add("nounwind")
        f.attributes.add("noinline")
        b = ir.IRBuilder(f.append_basic_block("entry"))
        r = ir.Constant(t, ir.Undefined)
        for i in range(lanes):
            k = ir.Constant(I32, i)
            r = b.insert_element(r, b.call(scalar, [b.extract_element(a, k) for a in f.args]), k)
        b.ret(r)
        return f


SHORT_POWERS: dict[float | None, Callable[[Elementary, Value], Value]] = {
    1.0: lambda m, x: x,
    2.0: lambda m, x: m.square(x),
    3.0: lambda m, x: m.b.fmul(m.square(x), x),
    0.5: lambda m, x: m.sqrt(x),
    -0.5: lambda m, x: m.rsqrt(x),
    -1.0: lambda m, x: m.reciprocal(x),
    -2.0: lambda m, x: m.reciprocal(m.square(x)),
}


def _float32(value: float) -> float:
    return struct.unpack("f", struct.pack("f", value))[0]
