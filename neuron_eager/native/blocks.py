"""Code for blocks of rows: matmuls and transposed loads are computed into scratch memory, and then read like any
load."""

from __future__ import annotations

from llvmlite import ir

from . import matmul, transpose
from .build import function, new_module
from .feasible import tops
from .groups import COLUMN_ROWS, Group, flat, transposed
from .irtypes import I64, PTR, Value, const
from .lanes import CELL
from .lift import Store, pieces, stored
from .matmul import Matrix
from .patterns import normal, width
from .phases import Plan
from .rows import Block, Rows, RowState
from .target import Target
from .values import SIZE, V, nodes

ROWS, COLUMNS = 128, 512  # of a block that is computed at a time
DIRECT_ROWS = 512  # of a matmul that writes its destination itself
BLOCK_BYTES = 1 << 18
SUM_AT_ONCE = 4  # rows added in registers before they go to a sum in memory
SUM_ROWS = 128  # rows added up before they go to the total: keeps the rounding of long sums small


def build(g: object, group: Group, target: Target) -> ir.Module:
    """The module of a group: function `k`, and `meta`, the bytes of scratch memory it needs."""
    module = new_module("k", target)
    fn = function(module, "k", I64, I64, PTR, PTR)
    b = Blocks(fn, target, g, group.stores, group.leaves)  # type: ignore[arg-type]
    b.emit(group)
    b.b.ret_void()
    meta = ir.GlobalVariable(module, I64, "meta")
    meta.initializer = const(I64, b.size)
    meta.global_constant = True
    return module


