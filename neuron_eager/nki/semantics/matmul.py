"""The Tensor engine: nc_matmul and nc_transpose."""
from __future__ import annotations

import numpy as np

from .. import dtypes
from ..tensor import NkiTensor
from .alu import Array
from .elementwise import Args
from .operands import convert, f32, round_tf32, rows, store, write
from .state import State


def _operand(t: NkiTensor, contraction: int) -> Array:
    """[K, free] float32: a product operand, tf32 rounded on the way in."""
    values = f32(t)
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
        result += f32(dst).reshape(result.shape)
    return store(dst, result)


def _permutation(moving: Array) -> Array | None:
    """For each column of a matrix that has a single 1, the row of it; None for any other matrix.

    Transpose mode passes the bits of the stationary tile through such a matrix, NaN and infinity included.
    """
    ones = moving == 1
    one_each = (ones.sum(axis=0) == 1) & (np.count_nonzero(moving, axis=0) == 1)
    return ones.argmax(axis=0) if one_each.all() else None


def nc_transpose(a: Args, state: State) -> None:
    write(a["dst"], rows(a["data"]).T)
