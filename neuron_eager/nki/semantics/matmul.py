"""The Tensor engine: nc_matmul and nc_transpose."""
from __future__ import annotations

import numpy as np

from .. import access, dtypes
from ..tensor import NkiTensor
from .alu import Array
from .elementwise import Args
from .operands import cast, convert, f32, round_tf32, rows, store, to_f32, write
from .state import State

INDEX_GROUP = 32      # partitions that share the run-time indices of an operand of the Tensor engine


def _indexed(t: NkiTensor) -> tuple[Array, Array] | None:
    """For a tile with columns picked at run time: all its columns (an alias), and which ones each partition takes."""
    if not t.dynamic or t.dynamic[0].kind != "indirect":
        return None
    part = t.dynamic[0]
    index = access.dynamic_index(t)
    columns, partition = np.arange(t.shape[1]), np.arange(t.shape[0])
    base = partition // INDEX_GROUP * INDEX_GROUP
    chosen = index[base[:, None] + columns % INDEX_GROUP, columns // INDEX_GROUP]
    if ((chosen < 0) | (chosen >= part.size)).any():
        raise access.out_of_bounds(t)
    data = t.storage.data
    assert data is not None
    return np.ndarray((t.shape[0], part.size), t.dtype.numpy, data, t.byte_offset,
                      (t.byte_strides[0], part.byte_stride)), chosen


def _values(t: NkiTensor) -> Array:
    """[P, F] float32."""
    indexed = _indexed(t)
    return f32(t) if indexed is None else to_f32(np.take_along_axis(*indexed, axis=1), t.dtype)


def _store(dst: NkiTensor, values: Array) -> None:
    indexed = _indexed(dst)
    if indexed is None:
        store(dst, values)
    else:
        np.put_along_axis(*indexed, cast(values, dst.dtype), axis=1)


def _operand(t: NkiTensor, contraction: int) -> Array:
    """[K, free] float32: a product operand, tf32 rounded on the way in."""
    values = _values(t)
    if t.dtype is dtypes.tfloat32:
        values = round_tf32(values)
    return values.reshape(contraction, -1)


_UNTHREADED = 1 << 18     # multiply-adds up to which OpenBLAS stays on one thread


def product(left: Array, right: Array) -> Array:
    """left [K, M].T @ right [K, N], float32, in column blocks too small for the threads of BLAS.

    Such a product takes 0.15 ms; starting threads gains nothing, and costs 3 to 40 ms where another process keeps a
    core busy.
    """
    (k, m), n = left.shape, right.shape[1]
    columns = max(_UNTHREADED // (k * m), 8)
    whole = n - n % columns
    if whole <= columns:
        return left.T @ right
    out = np.empty((m, n), np.float32)
    blocks = (whole // columns, columns)
    np.matmul(left.T[None], right[:, :whole].reshape(k, *blocks).transpose(1, 0, 2),
              out=out[:, :whole].reshape(m, *blocks).transpose(1, 0, 2))
    if whole < n:
        np.matmul(left.T, right[:, whole:], out=out[:, whole:])
    return out


def nc_matmul(a: Args, state: State) -> None:
    dst, stationary, moving = a["dst"], a["stationary"], a["moving"]
    if a["is_transpose"]:
        order = _permutation(rows(moving))
        if order is not None:
            return write(dst, convert(rows(stationary).T[:, order], stationary.dtype, dst.dtype))
    contraction = stationary.shape[0] * (2 if a["perf_mode"].name == "double_row" else 1)
    result = product(_operand(stationary, contraction), _operand(moving, contraction))
    if a["accumulate"]:
        result += _values(dst).reshape(result.shape)
    return _store(dst, result)


def _permutation(moving: Array) -> Array | None:
    """For each column of a matrix that has a single 1, the row of it; None for any other matrix.

    Transpose mode passes the bits of the stationary tile through such a matrix, NaN and infinity included.
    """
    ones = moving == 1
    one_each = (ones.sum(axis=0) == 1) & (np.count_nonzero(moving, axis=0) == 1)
    return ones.argmax(axis=0) if one_each.all() else None


def nc_transpose(a: Args, state: State) -> None:
    write(a["dst"], rows(a["data"]).T)
