"""Normalisations along the columns of a matrix: layer norm and RMS norm."""
from __future__ import annotations

import nki
import nki.isa as nisa
import nki.language as nl
import torch

from ..dispatch.plan import Decline, Item, KernelCall, Operand, Out, Reason, View
from .layout import coalesce, contiguous_strides
from .rules import FLOATS, replace, unsupported
from .tiling import F, P, load, pieces, store, tile, tile_like, walks


@nki.jit
@walks("out", "mean", "rstd", "x")
def layer_norm(out, mean, rstd, x, weight, bias, eps):
    """out = (x - mean) * rstd * weight + bias, row by row.

    Dimensions:
        R: rows. C: columns, the normalised elements. More dimensions before them are walked one index at a time.
    Args:
        out: HBM [..., R, C], written.
        mean, rstd: HBM [..., R, 1], written: the mean of each row, and 1 / sqrt(population variance + eps).
        x: HBM [..., R, C], floating point.
        weight, bias: HBM [1, C] or None.
        eps: HBM [1, 1] float32.
    Constraints:
        all arithmetic in float32; the variance is that of the centred values, so it does not cancel.
    Pseudocode:
        for each tile of 128 rows:
            mean = sum(x) / C
            d = x - mean
            rstd = rsqrt(sum(d * d) / C + eps)
            out = d * rstd * weight + bias
    """
    if x.ndim > 2:
        for i in range(x.shape[0]):
            layer_norm(out[i], mean[i], rstd[i], x[i], weight, bias, eps)
        return out, mean, rstd
    rows, columns = x.shape
    chunks = list(pieces(columns, F))
    for r, n in pieces(rows, P):
        xs = [load(x[r:r + n, c:c + w]) for c, w in chunks]
        m, v = _row_sum(xs, n, columns), tile(n, 1, nl.float32)
        ds = []
        for t in xs:
            d = tile_like(t, nl.float32)
            nisa.tensor_scalar(dst=d, data=t, op0=nl.subtract, operand0=m)
            ds.append(d)
        v = _reciprocal_root(_row_sum(ds, n, columns, nl.square), load(eps.broadcast(0, n)))
        _scale_and_store(out[r:r + n], ds, v, weight, bias, chunks)
        for result, t in ((mean, m), (rstd, v)):
            narrow = tile(n, 1, result.dtype)
            nisa.tensor_copy(dst=narrow, src=t)
            store(result[r:r + n], narrow)
    return out, mean, rstd


@nki.jit
def rms_norm(out, rstd, x, weight, eps):
    """out = x * rsqrt(mean(x * x) + eps) * weight, row by row.

    Dimensions:
        R: rows. C: columns, the normalised elements.
    Args:
        out: HBM [R, C], written. rstd: HBM [R, 1], written.
        x: HBM [R, C], floating point. weight: HBM [1, C] or None. eps: HBM [1, 1] float32.
    Pseudocode:
        for each tile of 128 rows: rstd = rsqrt(sum(x * x) / C + eps); out = x * rstd * weight
    """
    rows, columns = x.shape
    chunks = list(pieces(columns, F))
    for r, n in pieces(rows, P):
        xs = [load(x[r:r + n, c:c + w]) for c, w in chunks]
        v = _reciprocal_root(_row_sum(xs, n, columns, nl.square), load(eps.broadcast(0, n)))
        _scale_and_store(out[r:r + n], xs, v, weight, None, chunks)
        narrow = tile(n, 1, rstd.dtype)
        nisa.tensor_copy(dst=narrow, src=v)
        store(rstd[r:r + n], narrow)
    return out, rstd


def _row_sum(tiles, rows, columns, op=nl.copy):
    """[rows, 1] float32: sum of op(element) over all tiles, divided by `columns`."""
    total, part = tile(rows, 1, nl.float32), tile(rows, 1, nl.float32)
    for i, t in enumerate(tiles):
        waste = tile_like(t, nl.float32)
        nisa.activation_reduce(dst=waste, op=op, data=t, reduce_op=nl.add, reduce_res=part if i else total)
        if i:
            nisa.tensor_tensor(dst=total, data1=total, data2=part, op=nl.add)
    nisa.tensor_scalar(dst=total, data=total, op0=nl.multiply, operand0=1.0 / columns)
    return total


