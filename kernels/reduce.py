"""Reductions: the columns of a matrix to one value a row, or its rows to one value a column."""
from __future__ import annotations

from dataclasses import replace

import nki
import nki.isa as nisa
import nki.language as nl
import torch

from ..dispatch.plan import Decline, KernelCall, Operand, Reason
from .elementwise import apply, f32, truth
from .layout import coalesce
from .rules import ENGINE_FLOATS, FLOATS, NUMBERS, dimensions, product, unsupported
from .shapes import settled
from .tiling import F, P, load, pieces, store, tile, walks

N = nl.tile_size.gemm_moving_fmax


@nki.jit
@walks("out", "x")
def reduce_columns(out, x, op, before=None, after=None, scale=None):
    """out[r] = after(op over c of before(x[r, c])) * scale.

    Dimensions:
        R: rows. C: columns, at least 1; there may be several column dimensions. Dimensions of `out` before R are walked
        one index at a time.
    Args:
        out: HBM [..., R, 1], written.
        x: HBM [..., R, C] or [..., R, C1, C2, ...]; any strides.
        op: nl.add, nl.multiply, nl.maximum or nl.minimum.
        before, after: tile functions on one tile, or None.
        scale: HBM [1, 1] float32, or None.
    Constraints:
        float32 arithmetic for floating x; exact integers otherwise; NaN wins a maximum or minimum, as in PyTorch.
    Pseudocode:
        for each tile of 128 rows: total = op over chunks of (op along the free axis of before(chunk))
    """
    if out.ndim > 2:
        for i in range(out.shape[0]):
            reduce_columns(out[i], x[i], op, before, after, scale)
        return out
    rows = x.shape[0]
    for r, n in pieces(rows, P):
        total = None
        for view in _column_views(x[r:r + n]):
            # float32 holds every integer of up to 16 bits
            t = load(view, nl.int64 if before is None and view.dtype == nl.int32 else None)
            if before is not None:
                t = truth(t) if before is truth else _changed(before, t)
            part = _accumulator(n, t, op)
            nisa.tensor_reduce(dst=part, op=op, data=t, axis=1)
            if total is None:
                total = part
            else:
                nisa.tensor_tensor(dst=total, data1=total, data2=part, op=op)
        if after is not None:
            total = _changed(after, total)
        result = tile(n, 1, out.dtype)
        if scale is not None:
            nisa.tensor_scalar(dst=result, data=total, op0=nl.multiply, operand0=load(scale.broadcast(0, n)))
        else:
            nisa.tensor_copy(dst=result, src=total)
        store(out[r:r + n], result)
    return out


def _changed(function, t):
    result = f32(t)
    apply(function, result, [t])
    return result


def _accumulator(rows, t, op):
    """[rows, 1] for partial results: float32, or integers, wide enough for sums."""
    if t.dtype.kind == "f":
        return tile(rows, 1, nl.float32)
    return tile(rows, 1, nl.int64 if op is nl.add else t.dtype)


def _column_views(x):
    """2-D views [rows, at most F] that cover all columns of x."""
    if x.ndim == 2:
        for c, w in pieces(x.shape[1], F):
            yield x[:, c:c + w]
    else:
        for i in range(x.shape[1]):
            yield from _column_views(x[:, i])


@nki.jit
@walks("out", "x")
def sum_rows(out, x, scale=None):
    """out[c] = sum over r of x[r, c], times scale: a row of ones times x on the tensor engine.

    Dimensions:
        R, C: at least 1. Dimensions before them are walked one index at a time.
    Args:
        out: HBM [..., 1, C], written. x: HBM [..., R, C], floating point, rows contiguous.
        scale: HBM [1, 1] float32 or None.
    Constraints:
        accumulation in float32.
    Pseudocode:
        for each 512 columns: accumulate ones.T @ x over tiles of 128 rows in one PSUM bank
    """
    if out.ndim > 2:
        for i in range(out.shape[0]):
            sum_rows(out[i], x[i], scale)
        return out
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


# ---- aten ops

def _square_root(dst, x):
    nisa.activation(dst=dst, op=nl.sqrt, data=x)


