"""Row functions that see the columns one after the other: scans, the eight largest, searches, and keeping a row.

Each has a carry that goes from vector to vector of its loop, and leaves its result in a row buffer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from llvmlite import ir

from .irtypes import F32, I32, I64, Value, const, vector
from .lanes import CELL
from .values import SIZE, V

if TYPE_CHECKING:
    from .loops import Loop, Step

EIGHT = 8


class Stream:
    """One node in its loop: `start` gives the first carry, `advance` takes one vector, `finish` stores what is left."""

    def __init__(self, loop: Loop, node: V) -> None:
        self.loop, self.s, self.node = loop, loop.s, node

    def start(self) -> list[Value]:
        return []

    def advance(self, step: Step, carry: list[Value]) -> list[Value]:
        raise NotImplementedError

    def finish(self, carry: list[Value]) -> None:
        """Most results are stored on the way."""

    def column(self, step: Step) -> Value:
        """Number of a vector's first column."""
        place: Value = const(I64, 0)
        for i, count in zip([*step.index, step.i], self.loop.counts):
            place = self.s.b.add(self.s.mul(place, count), i)
        return place

    def result(self) -> Value:
        """Address of the row buffer."""
        return self.s.at(self.s.scratch, self.loop.buffers[self.node.id])


class Row(Stream):
    """The value as it is, for whoever needs its columns in another order."""

    def advance(self, step: Step, carry: list[Value]) -> list[Value]:
        step.keep(self.node, step.get(self.node.args[0]))
        return carry


class Scan(Stream):
    """r[c] = y[c] op1 (x[c] op0 r[c - 1]), in float32."""

    def start(self) -> list[Value]:
        return [self.loop.state.scalar(self.node.args[2])]

    def advance(self, step: Step, carry: list[Value]) -> list[Value]:
        s, last = self.s, carry[0]
        x, y = (step.get(a) for a in self.node.args[:2])
        out = const(vector(F32, s.W), 0.0)
        for k in range(step.count or s.W):
            last = s.scan_step(self.node.at, s.extract(x, k), s.extract(y, k), last)
            out = s.b.insert_element(out, last, ir.Constant(I32, k))
        step.keep(self.node, out)
        return [last]


class Largest(Stream):
    """The eight largest columns, in descending order. NaN is passed over."""

    def start(self) -> list[Value]:
        return [const(F32, float("-inf"))] * EIGHT

    def advance(self, step: Step, carry: list[Value]) -> list[Value]:
        s, b = self.s, self.s.b
        x = step.get(self.node.args[0])
        if step.mask is not None:
            x = b.select(step.mask, x, const(x.type, float("-inf")))

        def insert() -> list[Value]:
            best = list(carry)
            for k in range(s.W):
                v = s.extract(x, k)
                for j in range(EIGHT):
                    larger = b.fcmp_ordered(">", v, best[j])
                    best[j], v = b.select(larger, v, best[j]), b.select(larger, best[j], v)
            return best

        return s.when(s.m.any(b.fcmp_ordered(">", x, s.splat(carry[-1]))), insert, carry)

    def finish(self, carry: list[Value]) -> None:
        for j, v in enumerate(carry):
            self.s.put(v, "f", self.s.at(self.result(), 4 * j), "float32")


class Search(Stream):
    """Where each of eight values occurs. Equal values take successive occurrences: value i that of its rank, the number
    of equal values before it (`reverse`: after it)."""

    def prepare(self, reverse: bool) -> None:
        s, b = self.s, self.s.b
        buffer = s.at(s.scratch, self.loop.state.buffers[self.node.args[1].id])
        values = [s.fetch(s.at(buffer, 4 * i), "float32", None, None) for i in range(EIGHT)]
        self.values = const(vector(F32, EIGHT), 0.0)
        self.rank = const(vector(I32, EIGHT), 0)
        for i in range(EIGHT):
            rank: Value = const(I32, 0)
            for j in range(i + 1, EIGHT) if reverse else range(i):
                rank = b.add(rank, b.zext(b.fcmp_ordered("==", values[j], values[i]), I32))
            self.values = b.insert_element(self.values, values[i], ir.Constant(I32, i))
            self.rank = b.insert_element(self.rank, rank, ir.Constant(I32, i))

    def hits(self, x: Value, seen: Value) -> tuple[Value, Value]:
        """(which values take this column, occurrences seen after it)"""
        b = self.s.b
        equal = b.fcmp_ordered("==", self.s.splat(x, EIGHT), self.values)
        taken = b.and_(equal, b.icmp_signed("==", seen, self.rank))
        return taken, b.add(seen, b.zext(equal, seen.type))


class Find(Search):
    """Column numbers of the eight values, int32; `missing` for those that do not occur. at: (reverse, missing)"""

    def start(self) -> list[Value]:
        self.prepare(self.node.at[0])
        return [const(vector(I32, EIGHT), 0), const(vector(I32, EIGHT), self.node.at[1])]

    def advance(self, step: Step, carry: list[Value]) -> list[Value]:
        s, (seen, found) = self.s, carry
        x, first = step.get(self.node.args[0]), s.b.trunc(self.column(step), I32)
        for k in range(step.count or s.W):
            taken, seen = self.hits(s.extract(x, k), seen)
            found = s.b.select(taken, s.splat(s.b.add(first, const(I32, k)), EIGHT), found)
        return [seen, found]

    def finish(self, carry: list[Value]) -> None:
        for j in range(EIGHT):
            self.s.put(self.s.extract(carry[1], j), "i", self.s.at(self.result(), 4 * j), "int32")


class Replace(Search):
    """The columns, with the occurrences of the eight values replaced by a number (the third argument)."""

    def start(self) -> list[Value]:
        self.prepare(True)
        self.number = self.loop.state.scalar(self.node.args[2])
        return [const(vector(I32, EIGHT), 0)]

    def advance(self, step: Step, carry: list[Value]) -> list[Value]:
        s, seen = self.s, carry[0]
        x = step.get(self.node.args[0])
        out = x
        for k in range(step.count or s.W):
            taken, seen = self.hits(s.extract(x, k), seen)
            chosen = s.b.select(s.m.any(taken), self.number, s.extract(x, k))
            out = s.b.insert_element(out, chosen, ir.Constant(I32, k))
        step.keep(self.node, out)
        return [seen]


STREAMS: dict[str, type[Stream]] = {
    "row": Row,
    "scan": Scan,
    "max8": Largest,
    "find8": Find,
    "replace8": Replace,
}


def picked(step: Step, n: V) -> Value:
    """A vector of an `ngather` node: the columns of a kept row that its index chooses; held inside the row."""
    s, (source, index) = step.s, n.args
    cell, last = CELL[n.kind], (source.F or 1) - 1
    place = s.i.minimum(step.get(index), const(vector(I32, s.W), last), signed=False)
    offsets = s.b.mul(s.b.zext(place, vector(I64, s.W)), const(vector(I64, s.W), SIZE[cell]))
    buffer = s.at(s.scratch, step.loop.state.buffers[source.id])
    return s.fetch_at(buffer, offsets, cell, step.mask)
