"""The activation functions of the Scalar engine, in exact mathematics rounded to float32.

The chip evaluates piece-wise polynomials; the values here are what they approximate. Each function takes and gives a
float32 array. `sin_without_range_reduction` is the one whose behaviour outside its range is documented.
"""
from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]
F32 = np.float32

_SQRT_2_OVER_PI = F32(math.sqrt(2 / math.pi))
_INV_SQRT_2PI = 1 / math.sqrt(2 * math.pi)
_2_OVER_SQRT_PI = F32(2 / math.sqrt(math.pi))


@cache
def _erf_table() -> tuple[float, Array]:
    """erf at the points of a grid on [0, 6]; at 6 it is 1 in float64."""
    step = 1 / 256
    return step, np.array([math.erf(i * step) for i in range(6 * 256 + 1)])


def _erf64(x: Array) -> Array:
    """erf in float64, by the third-order Taylor polynomial at the nearest grid point (error below 1e-11)."""
    step, table = _erf_table()
    magnitude = np.minimum(np.abs(x), 6.0)
    nearest = np.nan_to_num(np.rint(magnitude / step)).astype(np.intp)
    at = nearest * step
    d = magnitude - at
    slope = (2 / math.sqrt(math.pi)) * np.exp(-at * at)
    value = table[nearest] + slope * d * (1 - at * d + (2 * at * at - 1) * (d * d) / 3)
    return np.copysign(value, x)


def erf(x: Array) -> Array:
    return _erf64(x.astype(np.float64)).astype(F32)


def erf_dx(x: Array) -> Array:
    return _2_OVER_SQRT_PI * np.exp(-x * x)


def sigmoid(x: Array) -> Array:
    e = np.exp(-np.abs(x))
    return np.where(x >= 0, F32(1), e) / (F32(1) + e)


def relu(x: Array) -> Array:
    return np.maximum(x, F32(0))


def _normal_cdf(x: Array) -> Array:
    """float64 in and out; the lower tail loses nothing because the result is rounded to float32 of x * cdf."""
    return 0.5 * (1 + _erf64(x / math.sqrt(2)))


def gelu(x: Array) -> Array:
    wide = x.astype(np.float64)
    return np.where(x == -np.inf, F32(0), (wide * _normal_cdf(wide)).astype(F32))


def gelu_dx(x: Array) -> Array:
    wide = x.astype(np.float64)
    return (_normal_cdf(wide) + wide * _INV_SQRT_2PI * np.exp(-0.5 * wide * wide)).astype(F32)


def gelu_apprx_tanh(x: Array) -> Array:
    inner = _SQRT_2_OVER_PI * (x + F32(0.044715) * x * x * x)
    return F32(0.5) * x * (F32(1) + np.tanh(inner))


def gelu_apprx_sigmoid(x: Array) -> Array:
    return x * sigmoid(F32(1.702) * x)


def gelu_apprx_sigmoid_dx(x: Array) -> Array:
    s = sigmoid(F32(1.702) * x)
    return s + F32(1.702) * x * s * (F32(1) - s)


def silu(x: Array) -> Array:
    return x * sigmoid(x)


def silu_dx(x: Array) -> Array:
    s = sigmoid(x)
    return s * (F32(1) + x * (F32(1) - s))


def softplus(x: Array) -> Array:
    return np.maximum(x, F32(0)) + np.log1p(np.exp(-np.abs(x)))


def mish(x: Array) -> Array:
    return x * np.tanh(softplus(x))


def rsqrt(x: Array) -> Array:
    return np.reciprocal(np.sqrt(x))


def sin_without_range_reduction(x: Array) -> Array:
    """sin on [-pi, pi]; outside, the cubic of the last polynomial piece goes on, as on the chip: sin(9.0) = 27.65."""
    d = np.abs(x) - F32(math.pi)
    beyond = np.copysign(d * (d * d * F32(1 / 6) - F32(1)), x)
    return np.where(d > 0, beyond, np.sin(x))


FUNCTIONS: dict[str, Callable[[Array], Array]] = {
    "copy": lambda x: x, "abs": np.abs, "square": np.square, "sign": np.sign, "relu": relu,
    "exp": np.exp, "log": np.log, "sqrt": np.sqrt, "rsqrt": rsqrt, "reciprocal": np.reciprocal,
    "sin": np.sin, "arctan": np.arctan, "tanh": np.tanh, "sigmoid": sigmoid, "erf": erf, "erf_dx": erf_dx,
    "gelu": gelu, "gelu_dx": gelu_dx, "gelu_apprx_tanh": gelu_apprx_tanh,
    "gelu_apprx_sigmoid": gelu_apprx_sigmoid, "gelu_apprx_sigmoid_dx": gelu_apprx_sigmoid_dx,
    "silu": silu, "silu_dx": silu_dx, "softplus": softplus, "mish": mish,
    # Extensions of this implementation, see limits.EXTENSION_OPS.
    "trunc": np.trunc, "floor": np.floor, "ceil": np.ceil, "cos": np.cos, "tan": np.tan, "negative": np.negative,
}


def prelu(x: Array, slope: Array) -> Array:
    return np.where(x >= 0, x, slope * x)
