"""Scaled dot-product attention, one head after another: two matrix products with a masked softmax between them."""
from __future__ import annotations

import nki
import nki.isa as nisa
import nki.language as nl
import torch

from ..dispatch.plan import Decline, KernelCall, Out, Reason, View
from .matmul import N
from .rules import ENGINE_FLOATS, replace, unsupported
from .tiling import P, load, pieces, store, tile, tile_like, turned, walks

LOWEST = -3.4028234663852886e38   # of float32: stands for -inf where a difference with a row maximum is taken


@nki.jit
@walks("out", "q", "k", "v", "mask")
def attention(out, q, k, v, mask=None, scale=1.0, causal=False):
    """out = softmax(scale * q @ k.T + mask) @ v for every head.

    Dimensions:
        heads: leading dimensions, walked one at a time. S: queries. L: keys. D: head size, at most 128. E: value size.
    Args:
        out: HBM [..., S, E], written.
        q: HBM [..., S, D]; k: HBM [..., L, D]; v: HBM [..., L, E]; one floating dtype; any strides.
        mask: HBM [..., S, L]: bool (False: hidden) or floating (added); stride 0 where repeated; or None.
        scale: float (compile-time constant).
        causal: query i sees keys up to i (compile-time constant).
    Constraints:
        scores of 128 queries against all keys stay in SBUF: L <= 16384. A row that sees no key gives 0.
    Pseudocode:
        for each 128 queries:
            s = scale * q @ k.T, masked
            p = exp(s - max(s)); z = sum(p)
            out = (p @ v) / max(z, tiny)
    """
    _heads(out, q, k, v, mask, scale, causal)
    return out


def _heads(out, q, k, v, mask, scale, causal):
    if out.ndim > 2:
        for i in range(out.shape[0]):
            _heads(out[i], q[i], k[i], v[i], None if mask is None else mask[i], scale, causal)
    else:
        _head(out, q, k, v, mask, scale, causal)


def _head(out, q, k, v, mask, scale, causal):
    queries, (keys, e) = q.shape[0], v.shape
    keys_t = transposed(k)
    for r, n in pieces(queries, P):
        s = scores(transposed(q[r:r + n]), keys_t, None if mask is None else mask[r:r + n], scale, causal, r)
        m, z, p = tile(n, 1, nl.float32), tile(n, 1, nl.float32), tile(n, keys, q.dtype)
        nisa.tensor_reduce(dst=m, op=nl.maximum, data=s, axis=1)
        nisa.tensor_scalar(dst=m, data=m, op0=nl.maximum, operand0=LOWEST, op1=nl.multiply, operand1=-1.0)
        nisa.activation_reduce(dst=s, op=nl.exp, data=s, bias=m, reduce_op=nl.add, reduce_res=z)
        nisa.tensor_scalar(dst=z, data=z, op0=nl.maximum, operand0=1e-30)
        nisa.reciprocal(dst=z, data=z)
        nisa.tensor_copy(dst=p, src=s)
        acc = nl.ndarray((n, e), nl.float32, buffer=nl.psum)
        for i, (j, jn) in enumerate(pieces(keys, P)):
            nisa.nc_matmul(dst=acc, stationary=turned(p[:, j:j + jn]), moving=load(v[j:j + jn]),
                           accumulate=i > 0)
        o = tile(n, e, out.dtype)
        nisa.tensor_scalar(dst=o, data=acc, op0=nl.multiply, operand0=z)
        store(out[r:r + n], o)


def scores(queries_t, keys_t, mask, scale, causal, first):
    """[n, L] float32: scale * q @ k.T + mask, with -inf where query first + i may not see a key."""
    n, keys = queries_t.shape[1], keys_t.shape[1]
    s = tile(n, keys, nl.float32)
    for j, jn in pieces(keys, N):
        acc = nl.ndarray((n, jn), nl.float32, buffer=nl.psum)
        nisa.nc_matmul(dst=acc, stationary=queries_t, moving=keys_t[:, j:j + jn], accumulate=False)
        nisa.activation(dst=s[:, j:j + jn], op=nl.copy, data=acc, scale=scale)
    if mask is not None:
        _apply_mask(s, load(mask))
    if causal:
        nisa.affine_select(dst=s, pattern=[[-1, keys]], channel_multiplier=1, on_true_tile=s,
                           on_false_value=float("-inf"), cmp_op=nl.greater_equal, offset=first)
    return s


