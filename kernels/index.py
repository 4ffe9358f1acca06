"""Gathers: rows or elements chosen by an index tensor."""
from __future__ import annotations

import nki
import nki.isa as nisa
import nki.language as nl
import torch

from ..dispatch.plan import Decline, KernelCall, Reason
from .rules import NUMBERS, product, unsupported
from .tiling import F, P, pieces, store, tile


@nki.jit
def gather_rows(out, table, index):
    """out[i] = table[index[i]].

    Dimensions:
        I: indices. V: rows of the table. D: elements of a row.
    Args:
        out: HBM [I, D], written. table: HBM [V, D], rows contiguous. index: HBM [I, 1], int32 or int64, in 0 ... V - 1.
    Constraints:
        an index outside the table is an error of the DMA, reported as IndexError.
    Pseudocode:
        for each 128 indices: load them, one a partition; indirect DMA of their rows; store
    """
    for r, n in pieces(index.shape[0], P):
        wanted, rows = tile(n, 1, index.dtype), tile(n, 1, nl.int32)
        nisa.dma_copy(dst=wanted, src=index[r:r + n])
        nisa.tensor_copy(dst=rows, src=wanted)
        for c, w in pieces(table.shape[1], F):
            t = tile(n, w, table.dtype)
            nisa.dma_copy(dst=t, src=table.ap(pattern=[[table.strides[0], n], [1, w]], offset=c, vector_offset=rows,
                                              indirect_dim=0))
            store(out[r:r + n, c:c + w], t)
    return out


class Rows:
    """embedding and index_select along the first dimension: whole rows by a list of indices."""

    operands = ()

    def __init__(self, table, index):
        self.table, self.index = table, index

    def lower(self, call):
        table, index, out = call[self.table], call[self.index], call.outputs[0]
        declined = unsupported([table], NUMBERS, call.name) or \
            unsupported([index], frozenset((torch.int32, torch.int64)), f"an index of {call.name}")
        if declined:
            return declined
        if call.get("dim", 0) % max(table.ndim, 1) or not table.is_contiguous or not table.ndim:
            return Decline(Reason.SHAPE, f"{call.name} other than of the rows of a contiguous tensor")
        count, width = index.numel, product(table.shape[1:])
        wanted, seen = index.view().reshape((count, 1)), out.reshape((count, width))
        if wanted is None or seen is None:
            return Decline(Reason.SHAPE, f"{call.name} whose index or result does not lie evenly in memory")
        return KernelCall(gather_rows, {"table": table.view((table.shape[0], width)), "index": wanted}, [seen])


ROUTES = {
    "index_select": Rows("self", "index"),
    "embedding": Rows("weight", "indices"),
}
