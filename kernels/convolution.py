"""Depthwise convolution along one dimension, as state space models have it, and its gradients."""
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import nki
import nki.isa as nisa
import nki.language as nl

from ..dispatch.plan import Arg, Call, Decline, KernelCall, Out, Reason
from .layout import contiguous_strides
from .rules import FLOATS, replace, unsupported
from .tiling import F, P, load, pieces, store, tile, walks


@nki.jit
@walks("out", "x")
def depthwise(out, x, weight, bias=None, padding=0, dilation=1):
    """out[c, t] = bias[c] + sum over k of weight[c, k] * x[c, t + k * dilation - padding].

    Dimensions:
        C: channels. T: steps of the result. L: steps of x. K: taps. More dimensions before C are walked one at a time.
    Args:
        out: HBM [..., C, T], written. x: HBM [..., C, L]; any strides. weight: HBM [C, K]. bias: HBM [C, 1] or None.
        padding, dilation: compile-time constants.
    Constraints:
        float32 arithmetic; x is 0 outside 0 ... L - 1.
    Pseudocode:
        for each 128 channels, for each range of steps that the same taps reach: sum of shifted x times a column
    """
    if out.ndim > 2:
        for i in range(out.shape[0]):
            depthwise(out[i], x[i], weight, bias, padding, dilation)
        return out
    shifts = [k * dilation - padding for k in range(weight.shape[1])]
    _convolve(out, x, weight, bias, shifts)
    return out


def _convolve(out, x, weight, bias, shifts):
    """out[c, t] = bias[c] + sum over k of weight[c, k] * x[c, t + shifts[k]]."""
    for r, n in pieces(out.shape[0], P):
        taps = load(weight[r:r + n], nl.float32)
        start = None if bias is None else load(bias[r:r + n], nl.float32)
        for first, last, reached in ranges(out.shape[1], x.shape[1], shifts):
            for c, w in pieces(last - first, F):
                total = tile(n, w, nl.float32)
                nisa.memset(dst=total, value=0.0)
                if start is not None:
                    nisa.tensor_scalar(dst=total, data=total, op0=nl.add, operand0=start)
                for k in reached:
                    at = first + c + shifts[k]
                    nisa.scalar_tensor_tensor(dst=total, data=load(x[r:r + n, at:at + w]), op0=nl.multiply,
                                              operand0=taps[:, k:k + 1], op1=nl.add, operand1=total)
                o = tile(n, w, out.dtype)
                nisa.tensor_copy(dst=o, src=total)
                store(out[r:r + n, first + c:first + c + w], o)


def ranges(steps: int, length: int, shifts: list[int]) -> Iterator[tuple[int, int, list[int]]]:
    """(first step, end, taps k with 0 <= step + shifts[k] < length) of consecutive ranges that cover range(steps)."""
    edges = {0, steps, *(-s for s in shifts), *(length - s for s in shifts)}
    inside = sorted(e for e in edges if 0 <= e <= steps)
    for first, last in zip(inside, inside[1:]):
        yield first, last, [k for k, s in enumerate(shifts) if 0 <= first + s < length]


@nki.jit
def depthwise_backward(dx, dweight, dbias, g, x, weight, padding, dilation):
    """Gradients of `depthwise`.

    Dimensions:
        B: batch. C, T, L, K as in `depthwise`.
    Args:
        dx: HBM [B, C, L]; dweight: HBM [C, K]; dbias: HBM [C, 1]; written.
        g: HBM [B, C, T]; x: HBM [B, C, L]; any strides. weight: HBM [C, K].
    Pseudocode:
        dx[c, s] = sum over k of weight[c, k] * g[c, s - k * dilation + padding]
        dweight[c, k] = sum over batch and t of g[c, t] * x[c, t + k * dilation - padding]; dbias[c] = sum of g[c]
    """
    shifts = [k * dilation - padding for k in range(weight.shape[1])]
    for b in range(g.shape[0]):
        _convolve(dx[b], g[b], weight, None, [-s for s in shifts])
    steps, length = g.shape[2], x.shape[2]
    for r, n in pieces(g.shape[1], P):
        sums = tile(n, len(shifts), dweight.dtype)
        for k, shift in enumerate(shifts):
            low, high = max(0, -shift), min(steps, length - shift)
            total = _Total(n)
            for b in range(g.shape[0]):
                for c, w in pieces(max(high - low, 0), F):
                    product, at = tile(n, w, nl.float32), low + c
                    nisa.tensor_tensor(dst=product, data1=load(g[b, r:r + n, at:at + w]),
                                       data2=load(x[b, r:r + n, at + shift:at + shift + w]), op=nl.multiply)
                    total.add(product)
            nisa.tensor_copy(dst=sums[:, k:k + 1], src=total.value)
        store(dweight[r:r + n], sums)
        total = _Total(n)
        for b in range(g.shape[0]):
            for c, w in pieces(steps, F):
                total.add(load(g[b, r:r + n, c:c + w]))
        o = tile(n, 1, dbias.dtype)
        nisa.tensor_copy(dst=o, src=total.value)
        store(dbias[r:r + n], o)
    return dx, dweight, dbias


