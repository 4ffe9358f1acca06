"""Exact integer arithmetic on scalars or vectors of any width: wraps around, and never traps.

Operands of one call have the same type. `signed` chooses the interpretation where it matters.
"""
from __future__ import annotations

from llvmlite import ir

from .irtypes import I1, Value, const, declare, element_of, like, suffix

COMPARE = {"equal": "==", "not_equal": "!=", "greater": ">", "greater_equal": ">=", "less": "<", "less_equal": "<="}


class IntMath:
    def __init__(self, builder: ir.IRBuilder) -> None:
        self.b = builder

    def c(self, x: Value, value: int) -> Value:
        return const(x.type, value)

    def _intrinsic(self, name: str, *args: Value) -> Value:
        t = args[0].type
        return self.b.call(declare(self.b.module, f"llvm.{name}.{suffix(t)}", t, *(a.type for a in args)), args)

    def add(self, x: Value, y: Value) -> Value:
        return self.b.add(x, y)

    def subtract(self, x: Value, y: Value) -> Value:
        return self.b.sub(x, y)

    def multiply(self, x: Value, y: Value) -> Value:
        return self.b.mul(x, y)

    def negative(self, x: Value) -> Value:
        return self.b.sub(self.c(x, 0), x)

    def abs(self, x: Value) -> Value:
        """|x|; the smallest integer stays itself."""
        return self.b.select(self.b.icmp_signed("<", x, self.c(x, 0)), self.negative(x), x)

    def sign(self, x: Value) -> Value:
        b = self.b
        return b.sub(b.zext(b.icmp_signed(">", x, self.c(x, 0)), x.type),
                     b.zext(b.icmp_signed("<", x, self.c(x, 0)), x.type))

    def square(self, x: Value) -> Value:
        return self.b.mul(x, x)

    def maximum(self, x: Value, y: Value, signed: bool = True) -> Value:
        return self._intrinsic("smax" if signed else "umax", x, y)

    def minimum(self, x: Value, y: Value, signed: bool = True) -> Value:
        return self._intrinsic("smin" if signed else "umin", x, y)

    def relu(self, x: Value) -> Value:
        return self.maximum(x, self.c(x, 0))

    def abs_max(self, x: Value, y: Value) -> Value:
        """The operand of larger magnitude, with its sign; y on a tie."""
        return self.b.select(self.b.icmp_unsigned(">", self.abs(x), self.abs(y)), x, y)

    def abs_min(self, x: Value, y: Value) -> Value:
        return self.b.select(self.b.icmp_unsigned("<", self.abs(x), self.abs(y)), x, y)

    def bitwise_and(self, x: Value, y: Value) -> Value:
        return self.b.and_(x, y)

    def bitwise_or(self, x: Value, y: Value) -> Value:
        return self.b.or_(x, y)

    def bitwise_xor(self, x: Value, y: Value) -> Value:
        return self.b.xor(x, y)

    def invert(self, x: Value) -> Value:
        return self.b.xor(x, self.c(x, -1))

    def left_shift(self, x: Value, y: Value) -> Value:
        """x << y; 0 if y is outside the width."""
        b, width = self.b, element_of(x).width
        inside = b.icmp_unsigned("<", y, self.c(y, width))
        return b.select(inside, b.shl(x, b.select(inside, y, self.c(y, 0))), self.c(x, 0))

    def right_shift(self, x: Value, y: Value, signed: bool = True) -> Value:
        """x >> y, arithmetic if signed; outside the width the sign (or 0) remains."""
        b, width = self.b, element_of(x).width
        inside = b.icmp_unsigned("<", y, self.c(y, width))
        if signed:
            return b.ashr(x, b.select(inside, y, self.c(y, width - 1)))
        return b.select(inside, b.lshr(x, b.select(inside, y, self.c(y, 0))), self.c(x, 0))

    def divide(self, x: Value, y: Value, signed: bool = True) -> Value:
        """Quotient rounded towards zero; 0 for a zero divisor; the smallest integer over -1 wraps."""
        return self._guarded(x, y, signed)[0]

    def fmod(self, x: Value, y: Value, signed: bool = True) -> Value:
        """Remainder with the sign of x; 0 for a zero divisor."""
        q, zero = self._guarded(x, y, signed)
        return self.b.select(zero, self.c(x, 0), self.b.sub(x, self.b.mul(q, y)))

    def floor_divide(self, x: Value, y: Value, signed: bool = True) -> Value:
        """Quotient rounded down; 0 for a zero divisor."""
        q, zero = self._guarded(x, y, signed)
        if not signed:
            return q
        down = self.b.and_(self._differ(self.b.sub(x, self.b.mul(q, y)), y), self.b.not_(zero))
        return self.b.sub(q, self.b.zext(down, x.type))

    def mod(self, x: Value, y: Value, signed: bool = True) -> Value:
        """Remainder with the sign of y (Python %); 0 for a zero divisor."""
        r = self.fmod(x, y, signed)
        return self.b.select(self._differ(r, y), self.b.add(r, y), r) if signed else r

    def _differ(self, r: Value, y: Value) -> Value:
        """r is not 0 and has not y's sign."""
        b, zero = self.b, self.c(r, 0)
        return b.and_(b.icmp_signed("!=", r, zero), b.icmp_signed("<", b.xor(r, y), zero))

    def _guarded(self, x: Value, y: Value, signed: bool) -> tuple[Value, Value]:
        """(quotient, divisor is zero). The hardware division traps on x / 0 and on the smallest integer / -1."""
        b = self.b
        zero = b.icmp_signed("==", y, self.c(y, 0))
        safe = b.select(zero, self.c(y, 1), y)
        if signed:
            minus_one = b.icmp_signed("==", y, self.c(y, -1))
            q = b.sdiv(x, b.select(minus_one, self.c(y, 1), safe))
            q = b.select(minus_one, self.negative(x), q)
        else:
            q = b.udiv(x, safe)
        return b.select(zero, self.c(x, 0), q), zero

    def compare(self, op: str, x: Value, y: Value, signed: bool = True) -> Value:
        """Predicate of a comparison token."""
        return (self.b.icmp_signed if signed else self.b.icmp_unsigned)(COMPARE[op], x, y)

    def truth(self, x: Value) -> Value:
        return x if element_of(x) == I1 else self.b.icmp_signed("!=", x, self.c(x, 0))

    def from_predicate(self, predicate: Value, t: ir.Type) -> Value:
        """1 where true, else 0, as integers of element type t."""
        return self.b.zext(predicate, like(predicate, t))
