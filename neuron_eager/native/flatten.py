"""Contiguous elementwise work does not depend on its shape: rows of 1024 elements, then of 16, then of 1."""

from __future__ import annotations

from .graph import ELEMENTWISE, SIZE, Graph, V, nodes
from .groups import Group
from .lift import Store
from .patterns import Pattern, normal

WIDTHS = (1024, 16, 1)


def flatten(g: Graph, group: Group) -> list[Group]:
    """The same work as at most three groups whose code is the same for every shape; the group itself if it is not elementwise."""
    F, order = group.stores[0].F, nodes(st.v for st in group.stores)

    def whole(rs: int, cols: Pattern, dt: str) -> bool:
        return cols == ((SIZE[dt], F),) and rs == F * SIZE[dt]

    def fits(v: V) -> bool:
        if v.op == "load":
            return whole(*v.at[2:]) if v.F == F else v.at[2] == 0
        return v.op == "const" or v.op in ELEMENTWISE or (v.op == "bcast" and v.args[0].F == 1)

    if not (
        F > 1
        and len(group.rows) == 1
        and group.rows[0][0] == 0
        and all(map(fits, order))
        and all(st.F == F and whole(st.rs, st.cols, st.dt) for st in group.stores)
    ):
        return [group]
    out, done, total = [], 0, group.rows[0][1] * F
    for w in WIDTHS:
        n = (total - done) // w
        if n:
            out.append(Group(_rewidth(g, group.stores, F, w, done), ((0, n),)))
            done += n * w
    return out


def _rewidth(g: Graph, stores: list[Store], F: int, w: int, done: int) -> list[Store]:
    """The stores as rows of w elements, from element number `done` on."""
    memo: dict[int, V] = {}

    def move(v: V) -> V:
        if v.F != F:
            return v
        if v.id not in memo:
            if v.op == "load":
                size = SIZE[v.at[4]]
                memo[v.id] = g.make(
                    "load", (), (v.at[0], v.at[1] + done * size, w * size, normal(((size, w),)), v.at[4]), w, v.kind
                )
            else:
                memo[v.id] = g.make(v.op, [move(a) for a in v.args], v.at, w, v.kind)
        return memo[v.id]

    return [
        Store(st.sid, st.off + done * SIZE[st.dt], w * SIZE[st.dt], normal(((SIZE[st.dt], w),)), w, st.dt, move(st.v))
        for st in stores
    ]