class _Total:
    """A [n, 1] float32 tile to which the row sums of tiles are added."""

    def __init__(self, n):
        self.value, self.part, self.empty = tile(n, 1, nl.float32), tile(n, 1, nl.float32), True
        nisa.memset(dst=self.value, value=0.0)

    def add(self, t):
        nisa.tensor_reduce(dst=self.value if self.empty else self.part, op=nl.add, data=t, axis=1)
        if not self.empty:
            nisa.tensor_tensor(dst=self.value, data1=self.value, data2=self.part, op=nl.add)
        self.empty = False


# ---- aten ops

@dataclass(frozen=True)
class Taps:
    """A depthwise convolution along the last dimension: [B, C, L] with [C, K]."""

    x: Any
    weight: Any
    padding: int
    dilation: int


def taps_of(call: Call, x: Arg, weight: Arg) -> Taps | Decline:
    declined = unsupported([x, weight], FLOATS, call.name)
    if declined:
        return declined
    stride, padding, dilation = (list(call[n]) for n in ("stride", "padding", "dilation"))
    channels = x.shape[1] if x.ndim > 2 else 0
    flat = all(n == 1 for n in (*x.shape[2:-1], *weight.shape[2:-1])) and not any(padding[:-1])
    if call["transposed"] or x.ndim not in (3, 4) or not flat or set(stride) != {1} or call["groups"] != channels or \
            weight.shape[:2] != (channels, 1) or not x.numel or not weight.numel or x.dtype != weight.dtype:
        return Decline(Reason.NO_KERNEL, f"{call.name} other than depthwise along the last dimension, by steps of 1")
    shape = (x.shape[0], channels, x.shape[-1])
    taps = weight.shape[-1]
    return Taps(x.view(shape, (x.strides[0], x.strides[1], x.strides[-1])),
                weight.view((channels, taps), (weight.strides[0], weight.strides[-1])), padding[-1], dilation[-1])


class Convolution:
    operands = ()

    def lower(self, call: Call) -> KernelCall | Decline:
        x, weight, bias = call["input"], call["weight"], call["bias"]
        taps = taps_of(call, x, weight)
        if isinstance(taps, Decline):
            return taps
        declined = bias is not None and unsupported([bias], FLOATS, call.name)
        if declined:
            return declined
        batch, channels, length = taps.x.shape
        steps = length + 2 * taps.padding - taps.dilation * (weight.shape[-1] - 1)
        if steps < 1:
            return Decline(Reason.SHAPE, f"{call.name} of fewer steps than taps")
        shape = (*x.shape[:-1], steps)
        out = Out(shape, contiguous_strides(shape), x.dtype)
        seen = replace(out, seen=((batch, channels, steps), (channels * steps, steps, 1)))
        inputs = {"x": taps.x, "weight": taps.weight}
        constants = {"padding": taps.padding, "dilation": taps.dilation}
        if bias is None:
            return KernelCall(depthwise, inputs, [seen], {**constants, "bias": None})
        inputs["bias"] = bias.view((channels, 1), (*bias.strides, 1))
        return KernelCall(depthwise, inputs, [seen], constants)


class ConvolutionBackward:
    operands = ()

    def lower(self, call: Call) -> KernelCall | Decline:
        g, x, weight = call["grad_output"], call["input"], call["weight"]
        taps = taps_of(call, x, weight)
        if isinstance(taps, Decline):
            return taps
        declined = unsupported([g], FLOATS, call.name)
        if declined:
            return declined
        channels = x.shape[1]
        gradient = g.view((g.shape[0], channels, g.shape[-1]), (g.strides[0], g.strides[1], g.strides[-1]))
        shapes = [(x.shape, taps.x.shape), (weight.shape, taps.weight.shape), ((channels,), (channels, 1))]
        outs = [replace(Out(shape, contiguous_strides(shape), x.dtype), seen=(seen, contiguous_strides(seen)))
                for shape, seen in shapes]
        wanted = [i if asked else None for i, asked in enumerate(call["output_mask"])]
        return KernelCall(depthwise_backward, {"g": gradient, "x": taps.x, "weight": taps.weight}, outs,
                          {"padding": taps.padding, "dilation": taps.dilation}, returns=wanted)


ROUTES = {
    "convolution_overrideable": Convolution(),
    "convolution_backward_overrideable": ConvolutionBackward(),
}
