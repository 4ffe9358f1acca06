"""Op tokens: `nl.add` is both a value for `op=` and a function on tiles."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Op:
    """One operation of the language. `str(nl.add) == "add"`; equal only to itself; usable as a dict key.

    Calling it runs the tile function of the same name, where the language has one.
    """

    def __init__(self, name: str, doc: str) -> None:
        self.name = name
        self.function: Callable[..., Any] | None = None
        self.__doc__ = doc

    @property
    def __name__(self) -> str:
        return self.name

    @property
    def __wrapped__(self) -> Callable[..., Any]:
        if self.function is None:
            raise AttributeError("__wrapped__")
        return self.function

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.function is None:
            raise TypeError(f"nl.{self.name} is only a value for op=; it is not a function on tiles")
        return self.function(*args, **kwargs)

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        return f"nl.{self.name}"

    def __reduce__(self) -> Any:
        return token, (self.name,)

    def __deepcopy__(self, memo: dict[int, Any]) -> Op:
        return self


_SYMBOLS = {
    "add": "x + y", "subtract": "x - y", "multiply": "x * y", "divide": "x / y (the chip has no divide)",
    "maximum": "the larger of x and y", "minimum": "the smaller of x and y", "power": "x ** y",
    "abs_max": "whichever of x and y is larger in magnitude, with its sign; y if equal",
    "abs_min": "whichever of x and y is smaller in magnitude, with its sign; y if equal",
    "mod": "x - floor(x / y) * y (not on the chip)", "fmod": "x - trunc(x / y) * y (not on the chip)",
    "equal": "1 where x == y, else 0", "not_equal": "1 where x != y, else 0", "greater": "1 where x > y, else 0",
    "greater_equal": "1 where x >= y, else 0", "less": "1 where x < y, else 0", "less_equal": "1 where x <= y, else 0",
    "logical_and": "1 where x and y are both not 0, else 0", "logical_or": "1 where x or y is not 0, else 0",
    "logical_xor": "1 where exactly one of x and y is not 0, else 0", "bitwise_and": "x & y on bit patterns",
    "bitwise_or": "x | y on bit patterns", "bitwise_xor": "x ^ y on bit patterns",
    "left_shift": "x << y on bit patterns", "right_shift": "x >> y on bit patterns, zeros shifted in",
    "abs": "|x|", "square": "x * x", "rsqrt": "1 / sqrt(x)", "reciprocal": "1 / x", "relu": "max(x, 0)",
    "sigmoid": "1 / (1 + exp(-x))", "silu": "x * sigmoid(x)", "silu_dx": "the derivative of silu",
    "gelu": "x * Phi(x), Phi being the normal distribution function", "gelu_dx": "the derivative of gelu",
    "gelu_apprx_tanh": "0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x ** 3)))",
    "gelu_apprx_sigmoid": "x * sigmoid(1.702 x)", "gelu_apprx_sigmoid_dx": "the derivative of gelu_apprx_sigmoid",
    "softplus": "log(1 + exp(x))", "mish": "x * tanh(softplus(x))", "erf_dx": "the derivative of erf",
    "sign": "-1, 0 or 1", "negative": "-x", "invert": "~x on bit patterns", "logical_not": "1 where x is 0, else 0",
    "copy": "x", "ceil": "x rounded up (not an activation of the chip)",
    "floor": "x rounded down (not an activation of the chip)",
    "trunc": "x rounded toward 0 (not an activation of the chip)", "cos": "cos(x) (not an activation of the chip)",
    "tan": "tan(x) (not an activation of the chip)", "sqrt": "sqrt(x)", "exp": "exp(x)", "log": "log(x)",
    "sin": "sin(x)", "arctan": "arctan(x)", "tanh": "tanh(x)", "erf": "erf(x)",
    "average": "the mean, of tensor_partition_reduce", "bypass": "x, of a stage that is skipped",
    "prelu": "x where x > 0, else relu_param * x, of activate2",
}

TOKENS: dict[str, Op] = {name: Op(name, f"{doc}; element by element.") for name, doc in _SYMBOLS.items()}


def token(name: str) -> Op:
    """The token of this name. Raises KeyError if there is none."""
    return TOKENS[name]
