"""Contiguous elementwise work does not depend on its shape: one range of elements, whatever the rows and columns were.

Such a group's stores and loads keep a nominal width (`FLAT`); its range counts elements, so that one function serves
every shape. A few rows that do not follow one another in memory are so many ranges: what grows with every token of a
generation is then data too.
"""

from __future__ import annotations

from .graph import Graph
from .groups import FLAT, Group
from .lift import Store
from .patterns import Pattern, elements
from .values import ELEMENTWISE, SIZE, V, nodes

SEPARATE = 64  # at most so many rows, or elements, become ranges of their own


def flatten(g: Graph, group: Group) -> list[Group]:
    """The group as ranges of elements: one, or one for each of a few rows; the group itself if it is other work."""
    whole = _one_range(g, group)
    if whole is not None:
        return [whole]
    rows = [r for first, last in group.rows for r in range(first, min(last, first + SEPARATE + 1))]
    if group.columns or len(rows) > SEPARATE or not _is_elementwise(group):
        return [group]
    width = group.stores[0].F
    if width > 1 and _rows_are_contiguous(group):
        return [Group(_row(g, group.stores, r), ((0, width),), flat=True) for r in rows]
    if len(rows) * width <= SEPARATE:
        return [Group(_row(g, group.stores, r, c), ((0, 1),), flat=True) for r in rows for c in range(width)]
    return [group]


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


def _is_elementwise(group: Group) -> bool:
    F = group.stores[0].F

    def fits(v: V) -> bool:
        if v.op == "load":
            return v.F in (1, F)
        if v.op == "affine":
            return v.F == F and len(v.at[2]) == 1
        return v.op in ("const", "bcast") or v.op in ELEMENTWISE

    return all(st.F == F for st in group.stores) and all(map(fits, nodes(st.v for st in group.stores)))


def _rows_are_contiguous(group: Group) -> bool:
    """Whether the elements of a row lie side by side, in every store and load."""
    loads = [v for v in nodes(st.v for st in group.stores) if v.op == "load" and v.F != 1]
    return all(st.cols == ((SIZE[st.dt], st.F),) for st in group.stores) and all(
        v.at[3] == ((SIZE[v.at[4]], v.F),) for v in loads
    )


def _row(g: Graph, stores: list[Store], row: int, column: int = 0) -> list[Store]:
    """The stores of one row from `column` on, with the nominal width."""
    F, memo = stores[0].F, dict[int, V]()

    def moved(off: int, rs: int, cols: Pattern) -> int:
        return off + row * rs + (int(elements(cols)[column]) if column else 0)

    def move(v: V) -> V:
        if v.id not in memo:
            memo[v.id] = _moved(v)
        return memo[v.id]

    def _moved(v: V) -> V:
        if v.op == "load":
            sid, off, rs, cols, dt = v.at
            if v.F == 1 and F > 1:
                return g.make("load", (), (sid, off + row * rs, 0, cols, dt), 1, v.kind)
            at = (sid, moved(off, rs, cols), FLAT * SIZE[dt], ((SIZE[dt], FLAT),), dt)
            return g.make("load", (), at, FLAT, v.kind)
        if v.op == "affine":
            step = v.at[2][0][0]
            return g.affine(v.at[0] + row * v.at[1] + column * step, 0, ((step, FLAT),), FLAT)
        if v.op == "const":
            return v
        if v.op == "bcast" and F == 1:
            return move(v.args[0])
        args = [move(a) for a in v.args]
        wide = any(a.F == FLAT for a in args)
        return g.make(v.op, args, v.at, FLAT if wide else v.F, v.kind)

    return [
        Store(
            st.sid, moved(st.off, st.rs, st.cols), FLAT * SIZE[st.dt], ((SIZE[st.dt], FLAT),), FLAT, st.dt, move(st.v)
        )
        for st in stores
    ]
