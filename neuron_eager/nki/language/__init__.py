"""`nki.language`: data types, buffers, op tokens, tensors, control flow and functions on tiles."""
from __future__ import annotations

from typing import Any

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
    float64,
    int8,
    int16,
    int32,
    int64,
    tfloat32,
    uint8,
    uint16,
    uint32,
)
from ..objects import NKIObject
from ..tensor import NkiTensor
from ..tokens import TOKENS
from .control import (
    affine_range,
    device_print,
    ds,
    dynamic_range,
    fori_loop,
    no_reorder,
    num_programs,
    program_id,
    program_ndim,
    sequential_range,
    static_range,
    while_loop,
)
from .create import (
    empty_like,
    full,
    ndarray,
    ones,
    rand,
    random_seed,
    shared_constant,
    shared_identity_matrix,
    zeros,
    zeros_like,
)
from .math import dropout, gather_flattened, where
from .move import broadcast_to, expand_dims, load, load_transpose2d, matmul, store, transpose
from .reduce import all, max, mean, min, prod, rms_norm, softmax, sum, var
from .sizes import tile_size

globals().update(TOKENS)        # each token is also the function of its name

_GONE = {
    "mgrid": "slices or .ap(pattern=[[stride, count], ...])", "arange": "slices or .ap(pattern=[[stride, count], ...])",
    "par_dim": "the first dimension, which is the partition dimension", "loop_reduce": "an accumulator tile",
    "spmd_dim": "kernel[2]", "nc": "kernel[2]", "static_cast": "nl.copy(x, dtype=...)", "mask": "clipped slices",
    "device_assert": "assert in the interpreter", "shared_sbuf": "nl.sbuf",
}


def __getattr__(name: str) -> Any:
    if name in _GONE:
        raise AttributeError(f"nl.{name} is not part of NKI 0.6; use {_GONE[name]}")
    raise AttributeError(f"module 'nki.language' has no attribute {name!r}")


__all__ = [
    "DType", "MemoryRegion", "NKIObject", "NkiTensor", "affine_range", "all", "bfloat16", "bool_", "broadcast_to",
    "device_print", "dropout", "ds", "dynamic_range", "empty_like", "expand_dims", "float16", "float32",
    "float4_e2m1fn_x4", "float64", "float8_e4m3", "float8_e4m3fn", "float8_e4m3fn_x4", "float8_e5m2",
    "float8_e5m2_x4", "float8_e8m0fnu", "fori_loop", "full", "gather_flattened", "hbm", "int16", "int32", "int64",
    "int8", "is_hbm", "is_on_chip", "is_psum", "is_sbuf", "load", "load_transpose2d", "matmul", "max", "mean", "min",
    "ndarray", "no_reorder", "num_programs", "ones", "private_hbm", "prod", "program_id", "program_ndim", "psum",
    "rand", "random_seed", "rms_norm", "sbuf", "sequential_range", "shared_constant", "shared_hbm",
    "shared_identity_matrix",
    "softmax", "static_range", "store", "sum", "tfloat32", "tile_size", "transpose", "uint16", "uint32", "uint8", "var",
    "where", "while_loop", "zeros", "zeros_like", *TOKENS,
]