class Blocks(Rows):
    """A group with matmuls or transposed loads; others are plain rows."""

    block_rows = ROWS

    def emit(self, group: Group) -> None:
        first, last = self.fn.args[:2]
        stores = group.stores
        if group.flat:
            self.stretch(stores, first, last)
        elif stores[0].v.op == "scatter":
            self._scatter(stores[0], first, last)
        elif not tops([st.v for st in stores]):
            self.loop(first, last, 1, lambda r, _: self.row(stores, {}, r, None))
        elif group.columns:
            rows = self.leaf["int", group.rows[0][1]]
            self._columns(stores, group.columns, first, last, rows)
        elif not self._direct(stores, first, last):
            self._blocks(stores, first, last)

    def _scatter(self, st: Store, first: Value, last: Value) -> None:
        """Rows at run-time indices, in order. An index outside is passed over, and a fault unless it may be skipped."""
        value, index = st.v.args
        step, limit, skip = st.v.at
        value = stored(value, st.dt)

        def turn(r: Value, _: object) -> None:
            chosen = RowState(self, {}, r, None, Plan([], {}, [])).scalar(index)

            def put() -> None:
                base = self.pointer(st.sid, st.off, 0, None, None)
                self.leaf["chosen row", 0] = self.at(base, (chosen, step))
                self.row([Store("chosen row", 0, 0, st.cols, st.F, st.dt, value)], {}, r, None)

            inside = self.b.icmp_unsigned("<", chosen, const(I64, limit))
            self.when(inside, put, () if skip else lambda: self.fault(chosen))

        self.loop(first, last, 1, turn)

    # ---- shapes of the iteration
    def _columns(self, stores: list[Store], chunk: int, first: Value, last: Value, rows: Value) -> None:
        """Few rows: the range counts chunks of columns."""
        if _plain_product(stores):
            st = stores[0]
            self.c0 = self.mul(first, chunk)
            where = self.at(self.pointer(st.sid, st.off, 0, None, None), (self.c0, SIZE[st.dt]))
            self._product(
                st.v, where, st.rs, const(I64, 0), rows, self.mul(self.b.sub(last, first), chunk), COLUMN_ROWS
            )
            self.c0 = None
            return
        self.block_rows = COLUMN_ROWS
        part = self._cut(stores, chunk)

        def turn(q: Value, _: object) -> None:
            self.c0 = self.mul(q, chunk)
            self._block(part, const(I64, 0), rows)
            self.c0 = None

        self.loop(first, last, 1, turn)

    def _direct(self, stores: list[Store], first: Value, last: Value) -> bool:
        """A matmul or transpose that is stored as it is goes straight to its destination."""
        st = stores[0]
        if _plain_product(stores):

            def rows(r: Value, _: object) -> None:
                n = self.minimum(self.b.sub(last, r), DIRECT_ROWS)
                self._product(st.v, self.pointer(st.sid, st.off, st.rs, r, None), st.rs, r, n, st.F, DIRECT_ROWS)

            self.loop(first, last, DIRECT_ROWS, rows)
            return True
        if len(stores) == 1 and transposed(st.v) and st.v.at[4] == st.dt and st.cols == ((SIZE[st.dt], st.F),):
            sid, off, rs, cols, dt = st.v.at
            transpose.emit(
                self,
                self.pointer(sid, off, rs, first, None),
                cols[0][0],
                self.pointer(st.sid, st.off, st.rs, first, None),
                st.rs,
                self.b.sub(last, first),
                st.F,
                dt,
            )
            return True
        return False

    def _blocks(self, stores: list[Store], first: Value, last: Value) -> None:
        wide = max(st.F for st in stores)
        roots = [st.v for st in stores]
        chunked = (
            wide > COLUMNS + 1 and flat(stores, []) and not any(transposed(v) and wide != v.F for v in nodes(roots))
        )
        main = (wide - 2) // COLUMNS * COLUMNS  # never a last chunk of one column
        widest = max(v.F or 1 for v in tops(roots))
        self.block_rows = ROWS if chunked else max(16, min(ROWS, BLOCK_BYTES // (4 * max(16, widest)) // 16 * 16))

        def rows(r: Value, _: object) -> None:
            n = self.minimum(self.b.sub(last, r), self.block_rows)
            if not chunked:
                self._block(stores, r, n)
                return
            mark = self.size

            def chunk(width: int, c: Value) -> None:
                self.c0 = c
                self._block(self._cut(stores, width), r, n)
                self.c0 = None

            self.loop(0, main, COLUMNS, lambda c, _: chunk(COLUMNS, c))
            used, self.size = self.size, mark
            chunk(wide - main, const(I64, main))
            self.size = max(used, self.size)

        self.loop(first, last, self.block_rows, rows)

    def _cut(self, stores: list[Store], width: int) -> list[Store]:
        """The first columns of the stores; c0 moves them."""
        sel = (0, normal(((1, width),)))
        return [
            Store(st.sid, st.off, st.rs, normal(((st.cols[0][0], width),)), width, st.dt, self.g.take(st.v, 0, sel))
            for st in stores
        ]

    # ---- one block
    def _block(self, stores: list[Store], r: Value, n: Value) -> None:
        """Rows r .. r + n: block values into scratch, then row by row."""
        have: dict[int, Block] = {}
        left: dict[int, V] = {}
        for v in tops([st.v for st in stores]):
            self._run(v, have, left, r, n)
        self.loop(0, n, 1, lambda q, _: self.row(stores, have, self.b.add(r, q), q))

    def _run(self, v: V, have: dict[int, Block], left: dict[int, V], r: Value, n: Value) -> None:
        if v.id in have:
            return
        F = v.F or 1
        if v.op == "load":
            size = SIZE[v.at[4]]
            ld = (F * size + 63) // 64 * 64
            off = self.reserve(ld * self.block_rows)
            sid, at, rs, cols, dt = v.at
            source = self.at(self.pointer(sid, at, rs, r, None), *self._shifted(cols[0][0]))
            transpose.emit(self, source, cols[0][0], self.at(self.scratch, off), ld, n, F, dt)
            have[v.id] = Block(off, ld, dt)
        elif v.args[0].op == "const":
            have[v.id] = self._sum_of_rows(v)
        else:
            ld = (4 * F + 63) // 64 * 64
            off = self.reserve(ld * self.block_rows)
            self._product(v, self.at(self.scratch, off), ld, r, n, F, self.block_rows, have, left)
            have[v.id] = Block(off, ld, "float32")

    def _shifted(self, step: int) -> list[tuple[Value, int]]:
        return [] if self.c0 is None else [(self.c0, step)]

    def _product(
        self,
        v: V,
        c: Value,
        ld: int,
        r: Value,
        n: Value,
        F: int | Value,
        most: int,
        have: dict[int, Block] | None = None,
        left: dict[int, V] | None = None,
    ) -> None:
        """c[n rows, F] = rows r .. r + n of a dot node."""
        A, B = v.args
        K = v.at[0]
        base: Value
        if A.op != "load" or len(A.at[3]) > 1:
            assert have is not None and left is not None
            A = self._materialised(A, K, have, left, r, n)
            base = self.at(self.scratch, A.at[0][1])
        else:
            base = self.pointer(A.at[0], A.at[1], A.at[2], r, None)
        a = Matrix(base, A.at[2], A.at[3][0][0] if A.at[3] else SIZE[A.at[4]], A.at[4])
        step = B.at[3][0][0] if B.at[3] else SIZE[B.at[4]]
        right = self.at(self.pointer(B.at[0], B.at[1], 0, None, None), *self._shifted(step))
        scratch = self.reserve(matmul.scratch_bytes(self.target, a.dtype, B.at[4], most, K))
        matmul.emit(self, a, Matrix(right, B.at[2], step, B.at[4]), c, ld, self.at(self.scratch, scratch), n, F, K)

    def _materialised(self, A: V, K: int, have: dict[int, Block], left: dict[int, V], r: Value, n: Value) -> V:
        """A computed left operand as rows in scratch; its columns are all needed, whatever chunk is being computed."""
        if A.id not in left:
            c0, self.c0 = self.c0, None
            for x in tops([A]):
                self._run(x, have, left, r, n)
            dt, value = (A.at[0], A.args[0]) if A.op == "to" else ("float32", A)
            row = K * SIZE[dt]
            area = ("scratch", self.reserve(row * self.block_rows))
            stores = []
            for part, start, pattern in pieces(value, K):
                cols = normal(tuple((s * SIZE[dt], c) for s, c in pattern))
                stores.append(Store(area, start * SIZE[dt], row, cols, width(pattern), dt, part))
            left[A.id] = self.g.load(area, 0, row, normal(((SIZE[dt], K),)), dt)
            self.loop(0, n, 1, lambda q, _: self.row(stores, have, self.b.add(r, q), q))
            self.c0 = c0
        return left[A.id]

    def _sum_of_rows(self, v: V) -> Block:
        """A constant times the sum of the K rows of an elementwise value: one row in scratch."""
        factor, B = v.args
        K, F = v.at[0], v.F or 1
        part, total = (self.reserve(4 * F) for _ in range(2))
        cols = normal(((4, F),))

        def cell(off: int) -> V:
            return self.g.load(("scratch", off), 0, 0, cols, "float32")

        def put(off: int, value: V) -> Store:
            return Store(("scratch", off), 0, 0, cols, F, "float32", value)

        zero = self.g.const(0.0)
        here = const(I64, 0)
        self.row([put(total, zero)], {}, here, here)

        width = F if F > 1 else 1
        several = self._next_rows(B, SUM_AT_ONCE)

        def add(x: V, y: V) -> V:
            return self.g.make("add", (x, y), (), width, "f")

        def some(k: Value, _: object) -> None:
            self.row([put(part, zero)], {}, here, here)
            end = self.minimum(self.b.add(k, const(I64, SUM_ROWS)), K)
            one = [put(part, add(cell(part), B))]
            if len(several) > 1:
                level = several
                while len(level) > 1:
                    level = [add(x, y) for x, y in zip(level[::2], level[1::2])]
                whole = self.b.add(k, self.b.and_(self.b.sub(end, k), const(I64, -SUM_AT_ONCE)))
                more = [put(part, add(cell(part), level[0]))]
                self.loop(k, whole, SUM_AT_ONCE, lambda q, _: self.row(more, {}, q, here))
                k = whole
            self.loop(k, end, 1, lambda q, _: self.row(one, {}, q, here))
            self.row([put(total, add(cell(total), cell(part)))], {}, here, here)

        self.loop(0, K, SUM_ROWS, some)
        if factor.at[0] != "0x1.0000000000000p+0":
            self.row([put(total, self.g.make("multiply", (cell(total), factor), (), width, "f"))], {}, here, here)
        return Block(total, 0, CELL["f"])

    def _next_rows(self, v: V, count: int) -> list[V]:
        """v and the values of the next rows, where their addresses follow from v's; v alone where they do not."""
        moved: dict[tuple[object, int], tuple[tuple[object, int], int]] = {}
        for n in nodes([v]):
            if n.op in ("affine", "gather"):
                return [v]
            if n.op == "load" and n.at[2]:
                for k in range(1, count):
                    moved[n.at[0], n.at[1] + k * n.at[2]] = ((n.at[0], n.at[1]), k * n.at[2])
        if any(place in self.leaf for place in moved):
            return [v]
        for place, (leaf, shift) in moved.items():
            self.leaf[place] = self.at(self.leaf[leaf], shift)
        return [v, *(self.g.take(v, k, None) for k in range(1, count))]


def _plain_product(stores: list[Store]) -> bool:
    """One store of a matmul of two loads, as float32 in contiguous columns."""
    st = stores[0]
    if len(stores) != 1 or st.v.op != "dot" or st.dt != "float32" or st.cols not in (((4, st.F),), ()):
        return False
    A = st.v.args[0]
    return A.op == "load" and len(A.at[3]) < 2