class Reduce:
    """Serves an op that reduces some dimensions of `self`.

    op: the reducing token. before, after: tile functions or tokens. mean: divide by the number of elements.
    """

    operands = ()

    def __init__(self, op, before=None, after=None, mean=False, allowed=NUMBERS):
        self.op, self.before, self.after, self.mean, self.allowed = op, before, after, mean, allowed
        self.floating = allowed is FLOATS

    def lower(self, call):
        x = call["self"]
        out = self.out(call, x)
        declined = unsupported([x, out], self.allowed, call.name)
        if declined:
            return declined
        if self.before is truth and call.get("dim") == []:
            return Decline(Reason.NO_KERNEL, f"{call.name} along no dimension")
        if call.get("ord", 2) != 2:
            return Decline(Reason.NO_KERNEL, f"{call.name} of order {call['ord']}")
        columns = dimensions(call.get("dim"), x.ndim)
        if not x.numel:
            return Decline(Reason.SHAPE, f"{call.name} of no elements")
        return self.reduce(x.view(), out, columns)

    def out(self, call, x):
        """The result as PyTorch has it. Asks PyTorch where the arguments may be wrong."""
        dim = call.get("dim")
        given = [] if dim is None else list(dim) if isinstance(dim, (list, tuple)) else [dim]
        columns = dimensions(dim, x.ndim)
        keep = call.get("keepdim", False)
        shape = tuple(1 if d in columns else n for d, n in enumerate(x.shape) if keep or d not in columns)
        dtype = call.get("dtype") or self.dtype(x)
        known = (dtype is not None and all(-max(x.ndim, 1) <= d < max(x.ndim, 1) for d in given)
                 and len(set(columns)) == (len(given) or x.ndim))
        return known and settled(call, shape, dtype) or call.outputs[0]

    def dtype(self, x):
        """The dtype of the result for this input, or None where PyTorch should say it."""
        if self.before is truth:
            return torch.uint8 if x.dtype is torch.uint8 else torch.bool
        if self.op is nl.add:
            return x.dtype if x.dtype in FLOATS else torch.int64 if not self.floating else None
        return x.dtype

    def reduce(self, x, out, columns):
        count = product(x.shape[d] for d in columns)
        rows = tuple(d for d in range(len(x.shape)) if d not in columns)
        strides = out.strides if len(out.shape) == len(rows) else tuple(out.strides[d] for d in rows)
        kept = x.permute(*rows)
        shape, (out_strides, in_strides) = coalesce(kept.shape, [strides, kept.strides])
        if self.op is not nl.add:           # repeated elements do not count
            x = replace(x, shape=tuple(1 if s == 0 and d in columns else n
                                       for d, (n, s) in enumerate(zip(x.shape, x.strides))))
        reduced = x.permute(*columns)
        wide, (steps,) = coalesce(reduced.shape, [reduced.strides])
        if not shape:
            shape, out_strides, in_strides = (1,), (1,), (0,)
        if not wide:
            wide, steps = (1,), (1,)
        scale = Operand(1.0 / count) if self.mean else None
        if self.sums_rows(x, shape, in_strides, wide, steps):
            seen = replace(out, seen=((*shape[:-1], 1, shape[-1]), (*out_strides[:-1], 0, out_strides[-1])))
            view = replace(x, shape=(*shape[:-1], *wide, shape[-1]), strides=(*in_strides[:-1], *steps, in_strides[-1]))
            return KernelCall(sum_rows, {"x": view, "scale": scale}, [seen], {} if scale else {"scale": None})
        seen = replace(out, seen=((*shape, 1), (*out_strides, 1)))
        view = replace(x, shape=(*shape, *wide), strides=(*in_strides, *steps))
        constants = {"op": self.op, "before": self.before, "after": self.after}
        return KernelCall(reduce_columns, {"x": view, "scale": scale}, [seen],
                          constants if scale else {**constants, "scale": None})

    def sums_rows(self, x, shape, in_strides, wide, steps):
        """Whether the tensor engine should add rows: the kept elements lie side by side, the summed ones apart."""
        return (self.op is nl.add and self.before is None and self.after is None and x.dtype in ENGINE_FLOATS
                and len(wide) == 1 and shape[-1] > 1 and in_strides[-1] == 1 and steps[0] != 1)


ROUTES = {
    "sum.dim_IntList": Reduce(nl.add),
    "sum": Reduce(nl.add),
    "mean.dim": Reduce(nl.add, mean=True, allowed=FLOATS),
    "mean": Reduce(nl.add, mean=True, allowed=FLOATS),
    "amax": Reduce(nl.maximum),
    "amin": Reduce(nl.minimum),
    "max": Reduce(nl.maximum),
    "min": Reduce(nl.minimum),
    "all": Reduce(nl.minimum, before=truth),
    "all.dim": Reduce(nl.minimum, before=truth),
    "all.dims": Reduce(nl.minimum, before=truth),
    "any": Reduce(nl.maximum, before=truth),
    "any.dim": Reduce(nl.maximum, before=truth),
    "any.dims": Reduce(nl.maximum, before=truth),
    "linalg_vector_norm": Reduce(nl.add, before=nl.square, after=_square_root, allowed=FLOATS),
}
