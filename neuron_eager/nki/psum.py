"""Which elements of a PSUM tensor matmuls have written: the first write of an element overwrites, later ones add.

`accumulate=None` of nc_matmul is resolved here, per element, before an instruction is recorded or executed.
"""
from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from .location import Loc
    from .tensor import NkiTensor

Region = tuple[int, tuple[int, ...], tuple[int, ...], int]


class PsumState:
    """What has been accumulated into one storage. `exact` holds regions known to be written as a whole, so that the
    usual case (the same tile again and again) needs no look at single elements."""

    __slots__ = ("exact", "cells", "unread")

    def __init__(self) -> None:
        self.exact: set[Region] = set()
        self.unread: dict[Region, Loc | None] = {}     # where results were written that nothing has read yet
        self.cells: np.ndarray | None = None


def overwritten(dst: NkiTensor, accumulate: bool | None, loc: Loc | None) -> Loc | None:
    """Where the result was written that this matmul throws away before anything has read it."""
    state = _state(dst)
    region = _region(dst)
    lost = state.unread.get(region) if accumulate is False else None
    state.unread[region] = loc
    return lost


def _state(dst: NkiTensor) -> PsumState:
    state = dst.storage.psum_state
    if state is None:
        state = dst.storage.psum_state = PsumState()
    return state


def _region(dst: NkiTensor) -> Region:
    return dst.byte_offset, dst.shape, dst.byte_strides, dst.dtype.itemsize


def resolve(dst: NkiTensor, accumulate: bool | None) -> bool | np.ndarray:
    """True: add to what is there. False: overwrite. An array of bools shaped like `dst`: elements already written,
    where a region is written in part only. Marks the region as written."""
    storage = dst.storage
    state, region = _state(dst), _region(dst)
    if region in state.exact:
        return accumulate is not False
    if state.cells is None:
        if not state.exact:
            state.exact.add(region)
            return bool(accumulate)
        state.cells = np.zeros(storage.nbytes, bool)
        for known in state.exact:
            _cells(state.cells, known)[...] = True
    cells = _cells(state.cells, region)
    before = cells.copy()
    cells[...] = True
    state.exact.add(region)
    if accumulate is not None:
        return accumulate
    if before.all():
        return True
    return before if before.any() else False


def _cells(cells: np.ndarray, region: Region) -> np.ndarray:
    offset, shape, strides, _ = region
    return np.ndarray(shape, bool, cells, offset, strides)      # an element is written as a whole: its first byte tells


def unwritten_boxes(written: np.ndarray) -> list[tuple[slice, ...]]:
    """Boxes that cover the False elements of `written` exactly, each as slices of its dimensions."""
    free = [()] if written.ndim == 1 else list(np.ndindex(*written.shape[1:-1]))
    rows = written.reshape(written.shape[0], -1)
    boxes: list[tuple[slice, ...]] = []
    start = 0
    while start < len(rows):
        stop = start + 1
        while stop < len(rows) and (rows[stop] == rows[start]).all():
            stop += 1
        for outer in free:
            line = written[start][outer]
            edges = np.flatnonzero(np.diff(np.concatenate(([True], line, [True])).astype(np.int8)))
            for low, high in zip(edges[::2], edges[1::2]):
                boxes.append((slice(start, stop), *(slice(i, i + 1) for i in outer), slice(int(low), int(high))))
        start = stop
    return boxes
