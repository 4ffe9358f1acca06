"""Sorting, by the rank of each element, and the largest elements of rows, one after another."""
from __future__ import annotations

import nki
import nki.isa as nisa
import nki.language as nl

from ..dispatch.plan import Call, Decline, KernelCall, Reason, View
from .layout import contiguous_strides
from .rowwise import as_rows
from .rules import INTEGERS, NUMBERS, replace, unsupported
from .search import MOST, first_of
from .tiling import F, P, load, pieces, store, tile, tile_like, walks

LONGEST = 8192              # elements that are sorted: each is compared with each
DEEPEST = 64                # largest elements found one after another


@nki.jit
@walks("values", "indices", "x")
def sort(values, indices, x, descending):
    """values = x sorted, indices = where each value was; equal elements keep their order.

    Dimensions:
        C: elements. Dimensions before them are walked one index at a time.
    Args:
        values: HBM [..., C, 1], contiguous, of x's dtype, written. indices: HBM [..., C, 1] int64, contiguous, written.
        x: HBM [..., C, 1]; any strides. descending: bool (compile-time constant).
    Constraints:
        NaN counts as larger than any number, as in PyTorch. Integers are compared exactly.
    Pseudocode:
        for each 128 elements i: rank = how many j are less than i, or equal and before it
            indirect DMA of the elements and of their numbers to their ranks
    """
    if x.ndim > 2:
        for i in range(x.shape[0]):
            sort(values[i], indices[i], x[i], descending)
        return values, indices
    count = x.shape[0]
    for r, n in pieces(count, P):
        rank, part = tile(n, 1, nl.float32), tile(n, 1, nl.float32)
        own = load(x[r:r + n])
        for i, (c, w) in enumerate(pieces(count, F)):
            row = load(x.permute((1, 0))[:, c:c + w].broadcast(0, n), _number(x))
            _count_before(part if i else rank, row, _as(own, _number(x)), r - c, descending)
            if i:
                nisa.tensor_tensor(dst=rank, data1=rank, data2=part, op=nl.add)
        where, number, index = tile(n, 1, nl.int32), tile(n, 1, nl.int32), tile(n, 1, nl.int64)
        nisa.tensor_copy(dst=where, src=rank)
        nisa.iota(dst=number, pattern=[[1, 1]], offset=r, channel_multiplier=1)
        nisa.tensor_copy(dst=index, src=number)
        for out, t in ((values, own), (indices, index)):
            nisa.dma_copy(dst=out.ap(pattern=[[1, n], [1, 1]], vector_offset=where, indirect_dim=0), src=t)
    return values, indices


def _number(x):
    return nl.float32 if x.dtype.kind == "f" else nl.int64


def _as(t, dtype):
    if t.dtype == dtype:
        return t
    wide = tile_like(t, dtype)
    nisa.tensor_copy(dst=wide, src=t)
    return wide


def _count_before(dst, row, own, shift, descending):
    """dst [n, 1] = how many elements of each row go before `own` [n, 1], which is at column partition + shift."""
    n, w = row.shape
    before, equal = tile(n, w, row.dtype), tile(n, w, row.dtype)
    nisa.tensor_scalar(dst=before, data=row, op0=nl.greater if descending else nl.less, operand0=own)
    nisa.tensor_scalar(dst=equal, data=row, op0=nl.equal, operand0=own)
    if row.dtype.kind == "f":
        nan, nan_own, part = tile(n, w, row.dtype), tile(n, 1, row.dtype), tile(n, w, row.dtype)
        nisa.tensor_tensor(dst=nan, data1=row, data2=row, op=nl.not_equal)
        nisa.tensor_tensor(dst=nan_own, data1=own, data2=own, op=nl.not_equal)
        nisa.tensor_scalar(dst=part, data=nan, op0=nl.multiply, operand0=nan_own)
        nisa.tensor_tensor(dst=equal, data1=equal, data2=part, op=nl.add)
        # of two numbers one of which is NaN: the row's NaN goes first if descending, the own one's rival otherwise
        nisa.tensor_scalar(dst=part, data=nan, op0=nl.greater if descending else nl.less, operand0=nan_own)
        nisa.tensor_tensor(dst=before, data1=before, data2=part, op=nl.add)
    nisa.affine_select(dst=equal, pattern=[[-1, w]], channel_multiplier=1, on_true_tile=equal, on_false_value=0.0,
                       cmp_op=nl.greater, offset=shift)
    nisa.tensor_tensor(dst=before, data1=before, data2=equal, op=nl.add)
    nisa.tensor_reduce(dst=dst, op=nl.add, data=before, axis=1)


