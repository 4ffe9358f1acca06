"""The negative log-likelihood loss over classes, and its gradient."""
from __future__ import annotations

import nki
import nki.isa as nisa
import nki.language as nl
import torch

from ..dispatch.plan import Arg, Call, Decline, KernelCall, Operand, Reason
from .rules import FLOATS, unsupported
from .tiling import F, P, load, pieces, store, tile

NONE, MEAN, SUM = 0, 1, 2           # PyTorch's numbers for `reduction`
MOST = 1 << 24                      # classes: their numbers are exact in float32


@nki.jit
def nll_loss(out, total, x, target, ignored, reduction, columns):
    """Each row's loss, -x[r, target[r]], or their sum or mean; rows whose target is `ignored` count as none.

    Dimensions:
        R: rows. C: classes.
    Args:
        out: HBM [R, 1], or [1, 1] for the mean and the sum, written. total: HBM [1, 1], written: how many rows count
            (0 with reduction NONE).
        x: HBM [R * C, 1], contiguous log-probabilities. target: HBM [R, 1] int64.
        ignored: HBM [1, 1] int64.
        reduction: NONE, MEAN or SUM; columns: C (compile-time constants).
    Constraints:
        a target outside 0 ... C - 1 that is not ignored is an error of the DMA, reported as IndexError. The mean of no
        rows is NaN.
    Pseudocode:
        for each 128 rows: position = r * C + target, or 0 where ignored, or R * C where outside
            indirect DMA of one element a partition; loss = -element, or 0 where ignored
        sums over partitions
    """
    rows, elements = target.shape[0], x.shape[0]
    sums = counts = None
    for r, n in pieces(rows, P):
        class_, keep = load(target[r:r + n]), tile(n, 1, nl.int64)
        nisa.tensor_tensor(dst=keep, data1=class_, data2=load(ignored.broadcast(0, n)), op=nl.not_equal)
        picked = tile(n, 1, x.dtype)
        nisa.dma_copy(dst=picked, src=x.ap(pattern=[[1, n], [1, 1]], indirect_dim=0, vector_offset=_positions(
            class_, keep, r, columns, elements)))
        loss, kept = tile(n, 1, nl.float32), tile(n, 1, nl.uint8)
        nisa.tensor_copy(dst=kept, src=keep)
        nisa.memset(dst=loss, value=0.0)
        negative = tile(n, 1, nl.float32)
        nisa.tensor_scalar(dst=negative, data=picked, op0=nl.multiply, operand0=-1.0)
        nisa.tensor_copy_predicated(dst=loss, src=negative, predicate=kept)
        if reduction == NONE:
            result = tile(n, 1, out.dtype)
            nisa.tensor_copy(dst=result, src=loss)
            store(out[r:r + n], result)
        else:
            sums, counts = _added(sums, loss), _added(counts, keep)
    if reduction == NONE:
        nothing = tile(1, 1, total.dtype)
        nisa.memset(dst=nothing, value=0.0)
        store(total, nothing)
    else:
        _reduced(out, total, sums, counts, reduction)
    return out, total


def _positions(class_, keep, first, columns, elements):
    """[n, 1] int32: where in x the element of each row's class is."""
    n = class_.shape[0]
    row, position, outside, part = (tile(n, 1, nl.int64) for _ in range(4))
    index = tile(n, 1, nl.int32)
    nisa.iota(dst=index, pattern=[[1, 1]], offset=first, channel_multiplier=1)
    nisa.tensor_copy(dst=row, src=index)
    nisa.tensor_scalar(dst=row, data=row, op0=nl.multiply, operand0=columns)
    nisa.tensor_tensor(dst=position, data1=row, data2=class_, op=nl.add)
    nisa.tensor_scalar(dst=outside, data=class_, op0=nl.less, operand0=0)
    nisa.tensor_scalar(dst=part, data=class_, op0=nl.greater_equal, operand0=columns)
    nisa.tensor_tensor(dst=outside, data1=outside, data2=part, op=nl.maximum)
    nisa.tensor_scalar(dst=part, data=outside, op0=nl.multiply, operand0=elements)
    nisa.tensor_scalar(dst=outside, data=outside, op0=nl.equal, operand0=0)
    nisa.tensor_tensor(dst=position, data1=position, data2=outside, op=nl.multiply)
    nisa.tensor_tensor(dst=position, data1=position, data2=part, op=nl.add)
    nisa.tensor_tensor(dst=position, data1=position, data2=keep, op=nl.multiply)
    nisa.tensor_copy(dst=index, src=position)
    return index


def _added(total, column):
    """A [P, 1] float32 tile of running sums, one a partition, with a column of at most P rows added."""
    if total is None:
        total = tile(P, 1, nl.float32)
        nisa.memset(dst=total, value=0.0)
    n = column.shape[0]
    nisa.tensor_tensor(dst=total[0:n], data1=total[0:n], data2=column, op=nl.add)
    return total


