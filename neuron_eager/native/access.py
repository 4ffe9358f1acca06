"""An operand of an instruction as rows and columns of bytes."""

from __future__ import annotations

from functools import cache
from math import prod
from typing import Any

import numpy as np

from ..nki.tensor import NkiTensor
from .patterns import Pattern, compose, elements, normal, split
from .values import SIZE, Bail


class Cut(Exception):
    """The rows of an operand have no single form; the instruction is to be split before the rows `points`."""

    def __init__(self, points: tuple[int, ...]) -> None:
        super().__init__(points)
        self.points = points


class Access:
    """P rows of F elements of dtype `dt`: byte `off + row * rs + cols` of storage `sid`.

    On chip, `rs` is the number of bytes of a partition. `rs` is None when the rows of an HBM view are not equally
    spaced; `full` lists all its elements.
    """

    __slots__ = ("sid", "chip", "off", "P", "F", "rs", "cols", "dt", "full", "dynamic")

    def __init__(
        self,
        sid: int,
        chip: bool,
        off: int,
        P: int,
        F: int,
        rs: int | None,
        cols: Pattern,
        dt: str,
        full: Pattern = (),
        dynamic: Any = None,
    ) -> None:
        self.sid, self.chip, self.off, self.P, self.F, self.rs, self.cols, self.dt = sid, chip, off, P, F, rs, cols, dt
        self.full, self.dynamic = full, dynamic

    @property
    def size(self) -> int:
        return SIZE[self.dt]

    def rows(self, first: int, last: int) -> Access:
        """Rows first ≤ r < last."""
        if self.P == 1 or (first == 0 and last == self.P):
            return self
        n = last - first
        if self.rs is not None:
            return Access(
                self.sid,
                self.chip,
                self.off + first * self.rs,
                n,
                self.F,
                self.rs,
                self.cols,
                self.dt,
                (),
                self.dynamic,
            )
        part = compose(self.full, first * self.F, normal(((1, n * self.F),)))
        if part is None:
            raise Bail("rows of a multi-dimensional HBM view")
        off, full = part
        spaced = split(full, n)
        rs, cols = spaced if spaced is not None else (None, ())
        return Access(self.sid, False, self.off + off, n, self.F, rs, cols, self.dt, full)

    def columns(self, first: int, count: int, step: int = 1) -> Access:
        """Columns first, first + step, …"""
        part = compose(self.cols, first, normal(((step, count),))) if self.cols or first == 0 else None
        if part is None or self.rs is None:
            raise Bail("columns of a multi-dimensional view")
        return Access(
            self.sid, self.chip, self.off + part[0], self.P, count, self.rs, part[1], self.dt, (), self.dynamic
        )

    def need_rows(self) -> int:
        """The row stride; `Cut` if there is none."""
        if self.rs is None:
            starts = elements(self.full)[:: self.F]
            steps = np.diff(starts)
            points = tuple((np.flatnonzero(steps != steps[0]) + 1).tolist()) if self.F == 1 or len(steps) else ()
            if not points or len(points) > 4096:
                raise Bail("rows of an HBM view are irregular")
            raise Cut(points)
        return self.rs

    def key(self) -> tuple[Any, ...]:
        return self.sid, self.off, self.P, self.rs, self.cols, self.dt

    def __repr__(self) -> str:
        where = f"{'chip' if self.chip else 'hbm'}{self.sid}+{self.off}"
        return f"{where}: {self.P} rows by {self.rs}, columns {self.cols} {self.dt}"


def access(t: NkiTensor, rows: int | None = None) -> Access:
    """The access of a tensor. `rows` is the number of rows an HBM view is to have, elements taken in row-major
    order."""
    storage, shape, strides = t.storage, t.shape, t.byte_strides
    dynamic = t.dynamic or None
    if storage.buffer.on_chip:
        part, P = storage.partition_bytes, shape[0]
        if P > 1 and strides[0] != part:
            raise Bail(f"{t.describe()} steps over partitions")
        F, cols = _layout(shape, strides)
        return Access(storage.id, True, t.byte_offset, P, F, part, cols, t.dtype, (), dynamic)
    total = prod(shape)
    P = shape[0] if rows is None else rows
    if len(shape) > 1 and shape[0] == P:
        F, cols = _layout(shape, strides)
        return Access(storage.id, False, t.byte_offset, P, F, strides[0], cols, t.dtype, (), dynamic)
    if total % P or dynamic:
        raise Bail(f"{t.describe()} as {P} rows")
    full = normal(tuple(zip(strides, shape)))
    if P == 1:
        return Access(storage.id, False, t.byte_offset, 1, total, strides[0] * shape[0], full, t.dtype)
    spaced = split(full, P)
    rs, cols = spaced if spaced is not None else (None, ())
    return Access(storage.id, False, t.byte_offset, P, total // P, rs, cols, t.dtype, full)


@cache
def _layout(shape: tuple[int, ...], strides: tuple[int, ...]) -> tuple[int, Pattern]:
    """The free dimensions: number of elements, pattern."""
    return prod(shape[1:]), normal(tuple(zip(strides[1:], shape[1:])))
