"""Gradients of elementwise functions, of softmax and of layer norm."""
from __future__ import annotations

import nki
import nki.isa as nisa
import nki.language as nl
import torch

from ..dispatch.plan import Call, Decline, KernelCall, Out, Reason
from .elementwise import f32
from .layout import contiguous_strides
from .matmul import N
from .rowwise import as_rows
from .rules import FLOATS, Elementwise, product, unsupported
from .shapes import settled
from .tiling import F, P, load, pieces, store, tile, tile_like, walks

# ---- tile functions: dst = gradient of the input, from the gradient g of the result


def _times(dst, g, factor):
    nisa.tensor_tensor(dst=dst, data1=g, data2=factor, op=nl.multiply)


def _slope(function, x):
    """A float32 tile: the derivative that an activation function computes."""
    d = f32(x)
    nisa.activation(dst=d, op=function, data=x)
    return d


def silu_backward(dst, g, x):
    _times(dst, g, _slope(nl.silu_dx, x))


def gelu_backward(dst, g, x):
    _times(dst, g, _slope(nl.gelu_dx, x))


def gelu_tanh_backward(dst, g, x):
    """0.5 * (1 + t + x * (1 - t * t) * u') with t = tanh(u), u = sqrt(2 / pi) * (x + 0.044715 * x ** 3)."""
    k = 0.7978845608028654
    square, u, t, rest, slope = (f32(x) for _ in range(5))
    nisa.activation(dst=square, op=nl.square, data=x)
    nisa.tensor_scalar(dst=u, data=square, op0=nl.multiply, operand0=k * 0.044715, op1=nl.add, operand1=k)
    nisa.tensor_tensor(dst=u, data1=u, data2=x, op=nl.multiply)
    nisa.activation(dst=t, op=nl.tanh, data=u)
    nisa.tensor_scalar(dst=slope, data=square, op0=nl.multiply, operand0=3 * k * 0.044715, op1=nl.add, operand1=k)
    nisa.tensor_tensor(dst=slope, data1=slope, data2=x, op=nl.multiply)
    nisa.tensor_tensor(dst=rest, data1=t, data2=t, op=nl.multiply)
    nisa.tensor_scalar(dst=rest, data=rest, op0=nl.multiply, operand0=-1.0, op1=nl.add, operand1=1.0)
    nisa.tensor_tensor(dst=slope, data1=slope, data2=rest, op=nl.multiply)
    nisa.tensor_tensor(dst=slope, data1=slope, data2=t, op=nl.add)
    nisa.tensor_scalar(dst=slope, data=slope, op0=nl.add, operand0=1.0, op1=nl.multiply, operand1=0.5)
    _times(dst, g, slope)


def sigmoid_backward(dst, g, y):
    """g * y * (1 - y)"""
    slope = f32(y)
    nisa.tensor_scalar(dst=slope, data=y, op0=nl.multiply, operand0=-1.0, op1=nl.add, operand1=1.0)
    nisa.tensor_tensor(dst=slope, data1=slope, data2=y, op=nl.multiply)
    _times(dst, g, slope)


def tanh_backward(dst, g, y):
    """g * (1 - y * y)"""
    slope = f32(y)
    nisa.tensor_tensor(dst=slope, data1=y, data2=y, op=nl.multiply)
    nisa.tensor_scalar(dst=slope, data=slope, op0=nl.multiply, operand0=-1.0, op1=nl.add, operand1=1.0)
    _times(dst, g, slope)


def threshold_backward(dst, x, g, threshold):
    """g where x > threshold or x is NaN, else 0."""
    low = tile_like(x, nl.uint8)
    nisa.tensor_tensor(dst=low, data1=x, data2=threshold, op=nl.less_equal)
    nisa.tensor_copy(dst=dst, src=g)
    nisa.tensor_copy_predicated(dst=dst, src=0.0, predicate=low)


def leaky_relu_backward(dst, x, g, slope):
    """g where x > 0, else g * slope."""
    high, scaled = tile_like(x, nl.uint8), f32(x)
    nisa.tensor_scalar(dst=high, data=x, op0=nl.greater, operand0=0.0)
    nisa.tensor_tensor(dst=scaled, data1=g, data2=slope, op=nl.multiply)
    whole = f32(x)
    nisa.tensor_copy(dst=whole, src=g)
    nisa.tensor_copy_predicated(dst=scaled, src=whole, predicate=high)
    nisa.tensor_copy(dst=dst, src=scaled)


