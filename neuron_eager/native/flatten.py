"""Contiguous elementwise work does not depend on its shape: one range of elements, whatever the rows and columns were.

Such a group's stores and loads keep a nominal width (`FLAT`); its range counts elements, so that one function serves
every shape. A few rows that do not follow one another in memory are so many ranges: what grows with every token of a
generation is then data too.
"""

from __future__ import annotations

from .graph import Graph
from .groups import FLAT, Group
from .lift import Store
from .patterns import Pattern
from .values import ELEMENTWISE, SIZE, V, nodes

SEPARATE_ROWS = 64  # at most so many rows become ranges of their own


def flatten(g: Graph, group: Group) -> list[Group]:
    """The group as ranges of elements: one, or one for each of a few rows; the group itself if it is other work."""
    whole = _one_range(g, group)
    if whole is not None:
        return [whole]
    rows = [r for first, last in group.rows for r in range(first, min(last, first + SEPARATE_ROWS + 1))]
    if group.columns or len(rows) > SEPARATE_ROWS or not _rows_are_ranges(group):
        return [group]
    width = group.stores[0].F
    return [Group(_row(g, group.stores, r), ((0, width),), flat=True) for r in rows]


def _one_range(g: Graph, group: Group) -> Group | None:
    F, order = group.stores[0].F, nodes(st.v for st in group.stores)

    def whole(rs: int, cols: Pattern, dt: str) -> bool:
        return rs == F * SIZE[dt] and (cols == ((SIZE[dt], F),) if F > 1 else cols == ())

    def fits(v: V) -> bool:
        if v.op == "load":
            return v.at[2] == 0 if v.F == 1 and F > 1 else v.F == F and (whole(*v.at[2:]) or (F == 1 and v.at[2] == 0))
        if v.op == "affine":
            return v.F == F and len(v.at[2]) <= 1 and (v.at[1] == v.at[2][0][0] * F if v.at[2] else F == 1)
        return v.op == "const" or v.op in ELEMENTWISE or (v.op == "bcast" and v.args[0].op == "load")

    if len(group.rows) > 1 or group.columns or not all(map(fits, order)):
        return None
    if any(st.F != F or not whole(st.rs, st.cols, st.dt) for st in group.stores):
        return None
    first, last = group.rows[0]
    return Group(_stretched(g, group.stores, F, first), ((0, (last - first) * F),), flat=True)


def _stretched(g: Graph, stores: list[Store], F: int, first: int) -> list[Store]:
    """The stores from row `first` on, with the nominal width."""
    memo: dict[int, V] = {}

    def cols(dt: str) -> Pattern:
        return ((SIZE[dt], FLAT),)

    def move(v: V) -> V:
        if v.op == "bcast" and v.args[0].at[2] != 0:  # of one column: the column itself
            v = v.args[0]
        if v.op in ("const", "bcast") or (v.F != F and F > 1):
            return v
        if v.id not in memo:
            memo[v.id] = _wide(v)
        return memo[v.id]

    def _wide(v: V) -> V:
        if v.op == "load":
            sid, off, rs, _, dt = v.at
            if rs == 0:
                return g.bcast(v)
            return g.make("load", (), (sid, off + first * rs, FLAT * SIZE[dt], cols(dt), dt), FLAT, v.kind)
        if v.op == "affine":
            step = v.at[2][0][0] if v.at[2] else v.at[1]
            return g.affine(v.at[0] + first * v.at[1], 0, ((step, FLAT),), FLAT)
        args = [move(a) for a in v.args]
        return g.make(v.op, args, v.at, FLAT if any(a.F == FLAT for a in args) else None, v.kind)

    return [
        Store(st.sid, st.off + first * st.rs, FLAT * SIZE[st.dt], cols(st.dt), FLAT, st.dt, move(st.v)) for st in stores
    ]


def _rows_are_ranges(group: Group) -> bool:
    """Whether each row is contiguous elementwise work by itself."""
    F = group.stores[0].F

    def fits(v: V) -> bool:
        if v.op == "load":
            return v.F == 1 or (v.F == F and v.at[3] == ((SIZE[v.at[4]], F),))
        if v.op == "affine":
            return v.F == F and len(v.at[2]) == 1
        return v.op in ("const", "bcast") or v.op in ELEMENTWISE

    return F > 1 and all(st.F == F and st.cols == ((SIZE[st.dt], F),) for st in group.stores) and all(
        map(fits, nodes(st.v for st in group.stores))
    )


def _row(g: Graph, stores: list[Store], row: int) -> list[Store]:
    """The stores of one row, with the nominal width."""
    memo: dict[int, V] = {}

    def move(v: V) -> V:
        if v.id not in memo:
            memo[v.id] = _moved(v)
        return memo[v.id]

    def _moved(v: V) -> V:
        if v.op == "load":
            sid, off, rs, cols, dt = v.at
            if v.F == 1:
                return g.make("load", (), (sid, off + row * rs, 0, cols, dt), 1, v.kind)
            cols = ((SIZE[dt], FLAT),)
            return g.make("load", (), (sid, off + row * rs, FLAT * SIZE[dt], cols, dt), FLAT, v.kind)
        if v.op == "affine":
            return g.affine(v.at[0] + row * v.at[1], 0, ((v.at[2][0][0], FLAT),), FLAT)
        if v.op == "const":
            return v
        args = [move(a) for a in v.args]
        return g.make(v.op, args, v.at, FLAT if v.F not in (None, 1) else v.F, v.kind)

    return [
        Store(st.sid, st.off + row * st.rs, FLAT * SIZE[st.dt], ((SIZE[st.dt], FLAT),), FLAT, st.dt, move(st.v))
        for st in stores
    ]