@nki.jit
@walks("values", "indices", "x")
def largest(values, indices, x):
    """The K largest elements of each row in descending order, and their columns; of equal ones the first goes first.

    Dimensions:
        R: rows. C: columns, 1 ... 2048. K: at most 64. More dimensions before R are walked one index at a time.
    Args:
        values: HBM [..., R, K] of x's dtype, written. indices: HBM [..., R, K] int64, written.
        x: HBM [..., R, C]; any strides.
    Constraints:
        NaN counts as larger than any number.
    Pseudocode:
        for each tile of 128 rows, K times: best = max of what is left; at = first column that has it; take it out
    """
    if x.ndim > 2:
        for i in range(x.shape[0]):
            largest(values[i], indices[i], x[i])
        return values, indices
    (rows, columns), count, number = x.shape, values.shape[1], _number(x)
    for r, n in pieces(rows, P):
        t, left, column = load(x[r:r + n], number), tile(n, columns, nl.uint8), tile(n, columns, nl.float32)
        nisa.memset(dst=left, value=1)
        nisa.iota(dst=column, pattern=[[1, columns]], offset=0, channel_multiplier=0)
        best, where = tile(n, count, number), tile(n, count, nl.float32)
        for k in range(count):
            candidates = tile(n, columns, number)
            nisa.memset(dst=candidates, value=float("-inf") if number == nl.float32 else -(1 << 63))
            nisa.tensor_copy_predicated(dst=candidates, src=t, predicate=left)
            nisa.tensor_reduce(dst=best[:, k:k + 1], op=nl.maximum, data=candidates, axis=1)
            first_of(where[:, k:k + 1], t, best[:, k:k + 1], 0, columns, left)
            taken = tile(n, columns, nl.uint8)
            nisa.tensor_scalar(dst=taken, data=column, op0=nl.not_equal, operand0=where[:, k:k + 1])
            remaining = tile(n, columns, nl.uint8)
            nisa.tensor_tensor(dst=remaining, data1=left, data2=taken, op=nl.bitwise_and)
            left = remaining
        for out, result in ((values, best), (indices, where)):
            o = tile(n, count, out.dtype)
            nisa.tensor_copy(dst=o, src=result)
            store(out[r:r + n], o)
    return values, indices


# ---- aten ops

class Sort:
    operands = ()

    def lower(self, call: Call) -> KernelCall | Decline:
        x, (values, indices) = call["self"], call.outputs
        declined = unsupported([x], NUMBERS, call.name)
        if declined:
            return declined
        dim = call.get("dim", -1) % max(x.ndim, 1)
        if not x.numel or x.ndim and (dim != x.ndim - 1 or x.shape[-1] > LONGEST):
            return Decline(Reason.SHAPE, f"{call.name} of no elements, of more than {LONGEST}, or not along the last "
                                         "dimension")
        if any(o.strides != contiguous_strides(o.shape) for o in (values, indices)):
            return Decline(Reason.SHAPE, f"{call.name} of a tensor that is not contiguous")
        shape, strides = ((1,), (1,)) if not x.ndim else (x.shape, x.strides)
        column = (*shape, 1)
        outs = [replace(o, seen=(column, contiguous_strides(column))) for o in (values, indices)]
        return KernelCall(sort, {"x": View(x, column, (*strides, 1), 0, x.dtype)}, outs,
                          {"descending": bool(call.get("descending", False))})


class TopK:
    operands = ()

    def lower(self, call: Call) -> KernelCall | Decline:
        x, (values, indices) = call["self"], call.outputs
        declined = unsupported([x], NUMBERS, call.name)
        if declined:
            return declined
        count = call["k"]
        columns = x.shape[call["dim"]] if x.ndim else 1
        if not x.numel or not 0 < count <= DEEPEST or columns > F or columns >= MOST:
            return Decline(Reason.SHAPE, f"{call.name} of more than {DEEPEST} among {F}, or of none")
        if not call["largest"]:
            return Decline(Reason.NO_KERNEL, f"{call.name} of the smallest")
        if x.dtype not in INTEGERS and not x.dtype.is_floating_point:
            return Decline(Reason.DTYPE, f"{call.name} of {x.dtype}")
        (seen, places), (view,) = as_rows([values, indices], [x], call["dim"])
        return KernelCall(largest, {"x": view}, [seen, places])


ROUTES = {
    "sort.stable": Sort(),
    "topk": TopK(),
}
