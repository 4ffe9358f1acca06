"""Normalisations: layer norm and RMS norm along the columns of a matrix, batch norm by channel."""
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


@nki.jit
@walks("out", "x")
def batch_norm(out, saved_mean, saved_rstd, x, mean, variance, weight, bias, eps):
    """out = (x - mean) / sqrt(variance + eps) * weight + bias, with statistics of each channel that are given.

    Dimensions:
        C: channels. L: elements of a channel. Dimensions before them are walked one index at a time.
    Args:
        out: HBM [..., C, L], written. saved_mean, saved_rstd: HBM [0], of a training run only.
        x: HBM [..., C, L], floating point. mean, variance: HBM [C, 1]. weight, bias: HBM [C, 1] or None.
        eps: HBM [1, 1] float32.
    Pseudocode:
        for each tile of 128 channels:
            scale = rsqrt(variance + eps) * weight; shift = bias - mean * scale
            out = x * scale + shift
    """
    if x.ndim > 2:
        for i in range(x.shape[0]):
            batch_norm(out[i], saved_mean, saved_rstd, x[i], mean, variance, weight, bias, eps)
        return out, saved_mean, saved_rstd
    for r, n in pieces(x.shape[0], P):
        scale, shift = load(variance[r:r + n], nl.float32), tile(n, 1, nl.float32)
        scale = _reciprocal_root(scale, load(eps.broadcast(0, n)))
        if weight is not None:
            nisa.tensor_tensor(dst=scale, data1=scale, data2=load(weight[r:r + n]), op=nl.multiply)
        nisa.tensor_tensor(dst=shift, data1=load(mean[r:r + n]), data2=scale, op=nl.multiply)
        nisa.tensor_scalar(dst=shift, data=shift, op0=nl.multiply, operand0=-1.0)
        if bias is not None:
            nisa.tensor_tensor(dst=shift, data1=shift, data2=load(bias[r:r + n]), op=nl.add)
        for c, w in pieces(x.shape[1], F):
            o = tile(n, w, out.dtype)
            nisa.tensor_scalar(dst=o, data=load(x[r:r + n, c:c + w]), op0=nl.multiply, operand0=scale, op1=nl.add,
                               operand1=shift)
            store(out[r:r + n, c:c + w], o)
    return out, saved_mean, saved_rstd


class BatchNorm:
    """aten::native_batch_norm with running statistics; in training the CPU computes and updates them."""

    operands = ("eps",)

    def lower(self, call):
        x, sides = call["input"], {"mean": call["running_mean"], "variance": call["running_var"],
                                   "weight": call["weight"], "bias": call["bias"]}
        if call["training"] or sides["mean"] is None or sides["variance"] is None:
            return Decline(Reason.NO_KERNEL, "batch norm in training")
        given = {name: side for name, side in sides.items() if side is not None}
        declined = unsupported([x, *given.values()], FLOATS, call.name)
        if declined:
            return declined
        if x.ndim < 2 or not x.is_contiguous or not x.numel or any(s.shape != (x.shape[1],) for s in given.values()) \
                or any(p.out for p in call.signature.parameters):
            return Decline(Reason.SHAPE, f"{call.name} of a tensor that is not contiguous")
        batch, channels = x.shape[:2]
        shape = (batch, channels, x.numel // (batch * channels))
        nothing = Out((0,), (1,), x.dtype)
        inputs = {"x": x.view(shape), "eps": Operand(call["eps"]),
                  **{name: side.view((channels, 1), (side.strides[0], 1)) for name, side in given.items()}}
        out = Out(x.shape, contiguous_strides(x.shape), x.dtype).view(shape)
        return KernelCall(batch_norm, inputs, [out, nothing, nothing],
                          {name: None for name, side in sides.items() if side is None})


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


ROUTES = {"native_layer_norm": LayerNorm(), "native_batch_norm": BatchNorm()}