def softplus(dst, x, beta, threshold):
    """log(1 + exp(beta * x)) / beta, but x where beta * x > threshold."""
    scaled, result = f32(x), f32(x)
    nisa.tensor_tensor(dst=scaled, data1=x, data2=beta, op=nl.multiply)
    nisa.activation(dst=result, op=nl.softplus, data=scaled)
    nisa.tensor_tensor(dst=result, data1=result, data2=beta, op=nl.divide)
    _where_above(result, scaled, threshold, x)
    nisa.tensor_copy(dst=dst, src=result)


def softplus_backward(dst, g, x, beta, threshold):
    """g * sigmoid(beta * x), but g where beta * x > threshold."""
    scaled, result = f32(x), f32(x)
    nisa.tensor_tensor(dst=scaled, data1=x, data2=beta, op=nl.multiply)
    nisa.activation(dst=result, op=nl.sigmoid, data=scaled)
    nisa.tensor_tensor(dst=result, data1=result, data2=g, op=nl.multiply)
    _where_above(result, scaled, threshold, g)
    nisa.tensor_copy(dst=dst, src=result)


def _where_above(dst, x, threshold, value):
    """dst = value where x > threshold; dst is float32."""
    high, wide = tile_like(x, nl.uint8), f32(x)
    nisa.tensor_tensor(dst=high, data1=x, data2=threshold, op=nl.greater)
    nisa.tensor_copy(dst=wide, src=value)
    nisa.tensor_copy_predicated(dst=dst, src=wide, predicate=high)


def dropout_backward(dst, g, mask, scale):
    """g * mask * scale"""
    kept = f32(g)
    nisa.tensor_tensor(dst=kept, data1=g, data2=mask, op=nl.multiply)
    nisa.tensor_tensor(dst=dst, data1=kept, data2=scale, op=nl.multiply)


# ---- softmax

@nki.jit
@walks("out", "g", "y")
def softmax_backward(out, g, y, log=False):
    """out = y * (g - sum(g * y)), row by row; for the logarithm of softmax, g - exp(y) * sum(g).

    Dimensions:
        R: rows. C: columns. More dimensions before them are walked one index at a time.
    Args:
        out: HBM [..., R, C], written; may be the same view as `g` or `y`.
        g, y: HBM [..., R, C], floating point: gradient of the result, and the result.
        log: y is a log-softmax (compile-time constant).
    Constraints:
        arithmetic in float32.
    Pseudocode:
        for each tile of 128 rows:
            s = sum over column chunks of g * y, or of g
            for each column chunk: out = (g - s) * y, or g - exp(y) * s
    """
    if out.ndim > 2:
        for i in range(out.shape[0]):
            softmax_backward(out[i], g[i], y[i], log)
        return out
    rows, columns = out.shape
    for r, n in pieces(rows, P):
        total, part = tile(n, 1, nl.float32), tile(n, 1, nl.float32)
        chunks = [(slice(r, r + n), slice(c, c + w)) for c, w in pieces(columns, F)]
        for i, at in enumerate(chunks):
            term = load(g[at])
            if not log:
                product_ = f32(term)
                nisa.tensor_tensor(dst=product_, data1=term, data2=load(y[at]), op=nl.multiply)
                term = product_
            nisa.tensor_reduce(dst=part if i else total, op=nl.add, data=term, axis=1)
            if i:
                nisa.tensor_tensor(dst=total, data1=total, data2=part, op=nl.add)
        for at in chunks:
            gradient, result = load(g[at]), load(y[at])
            o, t = tile_like(gradient, out.dtype), f32(gradient)
            if log:
                nisa.activation(dst=t, op=nl.exp, data=result)
                nisa.tensor_scalar(dst=t, data=t, op0=nl.multiply, operand0=total)
                nisa.tensor_tensor(dst=o, data1=gradient, data2=t, op=nl.subtract)
            else:
                nisa.tensor_scalar(dst=t, data=gradient, op0=nl.subtract, operand0=total)
                nisa.tensor_tensor(dst=o, data1=t, data2=result, op=nl.multiply)
            store(out[at], o)
    return out


# ---- layer norm

