"""NKI kernels by family, each beside the aten ops it serves.

A family module holds kernels, their rules (which calls they take, and how they see the arguments) and a table ROUTES:
op name -> rule. An op's in-place and out= forms share its rule.
"""
from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

FAMILIES = (
    "pointwise", "copy", "softmax", "norm", "reduce", "matmul", "attention", "index", "backward", "loss", "joined",
    "attention_training", "embedding", "search", "scan", "placed",
    "indexed", "order", "integers", "convolution",
)

# Ops that PyTorch composes of others unless a device registers them itself; served here because one kernel is faster.
COMPOSITES = (
    "aten::native_layer_norm", "aten::embedding", "aten::scaled_dot_product_attention",
    # these PyTorch composes of an allocation and the out= form
    "aten::abs", "aten::abs_", "aten::logical_not", "aten::logical_not_", "aten::logical_and", "aten::logical_and_",
    "aten::logical_or", "aten::logical_or_", "aten::logical_xor", "aten::logical_xor_", "aten::masked_fill.Scalar",
    "aten::masked_fill.Tensor", "aten::sum", "aten::mean",
)


def served() -> Iterator[tuple[Any, Any]]:
    """Every op overload that a kernel of this package serves, with its rule."""
    from .rules import forms
    for family in FAMILIES:
        for name, rule in importlib.import_module(f".{family}", __name__).ROUTES.items():
            for op in forms(name):
                yield op, rule
