"""Matrix multiplication with few rows (at most ROWS): B is read once, as it lies, and nothing is packed.

    gv_<type of A>_<type of B>_<layout of B>( the arguments of mm_, see matmul )

Such products are bound by reading B, so the order of its memory decides: columns contiguous (n) adds multiples of
several rows of B to C, which stays in the cache; k contiguous (t) takes dot products of several columns at once. A is
first widened to float32 in scratch.
"""
from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from llvmlite import ir

from .build import Build, function, new_module
from .irtypes import F32, I64, PTR, Value, const, element, k64
from .target import Target

ROWS = 4
COLUMNS = 4            # dot products at a time
STREAMS = {1: 8, 2: 8, 3: 4, 4: 4}      # rows of B added at a time, by rows of A


def scratch_bytes(k: int) -> int:
    return 4 * ROWS * (k + 16)


def module(name: str, target: Target) -> ir.Module:
    """The object of one gv_ function."""
    m = new_module(name, target)
    f = function(m, name, PTR, I64, I64, PTR, I64, I64, PTR, I64, PTR, I64, I64, I64, I64)
    body, layout = name[3:].rsplit("_", 1)
    parts = body.split("_")
    cut = 2 if parts[0] == "float8" else 1
    _FewRows(f, target, "_".join(parts[:cut]), "_".join(parts[cut:])).emit(layout)
    return m


