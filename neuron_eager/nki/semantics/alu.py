"""The ALU operators: what `op=` means inside the Vector, GpSimd and Scalar engines.

Arithmetic operators work on float32 arrays (the engines cast every operand to float32 first) and give float32, with
comparisons and logical operators giving 1.0 or 0.0. Bit operators work on the bit patterns of unsigned integers.
The same arithmetic functions serve the exact integer paths, where NumPy integers wrap.
"""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, slots=True)
class Alu:
    """One operator. `reduce(array, axis)` folds an axis, where that is allowed; `identity` starts an accumulator."""

    name: str
    apply: Callable[..., Any]
    arity: int = 2
    bits: bool = False
    truth: bool = False            # NumPy answers with bools
    integral: bool = True          # may run on integers exactly
    reduce: Callable[..., Any] | None = None
    identity: float = 0.0

    def __call__(self, *operands: Any) -> Any:
        """The operator in float32: bools become 1.0 and 0.0."""
        result = self.apply(*operands)
        return result.astype(np.float32) if self.truth else result


def _larger_magnitude(x: Array, y: Array) -> Array:
    return np.where(np.abs(x) > np.abs(y), x, y)


def _smaller_magnitude(x: Array, y: Array) -> Array:
    return np.where(np.abs(x) < np.abs(y), x, y)


def _fold(apply: Callable[[Array, Array], Array]) -> Callable[..., Array]:
    """A reduction for operators that are not ufuncs: halve the axis until one element is left."""
    def reduce(x: Array, axis: int) -> Array:
        x = np.moveaxis(x, axis, -1)
        while x.shape[-1] > 1:
            half = x.shape[-1] // 2
            tail = x[..., 2 * half:]
            x = np.concatenate([apply(x[..., :half], x[..., half:2 * half]), tail], axis=-1)
        return x[..., 0]
    return reduce


def _shift(shift: Callable[[Array, Array], Array]) -> Callable[[Array, Array], Array]:
    """Logical shifts; a count of the word size or more leaves zero."""
    def apply(x: Array, count: Array) -> Array:
        bits = 8 * x.dtype.itemsize
        count = np.asarray(count).astype(x.dtype)
        return np.where(count < bits, shift(x, np.minimum(count, bits - 1)), np.zeros((), x.dtype))
    return apply


def _rsqrt(x: Array) -> Array:
    return np.reciprocal(np.sqrt(x))


def _reduction(ufunc: np.ufunc) -> Callable[..., Any]:
    return ufunc.reduce


_INF = float("inf")
_ALL = (
    Alu("add", np.add, reduce=_reduction(np.add)),
    Alu("subtract", np.subtract, reduce=_reduction(np.subtract)),
    Alu("multiply", np.multiply, reduce=_reduction(np.multiply), identity=1.0),
    Alu("maximum", np.maximum, reduce=_reduction(np.maximum), identity=-_INF),
    Alu("minimum", np.minimum, reduce=_reduction(np.minimum), identity=_INF),
    Alu("abs_max", _larger_magnitude, reduce=_fold(_larger_magnitude)),
    Alu("abs_min", _smaller_magnitude, reduce=_fold(_smaller_magnitude), identity=_INF),
    Alu("power", np.power, integral=False),
    Alu("divide", np.divide, integral=False),
    Alu("fmod", np.fmod),
    Alu("mod", np.mod),
    Alu("equal", np.equal, truth=True),
    Alu("not_equal", np.not_equal, truth=True),
    Alu("greater", np.greater, truth=True),
    Alu("greater_equal", np.greater_equal, truth=True),
    Alu("less", np.less, truth=True),
    Alu("less_equal", np.less_equal, truth=True),
    Alu("logical_and", np.logical_and, truth=True, reduce=_reduction(np.logical_and), identity=1.0),
    Alu("logical_or", np.logical_or, truth=True, reduce=_reduction(np.logical_or)),
    Alu("logical_xor", np.logical_xor, truth=True, reduce=_reduction(np.logical_xor)),
    Alu("bitwise_and", np.bitwise_and, bits=True, reduce=_reduction(np.bitwise_and)),
    Alu("bitwise_or", np.bitwise_or, bits=True, reduce=_reduction(np.bitwise_or)),
    Alu("bitwise_xor", np.bitwise_xor, bits=True, reduce=_reduction(np.bitwise_xor)),
    Alu("left_shift", _shift(np.left_shift), bits=True),
    Alu("right_shift", _shift(np.right_shift), bits=True),
    Alu("invert", np.invert, arity=1, bits=True),
    Alu("abs", np.abs, arity=1),
    Alu("square", np.square, arity=1),
    Alu("relu", lambda x: np.maximum(x, x.dtype.type(0)), arity=1),
    Alu("rsqrt", _rsqrt, arity=1, integral=False),
    Alu("reciprocal", np.reciprocal, arity=1, integral=False),
    Alu("bypass", lambda x: x, arity=1),
)
ALU: dict[str, Alu] = {op.name: op for op in _ALL}
COMPARISONS = frozenset({"equal", "not_equal", "greater", "greater_equal", "less", "less_equal"})


def alu(op: Any) -> Alu:
    """The operator of an `nl` token."""
    return ALU[op.name]


def unsigned(array: Array) -> Array:
    """The same bits as unsigned integers (a copy only where the array is not contiguous enough for a view)."""
    return array.view(f"u{array.dtype.itemsize}")
