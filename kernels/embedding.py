"""The gradient of an embedding: rows added by index, without a scatter.

Rows of equal index are summed first, by a product with the matrix that says which indices are equal. Each row of the
table then takes the sum of one of its tokens, found by comparing all indices with its own number, or zeros.
"""
from __future__ import annotations

import nki
import nki.isa as nisa
import nki.language as nl
import torch

from ..dispatch.routes import FunctionRule
from .matmul import N
from .tiling import F, P, load, pieces, store, tile

MOST = 1 << 24          # integers below are exact in float32


@nki.jit
def sum_of_equals(out, g, index, shared):
    """out[n] = sum of g[m] over all m with index[m] = index[n]; divided by their number with `shared`.

    Dimensions:
        T: tokens. D: elements of a row.
    Args:
        out: HBM [T, D], written. g: HBM [T, D], floating point. index: HBM [T, 1] int64.
        shared: bool (compile-time constant).
    Constraints:
        accumulation in float32.
    Pseudocode:
        for each 128 tokens n: equal[m, n] = index[m] == index[n]; out[n] = equal.T @ g
    """
    tokens, width = g.shape
    across = index.permute((1, 0))
    for r, n in pieces(tokens, P):
        equals = [_equal(index[m:m + k], across[:, r:r + n], g.dtype) for m, k in pieces(tokens, P)]
        share = _share(equals, n, g.dtype) if shared else None
        for c, w in pieces(width, N):
            acc = nl.ndarray((n, w), nl.float32, buffer=nl.psum)
            for i, (m, k) in enumerate(pieces(tokens, P)):
                nisa.nc_matmul(dst=acc, stationary=equals[i], moving=load(g[m:m + k, c:c + w]), accumulate=i > 0)
            o = tile(n, w, out.dtype)
            if share is None:
                nisa.tensor_copy(dst=o, src=acc)
            else:
                nisa.tensor_scalar(dst=o, data=acc, op0=nl.multiply, operand0=share)
            store(out[r:r + n, c:c + w], o)
    return out


def _equal(column, row, dtype):
    """[K, N] in `dtype`: 1 where an index of the column [K, 1] equals one of the row [1, N]."""
    rows, columns = column.shape[0], row.shape[1]
    exact, result = tile(rows, columns, nl.int64), tile(rows, columns, dtype)
    nisa.tensor_scalar(dst=exact, data=load(row.broadcast(0, rows)), op0=nl.equal, operand0=load(column))
    nisa.tensor_copy(dst=result, src=exact)
    return result


def _share(equals, n, dtype):
    """[n, 1] float32: 1 / how many indices equal each one."""
    acc, share = nl.ndarray((n, 1), nl.float32, buffer=nl.psum), tile(n, 1, nl.float32)
    for i, equal in enumerate(equals):
        ones = tile(equal.shape[0], 1, dtype)
        nisa.memset(dst=ones, value=1.0)
        nisa.nc_matmul(dst=acc, stationary=equal, moving=ones, accumulate=i > 0)
    nisa.reciprocal(dst=share, data=acc)
    return share


@nki.jit
def rows_by_index(out, rows, index, left_out):
    """out[v] = rows[n] for the last n with index[n] = v, or 0 if there is none or v is `left_out`.

    Dimensions:
        V: rows of the table. T: tokens. D: elements of a row.
    Args:
        out: HBM [V, D], written. rows: HBM [T, D], contiguous, of out's dtype. index: HBM [1, T] int64.
        left_out: row that stays 0, or -1 (compile-time constant).
    Pseudocode:
        for each 128 rows v: position = max over n of (n if index[n] == v else -1)
            indirect DMA of rows[position] where that is not -1
    """
    (table, width), tokens = out.shape, rows.shape[0]
    number = nl.float32 if max(table, tokens) < MOST else nl.int64
    for r, n in pieces(table, P):
        own, best, part = tile(n, 1, number), tile(n, 1, number), tile(n, 1, number)
        nisa.iota(dst=own, pattern=[[1, 1]], offset=r, channel_multiplier=1)
        for i, (c, w) in enumerate(pieces(tokens, F)):
            position, found = tile(n, w, number), tile(n, w, number)
            nisa.iota(dst=position, pattern=[[1, w]], offset=c + 1, channel_multiplier=0)
            nisa.scalar_tensor_tensor(dst=found, data=load(index[:, c:c + w].broadcast(0, n), number), op0=nl.equal,
                                      operand0=own, op1=nl.multiply, operand1=position)
            nisa.tensor_reduce(dst=part if i else best, op=nl.maximum, data=found, axis=1)
            if i:
                nisa.tensor_tensor(dst=best, data1=best, data2=part, op=nl.maximum)
        if r <= left_out < r + n:
            nisa.tensor_scalar(dst=part, data=own, op0=nl.not_equal, operand0=left_out)
            nisa.tensor_tensor(dst=best, data1=best, data2=part, op=nl.multiply)
        nisa.tensor_scalar(dst=best, data=best, op0=nl.add, operand0=-1)
        where = tile(n, 1, nl.int32)
        nisa.tensor_copy(dst=where, src=best)
        for c, w in pieces(width, F):
            t = tile(n, w, out.dtype)
            nisa.memset(dst=t, value=0.0)
            nisa.dma_copy(dst=t, oob_mode=nisa.oob_mode.skip, src=rows.ap(
                pattern=[[width, n], [1, w]], offset=c, vector_offset=where, indirect_dim=0))
            store(out[r:r + n, c:c + w], t)
    return out


def embedding_dense_backward(grad_output: torch.Tensor, indices: torch.Tensor, num_weights: int, padding_idx: int,
                             scale_grad_by_freq: bool) -> torch.Tensor:
    """The gradient of the table, [num_weights, D]. Two kernels: the second picks among rows that the first has made."""
    width = grad_output.shape[-1]
    out = grad_output.new_empty(num_weights, width)
    if not grad_output.numel():
        return out.zero_()
    tokens = indices.numel()
    g, index = grad_output.reshape(tokens, width), indices.reshape(tokens).to(torch.int64)
    rows = sum_of_equals(torch.empty_like(g, memory_format=torch.contiguous_format), g, index.unsqueeze(1),
                         scale_grad_by_freq)
    return rows_by_index(out, rows, index.unsqueeze(0), padding_idx)


ROUTES = {"embedding_dense_backward": FunctionRule(embedding_dense_backward)}
