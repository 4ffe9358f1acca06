"""Tiles: how kernels cut HBM tensors into pieces of at most 128 partitions, and move them on and off the chip."""
from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import nki.isa as nisa
import nki.language as nl

P = nl.tile_size.pmax               # partitions of SBUF and PSUM
F = 2048                            # free-axis elements of a tile: large DMA transfers, several tiles still fit in SBUF

Tensor = Any                        # an NkiTensor


def pieces(n: int, step: int) -> Iterator[tuple[int, int]]:
    """(start, length) of consecutive pieces of at most `step` that cover range(n)."""
    for start in range(0, n, step):
        yield start, min(step, n - start)


def tile(rows: int, columns: int, dtype: Any) -> Tensor:
    """A fresh SBUF tile of `rows` partitions."""
    return nl.ndarray((rows, columns), dtype, buffer=nl.sbuf)


def tile_like(t: Tensor, dtype: Any) -> Tensor:
    """A fresh SBUF tile of the shape of `t`, a tile or a 2-D HBM view."""
    rows, columns = t.shape
    return tile(rows, columns, dtype)


def load(x: Tensor, dtype: Any = None, through: Any = None) -> Tensor:
    """An SBUF tile with the elements of a 2-D HBM view [rows <= 128, columns], cast to `dtype` if given.

    through: an integer type to wrap to on the way; dtype is int64 then, on one side of each cast, so that no cast
    saturates. A view that repeats one column (free stride 0) is loaded as one column and broadcast on the chip.
    """
    rows, columns = x.shape
    repeated = columns > 1 and x.strides[1] == 0
    t = tile(rows, 1 if repeated else columns, x.dtype)
    nisa.dma_copy(dst=t, src=x[:, 0:1] if repeated else x)
    for wanted in (dtype, through, dtype if through is not None else None):
        if wanted is not None and wanted != t.dtype:
            other = tile_like(t, wanted)
            nisa.tensor_copy(dst=other, src=t)
            t = other
    return t.broadcast(1, columns) if repeated else t


def turned(t: Tensor) -> Tensor:
    """An SBUF tile [b, a] with the transpose of a tile [a, b], through PSUM; both at most 128."""
    a, b = t.shape
    across = nl.ndarray((b, a), t.dtype, buffer=nl.psum)
    nisa.nc_transpose(dst=across, data=t)
    result = tile(b, a, t.dtype)
    nisa.tensor_copy(dst=result, src=across)
    return result


def store(out: Tensor, t: Tensor) -> None:
    """Write a tile to a 2-D HBM view of the same shape, cast to its dtype."""
    nisa.dma_copy(dst=out, src=t)


def blocks(out: Tensor, *ins: Tensor, columns: int = F) -> Iterator[tuple[Tensor, ...]]:
    """Views of at most 128 x `columns` elements that cover HBM tensors of one common shape, of any rank.

    Rank 1 is cut into rows of equal length, so that all partitions work, and one short row for the rest. From rank 3
    on, the outer dimensions are walked one index at a time.
    """
    tensors = (out, *ins)
    if out.ndim == 1:
        yield from _rows_of(tensors, out.shape[0], columns)
    elif out.ndim == 2:
        for r, n in pieces(out.shape[0], P):
            for c, w in pieces(out.shape[1], columns):
                yield tuple(t[r:r + n, c:c + w] for t in tensors)
    else:
        for i in range(out.shape[0]):
            yield from blocks(*(t[i] for t in tensors), columns=columns)


def _rows_of(tensors: tuple[Tensor, ...], total: int, columns: int) -> Iterator[tuple[Tensor, ...]]:
    start = 0
    while start < total:
        left = total - start
        rows = P if left >= P else 1
        width = min(columns, left // rows)
        yield tuple(t[start:start + rows * width].reshape_dim(0, (rows, width)) for t in tensors)
        start += rows * width



def walks(*parameters: str) -> Callable[[Any], Any]:
    """Says that a kernel treats every index of the leading dimensions of these parameters alike.

    All dimensions of the first one before its last two are leading; a kernel whose parameters are one index of that is
    the same kernel. An executor may use this to trace it once. Goes below `@nki.jit`.
    """
    def mark(function: Any) -> Any:
        function.leading = parameters
        return function
    return mark
