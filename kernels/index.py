"""Gathers: rows or elements chosen by an index tensor."""
from __future__ import annotations

import nki
import nki.isa as nisa
import nki.language as nl
import torch

from ..dispatch.plan import Decline, KernelCall, Reason
from .indexed import TakeRows
from .layout import coalesce, contiguous_strides
from .rules import NUMBERS, compact, product, replace, unsupported, widened
from .shapes import settled
from .tiling import F, P, blocks, load, pieces, store, tile, tile_like, walks


@nki.jit
@walks("out", "index")
def gather_rows(out, table, index):
    """out[i] = table[index[i]].

    Dimensions:
        I: indices. V: rows of the table. D: elements of a row. More dimensions before I are walked one index at a time.
    Args:
        out: HBM [..., I, D], written. table: HBM [V, D], rows contiguous.
        index: HBM [..., I, 1], int32 or int64, in 0 ... V - 1; any strides.
    Constraints:
        an index outside the table is an error of the DMA, reported as IndexError.
    Pseudocode:
        for each 128 indices: load them, one a partition; indirect DMA of their rows; store
    """
    if out.ndim > 2:
        for i in range(out.shape[0]):
            gather_rows(out[i], table, index[i])
        return out
    for r, n in pieces(index.shape[0], P):
        wanted, rows = tile(n, 1, index.dtype), tile(n, 1, nl.int32)
        nisa.dma_copy(dst=wanted, src=index[r:r + n])
        if index.dtype == nl.int64:         # an index that int32 can not hold becomes one outside the table
            nisa.tensor_scalar(dst=wanted, data=wanted, op0=nl.minimum, operand0=table.shape[0], op1=nl.maximum,
                               operand1=-1)
        nisa.tensor_copy(dst=rows, src=wanted)
        for c, w in pieces(table.shape[1], F):
            t = tile(n, w, table.dtype)
            nisa.dma_copy(dst=t, src=table.ap(pattern=[[table.strides[0], n], [1, w]], offset=c, vector_offset=rows,
                                              indirect_dim=0))
            store(out[r:r + n, c:c + w], t)
    return out


@nki.jit
def gather_elements(out, table, indices, sizes, steps):
    """out[i] = table[sum over k of indices[k][i] * steps[k]]: elements by one index for each dimension.

    Dimensions:
        out and every index: one common shape, any rank.
    Args:
        out: HBM tensor, written; any strides. table: HBM [V, 1], contiguous, of out's dtype.
        indices: tuple of HBM tensors of out's shape, int32 or int64; negative ones count from the end.
        sizes, steps: of each indexed dimension, its length and its stride in elements (compile-time constants).
    Constraints:
        an index outside its dimension is an error of the DMA, reported as IndexError.
    Pseudocode:
        for each block: position = sum of index * step, or V where an index is outside
            for each column: indirect DMA of one element a partition
    """
    for o, *wanted in blocks(out, *indices, columns=P):
        position, t = tile_like(o, nl.int64), tile_like(o, out.dtype)
        nisa.memset(dst=position, value=0)
        outside = tile_like(o, nl.int64)
        nisa.memset(dst=outside, value=0)
        for index, size, step in zip(wanted, sizes, steps):
            given, i, part = load(index, nl.int64), tile_like(o, nl.int64), tile_like(o, nl.int64)
            nisa.tensor_scalar(dst=part, data=given, op0=nl.less, operand0=0, op1=nl.multiply, operand1=size)
            nisa.tensor_tensor(dst=i, data1=given, data2=part, op=nl.add)
            for comparison, bound in ((nl.less, 0), (nl.greater_equal, size)):
                nisa.tensor_scalar(dst=part, data=i, op0=comparison, operand0=bound)
                nisa.tensor_tensor(dst=outside, data1=outside, data2=part, op=nl.maximum)
            nisa.tensor_scalar(dst=part, data=i, op0=nl.multiply, operand0=step)
            nisa.tensor_tensor(dst=position, data1=position, data2=part, op=nl.add)
        nisa.tensor_scalar(dst=outside, data=outside, op0=nl.multiply, operand0=table.shape[0])
        nisa.tensor_tensor(dst=position, data1=position, data2=outside, op=nl.maximum)
        rows = tile_like(o, nl.int32)
        nisa.tensor_copy(dst=rows, src=position)
        for c in range(o.shape[1]):
            nisa.dma_copy(dst=t[:, c:c + 1], src=table.ap(pattern=[[1, o.shape[0]], [1, 1]],
                                                          vector_offset=rows[:, c:c + 1], indirect_dim=0))
        store(o, t)
    return out


# ---- aten ops

class Rows:
    """embedding and index_select along the first dimension: whole rows by a list of indices."""

    operands = ()

    def __init__(self, table, index):
        self.table, self.index = table, index

    def lower(self, call):
        table, index = call[self.table], call[self.index]
        out = None
        if self.table == "weight" and table.ndim == 2 and index.dtype in (torch.int32, torch.int64):
            out = settled(call, (*index.shape, table.shape[1]), table.dtype)
        out = out or call.outputs[0]
        declined = unsupported([table], NUMBERS, call.name) or \
            unsupported([index], frozenset((torch.int32, torch.int64)), f"an index of {call.name}")
        if declined:
            return declined
        if call.get("dim", 0) % max(table.ndim, 1) or not table.is_contiguous or not table.ndim:
            return Decline(Reason.SHAPE, f"{call.name} other than of the rows of a contiguous tensor")
        width = product(table.shape[1:])
        seen = out.reshape((*index.shape, width) if index.shape else (1, width))
        if seen is None or seen.seen is None:
            return Decline(Reason.SHAPE, f"{call.name} whose result does not lie evenly in memory")
        *to, across = seen.seen[1]
        shape, (to, of) = coalesce(index.shape or (1,), [to, index.strides or (1,)])
        if not shape:
            shape, to, of = (1,), (width,), (1,)
        seen = replace(out, seen=((*shape, width), (*to, across)))
        wanted = index.view((*shape, 1), (*of, 1))
        seen, (rows,) = widened(seen, [table.view((table.shape[0], width))])
        return KernelCall(gather_rows, {"table": rows, "index": wanted}, [seen])


class Index:
    """index.Tensor with an index tensor for every dimension: elements, one by one."""

    operands = ()

    def lower(self, call):
        x, indices, out = call["self"], call["indices"], call.outputs[0]
        integers = frozenset((torch.int32, torch.int64))
        if None in indices or len(indices) != x.ndim:
            return TakeRows().lower(call)
        declined = unsupported([x], NUMBERS, call.name) or unsupported(indices, integers, f"an index of {call.name}")
        if declined:
            return declined
        if not x.is_contiguous or not x.numel:
            return Decline(Reason.SHAPE, "index.Tensor of a tensor that is not contiguous")
        out, views = compact(out, indices)
        return KernelCall(gather_elements, {"table": x.view((x.numel, 1)), "indices": tuple(views)}, [out],
                          {"sizes": x.shape, "steps": contiguous_strides(x.shape)})


ROUTES = {
    "index.Tensor": Index(),
    "index_select": Rows("self", "index"),
    "embedding": Rows("weight", "indices"),
}