@nki.jit
def layer_norm_backward(dx, dweight, dbias, g, x, mean, rstd, weight):
    """Gradients of (x - mean) * rstd * weight + bias, with rows normalised one by one.

    Dimensions:
        R: rows. C: columns, the normalised elements.
    Args:
        dx: HBM [R, C], written. dweight, dbias: HBM [1, C], written.
        g, x: HBM [R, C], floating point. mean, rstd: HBM [R, 1]. weight: HBM [1, C] or None.
    Constraints:
        float32 arithmetic; sums over rows are products with a row of ones on the tensor engine.
    Pseudocode:
        for each tile of 128 rows, h = (x - mean) * rstd and d = g * weight:
            dx = rstd * (d - sum(d) / C - h * sum(d * h) / C)
        dweight = ones.T @ (g * h); dbias = ones.T @ g
    """
    rows, columns = x.shape
    chunks = list(pieces(columns, F))
    for r, n in pieces(rows, P):
        shift, scale = _centre(mean[r:r + n], rstd[r:r + n])
        ds, hs = [], []
        for c, w in chunks:
            d, h = load(g[r:r + n, c:c + w]), tile(n, w, nl.float32)
            nisa.tensor_scalar(dst=h, data=load(x[r:r + n, c:c + w]), op0=nl.subtract, operand0=shift,
                               op1=nl.multiply, operand1=scale)
            if weight is not None:
                scaled = f32(d)
                nisa.tensor_tensor(dst=scaled, data1=d, data2=load(weight[:, c:c + w].broadcast(0, n)), op=nl.multiply)
                d = scaled
            ds.append(d)
            hs.append(h)
        s, t = _mean_of(ds, None, n, columns), _mean_of(ds, hs, n, columns)
        for d, h, (c, w) in zip(ds, hs, chunks):
            inner, o = f32(h), tile(n, w, dx.dtype)
            nisa.tensor_scalar(dst=h, data=h, op0=nl.multiply, operand0=t)
            nisa.tensor_scalar(dst=inner, data=d, op0=nl.subtract, operand0=s)
            nisa.tensor_tensor(dst=inner, data1=inner, data2=h, op=nl.subtract)
            nisa.tensor_scalar(dst=o, data=inner, op0=nl.multiply, operand0=scale)
            store(dx[r:r + n, c:c + w], o)
    sums_over_rows(dweight, dbias, g, x, mean, rstd)
    return dx, dweight, dbias


def sums_over_rows(dweight, dbias, g, x, mean, rstd):
    """dweight[c] = sum over r of g[r, c] * (x[r, c] - mean[r]) * rstd[r]; dbias[c] = sum over r of g[r, c]."""
    rows, columns = x.shape
    ones = tile(P, 1, nl.float32)
    nisa.memset(dst=ones, value=1.0)
    for c, w in pieces(columns, N):
        products, plain = (nl.ndarray((1, w), nl.float32, buffer=nl.psum) for _ in range(2))
        for i, (r, n) in enumerate(pieces(rows, P)):
            shift, scale = _centre(mean[r:r + n], rstd[r:r + n])
            h, d = tile(n, w, nl.float32), load(g[r:r + n, c:c + w], nl.float32)
            nisa.tensor_scalar(dst=h, data=load(x[r:r + n, c:c + w]), op0=nl.subtract, operand0=shift,
                               op1=nl.multiply, operand1=scale)
            nisa.tensor_tensor(dst=h, data1=h, data2=d, op=nl.multiply)
            nisa.nc_matmul(dst=products, stationary=ones[0:n], moving=h, accumulate=i > 0)
            nisa.nc_matmul(dst=plain, stationary=ones[0:n], moving=d, accumulate=i > 0)
        for out, acc in ((dweight, products), (dbias, plain)):
            result = tile(1, w, out.dtype)
            nisa.tensor_copy(dst=result, src=acc)
            store(out[:, c:c + w], result)


def _centre(mean, rstd):
    """The two statistics as float32 columns."""
    return load(mean, nl.float32), load(rstd, nl.float32)


def _mean_of(tiles, others, rows, columns):
    """[rows, 1] float32: sum over all tiles of the element, or of its product with the other one, by `columns`."""
    total, part = tile(rows, 1, nl.float32), tile(rows, 1, nl.float32)
    for i, t in enumerate(tiles):
        term = t
        if others is not None:
            term = f32(t)
            nisa.tensor_tensor(dst=term, data1=t, data2=others[i], op=nl.multiply)
        nisa.tensor_reduce(dst=part if i else total, op=nl.add, data=term, axis=1)
        if i:
            nisa.tensor_tensor(dst=total, data1=total, data2=part, op=nl.add)
    nisa.tensor_scalar(dst=total, data=total, op0=nl.multiply, operand0=1.0 / columns)
    return total


# ---- aten ops

TENSORS = ("grad_output", "self", "output")


def gradient(function, *inputs):
    """An elementwise op of the gradient and other inputs; numbers among them are data. A fresh result follows the first
    input in memory."""
    return Elementwise(function, inputs, promoted=[n for n in inputs if n in TENSORS], allowed=FLOATS)


