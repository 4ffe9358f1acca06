"""Operands of an instruction as NumPy arrays, and the roundings at its destination.

Engines see a tile as partitions × elements, whatever its rank: `rows` and `f32` give [P, F] arrays. An instruction
loads all operands before it stores, so a destination may overlap a source.
"""
from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from ...errors import NkiTypeError
from .. import access, dtypes
from ..dtypes import DType
from ..location import here
from ..registers import VirtualRegister
from ..tensor import NkiTensor

Array = np.ndarray[Any, np.dtype[Any]]
F32 = np.float32
_WIDE = (dtypes.int64, dtypes.float64)


def load(t: NkiTensor) -> Array:
    """The elements in their own dtype and shape; an alias of memory where the access pattern is static."""
    if t.dynamic:
        return access.read(t)
    return np.ndarray(t.shape, t.dtype.numpy, t.storage.data, t.byte_offset, t.byte_strides)


def rows(t: NkiTensor) -> Array:
    """The elements in their own dtype as [P, F]."""
    a = load(t)
    return a if a.ndim == 2 else a.reshape(t.shape[0], -1)


def f32(t: NkiTensor) -> Array:
    """The elements as [P, F] float32, as the engines see them. May alias memory."""
    a = rows(t)
    return a if t.dtype.numpy == F32 else to_f32(a, t.dtype)


def to_f32(a: Array, dtype: DType) -> Array:
    if dtype.packed > 1:
        raise TypeError(f"{dtype} holds packed values: only nc_matmul_mx, copies and memset(0) take it")
    if dtype.itemsize == 1 and dtype.kind == "f":
        return _byte_values(dtype.numpy).take(a.view(np.uint8).astype(np.intp))
    return a.astype(F32)


@cache
def _byte_values(dtype: np.dtype[Any]) -> Array:
    """The float32 value of each of the 256 patterns of an 8-bit float: a look-up is 4 times faster than a cast."""
    return np.arange(256, dtype=np.uint8).view(dtype).astype(F32)


def scalar_f32(operand: Any) -> Any:
    """A scalar operand: a Python number as float32, a [P, 1] tile as a float32 column."""
    return f32(operand) if type(operand) is NkiTensor else F32(operand)


def store(t: NkiTensor, values: Array) -> None:
    """Round `values` (float32, or exact integers) to the dtype of `t` and write them, in row-major order."""
    write(t, cast(values, t.dtype))


def write(t: NkiTensor, values: Array) -> None:
    """Write values that have the dtype of `t` already."""
    if t.dynamic:
        access.write(t, values)
    else:
        view = np.ndarray(t.shape, t.dtype.numpy, t.storage.data, t.byte_offset, t.byte_strides)
        view[...] = values if values.shape == t.shape else values.reshape(t.shape)


def cast(values: Array, dtype: DType) -> Array:
    """float32 to any dtype: floats round to nearest even, integers also saturate. Integers wrap to integers."""
    to = dtype.numpy
    if dtype is dtypes.tfloat32:
        return round_tf32(values.astype(F32))
    if values.dtype == to:
        return values
    if dtype.packed > 1:
        raise TypeError(f"cannot convert {values.dtype} to the packed type {dtype}")
    if dtype.kind in "iu" and values.dtype.kind == "f":
        return to_integer(values, to)
    return values.astype(to)


def convert(values: Array, src: DType, dst: DType) -> Array:
    """What a copy does between two dtypes: the same bits if they are equal, else through float32.

    int64 and float64, which the chip does not have, convert directly: integers wrap, floats round once.
    """
    if src is dst:
        return values
    if src in _WIDE or dst in _WIDE:
        if src.kind == "f" and dst.kind in "iu":
            return to_integer(values.astype(np.float64), dst.numpy)
        return cast(values if src is dtypes.float64 or src.kind != "f" else to_f32(values, src), dst)
    return cast(to_f32(values, src), dst)


def to_integer(values: Array, to: np.dtype[Any]) -> Array:
    """Round to nearest even, saturate; NaN becomes 0."""
    info = np.iinfo(to)
    v = np.rint(values, dtype=F32 if info.bits < 32 and values.dtype == F32 else np.float64)
    missing = np.isnan(v)
    if missing.any():
        v[missing] = 0
    if info.bits < 64:
        return np.clip(v, info.min, info.max, out=v).astype(to)
    out = np.clip(v, -2.0 ** 63, 2.0 ** 63 - 1024).astype(to)      # the largest float64 below 2**63
    out[v >= 2.0 ** 63] = info.max
    return out


def round_tf32(values: Array) -> Array:
    """float32 with a 10-bit mantissa, rounded to nearest even."""
    bits = np.ascontiguousarray(values).view(np.uint32)
    finite = (bits & 0x7F800000) != 0x7F800000
    rounded = (bits + 0xFFF + ((bits >> 13) & 1)) & np.uint32(0xFFFFE000)
    return np.where(finite, rounded, bits).astype(np.uint32).view(F32)


def exact_integers(*tensors: Any) -> bool:
    """The rule of the int64 extension: every tensor is an integer or bool, and one of them is int64."""
    wide = False
    for t in tensors:
        if type(t) is NkiTensor:
            if t.dtype.kind == "f":
                return False
            wide = wide or t.dtype is dtypes.int64
    return wide


def integers(operand: Any, dtype: np.dtype[Any]) -> Any:
    """An operand of an exact integer instruction: a tile as [P, F] of this dtype, a number as a scalar of it."""
    if type(operand) is NkiTensor:
        return rows(operand).astype(dtype, copy=False)
    return np.array(operand).astype(dtype)[()]


def register_value(source: Any) -> int:
    """An int, or what a register holds. Raises NkiTypeError for a register without a value."""
    if not isinstance(source, VirtualRegister):
        return int(source)
    if source.value is None:
        raise NkiTypeError(f"register {source.id} is read before it has a value", here())
    return source.value
