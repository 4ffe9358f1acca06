"""Which groups have code: found out before anything is generated, so that a program can take another way."""

from __future__ import annotations

from .groups import Group, transposed
from .lift import Store, pieces
from .phases import plan
from .values import ELEMENTWISE, Bail, V, nodes


def is_block(v: V) -> bool:
    """Whether a value is computed for a block of rows at a time."""
    return v.op == "dot" or transposed(v)


def tops(roots: list[V]) -> list[V]:
    """The block values that `roots` read directly."""
    found = {v.id: v for v in nodes(roots) if is_block(v)}
    return [v for v in nodes(roots, found) if v.id in found]


def feasible(stores: list[Store]) -> None:
    """Raises Bail where stores have no code."""
    order = nodes(st.v for st in stores)
    left = {v.args[0].id for v in order if v.op == "dot"}
    in_pieces = left | {v.args[0].id for v in order if v.op == "to" and v.id in left}
    for v in order:
        if v.op == "mosaic" and v.id not in in_pieces:
            raise Bail("a tile of pieces inside a value")
        if v.op == "T":
            raise Bail("a transpose of a computed value")
        if v.op == "dot":
            _product(v)
    have = tops([st.v for st in stores])
    plan(stores, {v.id for v in have})


def _product(v: V) -> None:
    left, right = v.args
    if left.op == "const":
        plain = ("load", "const", "bcast", "affine")
        if v.F is None or any((b.op not in ELEMENTWISE and b.op not in plain) or transposed(b) for b in nodes([right])):
            raise Bail("a sum over the partitions of a computed value")
        return
    if right.op != "load" or len(right.at[3]) > 1 or left.F is None:
        raise Bail("a matmul with a computed operand")
    if left.op != "load" or len(left.at[3]) > 1:
        K = v.at[0]
        parts = [Store("left", start, 0, pattern, p.F or K, "float32", p) for p, start, pattern in pieces(left, K)]
        plan(parts, {x.id for x in tops([left])})


def same_memory(groups: list[Group], where: dict[int, tuple[int, int]]) -> list[tuple[int, int]]:
    """Pairs (read, written) of pointer positions that may be one memory: each row reads exactly what it overwrites,
    no later than it does, and nothing reads it besides. `where`: storage → (position, offset of the first
    element)."""
    written = {st.sid for q in groups for st in q.stores if st.sid in where}
    read = {
        v.at[0]
        for q in groups
        for v in nodes(st.v for st in q.stores)
        if v.op in ("load", "gather") and v.at[0] in where
    }
    return sorted(
        (where[i][0], where[o][0])
        for i in read
        for o in written
        if i != o and i not in written and all(_in_place(q, i, o, where[i][1] - where[o][1]) for q in groups)
    )


def _in_place(q: Group, i: int, o: int, shift: int) -> bool:
    """Whether a group stays right when storages i and o are one memory, o's addresses `shift` bytes before i's."""
    order = nodes(st.v for st in q.stores)
    reads = [v for v in order if v.op in ("load", "gather") and v.at[0] == i]
    writes = [st for st in q.stores if st.sid == o]
    if not reads:
        return True
    if not writes or any(is_block(v) or v.op == "gather" for v in order):
        return False
    places = {(st.off + shift, st.rs, st.cols, st.dt) for st in writes}
    if places != {v.at[1:5] for v in reads}:
        return False
    renamed = [Store(i if st.sid == o else st.sid, st.off, st.rs, st.cols, st.F, st.dt, st.v) for st in q.stores]
    try:
        plan(renamed, ())
    except Bail:
        return False
    return True
