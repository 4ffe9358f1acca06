"""Reductions: the columns of a matrix to one value a row, or its rows to one value a column."""
from __future__ import annotations

import nki
import nki.isa as nisa
import nki.language as nl

from .elementwise import f32, truth
from .tiling import F, P, load, pieces, store, tile

N = nl.tile_size.gemm_moving_fmax


@nki.jit
def reduce_columns(out, x, op, before=None, after=None, scale=None):
    """out[r] = after(op over c of before(x[r, c])) * scale.

    Dimensions:
        R: rows. C: columns, at least 1; `x` may have more than two dimensions, of which all but the first are reduced.
    Args:
        out: HBM [R, 1], written.
        x: HBM [R, C] or [R, ..., C]; any strides.
        op: nl.add, nl.multiply, nl.maximum or nl.minimum.
        before, after: tile functions on one tile, or None.
        scale: HBM [1, 1] float32, or None.
    Constraints:
        float32 arithmetic for floating x; exact integers otherwise; NaN wins a maximum or minimum, as in PyTorch.
    Pseudocode:
        for each tile of 128 rows: total = op over chunks of (op along the free axis of before(chunk))
    """
    rows = x.shape[0]
    for r, n in pieces(rows, P):
        total = None
        for view in _column_views(x[r:r + n]):
            t = load(view)
            if before is not None:
                changed = truth(t) if before is truth else _changed(before, t)
                t = changed
            part = _accumulator(n, t, out)
            nisa.tensor_reduce(dst=part, op=op, data=t, axis=1)
            if total is None:
                total = part
            else:
                nisa.tensor_tensor(dst=total, data1=total, data2=part, op=op)
        if after is not None:
            done = f32(total)
            after(done, total)
            total = done
        result = tile(n, 1, out.dtype)
        if scale is not None:
            nisa.tensor_scalar(dst=result, data=total, op0=nl.multiply, operand0=load(scale.broadcast(0, n)))
        else:
            nisa.tensor_copy(dst=result, src=total)
        store(out[r:r + n], result)
    return out


def _changed(function, t):
    result = f32(t)
    function(result, t)
    return result


def _accumulator(rows, t, out):
    """[rows, 1] for partial results: float32, or an integer as wide as the result."""
    if t.dtype.kind == "f":
        return tile(rows, 1, nl.float32)
    return tile(rows, 1, nl.int64 if out.dtype.kind == "i" else t.dtype)


def _column_views(x):
    """2-D views [rows, at most F] that cover all columns of x."""
    if x.ndim == 2:
        for c, w in pieces(x.shape[1], F):
            yield x[:, c:c + w]
    else:
        for i in range(x.shape[1]):
            yield from _column_views(x[:, i])


@nki.jit
def sum_rows(out, x, scale=None):
    """out[c] = sum over r of x[r, c], times scale: a row of ones times x on the tensor engine.

    Dimensions:
        R, C: at least 1.
    Args:
        out: HBM [1, C], written. x: HBM [R, C], floating point, rows contiguous. scale: HBM [1, 1] float32 or None.
    Constraints:
        accumulation in float32.
    Pseudocode:
        for each 512 columns: accumulate ones.T @ x over tiles of 128 rows in one PSUM bank
    """
    rows, columns = x.shape
    ones = tile(P, 1, x.dtype)
    nisa.memset(dst=ones, value=1.0)
    for c, w in pieces(columns, N):
        acc = nl.ndarray((1, w), nl.float32, buffer=nl.psum)
        for i, (r, n) in enumerate(pieces(rows, P)):
            nisa.nc_matmul(dst=acc, stationary=ones[0:n], moving=load(x[r:r + n, c:c + w]), accumulate=i > 0)
        result = tile(1, w, out.dtype)
        if scale is not None:
            nisa.tensor_scalar(dst=result, data=acc, op0=nl.multiply, operand0=load(scale))
        else:
            nisa.tensor_copy(dst=result, src=acc)
        store(out[:, c:c + w], result)
    return out
