"""Abstract execution of a tile program: instructions become value nodes, stores to HBM become the roots.

On-chip memory vanishes: only values remain, so loops, double buffering, tile reuse and in-place updates leave no
trace. Each store is kept as a template relative to its first row. Row tiles that run the same program at shifted
addresses give the same template, and only their row ranges are collected: re-rolling by equality, without a search.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..nki.program import Instr, Program
from ..nki.tensor import NkiTensor
from .access import Access, Cut, access
from .graph import Graph
from .hazards import Written
from .patterns import Pattern, compose, normal, refine, steps, width
from .tiles import Tiles
from .values import SIZE, Bail, V

VECTOR, SCALAR = -1, -2  # storage numbers of the accumulators of the Vector and Scalar engines


class Store:
    """Memory at `off + row * rs + cols` of storage `sid` becomes `v`, rounded to `dt`; F columns."""

    __slots__ = ("sid", "off", "rs", "cols", "F", "dt", "v")

    def __init__(self, sid: Any, off: int, rs: int, cols: Pattern, F: int, dt: str, v: V) -> None:
        self.sid, self.off, self.rs, self.cols, self.F, self.dt, self.v = sid, off, rs, cols, F, dt, v

    def key(self) -> tuple[Any, ...]:
        return self.sid, self.off, self.rs, self.cols, self.F, self.dt, self.v.id


class Lift:
    """Runs instructions on values. `stores` maps each store template to the row ranges it covers."""

    def __init__(
        self, program: Program, handlers: dict[str, Callable[[Lift, dict[str, Any]], None]], limit: int = 1 << 62
    ) -> None:
        self.g = Graph(limit)
        self.program, self.handlers = program, handlers
        self.tiles = Tiles(self.g)
        self.written: dict[int, Written] = {}
        self.stores: dict[tuple[Any, ...], tuple[Store, list[tuple[int, int]]]] = {}
        self.window: tuple[int, int] | None = None

    # ---- running
    def run(self) -> None:
        for instr in self.program.instrs:
            self.step(instr)

    def step(self, instr: Instr) -> None:
        """One instruction; all of it, or a Bail and nothing of it on chip."""
        handler = self.handlers.get(instr.op)
        if handler is None:
            raise Bail(f"{instr.op} has no native form")
        self.tiles.log.clear()
        try:
            self._rows(handler, instr.args)
        except Bail:
            self.tiles.undo(0)
            raise
        finally:
            self.window = None

    def _rows(self, handler: Callable[[Lift, dict[str, Any]], None], args: dict[str, Any]) -> None:
        """Run a handler; where the rows of an operand come from different places, run it for each range of rows."""
        mark = len(self.tiles.log)
        window = self.window
        try:
            handler(self, args)
        except Cut as cut:
            self.tiles.undo(mark)
            first, last = window or (0, 1 << 30)
            points = [first, *(first + p for p in cut.points), last]
            for self.window in list(zip(points, points[1:])):
                self._rows(handler, args)
            self.window = window

    # ---- operands
    def access(self, t: NkiTensor, rows: int | None = None) -> Access:
        """The access of an operand, within the rows being executed."""
        a = access(t, rows)
        if self.window is not None and a.P > 1:
            a = a.rows(self.window[0], min(self.window[1], a.P))
        return a

    def read(self, t: NkiTensor | Access, rows: int | None = None) -> V:
        """The value of an operand in its own kind."""
        a = self.access(t, rows) if isinstance(t, NkiTensor) else t
        a.need_rows()
        if a.dynamic:
            return self.read_dynamic(a)
        return self.tiles.read(a) if a.chip else self.read_hbm(a)

    def read_across(self, t: NkiTensor, rows: int) -> V:
        """The elements of a tile in row-major order, as another number of partitions."""
        raise Bail("a tile is copied across partitions")

    def f32(self, t: NkiTensor) -> V:
        """The value of an operand as the engines see it."""
        return self.g.cvt(self.read(t), "f")

    def scalar(self, operand: Any) -> V:
        """A scalar operand in float32: a number, or one column as every column."""
        if isinstance(operand, NkiTensor):
            return self.g.bcast(self.f32(operand))
        return self.g.const(float(operand))

    def write(self, t: NkiTensor | Access, v: V) -> None:
        """Store a value, converted to the dtype of its destination."""
        a = self.access(t) if isinstance(t, NkiTensor) else t
        a.need_rows()
        v = self.g.to(v, a.dt)
        if v.F not in (None, a.F):
            raise Bail(f"{v.F} columns are written to {a.F}")
        if a.chip:
            if a.dynamic:
                raise Bail("a tile is written at run-time indices")
            self.tiles.write(a, v)
        else:
            self.write_hbm(a, v)

    # ---- HBM
    def read_hbm(self, a: Access) -> V:
        written = self.written.get(a.sid)
        if written is not None:
            v = written.forward(a)
            if v is not None:
                return v
            if written.touches(a):
                raise Bail("HBM is written and then read back in another layout")
        return self.g.load(a.sid, a.off, a.rs or 0, a.cols, a.dt)

    def read_dynamic(self, a: Access) -> V:
        """Rows of HBM at run-time indices. An index outside is a fault of the call."""
        return self.gather(a, self.row_index(a))

    def gather_valid(self, a: Access) -> tuple[V, V]:
        """(rows at run-time indices, whether the index of a row is inside); rows with an index outside hold
        anything."""
        g, index = self.g, self.row_index(a)
        low = g.ew("greater_equal", index, g.const(0, "l"), kind="b")
        inside = g.ew("and_bool", low, g.ew("less", index, g.const(a.dynamic[0].size, "l"), kind="b"))
        return self.gather(a, g.ew("select", inside, index, g.const(0, "l"), kind="l")), inside

    def row_index(self, a: Access) -> V:
        if a.sid in self.written:
            raise Bail("a tensor that the kernel writes is read at run-time indices")
        return self.index_of(a)

    def index_of(self, a: Access) -> V:
        """The index of each row, int64."""
        part = a.dynamic[0]
        if len(a.dynamic) > 1 or part.kind != "vector" or a.chip:
            raise Bail(f"a run-time index of kind {part.kind}")
        index = self.read(part.index)
        if index.F not in (None, 1) or index.kind == "f":
            raise Bail("run-time indices are one integer per partition")
        return self.g.cvt(index, "l")

    def gather(self, a: Access, index: V) -> V:
        part = a.dynamic[0]
        return self.g.gather(index, a.sid, a.off, part.byte_stride, part.size, a.cols, a.dt)

    def write_rows(self, a: Access, v: V, skip: bool) -> None:
        """Rows of HBM at run-time indices become v, in order; an index outside is skipped or a fault of the call."""
        raise Bail("HBM is written at run-time indices")

    def write_hbm(self, a: Access, v: V) -> None:
        if a.dynamic:
            raise Bail("HBM is written at run-time indices")
        written = self.written.setdefault(a.sid, Written())
        if written.touches(a):
            raise Bail("overlapping stores")  # a location is written once, so stores may run in any order
        templates = self.templates(a, v)
        written.add(a, v)
        for store, first, rows in templates:
            self.stores.setdefault(store.key(), (store, []))[1].append((first, first + rows))

    def templates(self, a: Access, v: V) -> list[tuple[Store, int, int]]:
        """The stores of a value, relative to row 0, each with its first row and number of rows."""
        rs = a.need_rows()
        if v.op == "T":  # rows of the untransposed value go down the columns
            if len(a.cols) > 1:
                raise Bail("a transposed value is stored to a multi-dimensional view")
            step, count = a.cols[0] if a.cols else (a.size, 1)
            return self.templates(Access(a.sid, False, a.off, count, a.P, step, normal(((rs, a.P),)), a.dt), v.args[0])
        first = a.off // rs if rs > 0 and a.P > 0 else 0
        if first:
            v = self.g.take(v, -first, None)
        off, out = a.off - first * rs, []
        for part, start, pattern in pieces(v, a.F):
            where = compose(a.cols, start, pattern)
            if where is None:
                raise Bail("part of a multi-dimensional store")
            F = a.F if v is part else width(pattern)
            out.append((Store(a.sid, off + where[0], rs, where[1], F, a.dt, stored(part, a.dt)), first, a.P))
        return out


def pieces(v: V, F: int) -> list[tuple[V, int, Pattern]]:
    """A value as (part, first column, columns)."""
    if v.op != "mosaic":
        return [(v, 0, normal(((1, F),)))]
    return [(a, start, pattern) for a, (start, pattern) in zip(v.args, v.at)]


def stored(v: V, dt: str) -> V:
    """What a store of dtype `dt` needs: it rounds itself."""
    if v.op == "to" and v.at[0] == dt and v.args[0].kind != "d":
        return v.args[0]
    if v.op == "cvt" and dt == "float32" and v.kind == "f" and v.args[0].kind == "b":
        return v.args[0]
    return v


def _width(pattern: Pattern) -> int:
    n = 1
    for _, count in pattern:
        n *= count
    return n


def joint_rows(dst: NkiTensor, src: NkiTensor) -> tuple[Access, Access, list[tuple[int, int]]]:
    """Two HBM tensors of equal size as accesses with the same rows and columns, and the outer offsets to repeat them
    at.

    Rows go along the source's contiguous dimension if the source is transposed, else along the longest outer dimension.
    """
    total, unit = dst.size, SIZE[src.dtype]
    loops = _joint(
        normal(tuple(zip(dst.byte_strides, dst.shape))), normal(tuple(zip(src.byte_strides, src.shape))), total
    )
    if not loops:
        loops = [(SIZE[dst.dtype], unit, 1)]
    *loops, inner = loops
    turned = next((k for k, (_, s, n) in enumerate(loops) if s == unit and n > 1), None) if inner[1] != unit else None
    row = turned if turned is not None else max(range(len(loops)), key=lambda k: loops[k][2]) if loops else None
    d_rows, s_rows, P = loops.pop(row) if row is not None else (0, 0, 1)
    outer = [(0, 0)]
    while turned is not None and loops and len(outer) * loops[0][2] <= 4096:  # a transpose has two dimensions
        d, s, n = loops.pop(0)
        outer = [(x + d * i, y + s * i) for x, y in outer for i in range(n)]
    cols = [*loops, inner]
    F = total // P // len(outer)
    return (
        Access(
            dst.storage.id,
            False,
            dst.byte_offset,
            P,
            F,
            d_rows if P > 1 else total * SIZE[dst.dtype],
            normal(tuple((d, n) for d, _, n in cols)),
            dst.dtype,
        ),
        Access(
            src.storage.id,
            False,
            src.byte_offset,
            P,
            F,
            s_rows if P > 1 else total * unit,
            normal(tuple((s, n) for _, s, n in cols)),
            src.dtype,
        ),
        outer,
    )


def _joint(a: Pattern, b: Pattern, total: int) -> list[tuple[int, int, int]]:
    """Common loops of two patterns: (step in a, step in b, count), outermost first."""
    counts = refine([a, b], total)
    if counts is None:
        raise Bail("the shapes of a copy do not divide each other")
    pairs = [(x, y, n) for x, y, n in zip(steps(a, counts), steps(b, counts), counts) if n > 1]
    out: list[tuple[int, int, int]] = []
    for x, y, n in pairs:
        if out and out[-1][0] == x * n and out[-1][1] == y * n:
            out[-1] = (x, y, out[-1][2] * n)
        else:
            out.append((x, y, n))
    return out
