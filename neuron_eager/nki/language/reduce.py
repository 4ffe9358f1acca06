"""Reductions of tiles over their last free dimensions, and what is built on them."""
from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ...errors import NkiShapeError
from .. import isa
from ..dtypes import float32
from ..location import here
from ..tensor import NkiTensor
from ..tokens import TOKENS
from .create import ndarray
from .move import broadcast_to, cast, repeat

Axis = int | Sequence[int]


def _axes(x: NkiTensor, axis: Axis, what: str) -> tuple[int, ...]:
    rank = len(x.shape)
    given = (axis,) if isinstance(axis, int) else tuple(axis)
    axes = tuple(sorted(a + rank if a < 0 else a for a in given))
    if not axes or axes != tuple(range(rank - len(axes), rank)) or axes[0] == 0:
        raise NkiShapeError(f"nl.{what}: axis {axis} of {x.describe()}; a reduction takes the last free dimensions, "
                            f"such as {list(range(1, rank))}", here(3))
    return axes


def _result_shape(x: NkiTensor, axes: tuple[int, ...], keepdims: bool) -> tuple[int, ...]:
    kept = x.shape[:axes[0]]
    if keepdims:
        return kept + (1,) * len(axes)
    return kept if len(kept) > 1 else (*kept, 1)


def _reduce(what: str, op: str, x: NkiTensor, axis: Axis, dtype: Any, keepdims: bool) -> NkiTensor:
    axes = _axes(x, axis, what)
    t = ndarray(_result_shape(x, axes, keepdims), dtype or x.dtype)
    isa.tensor_reduce(dst=t, op=TOKENS[op], data=x, axis=axes if len(axes) > 1 else axes[0])
    return t


def sum(x: NkiTensor, axis: Axis, dtype: Any = None, keepdims: bool = False) -> NkiTensor:
    """Sum over the last free dimensions, in float32."""
    return _reduce("sum", "add", x, axis, dtype, keepdims)


def max(x: NkiTensor, axis: Axis, dtype: Any = None, keepdims: bool = False) -> NkiTensor:
    """Maximum over the last free dimensions."""
    return _reduce("max", "maximum", x, axis, dtype, keepdims)


def min(x: NkiTensor, axis: Axis, dtype: Any = None, keepdims: bool = False) -> NkiTensor:
    """Minimum over the last free dimensions."""
    return _reduce("min", "minimum", x, axis, dtype, keepdims)


def prod(x: NkiTensor, axis: Axis, dtype: Any = None, keepdims: bool = False) -> NkiTensor:
    """Product over the last free dimensions, in float32."""
    return _reduce("prod", "multiply", x, axis, dtype, keepdims)


def all(x: NkiTensor, axis: Axis, dtype: Any = None) -> NkiTensor:
    """1 where every element over the last free dimensions is not 0, else 0."""
    return _reduce("all", "logical_and", x, axis, dtype, False)


def mean(x: NkiTensor, axis: Axis, dtype: Any = None, keepdims: bool = False) -> NkiTensor:
    """Mean over the last free dimensions, in float32."""
    axes = _axes(x, axis, "mean")
    total = _reduce("mean", "add", x, axis, float32, keepdims)
    t = ndarray(total.shape, dtype or x.dtype)
    isa.tensor_scalar(dst=t, data=total, op0=TOKENS["multiply"], operand0=1.0 / _count(x, axes))
    return t


def var(x: NkiTensor, axis: Axis, dtype: Any = None, keepdims: bool = False) -> NkiTensor:
    """Population variance over the last free dimensions, in float32, in two passes. They stay, with size 1."""
    axes = _axes(x, axis, "var")
    away = ndarray(x.shape, float32)
    isa.tensor_tensor(dst=away, data1=x, data2=repeat(mean(x, axes, float32, True), x.shape), op=TOKENS["subtract"])
    isa.tensor_tensor(dst=away, data1=away, data2=away, op=TOKENS["multiply"])
    return mean(away, axes, dtype or x.dtype, True)


def softmax(x: NkiTensor, axis: Axis = -1, dtype: Any = None) -> NkiTensor:
    """exp(x - max) / sum of it, over the last free dimensions; inside in float32."""
    axes = _axes(x, axis, "softmax")
    e = ndarray(x.shape, float32)
    isa.tensor_tensor(dst=e, data1=x, data2=repeat(max(x, axes, float32, True), x.shape), op=TOKENS["subtract"])
    isa.activation(dst=e, op=TOKENS["exp"], data=e)
    scale = sum(e, axes, float32, True)
    isa.reciprocal(dst=scale, data=scale)
    t = ndarray(x.shape, dtype or x.dtype)
    isa.tensor_tensor(dst=t, data1=e, data2=repeat(scale, x.shape), op=TOKENS["multiply"])
    return t


def rms_norm(x: NkiTensor, w: NkiTensor, axis: Axis, n: int, epsilon: float = 1e-6, dtype: Any = None,
             compute_dtype: Any = None) -> NkiTensor:
    """x / sqrt(sum(x²)/n + epsilon) * w over the last free dimensions. `w` has the shape of `x`, or one partition."""
    axes = _axes(x, axis, "rms_norm")
    inside = compute_dtype or float32
    squares = ndarray(x.shape, inside)
    isa.tensor_tensor(dst=squares, data1=x, data2=x, op=TOKENS["multiply"])
    r = sum(squares, axes, float32, True)
    isa.tensor_scalar(dst=r, data=r, op0=TOKENS["multiply"], operand0=1.0 / n, op1=TOKENS["add"], operand1=epsilon)
    isa.activation(dst=r, op=TOKENS["rsqrt"], data=r)
    isa.tensor_tensor(dst=squares, data1=x, data2=repeat(r, x.shape), op=TOKENS["multiply"])
    weight = w if w.shape == x.shape else broadcast_to(w, x.shape)
    t = ndarray(x.shape, dtype or x.dtype)
    isa.tensor_tensor(dst=t, data1=squares, data2=cast(weight, weight.dtype), op=TOKENS["multiply"])
    return t


def _count(x: NkiTensor, axes: tuple[int, ...]) -> int:
    return math.prod(x.shape[a] for a in axes)
