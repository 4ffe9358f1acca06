"""Stores that run together, and the text their code depends on.

The code of a group depends on its `skeleton` only: the value graph without row counts and addresses. Those are data:
row ranges and one number per leaf (the address of a load or store, the start of an affine pattern). So a kernel for
other row counts, or for another head of an attention, is the same object called with other numbers.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from .graph import Graph
from .lift import Lift, Store
from .patterns import Pattern, normal
from .values import SIZE, Bail, V, nodes

Rows = tuple[tuple[int, int], ...]
COST = {
    "exp": 10,
    "log": 10,
    "tanh": 10,
    "erf": 10,
    "sigmoid": 12,
    "silu": 12,
    "gelu": 14,
    "gelu_apprx_tanh": 16,
    "divide": 4,
    "reciprocal": 4,
    "sqrt": 4,
    "rsqrt": 6,
    "sin": 12,
    "cos": 12,
    "tan": 14,
    "power": 30,
    "softplus": 24,
    "mish": 36,
    "gelu_dx": 26,
    "gelu_apprx_sigmoid": 12,
    "gelu_apprx_sigmoid_dx": 16,
    "silu_dx": 14,
    "erf_dx": 12,
    "arctan": 12,
    "mod": 16,
    "fmod": 12,
    "scan": 8,
}
FLAT = 1024  # nominal width of contiguous elementwise work, see `flatten`
COLUMN_ROWS = 8  # at most so many rows: threads share the columns of a matmul
COLUMN_WIDTHS = (512, 256, 128, 64)
Leaf = tuple[Any, int]  # (storage, byte offset) or ("int", number)


def leaves_of(v: V) -> tuple[tuple[int, ...], ...]:
    """Positions in `at` that are data: pairs (storage, offset) or single integers."""
    if v.op == "load":
        return ((0, 1),)
    if v.op == "affine":
        return ((0,),)
    return ((0, 1), (3,)) if v.op == "gather" else ()


class Group:
    """Stores for the same rows; see the module.

    columns: the chunk width where threads share columns instead of rows. flat: the range counts elements, not rows.
    """

    def __init__(self, stores: list[Store], rows: Rows, flat: bool = False) -> None:
        self.stores, self.rows, self.flat = stores, rows, flat
        order = nodes(st.v for st in stores)
        self.columns = 0 if flat else column_chunk(stores, rows, order)
        number = {v.id: i for i, v in enumerate(order)}
        slots: dict[Leaf, int] = {}
        storages: dict[Any, int] = {}

        def address(sid: Any, off: int) -> tuple[int, int]:
            return slots.setdefault((sid, off), len(slots)), storages.setdefault(sid, len(storages))

        lines = ["flat" if flat else f"columns {self.columns}"]
        for v in order:
            at: tuple[Any, ...] = v.at
            if v.op == "load":
                at = (*address(at[0], at[1]), *at[2:])
            elif v.op == "affine":
                at = (slots.setdefault(("int", at[0]), len(slots)), *at[1:])
            elif v.op == "gather":
                at = (*address(at[0], at[1]), at[2], slots.setdefault(("int", at[3]), len(slots)), *at[4:])
            lines.append(f"{v.op}:{v.kind} {[number[a.id] for a in v.args]} {at} {v.F}")
        for st in stores:
            lines.append(f"store {address(st.sid, st.off)} {st.rs} {st.cols} {st.F} {st.dt} {number[st.v.id]}")
        if self.columns:
            slots.setdefault(("int", rows[0][1]), len(slots))
        self.leaves: list[Leaf] = list(slots)
        self.skeleton = "\n".join(lines)
        self.work = sum(work_of(v) for v in order) + sum(st.F for st in stores)
        if stores[0].v.op == "scatter":
            self.work = 0  # the order of the rows matters: one thread does them all

    def calls(self) -> Iterable[tuple[int, int, int]]:
        """(first, last, work of one) of each range to run: rows, or column chunks."""
        if self.columns:
            chunks = -(-self.stores[0].F // self.columns)
            yield 0, chunks, self.work * self.rows[0][1] // chunks
            return
        for first, last in self.rows:
            yield first, last, max(1, self.work // FLAT) if self.flat else self.work


def work_of(v: V) -> int:
    """Element operations per row."""
    F = v.F or 0
    if v.op == "dot":
        return F * v.at[0] // 8
    if v.op == "red":
        return F * v.at[1]
    return F * COST.get(v.op, 1)


def column_chunk(stores: list[Store], rows: Rows, order: list[V]) -> int:
    """How many columns a thread takes at a time, where few rows of a matmul leave nothing else to share; 0
    otherwise."""
    wide = stores[0].F
    if len(rows) != 1 or rows[0][0] != 0 or rows[0][1] > COLUMN_ROWS or not any(v.op == "dot" for v in order):
        return 0
    if not flat(stores, order):
        return 0
    return next((w for w in COLUMN_WIDTHS if wide % w == 0 and wide > w), 0)


def transposed(v: V) -> bool:
    """A load whose rows, not columns, are contiguous."""
    if v.op != "load" or v.F == 1 or isinstance(v.at[0], tuple) or len(v.at[3]) != 1:
        return False
    size = SIZE[v.at[4]]
    return bool(v.at[3][0][0] != size and v.at[2] == size)


def flat(stores: list[Store], order: list[V]) -> bool:
    """Whether the columns of the stores are independent of each other, in one-dimensional patterns."""
    wide = stores[0].F
    if wide < 2 or any(wide != st.F or len(st.cols) != 1 for st in stores):
        return False
    inner = nodes((st.v for st in stores), stop=lambda v: v.op == "dot")
    for v in inner:
        if v.F not in (None, 1, wide) or v.op in ("red", "scan", "pick", "gather", "T"):
            return False
        if v.op in ("load", "affine") and wide == v.F and len(v.at[3] if v.op == "load" else v.at[2]) != 1:
            return False
    return True


# ---- from a lifted program to groups


def group(lift: Lift) -> list[Group]:
    """The groups of a program: row ranges joined, neighbouring stores merged, stores of the same rows together."""
    by_rows: dict[Rows, list[Store]] = {}
    for store, ranges in lift.stores.values():
        by_rows.setdefault(joined(ranges), []).append(store)
    groups: list[Group] = []
    for rows, stores in by_rows.items():
        stores = neighbours(lift.g, stores)
        alone = [Group([st], rows) for st in stores]
        count: dict[str, int] = {}
        for q in alone:
            count[q.skeleton] = count.get(q.skeleton, 0) + 1
        groups += [q for q in alone if count[q.skeleton] > 1]  # the same form: calls of one function
        rest = [q.stores[0] for q in alone if count[q.skeleton] == 1]
        if rest:
            groups.append(Group(rest, rows))
    for q in groups:
        check_order(q, groups)
    return groups


def joined(ranges: list[tuple[int, int]]) -> Rows:
    ranges = sorted(ranges)
    out = [list(ranges[0])]
    for a, b in ranges[1:]:
        if a < out[-1][1]:
            raise Bail("two stores to the same rows")
        if a == out[-1][1]:
            out[-1][1] = b
        else:
            out.append([a, b])
    return tuple((a, b) for a, b in out)


def neighbours(g: Graph, stores: list[Store]) -> list[Store]:
    """Stores whose columns and values continue each other, as one."""
    out: list[Store] = []
    for st in sorted(stores, key=lambda st: (str(st.sid), st.rs, st.off)):
        last = out[-1] if out else None
        if last is not None and (last.sid, last.rs, last.dt) == (st.sid, st.rs, st.dt):
            cols = _side_by_side(last, st)
            v = g.merge(last.v, st.v, last.F) if cols is not None else None
            if v is not None and cols is not None:
                out[-1] = Store(last.sid, last.off, last.rs, cols, last.F + st.F, last.dt, v)
                continue
        out.append(st)
    return out


def _side_by_side(x: Store, y: Store) -> Pattern | None:
    """The columns of x followed by those of y, both one-dimensional, if they have one step."""
    gap = y.off - x.off
    if len(x.cols) > 1 or len(y.cols) > 1 or gap <= 0:
        return None
    step = x.cols[0][0] if x.cols else y.cols[0][0] if y.cols else gap
    if gap != step * x.F or (y.cols and y.cols[0][0] != step):
        return None
    return normal(((step, x.F + y.F),))


def check_order(g: Group, groups: list[Group]) -> None:
    """A storage both read and written is only right if each row reads exactly what it overwrites, and nothing else
    does."""
    written: dict[Any, list[tuple[Group, Store]]] = {}
    for h in groups:
        for st in h.stores:
            written.setdefault(st.sid, []).append((h, st))
    for v in nodes(st.v for st in g.stores):
        if v.op == "gather" and v.at[0] in written:
            raise Bail("a tensor is written and read at run-time indices")
        if v.op == "load" and v.at[0] in written:
            for h, st in written[v.at[0]]:
                if h is not g or (st.off, st.rs, st.cols, st.dt) != (v.at[1], v.at[2], v.at[3], v.at[4]):
                    raise Bail("an output overlaps an input of another row")
