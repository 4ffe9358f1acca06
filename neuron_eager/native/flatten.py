"""Contiguous elementwise work does not depend on its shape: one range of elements, whatever the rows and columns were.

Such a group's stores and loads keep a nominal width (`FLAT`); its range counts elements, so that one function serves
every shape.
"""

from __future__ import annotations

from .graph import Graph
from .groups import FLAT, Group
from .lift import Store
from .patterns import Pattern
from .values import ELEMENTWISE, SIZE, V, nodes


def flatten(g: Graph, group: Group) -> Group:
    """The group as one range of elements; the group itself if it is not contiguous elementwise work."""
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
        return group
    if any(st.F != F or not whole(st.rs, st.cols, st.dt) for st in group.stores):
        return group
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
