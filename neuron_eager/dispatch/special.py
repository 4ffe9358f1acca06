"""Ops that PyTorch routes differently for a device of its own than for the CPU, and layouts the device does not have.

The ops in `ON_CPU` have no CPU kernel under their name, because PyTorch calls them for other devices only. Each entry
says, on CPU tensors, what the op computes; the fallback calls it in the kernel's place.
"""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..device import memory, plumbing
from ..errors import UnsupportedLayoutError
from . import host

aten = torch.ops.aten


def convolution_backward(grad_output: Tensor, input: Tensor, weight: Tensor, stride: list[int], padding: list[int],
                         dilation: list[int], transposed: bool, output_padding: list[int], groups: int,
                         output_mask: list[bool]) -> tuple[Tensor, ...]:
    bias_sizes = [weight.shape[1] * groups if transposed else weight.shape[0]]
    return aten.convolution_backward.default(grad_output, input, weight, bias_sizes, stride, padding, dilation,
                                             transposed, output_padding, groups, output_mask)


def lstm_cell(input_gates: Tensor, hidden_gates: Tensor, cx: Tensor, input_bias: Tensor | None = None,
              hidden_bias: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """(hy, cy, workspace): workspace holds the four activated gates for the backward pass."""
    gates = input_gates + hidden_gates
    if input_bias is not None:
        gates = gates + input_bias + hidden_bias
    i, f, c, o = gates.chunk(4, 1)
    i, f, c, o = i.sigmoid(), f.sigmoid(), c.tanh(), o.sigmoid()
    cy = f * cx + i * c
    return o * cy.tanh(), cy, torch.cat([i, f, c, o], 1)


def lstm_cell_backward(grad_hy: Tensor | None, grad_cy: Tensor | None, cx: Tensor, cy: Tensor, workspace: Tensor,
                       has_bias: bool) -> tuple[Tensor, Tensor, Tensor | None]:
    """(gradient of the gates before activation, of cx, of either bias)."""
    i, f, c, o = workspace.chunk(4, 1)
    tanh_cy = cy.tanh()
    grad_h = torch.zeros_like(cy) if grad_hy is None else grad_hy
    grad_c = grad_h * o * (1 - tanh_cy * tanh_cy)
    if grad_cy is not None:
        grad_c = grad_c + grad_cy
    gates = torch.cat([grad_c * c * i * (1 - i), grad_c * cx * f * (1 - f), grad_c * i * (1 - c * c),
                       grad_h * tanh_cy * o * (1 - o)], 1)
    return gates, grad_c * f, gates.sum(0) if has_bias else None


def gru_cell(input_gates: Tensor, hidden_gates: Tensor, hx: Tensor, input_bias: Tensor | None = None,
             hidden_bias: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """(hy, workspace): workspace holds reset, input and new gate, hx, and the hidden part of the new gate."""
    if input_bias is not None:
        input_gates, hidden_gates = input_gates + input_bias, hidden_gates + hidden_bias
    i_reset, i_input, i_new = input_gates.chunk(3, 1)
    h_reset, h_input, h_new = hidden_gates.chunk(3, 1)
    reset, update = (i_reset + h_reset).sigmoid(), (i_input + h_input).sigmoid()
    new = (i_new + reset * h_new).tanh()
    return new + update * (hx - new), torch.cat([reset, update, new, hx, h_new], 1)


def gru_cell_backward(grad_hy: Tensor, workspace: Tensor, has_bias: bool) -> tuple[Tensor | None, ...]:
    """(gradient of the input gates, of the hidden gates, of hx, of the input bias, of the hidden bias)."""
    reset, update, new, hx, h_new = workspace.chunk(5, 1)
    grad_update = grad_hy * (hx - new) * update * (1 - update)
    grad_new = grad_hy * (1 - update) * (1 - new * new)
    grad_reset = grad_new * h_new * reset * (1 - reset)
    grad_input = torch.cat([grad_reset, grad_update, grad_new], 1)
    grad_hidden = torch.cat([grad_reset, grad_update, grad_new * reset], 1)
    return (grad_input, grad_hidden, grad_hy * update,
            grad_input.sum(0) if has_bias else None, grad_hidden.sum(0) if has_bias else None)


def histc(self: Tensor, bins: int = 100, min: float = 0, max: float = 0) -> Tensor:
    """The CPU counts floating point values only; other devices count integers too, and MoE models rely on it."""
    if self.is_floating_point():
        return torch.histc(self, bins, min, max)
    return torch.histc(self.double(), bins, min, max).to(self.dtype)      # exact: counts and bounds are below 2**53


def histc_out(self: Tensor, bins: int = 100, min: float = 0, max: float = 0, *, out: Tensor) -> Tensor:
    if self.is_floating_point():
        return torch.histc(self, bins, min, max, out=out)
    return out.resize_(bins).copy_(histc(self, bins, min, max))


# ---- copies

def copies(entry: Callable[[], Callable[..., Any]]) -> Callable[..., Any]:
    """The kernel of `_copy_from`: casts and changes of layout on one device are compute; the rest is a transfer.

    entry() gives what runs them. A lazily conjugated or negated source keeps to the transfer, which resolves it. Source
    and target that overlap are PyTorch's to judge, on aliases that share a storage as they do.
    """
    def copy_from(self: Tensor, dst: Tensor, non_blocking: bool = False) -> Tensor:
        if host.overlaps(dst, self) and self.numel() and not host.apart(dst, self):
            target, source = host.on_one_storage(dst, self)
            target.copy_(source)
            return dst
        if self.device == dst.device and not (self.is_conj() or self.is_neg() or dst.is_conj() or dst.is_neg()) and (
                self.dtype != dst.dtype or self.stride() != dst.stride() or not self.is_contiguous()):
            return entry()(self, dst)
        return plumbing.copy_from(self, dst, non_blocking)
    return copy_from


# ---- dropout

def native_dropout(input: Tensor, p: float, train: bool | None = None) -> tuple[Tensor, Tensor]:
    """The op has no generator argument, so the CPU's kernel would draw from the CPU's stream. The mask comes from the
    device's generator here, and is the one that the CPU would draw from that."""
    if train is False:
        return input.clone(), torch.ones_like(input, dtype=torch.bool)
    mask = torch.empty_like(input, dtype=torch.bool).bernoulli_(1 - p)
    return input.mul(mask).mul_(0.0 if p == 1 else 1 / (1 - p)), mask


# ---- attention

def fused_attention(query: Tensor, key: Tensor, value: Tensor, attn_bias: Tensor | None = None, dropout_p: float = 0.0,
                    is_causal: bool = False, return_debug_mask: bool = False, *,
                    scale: float | None = None) -> tuple[Any, ...]:
    output, logsumexp = aten._scaled_dot_product_flash_attention_for_cpu.default(
        query, key, value, dropout_p, is_causal, attn_mask=attn_bias, scale=scale)
    none = torch.empty(0, dtype=torch.int64)
    return output, logsumexp, none, none.clone(), query.shape[2], key.shape[2], none.clone(), none.clone(), none.clone()


def fused_attention_backward(
        grad_out: Tensor, query: Tensor, key: Tensor, value: Tensor, attn_bias: Tensor | None,
        grad_input_mask: list[bool], out: Tensor, logsumexp: Tensor, cum_seq_q: Tensor, cum_seq_k: Tensor, max_q: int,
        max_k: int, dropout_p: float, is_causal: bool, philox_seed: Tensor, philox_offset: Tensor, *,
        scale: float | None = None) -> tuple[Tensor | None, ...]:
    return *aten._scaled_dot_product_flash_attention_for_cpu_backward.default(
        grad_out, query, key, value, out, logsumexp, dropout_p, is_causal, attn_mask=attn_bias, scale=scale), None


def attention(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, dropout_p: float = 0.0,
              is_causal: bool = False, *, scale: float | None = None, enable_gqa: bool = False) -> Tensor:
    """scaled_dot_product_attention as one op where the CPU takes its fused kernel, as PyTorch's math elsewhere.

    PyTorch asks a device for its choice through a C++ table that Python can not fill, and takes the math path without
    an answer. This runs in its place for neuron tensors, before autograd.
    """
    op = aten.scaled_dot_product_attention.default
    tensors = [t for t in (query, key, value, attn_mask) if t is not None]
    if all(type(t) in (Tensor, torch.nn.Parameter) and not t.is_cpu for t in tensors) and not (
            attn_mask is not None and attn_mask.requires_grad):
        recorded = torch.is_grad_enabled() and any(t.requires_grad for t in tensors)
        with torch._C._AutoDispatchBelowAutograd():
            same = query.shape[:-2] == key.shape[:-2] == value.shape[:-2]
            if not recorded and not dropout_p and (same or enable_gqa):
                return op(query, key, value, attn_mask, 0.0, is_causal, scale=scale, enable_gqa=enable_gqa)
            aliases = [None if t is None else memory.to_cpu(t) for t in (query, key, value, attn_mask)]
            choice = torch._fused_sdp_choice(*aliases, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
        if choice == _FLASH:
            if attn_mask is not None and attn_mask.dtype is torch.bool:
                attn_mask = torch.zeros_like(attn_mask, dtype=query.dtype).masked_fill_(
                    attn_mask.logical_not(), float("-inf"))
            return aten._scaled_dot_product_flash_attention_for_cpu.default(
                query, key, value, dropout_p, is_causal, attn_mask=attn_mask, scale=scale)[0]
    return op._op_dk(_COMPOSITE, query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)


_FLASH = int(torch.nn.attention.SDPBackend.FLASH_ATTENTION) if hasattr(torch.nn, "attention") else 1
_COMPOSITE = torch._C.DispatchKey.CompositeImplicitAutograd


def unless_recorded(op: Any) -> Callable[..., Any]:
    """For an op that PyTorch composes of differentiable ops and that has a kernel: the kernel where autograd records
    nothing, the composition where it does."""
    def run(*args: Any, **kwargs: Any) -> Any:
        if torch.is_grad_enabled() and any(t.requires_grad for t in _tensors((*args, *kwargs.values()))):
            return op._op_dk(_COMPOSITE, *args, **kwargs)
        with torch._C._AutoDispatchBelowAutograd():
            return op(*args, **kwargs)
    return run


def _tensors(values: Any) -> list[Tensor]:
    return [t for v in values for t in (v if isinstance(v, (list, tuple)) else (v,)) if isinstance(t, Tensor)]


ON_CPU: dict[str, Callable[..., Any]] = {
    "aten::_copy_from": lambda self, dst, non_blocking=False: dst.copy_(self),
    "aten::convolution_overrideable": torch.convolution,
    "aten::convolution_backward_overrideable": convolution_backward,
    "aten::_thnn_fused_lstm_cell": lstm_cell,
    "aten::_thnn_fused_lstm_cell_backward_impl": lstm_cell_backward,
    "aten::_thnn_fused_gru_cell": gru_cell,
    "aten::_thnn_fused_gru_cell_backward": gru_cell_backward,
    "aten::_scaled_dot_product_fused_attention_overrideable": fused_attention,
    "aten::_scaled_dot_product_fused_attention_overrideable_backward": fused_attention_backward,
    "aten::histc": histc,
    "aten::histc.out": histc_out,
}

# What stands before an op's entry; each is called with a function that gives the entry.
IN_FRONT: dict[str, Callable[[Callable[[], Callable[..., Any]]], Callable[..., Any]]] = {
    "aten::_copy_from": copies,
}

# Compositions of our own, in place of PyTorch's: before autograd, or, for an op with a formula of its own, behind it.
DECOMPOSED: dict[str, Callable[..., Any]] = {
    "aten::scaled_dot_product_attention": attention,
    "aten::native_dropout": native_dropout,
}
BEHIND_AUTOGRAD = frozenset(("aten::native_dropout",))

# Layouts that the device does not have, by dispatch key: what to call them in the error, and the ops with which tensors
# of that layout are made or first used. (A fallback for the whole key would take 4 ms of every import.)
REFUSED_LAYOUTS: dict[str, tuple[str, tuple[str, ...]]] = {
    "SparsePrivateUse1": ("sparse", (
        "_sparse_coo_tensor_with_dims_and_tensors", "_sparse_coo_tensor_with_dims", "empty.memory_format", "empty_like",
        "_to_dense", "copy_", "clone", "_coalesce", "_nnz", "_indices", "_values")),
    "SparseCsrPrivateUse1": ("sparse compressed", (
        "_sparse_compressed_tensor_with_dims", "_sparse_compressed_tensor_unsafe", "empty.memory_format", "empty_like",
        "_nnz", "_to_dense", "copy_", "clone", "values", "crow_indices", "ccol_indices")),
    "NestedTensorPrivateUse1": ("nested (strided layout)", (
        "_to_copy", "unbind.int", "copy_", "clone", "to_padded_tensor", "_nested_tensor_size", "add.Tensor",
        "mul.Tensor", "values", "empty_like", "matmul", "linear", "sum.dim_IntList", "_softmax", "relu", "gelu")),
    "QuantizedPrivateUse1": ("quantized", (
        "empty_quantized", "_empty_affine_quantized", "_empty_per_channel_affine_quantized", "empty.memory_format",
        "dequantize.self", "int_repr", "clone", "q_scale")),
}


def refuse_layout(kind: str, op: str) -> Callable[..., Any]:
    """The kernel of ops on tensors of a layout that the device does not have: one clear error."""
    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise UnsupportedLayoutError(kind=kind, op=f"aten::{op}")
    return refuse
