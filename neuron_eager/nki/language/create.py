"""Making tensors."""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...errors import NkiShapeError
from .. import machine
from ..buffers import as_buffer, sbuf
from ..dtypes import as_dtype
from ..location import here
from ..tensor import NkiTensor


def ndarray(shape: Sequence[int], dtype: Any, buffer: Any = sbuf, name: str = "",
            address: tuple[int, int] | None = None) -> NkiTensor:
    """An uninitialised tensor. On chip, shape[0] is the number of partitions (at most 128) and there are at least two
    dimensions. address: (partition, byte) where it lies, to place it by hand.
    """
    region, kind = as_buffer(buffer), as_dtype(dtype)
    sizes = _shape(shape, name)
    running = machine.current()
    if region.on_chip:
        if len(sizes) == 1 and sizes[0] == 1:
            sizes = (1, 1)
        if len(sizes) < 2:
            raise NkiShapeError(f"nl.ndarray: a tensor in {region} has a partition dimension and at least one free "
                                f"dimension, not shape {list(sizes)}", here())
        most = running.limits.pmax        # type: ignore[attr-defined]
        if sizes[0] > most:
            raise NkiShapeError(f"nl.ndarray: shape {list(sizes)} has {sizes[0]} partitions, and {region} of "
                                f"{running.target} has {most}; split dimension 0 into tiles of {most}", here())
    return running.allocate(sizes, kind, region, name, None if address is None else tuple(address))


def _shape(shape: Any, name: str) -> tuple[int, ...]:
    parts = (shape,) if isinstance(shape, int) else shape
    try:
        sizes = tuple(int(n.__index__()) for n in parts)
    except (TypeError, AttributeError):
        raise NkiShapeError(f"nl.ndarray: a shape is made of ints, not {shape!r}", here(3)) from None
    if not sizes or any(n < 1 for n in sizes):
        raise NkiShapeError(f"nl.ndarray: shape {list(sizes)} has a dimension below 1", here(3))
    return sizes
