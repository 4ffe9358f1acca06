"""Making tensors."""
from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from ...errors import NkiShapeError, NkiTypeError
from .. import isa, machine
from ..buffers import as_buffer, sbuf
from ..dtypes import as_dtype, float32, uint8, uint32
from ..location import here
from ..tensor import NkiTensor
from ..tokens import TOKENS


def ndarray(shape: Sequence[int], dtype: Any, buffer: Any = sbuf, name: str = "",
            address: tuple[int, int] | None = None) -> NkiTensor:
    """An uninitialised tensor. On chip, shape[0] is the number of partitions (at most 128) and there are at least two
    dimensions. address: (partition, byte) where it lies, to place it by hand.
    """
    region, kind = as_buffer(buffer), as_dtype(dtype)
    sizes = _shape(shape)
    running = machine.current()
    if region.on_chip:
        if sizes == (1,):
            sizes = (1, 1)
        if len(sizes) < 2:
            raise NkiShapeError(f"nl.ndarray: a tensor in {region} has a partition dimension and at least one free "
                                f"dimension, not shape {list(sizes)}", here())
        most = running.limits.pmax
        if sizes[0] > most:
            raise NkiShapeError(f"nl.ndarray: shape {list(sizes)} has {sizes[0]} partitions, and {region} of "
                                f"{running.target} has {most}; split dimension 0 into tiles of {most}", here())
    return running.allocate(sizes, kind, region, name, None if address is None else (address[0], address[1]))


def _shape(shape: Any) -> tuple[int, ...]:
    parts = (shape,) if isinstance(shape, int) else shape
    try:
        sizes = tuple([n if type(n) is int else n.__index__() for n in parts])
    except (TypeError, AttributeError):
        raise NkiShapeError(f"nl.ndarray: a shape is made of ints, not {shape!r}", here(3)) from None
    if not sizes or min(sizes) < 1:
        raise NkiShapeError(f"nl.ndarray: shape {list(sizes)} has a dimension below 1", here(3))
    return sizes


def full(shape: Sequence[int], fill_value: Any, dtype: Any, buffer: Any = sbuf, name: str = "") -> NkiTensor:
    """A tensor with one value everywhere."""
    t = ndarray(shape, dtype, buffer, name)
    fill(t, fill_value)
    return t


def zeros(shape: Sequence[int], dtype: Any, buffer: Any = sbuf, name: str = "") -> NkiTensor:
    """A tensor of zeros."""
    return full(shape, 0, dtype, buffer, name)


def ones(shape: Sequence[int], dtype: Any, buffer: Any = sbuf, name: str = "") -> NkiTensor:
    """A tensor of ones."""
    return full(shape, 1, dtype, buffer, name)


def zeros_like(x: NkiTensor, dtype: Any = None, buffer: Any = None, name: str = "") -> NkiTensor:
    """Zeros with the shape of `x`, and its dtype and buffer unless others are given."""
    return full(x.shape, 0, dtype or x.dtype, buffer or x.buffer, name)


def empty_like(x: NkiTensor, dtype: Any = None, buffer: Any = None, name: str = "") -> NkiTensor:
    """An uninitialised tensor with the shape of `x`, and its dtype and buffer unless others are given."""
    return ndarray(x.shape, dtype or x.dtype, buffer or x.buffer, name)


def fill(t: NkiTensor, value: Any) -> None:
    """Set every element, wherever the tensor lives. In HBM a tile of the value is copied piece by piece."""
    typed = _typed(value, t)
    if t.storage.buffer.on_chip:
        isa.memset(dst=t, value=typed)
        return
    count, width = t.size, min(t.size, 2048)
    flat = t.reshape((count,))
    rows = min(128, count // width)
    tile = ndarray((rows, width), t.dtype)
    isa.memset(dst=tile, value=typed)
    done = 0
    while done < count:
        n = max(1, min(rows, (count - done) // width))
        w = min(width, count - done)
        isa.dma_copy(dst=flat[done:done + n * w].reshape((n, w)), src=tile[0:n, 0:w])
        done += n * w


def _typed(value: Any, t: NkiTensor) -> Any:
    """A number as memset takes it: an int for an integer dtype, a float for a float dtype."""
    if t.dtype.kind == "f":
        return float(value) if t.dtype.packed == 1 else int(value)
    if value != int(value):
        raise NkiTypeError(f"{value} is not an integer and does not fit {t.describe()}", here())
    return int(value)


def rand(shape: Sequence[int], dtype: Any, buffer: Any = sbuf, name: str = "") -> NkiTensor:
    """A tensor of uniform random numbers in [0, 1)."""
    t = ndarray(shape, dtype, buffer, name)
    tile = t if t.storage.buffer is sbuf and t.dtype is float32 else ndarray(shape, float32)
    if machine.current().limits.at_least(4):
        isa.rand2(dst=tile, min=0.0, max=1.0)
    else:
        bits = ndarray(shape, uint32)
        isa.rng(dst=bits)
        isa.tensor_scalar(dst=bits, data=bits, op0=TOKENS["right_shift"], operand0=8)
        isa.tensor_scalar(dst=tile, data=bits, op0=TOKENS["multiply"], operand0=2.0 ** -24)
    if tile is not t:
        from .move import put
        put(t, tile)
    return t


def random_seed(seed: NkiTensor) -> None:
    """Seed the random generators of the core. seed: a [1, 1] integer tensor."""
    isa.set_rng_seed(seed)


def shared_constant(constant: Any) -> NkiTensor:
    """A tensor in shared_hbm with the values of a NumPy array, or of the .npy file at a path."""
    if isinstance(constant, (str, os.PathLike)):
        constant = np.load(constant, allow_pickle=False)
    if not isinstance(constant, np.ndarray):
        raise NkiTypeError(f"nl.shared_constant takes a NumPy array or the path of a .npy file, not "
                           f"{type(constant).__name__}", here())
    return machine.current().constant(constant)


def shared_identity_matrix(n: int, dtype: Any = uint8, dst: NkiTensor | None = None) -> NkiTensor:
    """The identity matrix [n, n] in SBUF; into `dst` if given."""
    t = ndarray((n, n), dtype) if dst is None else dst
    one = full((n, n), 1, t.dtype)
    isa.affine_select(dst=t, pattern=[[-1, n]], channel_multiplier=1, on_true_tile=one, on_false_value=0.0)
    return t
