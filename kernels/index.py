"""Gathers: rows or elements chosen by an index tensor."""
from __future__ import annotations

import nki
import nki.isa as nisa
import nki.language as nl

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
