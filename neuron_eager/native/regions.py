"""Programs that cannot be lifted whole: runs of instructions as regions, called one after the other.

A region is lifted like a whole program, but tiles it does not define are read from memory (an arena that lives for
one call), and tiles that are needed later are written there. Loads of inputs that are never written stay symbolic
from region to region, so they cost nothing. Regions of one form share one function: the time to compile depends on
their variety, not on their number.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..nki.program import Instr, Program
from ..nki.tensor import NkiTensor
from .access import Access
from .arena import Order, arena
from .feasible import feasible, tops
from .groups import Group
from .hazards import Written, overlap
from .instructions import HANDLERS
from .lift import SCALAR, VECTOR, Lift, Store, pieces, stored
from .patterns import Pattern, compose, normal, split, width
from .phases import is_loop
from .tiles import Entry, Tiles
from .values import SIZE, Bail, V, nodes

LONGEST = 48  # instructions of a region
MOST_LEAVES = 120
PARTITIONS = 128


Stores = list[tuple[Store, int]]  # with their numbers of rows


@dataclass
class Call:
    """A region's group, and whether it has to wait for all calls before it."""

    group: Group
    wait: bool = False


class RegionTiles(Tiles):
    """On-chip memory inside a region: what the region has not written is in the arena."""

    def missing(self, a: Access) -> V:
        return self.g.load(arena(a.sid), a.off, a.rs or 0, a.cols, a.dt)


