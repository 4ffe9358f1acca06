"""The gradient of an embedding: rows added by index.

Indices repeat, and rows that go to one place must be added before they go. So each token first takes the sum of all
rows of its own index, by a product with the matrix that says which indices are equal; then it does not matter which
token of an index writes last.
"""
from __future__ import annotations

import nki
import nki.isa as nisa
import nki.language as nl
import torch

from ..dispatch.plan import Call, Decline, KernelCall, Reason
from .layout import coalesce
from .matmul import N
from .rules import FLOATS, unsupported
from .tiling import P, blocks, load, pieces, store, tile


@nki.jit
def embedding_backward(out, g, index, left_out, shared):
    """out[v] = sum of g[n] over all n with index[n] = v; divided by their number with `shared`.

    Dimensions:
        V: rows of the table. T: tokens, in one dimension or more. D: elements of a row.
    Args:
        out: HBM [V, D], contiguous, written. g: HBM [T, D], floating point. index: HBM [T, 1], int32 or int64.
            Any strides.
        left_out: index whose row stays 0, or -1; shared: bool (compile-time constants).
    Constraints:
        accumulation in float32. An index outside the table is passed over.
    Pseudocode:
        out = 0
        for each 128 tokens n: equal[m, n] = index[m] == index[n]
            indirect DMA of equal.T @ g to the rows index[n]
    """
    zeros: dict[tuple[int, int], object] = {}
    for (o,) in blocks(out):
        shape = rows, columns = tuple(o.shape)
        if shape not in zeros:
            zeros[shape] = tile(rows, columns, out.dtype)
            nisa.memset(dst=zeros[shape], value=0.0)
        store(o, zeros[shape])
    width = g.shape[-1]
    tokens = list(_tokens(g, index))
    for _, wanted in tokens:
        n = wanted.shape[0]
        equals = [_equal(other, wanted.permute((1, 0)), g.dtype) for _, other in tokens]
        share = _share(equals, n, g.dtype) if shared else None
        rows = _rows(wanted, left_out)
        for c, w in pieces(width, N):
            acc = nl.ndarray((n, w), nl.float32, buffer=nl.psum)
            for i, (gradients, _) in enumerate(tokens):
                nisa.nc_matmul(dst=acc, stationary=equals[i], moving=load(gradients[:, c:c + w]), accumulate=i > 0)
            o = tile(n, w, out.dtype)
            if share is None:
                nisa.tensor_copy(dst=o, src=acc)
            else:
                nisa.tensor_scalar(dst=o, data=acc, op0=nl.multiply, operand0=share)
            nisa.dma_copy(dst=out.ap(pattern=[[width, n], [1, w]], offset=c, vector_offset=rows, indirect_dim=0),
                          src=o, oob_mode=nisa.oob_mode.skip)
    return out


def _tokens(g, index):
    """Pieces of at most 128 tokens: (gradients [n, D], indices [n, 1])."""
    if g.ndim > 2:
        for i in range(g.shape[0]):
            yield from _tokens(g[i], index[i])
    else:
        for r, n in pieces(g.shape[0], P):
            yield g[r:r + n], index[r:r + n]


def _rows(index, left_out):
    """[n, 1] int32: the rows that are written, -1 for none."""
    n = index.shape[0]
    wanted, rows = load(index, nl.int64), tile(n, 1, nl.int32)
    if left_out >= 0:
        keep, moved = tile(n, 1, nl.int64), tile(n, 1, nl.int64)
        nisa.tensor_scalar(dst=keep, data=wanted, op0=nl.not_equal, operand0=left_out)
        nisa.tensor_scalar(dst=moved, data=wanted, op0=nl.add, operand0=1)
        nisa.tensor_tensor(dst=moved, data1=moved, data2=keep, op=nl.multiply)
        nisa.tensor_scalar(dst=moved, data=moved, op0=nl.subtract, operand0=1)
        wanted = moved
    nisa.tensor_copy(dst=rows, src=wanted)
    return rows


def _equal(column, row, dtype):
    """[K, N] in `dtype`: 1 where an index of the column [K, 1] equals one of the row [1, N]."""
    rows, columns = column.shape[0], row.shape[1]
    exact, result = tile(rows, columns, nl.int64), tile(rows, columns, dtype)
    nisa.tensor_scalar(dst=exact, data=load(row.broadcast(0, rows), nl.int64), op0=nl.equal,
                       operand0=load(column, nl.int64))
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


class EmbeddingBackward:
    operands = ()

    def lower(self, call: Call) -> KernelCall | Decline:
        g, index, out = call["grad_output"], call["indices"], call.outputs[0]
        declined = unsupported([g], FLOATS, call.name) or \
            unsupported([index], frozenset((torch.int32, torch.int64)), f"an index of {call.name}")
        if declined:
            return declined
        if not g.numel or not out.shape[0]:
            return Decline(Reason.SHAPE, f"{call.name} of no elements")
        shape, (of, to) = coalesce(index.shape, [g.strides[:-1], index.strides])
        if not shape:
            shape, of, to = (1,), (1,), (1,)
        rows, wanted = g.view((*shape, g.shape[-1]), (*of, g.strides[-1])), index.view((*shape, 1), (*to, 1))
        return KernelCall(embedding_backward, {"g": rows, "index": wanted}, [out],
                          {"left_out": call["padding_idx"], "shared": call["scale_grad_by_freq"]})


ROUTES = {"embedding_dense_backward": EmbeddingBackward()}
