"""Attention as training needs it: with the logarithm of each row's sum, from which the gradients start again."""
from __future__ import annotations

import nki
import nki.isa as nisa
import nki.language as nl

from ..dispatch.plan import Arg, Call, Decline, KernelCall, Out, Reason
from .attention import LOWEST, scores, transposed
from .matmul import N
from .rules import FLOATS, replace, unsupported
from .tiling import P, load, pieces, store, tile, tile_like, turned, walks

LONGEST = 8192          # keys: a row of scores stays in SBUF


@nki.jit
@walks("out", "sums", "q", "k", "v", "mask")
def attention_with_sums(out, sums, q, k, v, mask=None, scale=1.0, causal=False):
    """out = softmax(scale * q @ k.T + mask) @ v; sums = log(sum(exp(scale * q @ k.T + mask))), for every head.

    Dimensions:
        heads: leading dimensions, walked one at a time. S: queries. L: keys. D: head size, at most 128. E: value size.
    Args:
        out: HBM [..., S, E], written. sums: HBM [..., S, 1] float32, written.
        q: HBM [..., S, D]; k: HBM [..., L, D]; v: HBM [..., L, E]; one floating dtype; any strides.
        mask: HBM [..., S, L], floating, added; or None.
        scale: float; causal: query i sees keys up to i (compile-time constants).
    Pseudocode:
        for each 128 queries:
            s = scale * q @ k.T + mask; m = max(s); p = exp(s - m); z = sum(p)
            out = (p @ v) / z; sums = m + log(z)
    """
    if out.ndim > 2:
        for i in range(out.shape[0]):
            attention_with_sums(out[i], sums[i], q[i], k[i], v[i], None if mask is None else mask[i], scale, causal)
        return out, sums
    queries, keys = q.shape[0], v.shape[0]
    keys_t = transposed(k)
    for r, n in pieces(queries, P):
        s = scores(transposed(q[r:r + n]), keys_t, None if mask is None else mask[r:r + n], scale, causal, r)
        m, z, p = tile(n, 1, nl.float32), tile(n, 1, nl.float32), tile(n, keys, q.dtype)
        nisa.tensor_reduce(dst=m, op=nl.maximum, data=s, axis=1)
        nisa.tensor_scalar(dst=m, data=m, op0=nl.maximum, operand0=LOWEST, op1=nl.multiply, operand1=-1.0)
        nisa.activation_reduce(dst=s, op=nl.exp, data=s, bias=m, reduce_op=nl.add, reduce_res=z)
        nisa.tensor_scalar(dst=z, data=z, op0=nl.maximum, operand0=1e-30)
        nisa.tensor_copy(dst=p, src=s)
        acc = nl.ndarray((n, v.shape[1]), nl.float32, buffer=nl.psum)
        for i, (j, jn) in enumerate(pieces(keys, P)):
            nisa.nc_matmul(dst=acc, stationary=turned(p[:, j:j + jn]), moving=load(v[j:j + jn]), accumulate=i > 0)
        o, log = tile(n, v.shape[1], out.dtype), tile(n, 1, nl.float32)
        nisa.activation(dst=log, op=nl.log, data=z)
        nisa.tensor_tensor(dst=log, data1=log, data2=m, op=nl.subtract)
        nisa.reciprocal(dst=z, data=z)
        nisa.tensor_scalar(dst=o, data=acc, op0=nl.multiply, operand0=z)
        store(out[r:r + n], o)
        store(sums[r:r + n], log)
    return out, sums


