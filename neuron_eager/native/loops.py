"""Code for one job of a row: a loop nest over its columns, whole vectors and a masked rest."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from .irtypes import I32, I64, Value, const
from .lanes import CELL
from .patterns import Pattern, normal, steps
from .phases import Job
from .streams import STREAMS, picked
from .values import SIZE, Bail, V

if TYPE_CHECKING:
    from .rows import Rows, RowState


class Loop:
    """The loop nest of one job."""

    def __init__(
        self,
        build: Rows,
        job: Job,
        number: int,
        state: RowState,
        mine: list[V],
        counts: tuple[int, ...],
        length: Value | None = None,
    ) -> None:
        self.length = length  # of the innermost loop, where it is known only at run time
        self.s, self.job, self.number, self.state, self.mine, self.counts = build, job, number, state, mine, counts
        s = build
        self.fixed: dict[int, Value] = {}  # row scalars, splat; affine starts
        self.bases: dict[int, Value] = {}
        self.places: dict[int, tuple[list[int], str]] = {}
        for n in mine:
            self._prepare(n)
        for n in mine:
            for a in n.args:
                if a.F in (None, 1) and a.op != "const" and a.id not in self.fixed and n.id not in state.have:
                    self.fixed[a.id] = s.splat(state.scalar(a))
        for r in job.roots():
            if r.F in (None, 1) and r.op != "const" and r.id not in self.fixed:
                self.fixed[r.id] = s.splat(state.scalar(r))
        self.buffers = {
            v.id: s.reserve(SIZE[CELL[v.kind]] * (v.F or 1))
            for v in [*self._kept(), *job.sequential, *[r for r in job.reds if r.F != 1]]
        }
        self.targets = []
        for st in job.stores:
            p = s.pointer(st.sid, st.off, st.rs, state.row, state.brow)
            if s.c0 is not None and not isinstance(st.sid, tuple):
                p = s.at(p, (s.c0, _single(st.cols)))
            self.targets.append((st, p, steps(st.cols, counts)))

    def _kept(self) -> list[V]:
        return [n for n in self.mine if self.state.todo.kept.get(n.id) == self.number]

    def _prepare(self, n: V) -> None:
        """Row pointers, and where the columns of a value in memory are."""
        s, state, counts = self.s, self.state, self.counts
        if n.F in (None, 1) and n.op != "pick":
            return
        if n.id in state.have:
            block = state.have[n.id]
            self.bases[n.id] = s.at(s.scratch, block.off, *([(state.brow, block.ld)] if block.ld else []))
            self.places[n.id] = steps(normal(((SIZE[block.dt], n.F or 1),)), counts), block.dt
        elif n.id in state.buffers:
            cell = CELL[n.kind]
            self.bases[n.id] = s.at(s.scratch, state.buffers[n.id])
            self.places[n.id] = steps(normal(((SIZE[cell], n.F or 1),)), counts), cell
        elif n.op == "load":
            p = s.pointer(n.at[0], n.at[1], n.at[2], state.row, state.brow)
            self.bases[n.id] = (
                s.at(p, (s.c0, _single(n.at[3]))) if s.c0 is not None and not isinstance(n.at[0], tuple) else p
            )
            self.places[n.id] = steps(n.at[3], counts), n.at[4]
        elif n.op == "gather":
            self.bases[n.id] = state.gathered(n)
            self.places[n.id] = steps(n.at[4], counts), n.at[5]
        elif n.op == "pick" and n.F != 1:
            cell = CELL[n.kind]
            size = SIZE[cell]
            self.bases[n.id] = s.at(s.scratch, state.buffers[n.args[0].id] + n.at[0] * size)
            self.places[n.id] = steps(tuple((step * size, c) for step, c in n.at[1]), counts), cell
        elif n.op == "affine":
            v = s.number(n.at[0])
            if n.at[1]:
                v = s.b.add(v, s.mul(state.row, n.at[1]))
            if s.c0 is not None:
                v = s.b.add(v, s.mul(s.c0, _single(n.at[2])))
            self.bases[n.id] = s.b.trunc(v, I32)
            self.places[n.id] = steps(n.at[2], counts), "int32"

    # ---- running
    def run(self) -> None:
        s, job = self.s, self.job
        if job.F > 1:
            self._nest(0, [], [], self._multi)
            done: list[Value] = []
        elif job.sequential:
            self.streams = [STREAMS[v.op](self, v) for v in job.sequential]
            starts = [stream.start() for stream in self.streams]
            self.sizes = [len(start) for start in starts]
            done = self._nest(0, [], [v for start in starts for v in start], self._inner)
            for stream, carry in zip(self.streams, self.parts(done)):
                stream.finish(carry)
        else:
            start = [s.identity_of(v.at[0], v.kind) for v in job.reds] * self._unroll()
            done = self._nest(0, [], start, self._inner)
            self._finish(done)
        for v, off in self.buffers.items():
            self.state.buffers[v] = off

    def parts(self, carries: list[Value]) -> list[list[Value]]:
        """The carry of each stream."""
        out, at = [], 0
        for size in self.sizes:
            out.append(carries[at : at + size])
            at += size
        return out

    def _finish(self, accumulators: list[Value]) -> None:
        s, reds = self.s, self.job.reds
        n = len(reds)
        for k, v in enumerate(reds):
            total = accumulators[k]
            for extra in accumulators[k + n :: n]:
                total = s.combine(v.at[0], v.kind, total, extra)
            self.state.known[v.id] = s.fold(v.at[0], v.kind, total)

    def _nest(
        self,
        level: int,
        index: list[Value],
        accs: list[Value],
        inner: Callable[[list[Value], list[Value]], list[Value]],
    ) -> list[Value]:
        stop = len(self.counts) - 1 if self.job.F <= 1 else self._outer_levels()
        if level >= stop:
            return inner(index, accs)
        return self.s.loop(0, self.counts[level], 1, lambda i, a: self._nest(level + 1, [*index, i], a, inner), accs)

    def _outer_levels(self) -> int:
        """How many of the outer loops count the results of a reduction with several."""
        size, level = self.job.F, 0
        while size > 1:
            size //= self.counts[level]
            level += 1
        return level

    def _multi(self, index: list[Value], accs: list[Value]) -> list[Value]:
        """One result of each reduction that has several per row."""
        s, reds, levels = self.s, self.job.reds, self._outer_levels()
        start = [s.identity_of(v.at[0], v.kind) for v in reds] * self._unroll()

        def down(level: int, index: list[Value], accs: list[Value]) -> list[Value]:
            if level == len(self.counts) - 1:
                return self._inner(index, accs)
            return s.loop(0, self.counts[level], 1, lambda i, a: down(level + 1, [*index, i], a), accs)

        if levels == len(self.counts):  # runs of one element
            index, last = index[:-1], index[-1]
            done = self._step(index, last, 1, start[: len(reds)])
        else:
            done = down(levels, index, start)
        self._finish(done)
        place = const(I64, 0)
        for i, c in zip(index if levels < len(self.counts) else [*index, last], self.counts):
            place = s.b.add(s.mul(place, c), i)
        for v in reds:
            cell = CELL[v.kind]
            s.put(self.state.known.pop(v.id), v.kind, s.at(s.scratch, self.buffers[v.id], (place, SIZE[cell])), cell)
        return []

    def _unroll(self) -> int:
        s, job = self.s, self.job
        if job.sequential or not (job.reds or s.target.lanes > s.W):
            return 1
        U = 4 if job.reds else 2
        while U > 1 and self.counts[-1] < s.W * U:
            U //= 2
        return U

    def _inner(self, index: list[Value], accs: list[Value]) -> list[Value]:
        """The innermost loop: whole vectors, then a masked rest."""
        if self.length is not None:
            return self._open(self.length)
        s, count, W, U = self.s, self.counts[-1], self.s.W, self._unroll()
        n = len(accs) // U if not self.job.sequential else len(accs)
        whole, main = count // W * W, count // (W * U) * (W * U)

        def turn(i: Value, a: list[Value]) -> list[Value]:
            out: list[Value] = []
            for k in range(U):
                out += self._step(index, s.b.add(i, const(I64, k * W)) if k else i, None, a[k * n : (k + 1) * n])
            return out

        accs = s.loop(0, main, W * U, turn, accs)
        head, tail = list(accs[:n]), list(accs[n:])
        head = s.loop(main, whole, W, lambda i, a: self._step(index, i, None, a), head)
        if count > whole:
            head = self._step(index, const(I64, whole), count - whole, head)
        return head + tail

    def _open(self, length: Value) -> list[Value]:
        """The innermost loop over a number of columns known only at run time; nothing is reduced."""
        s, W, U = self.s, self.s.W, self._unroll()
        whole, main = (s.b.and_(length, const(I64, -n)) for n in (W, W * U))

        def turn(i: Value, _: object) -> None:
            for k in range(U):
                self._step([], s.b.add(i, const(I64, k * W)) if k else i, None, [])

        s.loop(const(I64, 0), main, W * U, turn)
        s.loop(main, whole, W, lambda i, _: self._step([], i, None, []))
        rest = s.b.icmp_signed("<", whole, length)
        s.when(rest, lambda: Step(self, [], whole, None, s.below(whole, length)).run([]))
        return []

    def _step(self, index: list[Value], i: Value, count: int | None, accs: list[Value]) -> list[Value]:
        """W columns (or the first `count` lanes of them): compute, reduce, store."""
        return Step(self, index, i, count).run(list(accs))


class Step:
    """One vector of columns."""

    def __init__(self, loop: Loop, index: list[Value], i: Value, count: int | None, mask: Value | None = None) -> None:
        self.loop, self.s, self.index, self.i, self.count = loop, loop.s, index, i, count
        self.mask = mask if count is None else loop.s.lanes(count)
        self.values: dict[int, Value] = {}

    def address(self, base: Value, step: list[int]) -> Value:
        return self.s.at(base, *[(x, st) for x, st in zip([*self.index, self.i], step) if st])

    def get(self, n: V) -> Value:
        v = self.values.get(n.id)
        if v is None:
            v = self.values[n.id] = self._get(n)
        return v

    def _get(self, n: V) -> Value:
        s, loop = self.s, self.loop
        if n.op == "const":
            return s.constant(n, s.W)
        if n.F in (None, 1):
            return loop.fixed[n.id] if n.id in loop.fixed else s.splat(loop.state.scalar(n))
        place = loop.places.get(n.id)
        if place is not None and n.op != "affine":
            step, dt = place
            return s.fetch(self.address(loop.bases[n.id], step), dt, self.mask, s.W, step[-1])
        if place is not None:
            step, _ = place
            first = loop.bases[n.id]
            for x, st in zip([*self.index, self.i], step):
                if st:
                    first = s.b.add(first, s.b.trunc(s.mul(x, st), I32))
            return s.numbers(first, step[-1])
        v = picked(self, n) if n.op == "ngather" else s.compute(n, self.get)
        if n.id in loop.buffers:
            self.keep(n, v)
        return v

    def keep(self, n: V, v: Value) -> None:
        """Put a vector of a value into its row buffer."""
        cell = CELL[n.kind]
        p = self.address(
            self.s.at(self.s.scratch, self.loop.buffers[n.id]),
            steps(normal(((SIZE[cell], n.F or 1),)), self.loop.counts),
        )
        self.s.put(v, n.kind, p, cell, self.mask)

    def run(self, accs: list[Value]) -> list[Value]:
        s, job = self.s, self.loop.job
        for k, n in enumerate(job.reds):
            v = self.get(n.args[0])
            neutral = s.identity_of(n.at[0], n.kind)
            if self.mask is not None:
                v = s.b.select(self.mask, v, neutral)
            accs[k] = s.combine(n.at[0], n.kind, accs[k], v)
        if job.sequential:
            carries = self.loop.parts(accs)
            accs = [v for stream, c in zip(self.loop.streams, carries) for v in stream.advance(self, c)]
        for st, p, step in self.loop.targets:
            v = self.get(st.v)
            if v.type.count != s.W:
                v = s.splat(v)
            s.put(v, st.v.kind, self.address(p, step), st.dt, self.mask, step[-1])
        return accs


def _single(cols: Pattern) -> int:
    """The step of a one-dimensional pattern: column chunks exist only for those."""
    if len(cols) > 1:
        raise Bail("column chunks of a multi-dimensional pattern")
    return cols[0][0] if cols else 0
