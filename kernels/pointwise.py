"""The aten ops that the elementwise kernel serves: one table by kind."""
from __future__ import annotations

import nki.language as nl

from ..dispatch.plan import Decline, KernelCall, Reason, View
from . import elementwise
from .rules import FLOATS, INTEGERS, Elementwise, Selection, compact, torch, widened

BINARY = ("self", "other")
INTEGRAL = INTEGERS | {torch.bool}


class Clamp(Elementwise):
    """clamp and its one-sided forms; a bound that is None is left out."""

    def lower(self, call):
        bounds = [name for name in ("min", "max") if call.get(name) is not None]
        if not bounds:
            return Decline(Reason.NO_KERNEL, "clamp without bounds")
        one_sided = nl.maximum if bounds == ["min"] else nl.minimum
        function = elementwise.clamp if len(bounds) == 2 else one_sided
        return Elementwise(function, ("self", *bounds), allowed=self.allowed).lower(call)


class Signs(Elementwise):
    """neg and abs: of 16-bit floats that lie side by side, two at a time, as bits."""

    def __init__(self, function, of_pairs):
        super().__init__(function)
        self.of_pairs = of_pairs

    def lower(self, call):
        x = call["self"]
        if x.dtype in (torch.bfloat16, torch.float16):
            out = self.out(call, x.dtype)
            if out.dtype is x.dtype:
                out, items = compact(out, [x])
                out, views = widened(out, [v for v in items if isinstance(v, View)])
                if out.bits is not None:
                    return KernelCall(elementwise.elementwise, {"ins": tuple(views)}, [out],
                                      {"function": self.of_pairs}, same_view=True)
        return super().lower(call)


class Lerp(Elementwise):
    def valid(self, call):
        return len({t.dtype for t in call.inputs}) == 1


class Gelu(Elementwise):
    def lower(self, call):
        tanh = call.get("approximate") == "tanh"
        return Elementwise(nl.gelu_apprx_tanh if tanh else nl.gelu, allowed=FLOATS).lower(call)


class PowerOfConstant(Elementwise):
    """x ** number. The exponent is a part of the key: each common one has its own instruction.

    The CPU takes float16 to a power of +-0.5 by pow and others by sqrt, which differ for -inf and -0.0.
    """

    FUNCTIONS = {2.0: nl.square, 0.5: nl.sqrt, -0.5: nl.rsqrt, -1.0: nl.reciprocal, 1.0: nl.copy}
    EXACT = {0.5: elementwise.square_root, -0.5: elementwise.reciprocal_root}

    def __init__(self):
        super().__init__(nl.power, ("self",), allowed=FLOATS)
        self.operands = ()

    def lower(self, call):
        exponent = call["exponent"]
        function = self.FUNCTIONS.get(exponent) if isinstance(exponent, (int, float)) else None
        if call["self"].dtype is torch.float16:
            function = self.EXACT.get(exponent, function)
        if function is not None:
            return Elementwise(function, ("self",), allowed=FLOATS).lower(call)
        return Elementwise(nl.power, ("self", "exponent"), allowed=FLOATS).lower(call)


def floats(function, inputs=("self",)):
    """An op whose result is floating point; integer inputs become float32."""
    return Elementwise(function, inputs, result="float")


