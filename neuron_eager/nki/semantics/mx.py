"""Microscaling (MX) formats: blocks of 32 values (8 partitions × 4 elements) that share a power-of-two scale.

OCP Microscaling Formats (MX) Specification 1.0; the block scale is the documented one of the Vector engine.
"""
from __future__ import annotations

import ml_dtypes
import numpy as np

from .. import dtypes
from ..tensor import NkiTensor
from .alu import Array
from .elementwise import Args
from .matmul import product
from .operands import f32, rows, store, write
from .state import State

BLOCK_PARTITIONS, BLOCK_ELEMENTS = 8, 4
MAX_EXPONENT = {dtypes.float8_e4m3fn_x4: 8, dtypes.float8_e5m2_x4: 15}
BIAS = 127      # of an e8m0 scale
QUADRANT, SCALES_PER_QUADRANT = 32, 4


def scale_partitions(partitions: int) -> Array:
    """Where the scale of each block of 8 partitions lies: four scales at the start of each 32-partition quadrant."""
    block = np.arange(partitions // BLOCK_PARTITIONS)
    return block // SCALES_PER_QUADRANT * QUADRANT + block % SCALES_PER_QUADRANT


def _scale_rows(t: NkiTensor, partitions: int) -> Array:
    """The partitions of a scale tile that hold scales: a tile of one quadrant may have only those."""
    where = scale_partitions(partitions)
    return where if t.shape[0] > where[-1] else np.arange(len(where))


def quantize_mx(a: Args, state: State) -> None:
    dst, dst_scale, src = a["dst"], a["dst_scale"], f32(a["src"])
    partitions, elements = src.shape
    blocks = src.reshape(partitions // BLOCK_PARTITIONS, BLOCK_PARTITIONS, elements // BLOCK_ELEMENTS, BLOCK_ELEMENTS)
    largest = np.abs(blocks).max(axis=(1, 3))
    exponent = np.frexp(largest)[1] - 1 - (MAX_EXPONENT[dst.dtype] - 1)
    exponent = np.where(largest == 0, -BIAS, np.clip(exponent, -BIAS, BIAS))
    scaled = np.ldexp(blocks, -exponent[:, None, :, None]).astype(np.float32)
    element = dst.dtype.element
    assert element is not None
    codes = scaled.astype(element.numpy).reshape(partitions, elements)
    write(dst, np.ascontiguousarray(codes.view(np.uint8)).view(dst.dtype.numpy))
    scales = rows(dst_scale).view(np.uint8).copy()
    scales[_scale_rows(dst_scale, partitions)] = (exponent + BIAS).astype(np.uint8)
    write(dst_scale, scales.view(dst_scale.dtype.numpy))


def unpack(t: NkiTensor) -> Array:
    """The packed values as float32: [P, F, 4]."""
    codes, dtype = np.ascontiguousarray(rows(t)), t.dtype
    if dtype is dtypes.float4_e2m1fn_x4:
        nibbles = (codes[:, :, None] >> np.array([0, 4, 8, 12], np.uint16)) & np.uint16(15)
        return _FLOAT4[nibbles]
    assert dtype.element is not None
    return codes.view(np.uint8).reshape(*codes.shape, 4).view(dtype.element.numpy).astype(np.float32)


_FLOAT4 = np.arange(16, dtype=np.uint8).view(ml_dtypes.float4_e2m1fn).astype(np.float32)


def _dequantized(t: NkiTensor, scale: NkiTensor) -> Array:
    """[K * 4, free] float32: values times their block scales."""
    values = unpack(t)
    partitions = len(values)
    codes = rows(scale).view(np.uint8)[_scale_rows(scale, partitions)]
    scales = np.repeat(np.ldexp(np.float32(1), codes.astype(np.int32) - BIAS), BLOCK_PARTITIONS, axis=0)
    scaled = values * scales[:, :, None].astype(np.float32)
    return scaled.transpose(0, 2, 1).reshape(partitions * 4, -1)


def nc_matmul_mx(a: Args, state: State) -> None:
    dst = a["dst"]
    result = product(_dequantized(a["stationary"], a["stationary_scale"]), _dequantized(a["moving"], a["moving_scale"]))
    if a["accumulate"]:
        result += f32(dst).reshape(result.shape)
    store(dst, result)
