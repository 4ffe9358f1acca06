"""What on-chip memory holds: for each storage, which values were written where."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from .access import Access, Cut
from .graph import Graph
from .patterns import Pattern, elements, normal, span
from .values import SIZE, Bail, V

MAX_ENTRIES = 256


class Entry(NamedTuple):
    """Partitions p0..p1 hold `value` (row 0 is partition p0) at the bytes `b0 + cols` of the partition; b1 is the
    end."""

    p0: int
    p1: int
    b0: int
    b1: int
    cols: Pattern
    dt: str
    value: V

    @property
    def plain(self) -> bool:
        return not self.cols or (len(self.cols) == 1 and self.cols[0][0] == SIZE[self.dt])


class Tiles:
    """Values by place. Later writes hide earlier ones, so loops, reuse and in-place updates need no special care."""

    def __init__(self, g: Graph) -> None:
        self.g = g
        self.entries: dict[int, list[Entry]] = {}
        self.log: list[tuple[int, list[Entry] | None]] = []  # what was there before each write, for `undo`

    def read(self, a: Access) -> V:
        """The value under a view. Raises Cut where its rows come from different writes, Bail where it has no form."""
        assert a.rs is not None
        p0, b0 = divmod(a.off, a.rs)
        p1, size = p0 + a.P, a.size
        low, high = span(a.cols)
        lo, hi = b0 + low, b0 + high + size
        found = [e for e in self.entries.get(a.sid, ()) if e.p0 < p1 and p0 < e.p1 and e.b0 < hi and lo < e.b1]
        if not found:
            return self.missing(a)
        cuts = {p - p0 for e in found for p in (e.p0, e.p1) if p0 < p < p1}
        if cuts:
            raise Cut(tuple(sorted(cuts)))
        if any(SIZE[e.dt] != size for e in found):
            raise Bail("bytes of a tile read as elements of another size")
        plain = not a.cols or (len(a.cols) == 1 and a.cols[0][0] == size)
        if plain and all(e.plain for e in found):
            return self._read_plain(a, found, p0, lo, hi)
        if len(found) == 1 and (e := found[0]).plain and e.b0 <= lo and hi <= e.b1:
            sel = ((b0 - e.b0) // size, tuple((s // size, n) for s, n in a.cols))
            return self.g.take(self._value(e, a.dt), p0 - e.p0, sel)
        if len(found) == 1 and e.b0 == b0 and e.cols == a.cols:
            return self.g.take(self._value(e, a.dt), p0 - e.p0, None)
        return self._read_mixed(a, found, p0, b0, lo, hi)

    def missing(self, a: Access) -> V:
        raise Bail("a tile is read before it is written")

    def _value(self, e: Entry, dt: str) -> V:
        return self.g.bits(e.value, e.dt, dt)

    def _read_plain(self, a: Access, found: list[Entry], p0: int, lo: int, hi: int) -> V:
        parts, at, size = [], lo, a.size
        for e in sorted(found, key=lambda e: e.b0):
            if e.b0 > at:
                raise Bail("a tile is read that is written in part")
            end, columns = min(e.b1, hi), (at - e.b0) // size
            if (at - e.b0) % size:
                raise Bail("misaligned read of a tile")
            n = (end - at) // size
            value = self.g.take(self._value(e, a.dt), p0 - e.p0, (columns, normal(((1, n),))))
            parts.append((value, (at - lo) // size, normal(((1, n),))))
            at = end
        if at < hi:
            raise Bail("a tile is read that is written in part")
        return parts[0][0] if len(parts) == 1 else self.g.mosaic(parts, a.F)

    def _read_mixed(self, a: Access, found: list[Entry], p0: int, b0: int, lo: int, hi: int) -> V:
        owner, place = np.full(hi - lo, -1), np.zeros(hi - lo, np.int64)
        for k, e in enumerate(found):  # oldest first
            where = e.b0 - span(e.cols)[0] + elements(e.cols) - lo
            inside = (where >= 0) & (where < hi - lo)
            owner[where[inside]], place[where[inside]] = k, np.flatnonzero(inside)
        view = b0 + elements(a.cols) - lo
        if (owner[view] < 0).any():
            raise Bail("a tile is read that is written in part")
        values = [self.g.take(self._value(e, a.dt), p0 - e.p0, None) for e in found]
        return self.g.assemble(values, owner[view], place[view])

    def write(self, a: Access, v: V) -> None:
        """Record that `v` was written there; `v` is already what a cell of the dtype gives back."""
        assert a.rs is not None
        p0, b0 = divmod(a.off, a.rs)
        p1, size = p0 + a.P, a.size
        low, high = span(a.cols)
        if low < 0 or any(s == 0 for s, _ in a.cols):
            raise Bail("a tile is written through a reversed or repeating view")
        new = Entry(p0, p1, b0, b0 + high + size, a.cols, a.dt, v)
        keep: list[Entry] = []
        for e in self.entries.get(a.sid, ()):
            if e.p0 >= p1 or p0 >= e.p1 or e.b0 >= new.b1 or b0 >= e.b1:
                keep.append(e)
            elif new.plain and e.plain and SIZE[e.dt] == size and (b0 - e.b0) % size == 0:
                keep += self._trim(e, new)
            elif (
                e.p0 >= p0
                and e.p1 <= p1
                and e.cols == a.cols
                and e.b0 == b0
                and SIZE[e.dt] == size
                or new.plain
                and e.p0 >= p0
                and e.p1 <= p1
                and e.b0 >= b0
                and e.b1 <= new.b1
            ):
                continue
            else:
                keep.append(e)
        if keep:
            e = keep[-1]
            if e.p1 == p0 and e.b0 == b0 and e.cols == a.cols and e.dt == a.dt:
                joined = self.g.below(e.value, v, p0 - e.p0)
                if joined is not None:
                    keep[-1] = Entry(e.p0, p1, b0, new.b1, e.cols, e.dt, joined)
                    self._put(a.sid, keep)
                    return
        if len(keep) > MAX_ENTRIES:
            raise Bail("a tile is written in too many pieces")
        keep.append(new)
        self._put(a.sid, keep)

    def _put(self, sid: int, entries: list[Entry]) -> None:
        self.log.append((sid, self.entries.get(sid)))
        self.entries[sid] = entries

    def undo(self, mark: int) -> None:
        """Take back the writes from number `mark` of the log on."""
        while len(self.log) > mark:
            sid, before = self.log.pop()
            if before is None:
                del self.entries[sid]
            else:
                self.entries[sid] = before

    def _trim(self, e: Entry, new: Entry) -> list[Entry]:
        """What is left of an entry around a newer one; both plain."""
        out = []

        def piece(p0: int, p1: int, b0: int, b1: int) -> None:
            if p0 < p1 and b0 < b1:
                size = SIZE[e.dt]
                n = (b1 - b0) // size
                value = self.g.take(e.value, p0 - e.p0, ((b0 - e.b0) // size, normal(((1, n),))))
                out.append(Entry(p0, p1, b0, b1, normal(((size, n),)), e.dt, value))

        piece(e.p0, new.p0, e.b0, e.b1)
        piece(new.p1, e.p1, e.b0, e.b1)
        top, bottom = max(e.p0, new.p0), min(e.p1, new.p1)
        piece(top, bottom, e.b0, new.b0)
        piece(top, bottom, new.b1, e.b1)
        return out