class _FewRows(Build):
    def __init__(self, f: ir.Function, target: Target, left: str, right: str) -> None:
        super().__init__(f, target)
        self.left, self.right = left, right
        (self.A, self.a_row, self.a_col, self.B, self.b_row, self.b_col, self.C, self.c_row, self.scratch, self.M,
         self.N, self.K, self.accumulate) = f.args
        self.V = ir.VectorType(F32, self.W)
        self.pitch = self.mul(self.b.and_(self.b.add(self.K, k64(15)), k64(-16)), 4)     # bytes of a row of widened A

    def emit(self, layout: str) -> None:
        b = self.b
        self._widen()
        if layout != "t":
            fresh = b.icmp_signed("==", self.accumulate, k64(0))
            self.when(fresh, lambda: self._clear())
        for rows in range(1, ROWS + 1):
            body = {"n": self._sums, "t": self._dots, "x": self._scalars}[layout]
            self.when(b.icmp_signed("==", self.M, k64(rows)), partial(body, rows))
        b.ret_void()

    def _widen(self) -> None:
        b, size = self.b, element(self.left).size

        def row(i: Value, _: Sequence[Value]) -> None:
            source, to = self.at(self.A, b.mul(i, self.a_row)), self.at(self.scratch, b.mul(i, self.pitch))
            whole = b.select(b.icmp_signed("==", self.a_col, k64(size)), b.and_(self.K, k64(-self.W)), k64(0))
            self.loop(0, whole, self.W, lambda p, _: self.vstore(
                self.vload(self.at(source, (p, size)), self.left), self.at(to, (p, 4)), "float32"))
            self.loop(whole, self.K, 1, lambda p, _: self.vstore(
                self.sload(self.at(source, b.mul(p, self.a_col)), self.left), self.at(to, (p, 4)), "float32"))

        self.loop(0, self.M, 1, row)

    def _clear(self) -> None:
        def row(i: Value, _: Sequence[Value]) -> None:
            to = self.at(self.C, self.b.mul(i, self.c_row))
            self._columns(self.N, lambda j, mask: self.vstore(const(self.V, 0), self.at(to, (j, 4)), "float32", mask))
        self.loop(0, self.M, 1, row)

    def _columns(self, n: Value, body: Callable[[Value, Value | None], None]) -> None:
        whole = self.b.and_(n, k64(-self.W))
        self.loop(0, whole, self.W, lambda j, _: body(j, None))
        self.when(self.b.icmp_signed("<", whole, n), lambda: body(whole, self.below(whole, n)))

    def _a(self, i: int, p: Value) -> Value:
        return self.at(self.scratch, *([(self.pitch, i)] if i else []), (p, 4))

    def _sums(self, rows: int) -> None:
        """C[i] += sum of A[i, p] B[p] over `count` values of p at a time."""
        b, size = self.b, element(self.right).size

        def some(start: Value, count: int) -> None:
            sources = [self.at(self.B, b.mul(b.add(start, k64(q)), self.b_row)) for q in range(count)]
            weights = [[self._a(i, b.add(start, k64(q))) for q in range(count)] for i in range(rows)]
            targets = [self.at(self.C, (self.c_row, i)) if i else self.C for i in range(rows)]

            def columns(j: Value, mask: Value | None) -> None:
                xs = [self.vload(self.at(s, (j, size)), self.right, mask) for s in sources]
                for i in range(rows):
                    to = self.at(targets[i], (j, 4))
                    total = self.vload(to, "float32", mask)
                    for q, x in enumerate(xs):
                        total = self.m.fma(self.splat(b.load(weights[i][q], typ=F32, align=4)), x, total)
                    self.vstore(total, to, "float32", mask)

            self._columns(self.N, columns)

        streams = STREAMS[rows]
        whole = b.mul(b.udiv(self.K, k64(streams)), k64(streams))
        self.loop(0, whole, streams, lambda p, _: some(p, streams))
        self.loop(whole, self.K, 1, lambda p, _: some(p, 1))

    def _dots(self, rows: int) -> None:
        """C[i, j] = sum over p of A[i, p] B[p, j], some columns j at a time."""
        b, size = self.b, element(self.right).size
        unroll = 2 if rows == 1 else 1

        def some(j: Value, count: int) -> None:
            sources = [self.at(self.B, b.mul(b.add(j, k64(q)), self.b_col)) for q in range(count)]
            cells = rows * count

            def piece(p: Value, mask: Value | None, sums: Sequence[Value]) -> list[Value]:
                xs = [self.vload(self.at(s, (p, size)), self.right, mask) for s in sources]
                out = []
                for i in range(rows):
                    a = self.vload(self._a(i, p), "float32", mask)
                    out += [self.m.fma(a, x, s) for x, s in zip(xs, sums[i * count:(i + 1) * count])]
                return out

            def turn(p: Value, sums: Sequence[Value]) -> list[Value]:
                out = []
                for u in range(unroll):
                    out += piece(b.add(p, k64(u * self.W)), None, sums[u * cells:(u + 1) * cells])
                return out

            step = unroll * self.W
            whole = b.and_(self.K, k64(-step))
            sums = self.loop(0, whole, step, turn, [const(self.V, 0)] * (cells * unroll))
            if unroll == 2:
                sums = [self.m.add(x, y) for x, y in zip(sums[:cells], sums[cells:])]
                more = b.and_(self.K, k64(-self.W))
                sums = self.loop(whole, more, self.W, lambda p, s: piece(p, None, s), sums)
                whole = more
            sums = self.when(b.icmp_signed("<", whole, self.K),
                             lambda: piece(whole, self.below(whole, self.K), sums), sums)
            for i in range(rows):
                for q in range(count):
                    self._add_to(i, b.add(j, k64(q)), self.reduce("add", sums[i * count + q]))

        whole = b.and_(self.N, k64(-COLUMNS))
        self.loop(0, whole, COLUMNS, lambda j, _: some(j, COLUMNS))
        self.loop(whole, self.N, 1, lambda j, _: some(j, 1))

    def _add_to(self, i: int, j: Value, total: Value) -> None:
        to = self.at(self.C, *([(self.c_row, i)] if i else []), (j, 4))
        keep = self.b.icmp_signed("!=", self.accumulate, k64(0))
        before, = self.when(keep, lambda: [self.sload(to, "float32")], [const(F32, 0)])
        self.vstore(self.m.add(before, total), to, "float32")

    def _scalars(self, rows: int) -> None:
        """B strided in both directions: element by element."""
        b = self.b

        def column(j: Value, _: Sequence[Value]) -> None:
            source = self.at(self.B, b.mul(j, self.b_col))

            def turn(p: Value, sums: Sequence[Value]) -> list[Value]:
                x = self.sload(self.at(source, b.mul(p, self.b_row)), self.right)
                return [self.m.fma(self.sload(self._a(i, p), "float32"), x, s) for i, s in enumerate(sums)]

            for i, total in enumerate(self.loop(0, self.K, 1, turn, [const(F32, 0)] * rows)):
                self._add_to(i, j, total)

        self.loop(0, self.N, 1, column)