ROUTES = {
    # arithmetic
    "add.Tensor": Elementwise(elementwise.add_scaled, (*BINARY, "alpha")),
    "sub.Tensor": Elementwise(elementwise.subtract_scaled, (*BINARY, "alpha")),
    "rsub.Tensor": Elementwise(elementwise.reverse_subtract_scaled, (*BINARY, "alpha")),
    "mul.Tensor": Elementwise(nl.multiply, BINARY),
    "div.Tensor": floats(nl.divide, BINARY),
    "maximum": Elementwise(nl.maximum, BINARY),
    "minimum": Elementwise(nl.minimum, BINARY),
    "neg": Signs(elementwise.negative, elementwise.flip_signs),
    "abs": Signs(elementwise.absolute, elementwise.clear_signs),
    "addcmul": Elementwise(elementwise.addcmul, ("self", "tensor1", "tensor2", "value")),
    "addcdiv": Elementwise(elementwise.addcdiv, ("self", "tensor1", "tensor2", "value"), allowed=FLOATS),
    "lerp.Scalar": Lerp(elementwise.lerp, ("self", "end", "weight"), promoted=("self", "end"), allowed=FLOATS),
    "lerp.Tensor": Lerp(elementwise.lerp, ("self", "end", "weight"), promoted=("self", "end"), allowed=FLOATS),
    "pow.Tensor_Scalar": PowerOfConstant(),
    "pow.Tensor_Tensor": Elementwise(nl.power, ("self", "exponent"), allowed=FLOATS),
    "clamp": Clamp(None, ("self", "min", "max")),
    "clamp.Tensor": Clamp(None, ("self", "min", "max")),
    "clamp_min": Clamp(None, ("self", "min")),
    "clamp_min.Tensor": Clamp(None, ("self", "min")),
    "clamp_max": Clamp(None, ("self", "max")),
    "clamp_max.Tensor": Clamp(None, ("self", "max")),
    # functions of one argument
    "exp": floats(nl.exp),
    "expm1": floats(elementwise.expm1),
    "log": floats(nl.log),
    "log1p": floats(elementwise.log1p),
    "sqrt": floats(nl.sqrt),
    "rsqrt": floats(nl.rsqrt),
    "reciprocal": floats(nl.reciprocal),
    "sin": floats(nl.sin),
    "cos": floats(nl.cos),
    "tan": floats(nl.tan),
    "tanh": floats(nl.tanh),
    "sigmoid": floats(nl.sigmoid),
    "erf": floats(nl.erf),
    "relu": Elementwise(nl.relu, allowed=FLOATS),
    "hardtanh": Elementwise(elementwise.clamp, ("self", "min_val", "max_val"), promoted=("self",), allowed=FLOATS),
    "leaky_relu": Elementwise(elementwise.leaky_relu, ("self", "negative_slope"), promoted=("self",), allowed=FLOATS),
    "threshold": Elementwise(elementwise.threshold, ("self", "threshold", "value"), promoted=("self",), allowed=FLOATS),
    "hardsigmoid": Elementwise(elementwise.hardsigmoid, allowed=FLOATS),
    "hardswish": Elementwise(elementwise.hardswish, allowed=FLOATS),
    "silu": Elementwise(nl.silu, allowed=FLOATS),
    "mish": Elementwise(nl.mish, allowed=FLOATS),
    "gelu": Gelu(None, ("self",)),
    "floor": Elementwise(nl.floor, allowed=FLOATS),
    "ceil": Elementwise(nl.ceil, allowed=FLOATS),
    "trunc": Elementwise(nl.trunc, allowed=FLOATS),
    "sgn": Elementwise(nl.sign, allowed=FLOATS),
    "sign": Elementwise(nl.sign, allowed=FLOATS),
    # comparisons and logic
    **{f"{op}.{kind}": Elementwise(token, BINARY, result="bool")
       for op, token in (("eq", nl.equal), ("ne", nl.not_equal), ("lt", nl.less), ("le", nl.less_equal),
                         ("gt", nl.greater), ("ge", nl.greater_equal))
       for kind in ("Tensor", "Scalar")},
    "isneginf": Elementwise(elementwise.is_negative_infinity, result="bool", allowed=FLOATS | {torch.bool}),
    "isposinf": Elementwise(elementwise.is_positive_infinity, result="bool", allowed=FLOATS | {torch.bool}),
    "isnan": Elementwise(elementwise.is_nan, result="bool", allowed=FLOATS | {torch.bool}),
    "logical_not": Elementwise(elementwise.logical_not, result="bool"),
    "logical_and": Elementwise(elementwise.logical(nl.logical_and), BINARY, result="bool"),
    "logical_or": Elementwise(elementwise.logical(nl.logical_or), BINARY, result="bool"),
    "logical_xor": Elementwise(elementwise.logical(nl.logical_xor), BINARY, result="bool"),
    "bitwise_and.Tensor": Elementwise(nl.bitwise_and, BINARY, allowed=INTEGRAL),
    "bitwise_or.Tensor": Elementwise(nl.bitwise_or, BINARY, allowed=INTEGRAL),
    "bitwise_xor.Tensor": Elementwise(nl.bitwise_xor, BINARY, allowed=INTEGRAL),
    "bitwise_not": Elementwise(elementwise.bitwise_not, keep=True, allowed=INTEGRAL),
    # choice
    "where.self": Selection(elementwise.select, ("condition", "self", "other"), "condition", BINARY),
    "masked_fill.Scalar": Selection(elementwise.masked_fill, ("self", "mask", "value"), "mask", ("self",)),
    "masked_fill.Tensor": Selection(elementwise.masked_fill, ("self", "mask", "value"), "mask", ("self",)),
}