class GeluBackward:
    operands = ()

    def lower(self, call: Call) -> KernelCall | Decline:
        function = gelu_tanh_backward if call.get("approximate") == "tanh" else gelu_backward
        return gradient(function, "grad_output", "self").lower(call)


class DropoutBackward(Elementwise):
    """The mask is boolean, so it does not take part in promotion."""

    def __init__(self) -> None:
        super().__init__(dropout_backward, ("grad_output", "mask", "scale"), promoted=("grad_output",),
                         allowed=FLOATS | {torch.bool})

    def lower(self, call: Call) -> KernelCall | Decline:
        declined = unsupported([call["grad_output"]], FLOATS, call.name) or \
            unsupported([call["mask"]], frozenset((torch.bool,)), f"a mask of {call.name}")
        return declined or super().lower(call)

    def constants(self, dtype, mixed):
        return {"function": self.function}


class SoftmaxBackward:
    """_softmax_backward_data and _log_softmax_backward_data along any dimension."""

    operands = ()

    def __init__(self, log: bool) -> None:
        self.log = log

    def lower(self, call: Call) -> KernelCall | Decline:
        g, y = call["grad_output"], call["output"]
        dtype = call["input_dtype"]
        valid = -max(y.ndim, 1) <= call["dim"] < max(y.ndim, 1) and g.shape == y.shape and g.dtype == y.dtype and (
            dtype in (y.dtype, torch.float16))
        out = valid and settled(call, y.shape, dtype) or call.outputs[0]
        declined = unsupported([g, y, out], FLOATS, call.name)
        if declined:
            return declined
        if g.shape != y.shape or out.shape != y.shape:
            return Decline(Reason.SHAPE, f"{call.name} of tensors of different shapes")
        (seen,), views = as_rows([out], [g, y], call["dim"])
        return KernelCall(softmax_backward, {"g": views[0], "y": views[1]}, [seen], {"log": self.log}, same_view=True)


class LayerNormBackward:
    operands = ()

    def lower(self, call: Call) -> KernelCall | Decline:
        g, x, mean, rstd, weight, bias = (call[n] for n in ("grad_out", "input", "mean", "rstd", "weight", "bias"))
        declined = unsupported([a for a in (g, x, mean, rstd, weight, bias) if a is not None], FLOATS, call.name)
        if declined:
            return declined
        columns = product(call["normalized_shape"])
        if not x.numel:
            return Decline(Reason.SHAPE, f"{call.name} of no elements")
        rows = x.numel // columns
        shaped = {"g": g.view().reshape((rows, columns)), "x": x.view().reshape((rows, columns)),
                  "mean": mean.view().reshape((rows, 1)), "rstd": rstd.view().reshape((rows, 1))}
        if any(v is None for v in shaped.values()) or weight is not None and not weight.is_contiguous:
            return Decline(Reason.SHAPE, f"{call.name} of a tensor whose rows do not lie evenly in memory")
        inputs = dict(shaped)
        if weight is not None:
            inputs["weight"] = weight.view((1, columns))
        side = tuple(call["normalized_shape"])
        outs = [Out(x.shape, contiguous_strides(x.shape), x.dtype).view((rows, columns)),
                *(Out(side, contiguous_strides(side), (weight or x).dtype).view((1, columns)) for _ in range(2))]
        wanted = [i if asked else None for i, asked in enumerate(call["output_mask"])]
        return KernelCall(layer_norm_backward, inputs, outs, {} if weight is not None else {"weight": None},
                          returns=wanted)


ROUTES = {
    "silu_backward": gradient(silu_backward, "grad_output", "self"),
    "gelu_backward": GeluBackward(),
    "sigmoid_backward": gradient(sigmoid_backward, "grad_output", "output"),
    "tanh_backward": gradient(tanh_backward, "grad_output", "output"),
    "threshold_backward": gradient(threshold_backward, "self", "grad_output", "threshold"),
    "leaky_relu_backward": gradient(leaky_relu_backward, "self", "grad_output", "negative_slope"),
    "softplus": Elementwise(softplus, ("self", "beta", "threshold"), promoted=("self",), allowed=FLOATS),
    "softplus_backward": gradient(softplus_backward, "grad_output", "self", "beta", "threshold"),
    "native_dropout_backward": DropoutBackward(),
    "_softmax_backward_data": SoftmaxBackward(log=False),
    "_log_softmax_backward_data": SoftmaxBackward(log=True),
    "native_layer_norm_backward": LayerNormBackward(),
}
