"""Code for one row of a group: a loop over the columns for each job of its plan, values in registers."""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from .graph import Graph
from .groups import COST, Leaf
from .irtypes import I32, I64, PTR, Value, const
from .lanes import CELL, Lanes
from .lift import Store
from .loops import Loop
from .phases import Job, Plan, is_loop, is_scalar, plan
from .target import Target
from .values import SIZE, V, nodes

FAULT = "ne_fault"


class Block:
    """A value computed for a block of rows: rows `ld` bytes apart at `off` of the scratch memory, as elements of
    `dt`."""

    __slots__ = ("off", "ld", "dt")

    def __init__(self, off: int, ld: int, dt: str) -> None:
        self.off, self.ld, self.dt = off, ld, dt


class Rows(Lanes):
    """The function of a group under construction: void f(i64 first, i64 last, ptr scratch, ptr leaves)."""

    def __init__(self, fn: ir.Function, target: Target, g: Graph, stores: list[Store], leaves: list[Leaf]) -> None:
        values = nodes(st.v for st in stores)
        super().__init__(fn, target, lanes(target, stores, values))
        self.g, self.size = g, 0
        self.scratch = fn.args[2]
        self.c0: Value | None = None  # first column of the chunk being computed
        self.leaf: dict[Leaf, Value] = {}
        for i, leaf in enumerate(leaves):
            t = I64 if leaf[0] == "int" else PTR
            self.leaf[leaf] = self.b.load(self.at(fn.args[3], 8 * i), typ=t, align=8)

    # ---- addresses
    def reserve(self, n: int) -> int:
        """Scratch bytes; the offset."""
        off = self.size
        self.size = (off + n + 63) // 64 * 64
        return off

    def pointer(self, sid: Any, off: int, rs: int, row: Value | None, brow: Value | None) -> Value:
        """Column 0 of a row: `row` of a storage, or `brow` of a block in scratch."""
        if isinstance(sid, tuple):
            return self.at(self.scratch, sid[1] + off, *([(brow, rs)] if rs and brow is not None else []))
        p = self.leaf.get((sid, off))
        if p is None:
            p = self.at(self.leaf[sid, 0], off)
        return self.at(p, (row, rs)) if rs and row is not None else p

    def fault(self, index: Value) -> None:
        """Note that a run-time index is outside its tensor."""
        word = self.module.globals.get(FAULT)
        if word is None:
            word = ir.GlobalVariable(self.module, I64, FAULT)
            word.type = PTR
        self.b.store(self.b.or_(index, const(I64, 1 << 62)), word, align=8)

    def number(self, base: int) -> Value:
        """The start of an affine pattern."""
        return self.leaf.get(("int", base)) or const(I64, base)

    # ---- a row
    def row(self, sinks: list[Store], have: dict[int, Block], row: Value | None, brow: Value | None) -> None:
        """Compute and store one row of `sinks`."""
        todo = plan(sinks, have)
        state = RowState(self, have, row, brow, todo)
        for k, job in enumerate(todo.jobs):
            self._job(job, k, state)
        for st in todo.scalars:
            p = self.pointer(st.sid, st.off, st.rs, row, brow)
            self.put(state.scalar(st.v), st.v.kind, p, st.dt)

    def stretch(self, sinks: list[Store], first: Value, last: Value) -> None:
        """Elements first .. last of contiguous elementwise work."""
        todo = plan(sinks, ())
        job = todo.jobs[0]
        self.c0 = first
        state = RowState(self, {}, None, None, todo)
        Loop(self, job, 0, state, nodes(job.roots(), (), is_scalar), job.counts, self.b.sub(last, first)).run()

    def _job(self, job: Job, k: int, state: RowState) -> None:
        cut = {**state.have, **{v: 1 for v in state.buffers}}
        mine = nodes(job.roots(), cut, is_scalar)
        loop = Loop(self, job, k, state, mine, job.counts)
        loop.run()


class RowState:
    """What is known of a row so far: row scalars, and values kept in buffers."""

    def __init__(self, build: Rows, have: dict[int, Block], row: Value | None, brow: Value | None, todo: Plan) -> None:
        self.build, self.have, self.row, self.brow, self.todo = build, have, row, brow, todo
        self.known: dict[int, Value] = {}
        self.addresses: dict[int, Value] = {}
        self.buffers: dict[int, int] = {}  # value -> scratch offset, once its job has run

    def scalar(self, n: V) -> Value:
        """A value with one column, or equal in all."""
        v = self.known.get(n.id)
        if v is None:
            v = self.known[n.id] = self._scalar(n)
        return v

    def _scalar(self, n: V) -> Value:
        s = self.build
        if n.op == "const":
            return s.constant(n, None)
        if n.id in self.have:
            block = self.have[n.id]
            return s.fetch(
                s.at(s.scratch, block.off, *([(self.brow, block.ld)] if block.ld else [])), block.dt, None, None
            )
        if n.op == "load":
            return s.fetch(s.pointer(n.at[0], n.at[1], n.at[2], self.row, self.brow), n.at[4], None, None)
        if n.op == "gather":
            return s.fetch(self.gathered(n), n.at[5], None, None)
        if n.op in ("bcast", "red"):
            return self.scalar(n.args[0])  # a reduction of one column; longer ones are known by now
        if n.op == "affine":
            return s.b.trunc(
                s.b.add(s.number(n.at[0]), s.mul(self.row, n.at[1])) if n.at[1] else s.number(n.at[0]), I32
            )
        if n.op == "pick":
            kind = n.kind
            return s.fetch(
                s.at(s.scratch, self.buffers[n.args[0].id] + n.at[0] * SIZE[CELL[kind]]), CELL[kind], None, None
            )
        if n.id in self.buffers:
            return s.fetch(s.at(s.scratch, self.buffers[n.id]), CELL[n.kind], None, None)
        if n.op == "ngather":
            return self._chosen(n)
        return s.compute(n, self.scalar)

    def _chosen(self, n: V) -> Value:
        """The column of a kept row that an index chooses; held inside the row."""
        s, (source, index), cell = self.build, n.args, CELL[n.kind]
        place = s.i.minimum(self.scalar(index), const(I32, (source.F or 1) - 1), signed=False)
        offset = s.mul(s.b.zext(place, I64), SIZE[cell])
        return s.fetch(s.at(s.scratch, self.buffers[source.id], offset), cell, None, None)

    def gathered(self, n: V) -> Value:
        """Address of the row that an index chooses. An index outside sets the fault word, and row 0 is taken."""
        s = self.build
        place = self.addresses.get(n.id)
        if place is None:
            index = self.scalar(n.args[0])
            inside = s.b.icmp_unsigned("<", index, s.leaf["int", n.at[3]])
            s.when(s.b.not_(inside), lambda: s.fault(index))
            index = s.b.select(inside, index, const(I64, 0))
            place = self.addresses[n.id] = s.at(s.pointer(n.at[0], n.at[1], 0, None, None), (index, n.at[2]))
        return place


def lanes(target: Target, stores: list[Store], values: list[V]) -> int:
    """Vector width: half for memory-bound float32 arithmetic, where full width loses to memory; full otherwise."""
    narrow = (
        all(v.kind in "fb" for v in values)
        and not any(
            (v.F != 1 and COST.get(v.op, 1) >= 4)
            or v.op in ("dot", "affine", "gather")
            or (v.op == "load" and SIZE[v.at[4]] != 4)
            for v in values
        )
        and not (any(is_loop(v) for v in values) and any(st.F > 1 for st in stores))
        and all(SIZE[st.dt] == 4 for st in stores)
    )
    return max(4, target.lanes // 2) if narrow else target.lanes