@nki.jit
@walks("dq", "dk", "dv", "g", "q", "k", "v", "out", "sums", "mask")
def attention_backward(dq, dk, dv, g, q, k, v, out, sums, mask=None, scale=1.0, causal=False):
    """Gradients of `attention_with_sums`, for every head.

    Dimensions:
        as there.
    Args:
        dq: HBM [..., S, D]; dk: HBM [..., L, D]; dv: HBM [..., L, E]; written.
        g, out: HBM [..., S, E], gradient of the result, and the result. sums: HBM [..., S, 1]. The others as there.
    Pseudocode:
        for each 128 queries:
            p = exp(scale * q @ k.T + mask - sums); t = sum(g * out)
            ds = scale * p * (g @ v.T - t)
            dq = ds @ k; dk += ds.T @ q; dv += p.T @ g
    """
    if q.ndim > 2:
        for i in range(q.shape[0]):
            attention_backward(dq[i], dk[i], dv[i], g[i], q[i], k[i], v[i], out[i], sums[i],
                               None if mask is None else mask[i], scale, causal)
        return dq, dk, dv
    (queries, d), (keys, e) = q.shape, v.shape
    keys_t, values_t = transposed(k), transposed(v)
    blocks = list(pieces(keys, P))
    total_k = [tile(jn, d, nl.float32) for _, jn in blocks]
    total_v = [tile(jn, e, nl.float32) for _, jn in blocks]
    for turn, (r, n) in enumerate(pieces(queries, P)):
        rows, gradient = load(q[r:r + n]), load(g[r:r + n])
        s = scores(transposed(q[r:r + n]), keys_t, None if mask is None else mask[r:r + n], scale, causal, r)
        low, t, product = tile(n, 1, nl.float32), tile(n, 1, nl.float32), tile(n, e, nl.float32)
        nisa.tensor_scalar(dst=low, data=load(sums[r:r + n]), op0=nl.multiply, operand0=-1.0)
        nisa.activation(dst=s, op=nl.exp, data=s, bias=low)
        p = tile(n, keys, q.dtype)
        nisa.tensor_copy(dst=p, src=s)
        nisa.tensor_tensor(dst=product, data1=gradient, data2=load(out[r:r + n]), op=nl.multiply)
        nisa.tensor_reduce(dst=t, op=nl.add, data=product, axis=1)
        ds = tile(n, keys, q.dtype)
        gradient_t = transposed(g[r:r + n])
        for j, jn in pieces(keys, N):
            acc = nl.ndarray((n, jn), nl.float32, buffer=nl.psum)
            nisa.nc_matmul(dst=acc, stationary=gradient_t, moving=values_t[:, j:j + jn], accumulate=False)
            away = tile(n, jn, nl.float32)
            nisa.tensor_scalar(dst=away, data=acc, op0=nl.subtract, operand0=t, op1=nl.multiply, operand1=scale)
            nisa.tensor_tensor(dst=ds[:, j:j + jn], data1=away, data2=s[:, j:j + jn], op=nl.multiply)
        acc = nl.ndarray((n, d), nl.float32, buffer=nl.psum)
        for i, (j, jn) in enumerate(blocks):
            nisa.nc_matmul(dst=acc, stationary=turned(ds[:, j:j + jn]), moving=load(k[j:j + jn]), accumulate=i > 0)
        o = tile(n, d, dq.dtype)
        nisa.tensor_copy(dst=o, src=acc)
        store(dq[r:r + n], o)
        for i, (j, jn) in enumerate(blocks):
            _add_product(total_k[i], ds[:, j:j + jn], rows, turn == 0)
            _add_product(total_v[i], p[:, j:j + jn], gradient, turn == 0)
    for result, totals in ((dk, total_k), (dv, total_v)):
        for (j, jn), total in zip(blocks, totals):
            o = tile_like(total, result.dtype)
            nisa.tensor_copy(dst=o, src=total)
            store(result[j:j + jn], o)
    return dq, dk, dv


def _add_product(total, x, y, first):
    """total = or += x.T @ y"""
    acc = nl.ndarray(total.shape, nl.float32, buffer=nl.psum)
    nisa.nc_matmul(dst=acc, stationary=x, moving=y, accumulate=False)
    if first:
        nisa.tensor_copy(dst=total, src=acc)
    else:
        nisa.tensor_tensor(dst=total, data1=total, data2=acc, op=nl.add)


# ---- aten ops

def _declined(call: Call, tensors: list[Arg], mask: Arg | None) -> Decline | None:
    q, k, v = tensors[:3]
    if call.get("dropout_p", 0.0):
        return Decline(Reason.NO_KERNEL, "attention with dropout")
    declined = unsupported([t for t in (*tensors, mask) if t is not None], FLOATS, call.name)
    if declined:
        return declined
    heads = q.shape[:-2]
    if len(heads) != 2 or k.shape[:-2] != heads or v.shape[:-2] != heads or k.shape[-2] != v.shape[-2] or \
            len({t.dtype for t in tensors[:3]}) > 1 or max(q.shape[-1], v.shape[-1]) > P or k.shape[-2] > LONGEST or \
            not q.numel or not k.numel:
        return Decline(Reason.SHAPE, "attention of grouped heads, mixed dtypes, large heads or no elements")
    return None


def _constants(call: Call, q: Arg) -> dict[str, object]:
    scale = call.get("scale")
    return {"scale": float(q.shape[-1] ** -0.5 if scale is None else scale), "causal": bool(call.get("is_causal"))}


class AttentionWithSums:
    """_scaled_dot_product_flash_attention_for_cpu: what autograd records attention as."""

    operands = ()

    def lower(self, call: Call) -> KernelCall | Decline:
        q, k, v, mask = call["query"], call["key"], call["value"], call["attn_mask"]
        out, sums = call.outputs
        declined = _declined(call, [q, k, v], mask)
        if declined:
            return declined
        inputs = {"q": q, "k": k, "v": v}
        constants = _constants(call, q)
        if mask is None:
            constants["mask"] = None
        else:
            inputs["mask"] = mask.broadcast((*q.shape[:-1], k.shape[-2]))
        return KernelCall(attention_with_sums, inputs, [out, _column(sums)], constants)


class AttentionBackward:
    operands = ()

    def lower(self, call: Call) -> KernelCall | Decline:
        g, q, k, v, out, sums = (call[n] for n in ("grad_out", "query", "key", "value", "out", "logsumexp"))
        mask = call["attn_mask"]
        declined = _declined(call, [q, k, v, g, out, sums], mask)
        if declined:
            return declined
        inputs = {"g": g, "q": q, "k": k, "v": v, "out": out,
                  "sums": sums.view((*sums.shape, 1), (*sums.strides, 1))}
        constants = _constants(call, q)
        if mask is None:
            constants["mask"] = None
        else:
            inputs["mask"] = mask.broadcast((*q.shape[:-1], k.shape[-2]))
        return KernelCall(attention_backward, inputs, list(call.outputs), constants)


def _column(sums: Out) -> Out:
    return replace(sums, seen=((*sums.shape, 1), (*sums.strides, 1)))


ROUTES = {
    "_scaled_dot_product_flash_attention_for_cpu": AttentionWithSums(),
    "_scaled_dot_product_flash_attention_for_cpu_backward": AttentionBackward(),
}