class Regions(Lift):
    """Cuts a program into regions. `calls` is the result."""

    def __init__(self, program: Program) -> None:
        super().__init__(program, HANDLERS)
        self.tiles = RegionTiles(self.g)
        self.calls: list[Call] = []
        self.sizes: dict[str, int] = {arena(s.id): s.nbytes for s in program.storages}
        self.sizes |= {arena(which): 4 * PARTITIONS for which in (VECTOR, SCALAR)}
        written = {t.storage.id for i in program.instrs for t in i.tensors(i.writes) if not t.buffer.on_chip}
        self.fixed = {s.id for s in program.storages if not s.buffer.on_chip} - written  # never written
        visible = {t.storage.id for t in [*program.inputs, *program.outputs]} | set(program.constants)
        self.internal = {s.id for s in program.storages if not s.buffer.on_chip} - visible  # HBM of one call
        self.last: dict[int, int] = {}
        for k, i in enumerate(program.instrs):
            for t in i.tensors(i.writes + i.reads):
                self.last[t.storage.id] = k
                for part in t.dynamic:
                    if isinstance(part.index, NkiTensor):
                        self.last[part.index.storage.id] = k
        self.last[VECTOR] = self.last[SCALAR] = len(program.instrs)
        self.out: list[tuple[Store, int]] = []
        self.pending: list[Instr] = []
        self.begin: dict[int, list[Entry]] = {}

    def run(self) -> None:
        for k, instr in enumerate(self.program.instrs):
            if self.pending and self._ends(instr):
                self._flush(k)
            try:
                self._add(instr)
            except Bail:
                if self.pending:
                    self._flush(k)
                self._alone(instr, k)
        if self.pending:
            self._flush(len(self.program.instrs))
        order = Order()
        for call in self.calls:
            q = call.group
            wait = order.waits(loads(q), [whole(st, q.rows[0][1]) for st in q.stores], self.fixed)
            call.wait = wait or q.stores[0].v.op == "scatter"

    # ---- one region
    def _ends(self, instr: Instr) -> bool:
        """Whether a new region is to start here: another number of rows, a matmul or transpose of computed values, a
        loop's next turn."""
        if len(self.pending) >= LONGEST:
            return True
        dst = instr.args.get("dst")
        first = self.pending[0].args.get("dst")
        if dst is not None and first is not None and dst.shape[0] != first.shape[0] and dst.buffer.on_chip:
            return True
        if instr.op == "dma_copy" and self.out and not instr.args["src"].buffer.on_chip:
            return True
        if instr.op in ("nc_matmul", "nc_transpose"):
            names = ("stationary", "moving") if instr.op == "nc_matmul" else ("data",)
            return any(not self._plain(instr.args[n].storage.id) for n in names)
        return False

    def _plain(self, sid: int) -> bool:
        """Whether a storage holds nothing that this region has computed."""
        return all(self._symbolic(e.value) for e in self.tiles.entries.get(sid, ()))

    def _add(self, instr: Instr) -> None:
        mark = len(self.out)
        try:
            self.step(instr)
        except Bail:
            del self.out[mark:]
            raise
        self.pending.append(instr)

    def _alone(self, instr: Instr, k: int) -> None:
        """A region of one instruction."""
        try:
            self._add(instr)
        except Bail:
            self._spill()  # perhaps it reads tiles that are partly symbolic: put everything in memory
            self._add(instr)
        self._flush(k + 1)

    def _spill(self) -> None:
        stores = [part for sid, found in self.tiles.entries.items() for e in found for part in self._saved(sid, e)]
        for store, rows in stores:
            self._emit([(store, rows)])
        self.tiles.entries = {}
        self._reset()

    def _reset(self) -> None:
        self.out, self.pending, self.written = [], [], {}
        self.begin = dict(self.tiles.entries)

    def _flush(self, k: int) -> None:
        """Close the region before instruction k: store what later instructions read, keep what is symbolic."""
        pending, mark = self.pending, len(self.calls)
        keep, under, out = self._outcome(k)
        try:
            for part in under:
                self._emit([part])
            self._emit(out)
        except Bail:
            del self.calls[mark:]
            self.tiles.entries = dict(self.begin)
            self._reset()
            if len(pending) == 1:
                self._hard(pending[0], k)
            else:
                for j, instr in enumerate(pending):
                    self._alone(instr, k - len(pending) + j)
            return
        self.tiles.entries = keep
        self._reset()

    def _hard(self, instr: Instr, k: int) -> None:
        """An instruction that is no region as it stands: from operands in memory, or by way of fresh memory."""
        mark, begin = len(self.calls), dict(self.begin)
        try:
            self._two_steps(instr, k)
        except Bail:
            if not any(begin.values()):
                raise
            del self.calls[mark:]
            self.tiles.entries = begin
            self._spill()
            self._add(instr)
            self._flush(k)

    def _outcome(self, k: int) -> tuple[dict[int, list[Entry]], Stores, Stores]:
        """What stays symbolic when the region ends before instruction k, the stores to do before it, and those it
        does."""
        keep: dict[int, list[Entry]] = {}
        out, under = list(self.out), []
        for sid, found in self.tiles.entries.items():
            if self.last.get(sid, -1) < k:
                continue
            if found is self.begin.get(sid):
                keep[sid] = found
                continue
            for i, e in enumerate(found):
                if not self._symbolic(e.value):
                    out += self._saved(sid, e)
                elif any(meet(e, f) and not self._symbolic(f.value) for f in found[i + 1 :]):
                    under += self._saved(sid, e)  # what lies under a computed value goes to memory before it
                else:
                    keep.setdefault(sid, []).append(e)
        return keep, under, out

    def _two_steps(self, instr: Instr, k: int) -> None:
        """An instruction that overwrites what its other rows or columns read: into fresh memory, then to its place."""
        self.step(instr)
        keep, under, out = self._outcome(k)
        if any(store.v.op == "scatter" for store, _ in out):
            raise Bail("rows are written at run-time indices where others are read")
        first, second = [], []
        for store, rows in out:
            name = f"arenatemp{len(self.sizes)}"
            size = SIZE[store.dt]
            self.sizes[name] = size * store.F * rows
            cols = normal(((size, store.F),))
            first.append((Store(name, 0, size * store.F, cols, store.F, store.dt, store.v), rows))
            copy = self.g.load(name, 0, size * store.F, cols, store.dt)
            second.append((Store(store.sid, store.off, store.rs, store.cols, store.F, store.dt, copy), rows))
        self._emit(first)
        for part in under + second:
            self._emit([part])
        self.tiles.entries = keep
        self._reset()

    def _saved(self, sid: int, e: Entry) -> list[tuple[Store, int]]:
        """Stores of a tile entry to the arena."""
        part = 4 if sid < 0 else self.program.storages[sid].partition_bytes
        F = width(e.cols)
        a = Access(sid, True, e.p0 * part + e.b0, e.p1 - e.p0, F, part, e.cols, e.dt)
        return self._stores(arena(sid), a, e.value)

    def _symbolic(self, v: V) -> bool:
        """Whether a value costs nothing to have again: a constant, or a load from memory that never changes."""
        if v.op == "bcast":
            return self._symbolic(v.args[0])
        return v.op == "const" or (v.op == "load" and v.at[0] in self.fixed)

    # ---- memory
    def read_hbm(self, a: Access) -> V:
        if a.sid in self.fixed:
            return self.g.load(a.sid, a.off, a.rs or 0, a.cols, a.dt)
        return super().read_hbm(a)

    def row_index(self, a: Access) -> V:
        if a.sid not in self.fixed:
            raise Bail("a tensor that the kernel writes is read at run-time indices")
        return super().row_index(a)

    def read_across(self, t: NkiTensor, rows: int) -> V:
        if self.tiles.entries.get(t.storage.id) or self.window is not None:
            raise Bail("a tile that is not in memory yet is copied across partitions")
        a = self.access(t)
        spaced = split(normal(((a.rs or 0, a.P), *a.cols)), rows)
        if spaced is None:
            raise Bail("a tile is copied across partitions irregularly")
        return self.g.load(arena(a.sid), a.off, spaced[0], spaced[1], a.dt)

    def write_rows(self, a: Access, v: V, skip: bool) -> None:
        index, part = self.index_of(a), a.dynamic[0]
        v = self.g.to(v, a.dt)
        if v.op == "mosaic" or tops([v, index]) or any(map(is_loop, nodes([index]))):
            raise Bail("rows at run-time indices from something that is not in memory yet")
        row = self.g.make("scatter", (v, index), (part.byte_stride, part.size, skip), a.F, v.kind)
        store = Store(a.sid, a.off, 0, a.cols, a.F, a.dt, row)
        written = self.written.setdefault(a.sid, Written())
        if written.touches(whole(store, a.P)):
            raise Bail("overlapping stores")
        written.add(whole(store, a.P), row)
        self.out.append((store, a.P))

    def write_hbm(self, a: Access, v: V) -> None:
        if a.dynamic:
            raise Bail("HBM is written at run-time indices")
        written = self.written.setdefault(a.sid, Written())
        if written.touches(a):
            raise Bail("overlapping stores")
        stores = self._stores(a.sid, a, v)
        written.add(a, v)
        self.out += stores

    def _stores(self, sid: Any, a: Access, v: V) -> list[tuple[Store, int]]:
        """The stores of a value, with their number of rows."""
        if v.op == "T":
            if len(a.cols) > 1:
                raise Bail("a transposed value is stored to a multi-dimensional view")
            step = a.cols[0][0] if a.cols else a.size
            turned = Access(a.sid, a.chip, a.off, a.F, a.P, step, normal(((a.rs or 0, a.P),)), a.dt)
            return self._stores(sid, turned, v.args[0])
        out = []
        for part, start, pattern in pieces(v, a.F):
            where = compose(a.cols, start, pattern)
            if where is None:
                raise Bail("part of a multi-dimensional store")
            F = a.F if v is part else width(pattern)
            out.append((Store(sid, a.off + where[0], a.rs or 0, where[1], F, a.dt, stored(part, a.dt)), a.P))
        return out

    # ---- calls
    def _emit(self, out: list[tuple[Store, int]]) -> None:
        """One call for the stores of each number of rows. Raises Bail, before anything is emitted, where they depend
        on each other."""
        if not out:
            return
        by_rows: dict[tuple[int, int], list[Store]] = {}
        for n, (store, rows) in enumerate(out):
            alone = n + 1 if store.v.op == "scatter" else 0
            by_rows.setdefault((rows, alone), []).append(store)
        groups = []
        for (rows, _), stores in by_rows.items():
            feasible(stores)
            q = Group(stores, ((0, rows),))
            if len(q.leaves) > MOST_LEAVES and len(stores) > 1:
                raise Bail("a region with too many operands")
            groups.append(q)
        reads = [(q, a) for q in groups for a in loads(q)]
        writes = [(q, whole(st, q.rows[0][1])) for q in groups for st in q.stores]
        for q, r in reads:
            for h, w in writes:
                if r.sid == w.sid and overlap(r, w):
                    same = q is h and (r.off, r.rs, r.cols, r.dt) == (w.off, w.rs, w.cols, w.dt)
                    if not same or any(v.op == "dot" for v in nodes(s.v for s in q.stores)):
                        raise Bail("a region overwrites what it reads")
        for i, (_, w) in enumerate(writes):
            if any(x.sid == w.sid and overlap(x, w) for _, x in writes[:i]):
                raise Bail("a region writes a place twice")
        for q in groups:
            self.calls.append(Call(q))


def meet(e: Entry, f: Entry) -> bool:
    return e.p0 < f.p1 and f.p0 < e.p1 and e.b0 < f.b1 and f.b0 < e.b1


def whole(st: Store, rows: int) -> Access:
    """All that a store may write."""
    if st.v.op == "scatter":
        step, limit, _ = st.v.at
        return Access(st.sid, False, st.off, limit, st.F, step, st.cols, st.dt)
    return Access(st.sid, False, st.off, rows, st.F, st.rs, st.cols, st.dt)


def loads(q: Group) -> list[Access]:
    """What the rows of a group read from memory. The right operand of a matmul counts all its rows."""
    rows = q.rows[0][1]
    out = []
    deep: dict[int, int] = {}
    for v in reversed(nodes(st.v for st in q.stores)):
        count = deep.get(v.id, rows)
        for i, a in enumerate(v.args):
            deep[a.id] = max(deep.get(a.id, 0), v.at[0] if v.op == "dot" and i == 1 else count)
        if v.op == "load":
            cols: Pattern = v.at[3]
            out.append(Access(v.at[0], False, v.at[1], max(count, 1), v.F or 1, v.at[2], cols, v.at[4]))
    return out
