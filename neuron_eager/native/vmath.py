"""float32 math on scalars or vectors, as LLVM instructions without library calls.

Each method takes and returns float32 values (scalar or <W x float>). The bound in its docstring is the largest error
against the exact function in units in the last place (ulp), measured on all magnitudes by the tests; "exact" means
correctly rounded. NaN, infinities, signed zeros and denormals give what the mathematical limit gives, as in torch.

Only the `contract` flag is used, and only where a product feeds a sum: reassociation or "no NaN" flags would let
results depend on the compiler. Polynomials call llvm.fma, so their rounding is fixed. Names are those of the `nl`
tokens.
"""
from __future__ import annotations

import math

from .elementary import ORDERED, Elementary
from .irtypes import Value


class Math(Elementary):
    """Emits at the position of one IRBuilder: `Elementary`, and what is built on it."""

    # ---- error function, hyperbolic tangent

    def tanh(self, x: Value) -> Value:
        """4.7 ulp. One rational function, one division; +-1 from |x| = 7.905 on."""
        b = self.b
        y = self.clamp(x, -7.90531110763549805, 7.90531110763549805)
        z = b.fmul(y, y)
        p = self.horner(z, (-2.76076847742355e-16, 2.00018790482477e-13, -8.60467152213735e-11, 5.12229709037114e-08,
                            1.48572235717979e-05, 6.37261928875436e-04, 4.89352455891786e-03))
        q = self.horner(z, (1.19825839466702e-06, 1.18534705686654e-04, 2.26843463243900e-03, 4.89352518554385e-03))
        magnitude = self.abs(x)
        near = b.fcmp_ordered("<", magnitude, self.c(x, 0.0004))
        far = b.fcmp_ordered(">", magnitude, self.c(x, 7.90531110763549805))
        r = b.select(near, x, b.fdiv(b.fmul(y, p), q))
        return b.select(far, self.copysign(self.c(x, 1), x), r)

    def tanh_dx(self, x: Value) -> Value:
        """1 - tanh^2 as 4 e / (1 + e)^2 with e = exp(-2|x|): 4.2 ulp, also where tanh is nearly 1."""
        b = self.b
        e = self.exp(b.fmul(self.abs(x), self.c(x, -2)))
        d = b.fadd(e, self.c(x, 1))
        return b.fdiv(b.fmul(e, self.c(x, 4)), b.fmul(d, d))

    def erf(self, x: Value) -> Value:
        """6 ulp. One rational function, one division; limited to [-1, 1], reached before |x| = 3.92."""
        b = self.b
        y = self.clamp(x, -3.92, 3.92)
        z = b.fmul(y, y)
        p = self.horner(z, (2.123732201653183e-06, 2.861979592125863e-04, 3.658048342913389e-03,
                            5.243302136659622e-02, 1.874160766601562e-01, 1.128379106521606))
        q = self.horner(z, (3.891857340931892e-05, 1.143296016380191e-03, 1.475208811461926e-02,
                            1.129456758499146e-01, 4.994257986545563e-01, 1.0))
        return self.clamp(b.fdiv(b.fmul(y, p), q), -1.0, 1.0)

    def erfc(self, x: Value) -> Value:
        """1 - erf(x), 5 ulp also in the tail."""
        return self._complement(x, self.b.fmul(self._erfcx(x), self._exp_minus_square(x, 1.0)))

    def _complement(self, x: Value, tail: Value) -> Value:
        """`tail`, the value at |x|, or 2 minus it for negative x."""
        b = self.b
        return b.select(b.fcmp_ordered("<", x, self.c(x, 0)), b.fsub(self.c(x, 2), tail), tail)

    def _erfcx(self, x: Value) -> Value:
        """exp(x^2) erfc(|x|), a polynomial in (|x| - 2) / (|x| + 2); only for |x| <= 10.1, beyond which erfc is 0."""
        b = self.b
        z = self.abs(self.clamp(x, -10.1, 10.1))
        t = b.fdiv(b.fsub(z, self.c(x, 2)), b.fadd(z, self.c(x, 2)))
        p = self.horner(t, (-0.000399478566, -0.00122803566, 0.0013133419, 0.00863013323, -0.00806015823,
                            -0.0542038977, 0.164055422, -0.166031465, -0.0927639827, 1.27697837))
        return b.fdiv(p, self.fma(z, self.c(x, 2), self.c(x, 1)))

    def erf_dx(self, x: Value) -> Value:
        """2 / sqrt(pi) exp(-x^2): 3 ulp."""
        return self.b.fmul(self._exp_minus_square(x, 1.0), self.c(x, 1.1283791670955126))

    def _exp_minus_square(self, x: Value, factor: float) -> Value:
        """exp(-factor x^2) with the rounding of the square repaired."""
        b = self.b
        x = self.clamp(x, -20.0, 20.0)
        s = b.fmul(x, x)
        low = b.fmul(self.fma(x, x, b.fneg(s)), self.c(x, -factor))
        e = self.exp(b.fmul(s, self.c(x, -factor)))
        return self.fma(e, low, e)

    # ---- activations

    def sigmoid(self, x: Value) -> Value:
        """3.3 ulp; below -88.7, where exp(-x) overflows, 0, as torch."""
        return self.b.fdiv(self.c(x, 1), self.b.fadd(self.c(x, 1), self.exp(self.b.fneg(x))))

    def silu(self, x: Value) -> Value:
        """4 ulp; 0 below -88.7."""
        return self.b.fdiv(x, self.b.fadd(self.c(x, 1), self.exp(self.b.fneg(x))))

    def silu_dx(self, x: Value) -> Value:
        """s (1 + x (1 - s)): absolute error 4e-7."""
        return self._sigmoid_product_dx(x, self.sigmoid(x))

    def gelu(self, x: Value) -> Value:
        """x (1 + erf(x / sqrt 2)) / 2: absolute error 1.2e-6, relative to 1 + |x|; gelu_tail has relative accuracy."""
        b = self.b
        e = self.erf(b.fmul(x, self.c(x, math.sqrt(0.5))))
        return self.multiply(b.fmul(x, self.c(x, 0.5)), b.fadd(self.c(x, 1), e))

    def gelu_tail(self, x: Value) -> Value:
        """gelu through erfc: 7 ulp down to x = -12.9, where erfc becomes denormal; a third slower."""
        b = self.b
        tail = b.fmul(self._erfcx(b.fmul(x, self.c(x, math.sqrt(0.5)))), self._exp_minus_square(x, 0.5))
        return b.fmul(b.fmul(x, self.c(x, 0.5)), self._complement(b.fneg(x), tail))

    def gelu_dx(self, x: Value) -> Value:
        """Phi(x) + x phi(x): absolute error 1e-6."""
        b = self.b
        phi = b.fmul(self._exp_minus_square(x, 0.5), self.c(x, 1 / math.sqrt(2 * math.pi)))
        cdf = self.fma(self.erf(b.fmul(x, self.c(x, math.sqrt(0.5)))), self.c(x, 0.5), self.c(x, 0.5))
        return self.fma(self.clamp(x, -20.0, 20.0), phi, cdf)

    def gelu_apprx_tanh(self, x: Value) -> Value:
        """x (1 + tanh(u)) / 2 with u = sqrt(2/pi) (x + 0.044715 x^3), as x / (1 + exp(-2 u)): relative error 2^-21
        for |x| < 1, growing with |u| in the negative tail."""
        b, scale = self.b, -2 * math.sqrt(2 / math.pi)
        slope = self.fma(b.fmul(x, x), self.c(x, 0.044715 * scale), self.c(x, scale))
        return b.fdiv(x, b.fadd(self.c(x, 1), self.exp(b.fmul(x, slope))))

    def gelu_apprx_sigmoid(self, x: Value) -> Value:
        """x sigmoid(1.702 x): relative error 2^-21 + 2^-23 |x|."""
        return self.b.fdiv(x, self.b.fadd(self.c(x, 1), self.exp(self.b.fmul(x, self.c(x, -1.702)))))

    def gelu_apprx_sigmoid_dx(self, x: Value) -> Value:
        """Absolute error 5e-7."""
        u = self.b.fmul(x, self.c(x, 1.702))
        return self._sigmoid_product_dx(u, self.sigmoid(u))

    def _sigmoid_product_dx(self, u: Value, s: Value) -> Value:
        """s + u s (1 - s), the derivative of u sigmoid(u); u limited so that infinities give the limits 1 and 0."""
        b = self.b
        return self.fma(b.fmul(self.clamp(u, -200.0, 200.0), s), b.fsub(self.c(u, 1), s), s)

    def softplus(self, x: Value) -> Value:
        """log(1 + exp(x)) = max(x, 0) + log1p(exp(-|x|)): 3 ulp."""
        tail = self.log1p(self.exp(self.b.fneg(self.abs(x))))
        return self.b.fadd(self.maximum(x, self.c(x, 0)), tail)

    def mish(self, x: Value) -> Value:
        """x tanh(softplus(x)) = x n / (n + 2) with n = e (e + 2), e = exp(x): 5 ulp."""
        b = self.b
        e = self.exp(b.select(b.fcmp_ordered(">", x, self.c(x, 20)), self.c(x, 20), x))
        n = b.fmul(e, b.fadd(e, self.c(x, 2)))
        return b.fmul(x, b.fdiv(n, b.fadd(n, self.c(x, 2))))


UNARY = (
    "abs", "square", "relu", "rsqrt", "reciprocal", "sqrt", "exp", "expm1", "log", "log1p", "log2", "log10", "sin",
    "cos", "tan", "arctan", "tanh", "tanh_dx", "sigmoid", "gelu", "gelu_dx", "gelu_tail", "gelu_apprx_tanh",
    "gelu_apprx_sigmoid", "gelu_apprx_sigmoid_dx", "silu", "silu_dx", "softplus", "mish", "erf", "erfc", "erf_dx",
    "sign", "negative", "ceil", "floor", "trunc", "round")
BINARY = (
    "add", "subtract", "multiply", "divide", "maximum", "minimum", "abs_max", "abs_min", "power", "fmod", "mod",
    "prelu")
COMPARE = (*ORDERED, "not_equal")
