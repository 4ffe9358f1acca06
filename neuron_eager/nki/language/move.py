"""Moving tiles: between HBM and chip, across dtypes, transposed, repeated."""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...errors import NkiShapeError
from .. import isa
from ..buffers import private_hbm, psum, sbuf
from ..dtypes import as_dtype, float32
from ..location import here
from ..tensor import NkiTensor
from .create import fill, ndarray


def put(dst: NkiTensor, src: NkiTensor) -> None:
    """Copy between any two memories: by DMA where HBM is involved, else by an engine."""
    if dst.storage.buffer.on_chip and src.storage.buffer.on_chip:
        isa.tensor_copy(dst=dst, src=src)
    else:
        isa.dma_copy(dst=dst, src=src)


def assign(dst: NkiTensor, value: Any) -> None:
    """What `t[key] = value` does."""
    if isinstance(value, NkiTensor):
        put(dst, value)
    else:
        fill(dst, value)


def load(src: NkiTensor, dtype: Any = None) -> NkiTensor:
    """A tile in SBUF with the values of an HBM tensor. Dimension 0 becomes the partition dimension."""
    shape = src.shape if len(src.shape) > 1 else (src.shape[0], 1)
    t = ndarray(shape, dtype or src.dtype)
    isa.dma_copy(dst=t, src=src)
    return t


def store(dst: NkiTensor, value: NkiTensor) -> None:
    """Copy an SBUF tile to HBM."""
    isa.dma_copy(dst=dst, src=value)


def load_transpose2d(src: NkiTensor, dtype: Any = None) -> NkiTensor:
    """A tile [columns, rows] in SBUF of an HBM tensor [rows, columns]."""
    if len(src.shape) != 2:
        raise NkiShapeError(f"nl.load_transpose2d needs two dimensions, not {src.describe()}", here())
    t = ndarray(src.shape[::-1], dtype or src.dtype)
    isa.dma_copy(dst=t, src=src.permute((1, 0)))
    return t


def copy(x: NkiTensor, dtype: Any = None) -> NkiTensor:
    """A copy of a tile in SBUF, as another dtype if one is given."""
    t = ndarray(x.shape, dtype or x.dtype)
    put(t, x)
    return t


def transpose(x: NkiTensor, dtype: Any = None) -> NkiTensor:
    """A tile [F, P] in SBUF of a tile [P, F]; through the Tensor engine, so both are at most 128."""
    if len(x.shape) != 2:
        raise NkiShapeError(f"nl.transpose needs two dimensions, not {x.describe()}", here())
    source = x if x.storage.buffer is sbuf else copy(x)
    turned = ndarray(x.shape[::-1], x.dtype, buffer=psum)
    isa.nc_transpose(dst=turned, data=source)
    return copy(turned, dtype)


def broadcast_to(x: NkiTensor, shape: Sequence[int], dtype: Any = None) -> NkiTensor:
    """A tile in SBUF of this shape, with dimensions of size 1 repeated; one partition may become up to 128."""
    sizes = tuple(shape)
    if len(sizes) != len(x.shape) or any(a not in (1, b) for a, b in zip(x.shape, sizes)):
        raise NkiShapeError(f"nl.broadcast_to: {x.describe()} does not broadcast to {list(sizes)}; the rank stays and "
                            "only dimensions of size 1 grow", here())
    t = ndarray(sizes, dtype or x.dtype)
    if x.shape[0] != sizes[0]:      # only DMA reaches from one partition to all, and only from HBM
        row = ndarray(x.shape, x.dtype, buffer=private_hbm)
        isa.dma_copy(dst=row, src=copy(x) if x.storage.buffer is psum else x)
        x = row
    put(t, repeat(x, sizes))
    return t


def repeat(x: NkiTensor, sizes: tuple[int, ...]) -> NkiTensor:
    """A view in which dimensions of size 1 have grown."""
    for d, n in enumerate(sizes):
        if x.shape[d] != n:
            x = x.broadcast(d, n)
    return x


def expand_dims(x: NkiTensor, axis: int) -> NkiTensor:
    """A view with a dimension of size 1 before `axis`."""
    return x.expand_dim(axis)


def matmul(x: NkiTensor, y: NkiTensor, transpose_x: bool = False) -> NkiTensor:
    """x @ y as a float32 tile in PSUM: x [M, K], or [K, M] with transpose_x (which costs nothing); y [K, N]."""
    stationary = x if transpose_x else transpose(x)
    t = ndarray((stationary.shape[1], y.shape[1]), float32, buffer=psum)
    isa.nc_matmul(dst=t, stationary=stationary, moving=y, accumulate=False)
    return t


def cast(x: NkiTensor, dtype: Any) -> NkiTensor:
    """`x` itself if it has this dtype, else a copy that has."""
    return x if x.dtype is as_dtype(dtype) else copy(x, dtype)