def transposed(x):
    """An SBUF tile [D, R] with the transpose of an HBM view [R, D], D at most 128."""
    result = tile(x.shape[1], x.shape[0], x.dtype)
    for j, jn in pieces(x.shape[0], P):
        nisa.tensor_copy(dst=result[:, j:j + jn], src=turned(load(x[j:j + jn])))
    return result


def _apply_mask(s, mask):
    if mask.dtype == nl.bool_:
        hidden = tile_like(s, nl.float32)
        nisa.memset(dst=hidden, value=float("-inf"))
        nisa.tensor_copy_predicated(dst=hidden, src=s, predicate=mask.view(nl.uint8))
        nisa.tensor_copy(dst=s, src=hidden)
    else:
        nisa.tensor_tensor(dst=s, data1=s, data2=mask, op=nl.add)


def grouped(x: View, group: int) -> View:
    """[..., heads, R, C] as [..., heads / group, group, R, C]: the queries that share a key head, side by side."""
    if group == 1:
        return x
    (*outer, heads, rows, columns), (*steps, step, by_row, by_column) = x.shape, x.strides
    return replace(x, shape=(*outer, heads // group, group, rows, columns),
                   strides=(*steps, step * group, step, by_row, by_column))


def shared(x: View, group: int) -> View:
    """[..., heads, R, C] as [..., heads, group, R, C]: every head repeated for its group of queries."""
    if group == 1:
        return x
    return replace(x, shape=(*x.shape[:-2], group, *x.shape[-2:]), strides=(*x.strides[:-2], 0, *x.strides[-2:]))


class Attention:
    """aten::scaled_dot_product_attention without dropout."""

    operands = ()

    def lower(self, call):
        q, k, v, mask = (call[name] for name in ("query", "key", "value", "attn_mask"))
        if call.get("dropout_p", 0.0):
            return Decline(Reason.NO_KERNEL, "attention with dropout")
        declined = unsupported([q, k, v], ENGINE_FLOATS, call.name) or (
            mask is not None and unsupported([mask], ENGINE_FLOATS | {torch.bool}, call.name))
        if declined:
            return declined
        heads = q.shape[:-2]
        (s, d), (keys, e) = q.shape[-2:], v.shape[-2:]
        group = heads[-1] // k.shape[-3] if call.get("enable_gqa") and k.ndim > 2 and k.shape[-3] else 1
        key_heads = (*heads[:-1], heads[-1] // group) if heads else ()
        if not 3 <= q.ndim <= 4 or k.shape != (*key_heads, keys, d) or v.shape[:-2] != key_heads or \
                not q.dtype == k.dtype == v.dtype or heads[-1] % group or d > P or e > N or keys > 16384:
            return Decline(Reason.SHAPE, "attention of broadcast heads, mixed dtypes or large heads")
        # rows of all heads side by side, as PyTorch's fused kernels lay the result out: the next op merges the heads
        strides = (s * heads[-1] * e, e, heads[-1] * e, 1) if q.ndim == 4 else (s * e, e, 1)
        out = Out((*heads, s, e), strides, q.dtype)
        inputs = {"q": grouped(q.view(), group), "k": shared(k.view(), group), "v": shared(v.view(), group)}
        scale = call.get("scale")
        constants: dict[str, object] = {
            "scale": float(d ** -0.5 if scale is None else scale), "causal": bool(call.get("is_causal"))}
        if mask is None:
            constants["mask"] = None
        else:
            inputs["mask"] = grouped(mask.broadcast((*heads, s, keys)), group)
        if group > 1:
            seen = grouped(View(q, out.shape, out.strides, 0, out.dtype), group)
            out = replace(out, seen=(seen.shape, seen.strides))
        return KernelCall(attention, inputs, [out], constants)


ROUTES = {"scaled_dot_product_attention": Attention()}