def _reciprocal_root(variance, eps):
    nisa.tensor_tensor(dst=variance, data1=variance, data2=eps, op=nl.add)
    nisa.activation(dst=variance, op=nl.rsqrt, data=variance)
    return variance


def _scale_and_store(out, tiles, rstd, weight, bias, chunks):
    rows = out.shape[0]
    for t, (c, w) in zip(tiles, chunks):
        o = tile(rows, w, out.dtype)
        scaled = o if weight is None and bias is None else tile(rows, w, nl.float32)
        nisa.tensor_scalar(dst=scaled, data=t, op0=nl.multiply, operand0=rstd)
        if weight is not None:
            factor = load(weight[:, c:c + w].broadcast(0, rows))
            target = o if bias is None else scaled
            nisa.tensor_tensor(dst=target, data1=scaled, data2=factor, op=nl.multiply)
        if bias is not None:
            nisa.tensor_tensor(dst=o, data1=scaled, data2=load(bias[:, c:c + w].broadcast(0, rows)), op=nl.add)
        store(out[:, c:c + w], o)


class LayerNorm:
    """aten::native_layer_norm: the normalised dimensions are the columns."""

    operands = ("eps",)

    def lower(self, call):
        x, weight, bias = call["input"], call["weight"], call["bias"]
        outs = self.outs(call, x, weight, bias) or call.outputs
        declined = unsupported([a for a in (x, *outs, weight, bias) if a is not None], FLOATS, call.name)
        if declined:
            return declined
        if not x.numel:
            return Decline(Reason.SHAPE, f"{call.name} of no elements")
        lead = x.ndim - len(call["normalized_shape"])
        width, steps = coalesce(x.shape[lead:], [outs[0].strides[lead:], x.strides[lead:]], order=False)
        if len(width) > 1 or any(side is not None and not side.is_contiguous for side in (weight, bias)):
            return Decline(Reason.SHAPE, f"{call.name} of a tensor whose rows do not lie evenly in memory")
        columns = width[0] if width else 1
        (out_step, step) = (s[0] if s else 1 for s in steps)
        rows, (out_rows, mean_rows, rstd_rows, x_rows) = coalesce(
            x.shape[:lead], [*(o.strides[:lead] for o in outs), x.strides[:lead]])
        if not rows:
            rows, out_rows, mean_rows, rstd_rows, x_rows = (1,), (columns,), (1,), (1,), (columns,)
        seen = [replace(o, seen=((*rows, n), (*s, last))) for o, s, n, last in zip(
            outs, (out_rows, mean_rows, rstd_rows), (columns, 1, 1), (out_step, 1, 1))]
        sides = {"weight": weight, "bias": bias}
        inputs: dict[str, Item] = {
            "x": View(x, (*rows, columns), (*x_rows, step), 0, x.dtype), "eps": Operand(call["eps"])}
        inputs.update({name: side.view((1, columns)) for name, side in sides.items() if side is not None})
        return KernelCall(layer_norm, inputs, seen, {name: None for name, side in sides.items() if side is None})

    def outs(self, call, x, weight, bias):
        """The results as PyTorch has them; None if PyTorch should say it."""
        normal, lead = tuple(call["normalized_shape"]), x.ndim - len(call["normalized_shape"])
        sides = [side for side in (weight, bias) if side is not None]
        if (x.dtype not in FLOATS or not normal or lead < 0 or x.shape[lead:] != normal
                or any(side.shape != normal or side.dtype not in (x.dtype, torch.float32) for side in sides)
                or any(p.out for p in call.signature.parameters)):
            return None
        statistics = (*x.shape[:lead], *(1 for _ in normal))
        wide = torch.float64 if x.dtype is torch.float64 else torch.float32
        return [Out(shape, contiguous_strides(shape), dtype)
                for shape, dtype in ((x.shape, x.dtype), (statistics, wide), (statistics, wide))]


ROUTES = {"native_layer_norm": LayerNorm()}