def _reduced(out, total, sums, counts, reduction):
    loss, count = tile(1, 1, nl.float32), tile(1, 1, nl.float32)
    nisa.tensor_partition_reduce(dst=loss, op=nl.add, data=sums)
    nisa.tensor_partition_reduce(dst=count, op=nl.add, data=counts)
    if reduction == MEAN:
        nisa.tensor_tensor(dst=loss, data1=loss, data2=count, op=nl.divide)
    for result, t in ((out, loss), (total, count)):
        narrow = tile(1, 1, result.dtype)
        nisa.tensor_copy(dst=narrow, src=t)
        store(result, narrow)


@nki.jit
def nll_loss_backward(dx, g, target, total, ignored, reduction):
    """dx[r, c] = -g where c is the target of row r, else 0; divided by `total` for the mean.

    Dimensions:
        R: rows. C: classes, below 2 ** 24.
    Args:
        dx: HBM [R, C], written. g: HBM [R, 1] (stride 0 where it is one number). target: HBM [R, 1] int64.
        total: HBM [1, 1], how many rows counted. ignored: HBM [1, 1] int64.
        reduction: compile-time constant.
    Pseudocode:
        for each tile of 128 rows: factor = -g (/ total), or 0 where the target is ignored
            for each column chunk: dx = (iota == target) * factor
    """
    rows, columns = dx.shape
    for r, n in pieces(rows, P):
        class_, keep = load(target[r:r + n]), tile(n, 1, nl.int64)
        nisa.tensor_tensor(dst=keep, data1=class_, data2=load(ignored.broadcast(0, n)), op=nl.not_equal)
        factor, kept, wanted = tile(n, 1, nl.float32), tile(n, 1, nl.uint8), tile(n, 1, nl.float32)
        nisa.tensor_copy(dst=kept, src=keep)
        nisa.tensor_copy(dst=wanted, src=class_)
        nisa.memset(dst=factor, value=0.0)
        negative = tile(n, 1, nl.float32)
        nisa.tensor_scalar(dst=negative, data=load(g[r:r + n]), op0=nl.multiply, operand0=-1.0)
        if reduction == MEAN:
            nisa.tensor_tensor(dst=negative, data1=negative, data2=load(total.broadcast(0, n)), op=nl.divide)
        nisa.tensor_copy_predicated(dst=factor, src=negative, predicate=kept)
        for c, w in pieces(columns, F):
            number, o = tile(n, w, nl.float32), tile(n, w, dx.dtype)
            nisa.iota(dst=number, pattern=[[1, w]], offset=c, channel_multiplier=0)
            nisa.tensor_scalar(dst=o, data=number, op0=nl.equal, operand0=wanted, op1=nl.multiply, operand1=factor)
            store(dx[r:r + n, c:c + w], o)
    return dx


# ---- aten ops

def _declined(call: Call, x: Arg, target: Arg) -> Decline | None:
    """Why the kernels do not take a call, or None."""
    if call["weight"] is not None:
        return Decline(Reason.NO_KERNEL, f"{call.name} with class weights")
    declined = unsupported([x], FLOATS, call.name) or \
        unsupported([target], frozenset((torch.int64,)), f"a target of {call.name}")
    if declined:
        return declined
    if not x.numel or x.shape[-1] >= MOST or x.ndim > 2:
        return Decline(Reason.SHAPE, f"{call.name} of no elements or of 2**24 classes")
    return None


class NllLoss:
    operands = ("ignore_index",)

    def lower(self, call: Call) -> KernelCall | Decline:
        x, target, reduction = call["self"], call["target"], call["reduction"]
        out, total = call.outputs
        declined = _declined(call, x, target)
        if declined:
            return declined
        if not x.is_contiguous or x.numel >= 1 << 31:
            return Decline(Reason.SHAPE, f"{call.name} of a tensor that is not contiguous, or of 2**31 elements")
        rows, columns = (x.shape if x.ndim == 2 else (1, *x.shape))
        seen = out.view((rows if reduction == NONE else 1, 1))
        inputs = {"x": x.view((x.numel, 1)), "target": target.view((rows, 1)),
                  "ignored": Operand(call["ignore_index"], "int64")}
        return KernelCall(nll_loss, inputs, [seen, total.view((1, 1))], {"reduction": reduction, "columns": columns})


class NllLossBackward:
    operands = ("ignore_index",)

    def lower(self, call: Call) -> KernelCall | Decline:
        g, x, target, total = (call[n] for n in ("grad_output", "self", "target", "total_weight"))
        reduction = call["reduction"]
        declined = _declined(call, x, target) or unsupported([g, total], FLOATS, call.name)
        if declined:
            return declined
        out = call.outputs[0]
        rows, columns = (x.shape if x.ndim == 2 else (1, *x.shape))
        seen = out.reshape((rows, columns))
        if seen is None:
            return Decline(Reason.SHAPE, f"{call.name} into a tensor whose rows do not lie evenly in memory")
        each = g.view((rows, 1)) if g.numel == rows > 1 else g.view((1, 1)).broadcast((rows, 1))
        inputs = {"g": each, "target": target.view((rows, 1)), "total": total.view((1, 1)),
                  "ignored": Operand(call["ignore_index"], "int64")}
        return KernelCall(nll_loss_backward, inputs, [seen], {"reduction": reduction})


ROUTES = {
    "nll_loss_forward": NllLoss(),
    "nll_loss_backward": NllLossBackward(),
}
