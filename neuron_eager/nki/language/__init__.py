"""`nki.language`: data types, buffers, op tokens, tensors, control flow and functions on tiles."""
from __future__ import annotations

from ..buffers import MemoryRegion, hbm, is_hbm, is_on_chip, is_psum, is_sbuf, private_hbm, psum, sbuf, shared_hbm
from ..dtypes import (
    DType,
    bfloat16,
    bool_,
    float4_e2m1fn_x4,
    float8_e4m3,
    float8_e4m3fn,
    float8_e4m3fn_x4,
    float8_e5m2,
    float8_e5m2_x4,
    float8_e8m0fnu,
    float16,
    float32,
    int8,
    int16,
    int32,
    tfloat32,
    uint8,
    uint16,
    uint32,
)
from ..tensor import NkiTensor
from ..tokens import TOKENS
from .create import ndarray

globals().update(TOKENS)

__all__ = [
    "DType", "MemoryRegion", "NkiTensor", "bfloat16", "bool_", "float16", "float32", "float4_e2m1fn_x4", "float8_e4m3",
    "float8_e4m3fn", "float8_e4m3fn_x4", "float8_e5m2", "float8_e5m2_x4", "float8_e8m0fnu", "hbm", "int16", "int32",
    "int8", "is_hbm", "is_on_chip", "is_psum", "is_sbuf", "ndarray", "private_hbm", "psum", "sbuf", "shared_hbm",
    "tfloat32", "uint16", "uint32", "uint8", *TOKENS,
]
