"""Softmax and log-softmax along the columns of a matrix."""
from __future__ import annotations

import nki
import nki.isa as nisa
import nki.language as nl
import torch

from ..dispatch.plan import Decline, KernelCall, Reason
from .rules import FLOATS, rows_by_columns, unsupported
from .shapes import settled
from .tiling import F, P, load, pieces, store, tile, walks

RESIDENT = 16384        # columns whose float32 values stay in SBUF between the passes: 64 KiB of a partition


@nki.jit
@walks("out", "x")
def softmax(out, x, log=False):
    """out[r] = exp(x[r] - max(x[r])) / sum(exp(x[r] - max(x[r]))), or its logarithm.

    Dimensions:
        R: rows, any number. C: columns, at least 1. More dimensions before them are walked one index at a time.
    Args:
        out: HBM [..., R, C], written; any strides.
        x: HBM [..., R, C], floating point; any strides; may be the same view as `out`.
        log: log-softmax (compile-time constant).
    Constraints:
        arithmetic in float32; a row of -inf gives NaN, as in PyTorch.
    Pseudocode:
        for each tile of 128 rows:
            m = -max over column chunks
            s = sum over column chunks of exp(x + m)
            out = exp(x + m) * (1 / s), or x + m - log(s)
    """
    if x.ndim > 2:
        for i in range(x.shape[0]):
            softmax(out[i], x[i], log)
        return out
    rows, columns = x.shape
    for r, n in pieces(rows, P):
        chunks = list(pieces(columns, F))
        kept = [load(x[r:r + n, c:c + w]) for c, w in chunks] if columns <= RESIDENT else None

        def chunk(i, r=r, n=n, chunks=chunks, kept=kept):
            c, w = chunks[i]
            return kept[i] if kept else load(x[r:r + n, c:c + w])

        m, s, part = (tile(n, 1, nl.float32) for _ in range(3))
        for i in range(len(chunks)):
            nisa.tensor_reduce(dst=part if i else m, op=nl.maximum, data=chunk(i), axis=1)
            if i:
                nisa.tensor_tensor(dst=m, data1=m, data2=part, op=nl.maximum)
        nisa.tensor_scalar(dst=m, data=m, op0=nl.multiply, operand0=-1.0)
        exps = []
        for i, (_, w) in enumerate(chunks):
            e = tile(n, w, nl.float32)
            nisa.activation_reduce(dst=e, op=nl.exp, data=chunk(i), bias=m, reduce_op=nl.add,
                                   reduce_res=part if i else s)
            if i:
                nisa.tensor_tensor(dst=s, data1=s, data2=part, op=nl.add)
            if kept and not log:
                exps.append(e)
        if log:
            nisa.activation(dst=s, op=nl.log, data=s)
        else:
            nisa.reciprocal(dst=s, data=s)
        for i, (c, w) in enumerate(chunks):
            o = tile(n, w, out.dtype)
            if log:
                nisa.tensor_scalar(dst=o, data=chunk(i), op0=nl.add, operand0=m, op1=nl.subtract, operand1=s)
            else:
                e = exps[i] if kept else tile(n, w, nl.float32)
                if not kept:
                    nisa.activation(dst=e, op=nl.exp, data=chunk(i), bias=m)
                nisa.tensor_scalar(dst=o, data=e, op0=nl.multiply, operand0=s)
            store(out[r:r + n, c:c + w], o)
    return out


class Softmax:
    """aten::_softmax and _log_softmax along any dimension."""

    operands = ()

    def __init__(self, log):
        self.log = log

    def lower(self, call):
        x = call["self"]
        dtype = torch.float32 if call["half_to_float"] else x.dtype
        if not -max(x.ndim, 1) <= call["dim"] < max(x.ndim, 1):
            return Decline(Reason.SHAPE, f"{call.name} along a dimension that is not there")
        valid = dtype in FLOATS and x.dtype in FLOATS
        out = valid and settled(call, x.shape, dtype) or call.outputs[0]
        declined = unsupported([x, out], FLOATS, call.name)
        if declined:
            return declined
        seen, view = rows_by_columns(out, x, call["dim"])
        return KernelCall(softmax, {"x": view}, [seen], {"log": self.log}, same_view=True)


ROUTES = {
    "_softmax": Softmax(log=False),
    "_log_softmax": Softmax(log=True),
}
