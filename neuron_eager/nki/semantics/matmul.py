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


def nc_matmul(a: Args, state: State) -> None:
    dst, stationary, moving = a["dst"], a["stationary"], a["moving"]
    if a["is_transpose"]:
        order = _permutation(rows(moving))
        if order is not None:
            return write(dst, convert(rows(stationary).T[:, order], stationary.dtype, dst.dtype))
    contraction = stationary.shape[0] * (2 if a["perf_mode"].name == "double_row" else 1)
    product = _operand(stationary, contraction).T @ _operand(moving, contraction)
    if a["accumulate"]:
        product += f32(dst).reshape(product.shape)
    return store(dst, product)


def _permutation(moving: Array) -> Array | None:
    """For each column of a matrix that has a single 1, the row of it; None for any other matrix.

    Transpose mode passes the bits of the stationary tile through such a matrix, NaN and infinity included.
    """
    ones = moving == 1
    one_each = (ones.sum(axis=0) == 1) & (np.count_nonzero(moving, axis=0) == 1)
    return ones.argmax(axis=0) if one_each.all() else None


def nc_transpose(a: Args, state: State) -> None:
    write(a["dst"], rows(a["data"]).T)
