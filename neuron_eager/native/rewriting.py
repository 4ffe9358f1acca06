"""Rewriting of values: the same value for other rows or columns, two values as one, rows as columns.

Everything goes down to the loads, where it changes offsets, strides and counts only. So a value rewritten for the rows
it shares with another tile is the very node of that tile, if the two run the same program.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from .patterns import Pattern, compose, elements, fit, normal, width
from .values import ELEMENTWISE, SIZE, Bail, Selection, V, contiguous

MAX_PIECES = 256


class Rewriting:
    """The part of `Graph` that rewrites nodes."""

    memo: dict[tuple[Any, ...], Any]

    if TYPE_CHECKING:

        def make(self, op: str, args: Sequence[V], at: tuple[Any, ...], F: int | None, kind: str) -> V: ...
        def load(self, sid: Any, off: int, rs: int, cols: Pattern, dt: str) -> V: ...
        def gather(self, index: V, sid: Any, off: int, step: int, limit: int, cols: Pattern, dt: str) -> V: ...
        def affine(self, base: int, row: int, cols: Pattern, F: int) -> V: ...
        def bcast(self, v: V) -> V: ...
        def ew(self, op: str, *args: V, at: tuple[Any, ...] = (), kind: str | None = None) -> V: ...
        def red(self, op: str, v: V, count: int, F: int) -> V: ...
        def mosaic(self, parts: list[tuple[V, int, Pattern]], F: int) -> V: ...

    def take(self, v: V, dr: int, sel: Selection) -> V:
        """The same value `dr` rows further down, restricted to the columns `sel`."""
        if v.op == "const" or (dr == 0 and sel is None):
            return v
        if sel is not None and v.F is not None and sel == (0, normal(((1, v.F),))):
            if dr == 0:
                return v
            sel = None
        key = (v.id, dr, sel)
        r = self.memo.get(key)
        if r is None:
            r = self.memo[key] = self._take(v, dr, sel)
        return r

    def _take(self, v: V, dr: int, sel: Selection) -> V:
        op, args, at = v.op, v.args, v.at
        if v.F is None or (v.F == 1 and op not in ("scan", "row", "replace8")):
            one = sel is None or not sel[1] or v.F is None
            w = self._rows(v, dr)
            return w if one else self.bcast(w)
        if op == "load":
            off, cols = _columns(at[3], sel)
            return self.load(at[0], at[1] + dr * at[2] + off, at[2], cols, at[4])
        if op == "gather":
            off, cols = _columns(at[4], sel)
            return self.gather(self.take(args[0], dr, None), at[0], at[1] + off, at[2], at[3], cols, at[5])
        if op == "affine":
            off, cols = _columns(at[2], sel)
            return self.affine(at[0] + dr * at[1] + off, at[1], cols, v.F if sel is None else width(sel[1]))
        if op == "red":
            if sel is None:
                return self.make("red", (self.take(args[0], dr, None),), at, v.F, v.kind)
            wide = (sel[0] * at[1], normal((*[(s * at[1], n) for s, n in sel[1]], (1, at[1]))))
            return self.red(at[0], self.take(args[0], dr, wide), at[1], width(sel[1]))
        if op == "dot":
            b = self.take(args[1], 0, sel)
            return self.make("dot", (self.take(args[0], dr, None), b), at, b.F, v.kind)
        if op == "mosaic":
            return self._take_mosaic(v, dr, sel)
        if op in ELEMENTWISE:
            return self.ew(op, *[self.take(a, dr, sel) for a in args], at=at, kind=v.kind)
        if op == "T":
            return self._take_transposed(v, dr, sel)
        if op == "ngather":
            index = self.take(args[1], dr, sel)
            return self.make(op, (self._rows(args[0], dr), index), at, index.F, v.kind)
        if op == "pick" and sel is not None:
            first, pattern = _columns(at[1] or ((0, 1),), sel)
            sel = (at[0] + first, pattern)
            return self.make("pick", (self._rows(args[0], dr),), sel, width(pattern), v.kind)
        moved = self._rows(v, dr)
        return moved if sel is None else self.make("pick", (moved,), sel, width(sel[1]), v.kind)

    def _rows(self, v: V, dr: int) -> V:
        """The value `dr` rows further down, all columns."""
        if dr == 0 or v.op == "const":
            return v
        key = (v.id, dr, None)
        r = self.memo.get(key)
        if r is not None:
            return r
        op, args, at = v.op, v.args, v.at
        if op == "load":
            r = self.make("load", (), (at[0], at[1] + dr * at[2], *at[2:]), v.F, v.kind)
        elif op == "affine":
            r = self.make("affine", (), (at[0] + dr * at[1], *at[1:]), v.F, v.kind)
        elif op == "dot":
            r = self.make("dot", (self._rows(args[0], dr), args[1]), at, v.F, v.kind)
        elif op == "T":
            r = self._take_transposed(v, dr, None)
        else:
            r = self.make(op, [self._rows(a, dr) for a in args], at, v.F, v.kind)
        self.memo[key] = r
        return r

    def _take_transposed(self, v: V, dr: int, sel: Selection) -> V:
        inner, F = v.args[0], v.F
        if dr:
            inner = self.take(inner, 0, (dr, normal(((1, (inner.F or 1) - dr),))))
        if sel is not None:
            if not contiguous(sel[1]):
                raise Bail("columns of a transposed value")
            inner, F = self.take(inner, sel[0], None), width(sel[1])
        return self.make("T", (inner,), (), F, v.kind)

    def _take_mosaic(self, v: V, dr: int, sel: Selection) -> V:
        assert v.F is not None
        if sel is None:
            return self.make("mosaic", [self._rows(a, dr) for a in v.args], v.at, v.F, v.kind)
        start, pattern = sel
        if contiguous(pattern) and all(contiguous(p) for _, p in v.at):
            end, parts = start + width(pattern), []
            for a, (s, p) in zip(v.args, v.at):
                lo, hi = max(s, start), min(s + width(p), end)
                if lo < hi:
                    parts.append(
                        (self.take(a, dr, (lo - s, normal(((1, hi - lo),)))), lo - start, normal(((1, hi - lo),)))
                    )
            return self.mosaic(parts, width(pattern))
        wanted = start + elements(pattern)
        owner, place = np.full(v.F, -1), np.zeros(v.F, np.int64)
        for k, (s, p) in enumerate(v.at):
            columns = s + elements(p)
            owner[columns], place[columns] = k, np.arange(len(columns))
        return self.assemble([self._rows(a, dr) for a in v.args], owner[wanted], place[wanted])

    def assemble(self, values: list[V], owner: np.ndarray, place: np.ndarray) -> V:
        """Column c of the result is column `place[c]` of `values[owner[c]]`."""
        parts = []
        for k in dict.fromkeys(owner.tolist()):
            where = np.flatnonzero(owner == k)
            target, source = fit(where), fit(place[where])
            if target is None or source is None:
                raise Bail("columns of a tile are put together irregularly")
            parts.append((self.take(values[k], 0, source), *target))
            if len(parts) > MAX_PIECES:
                raise Bail("a tile of too many pieces")
        return self.mosaic(parts, len(owner))

    def merge(self, x: V, y: V, fx: int) -> V | None:
        """x followed by y as one value, if y is x's program fx columns further on."""
        if x.F is None or y.F is None:
            return x if x is y else None
        if x.op != y.op or x.kind != y.kind:
            return None
        a, b = x.at, y.at
        if x.op == "load":
            if a[0] != b[0] or a[2] != b[2] or a[4] != b[4]:
                return None
            cols = _continue(a[3], b[3], b[1] - a[1], SIZE[a[4]])
            return None if cols is None else self.make("load", (), (*a[:3], cols, a[4]), x.F + y.F, x.kind)
        if x.op == "affine":
            if a[1] != b[1]:
                return None
            cols = _continue(a[2], b[2], b[0] - a[0], None)
            return None if cols is None else self.make("affine", (), (*a[:2], cols), x.F + y.F, "i")
        if x.op == "gather":
            if x.args != y.args or a[0] != b[0] or a[2:4] != b[2:4] or a[5] != b[5]:
                return None
            cols = _continue(a[4], b[4], b[1] - a[1], SIZE[a[5]])
            return None if cols is None else self.make("gather", x.args, (*a[:4], cols, a[5]), x.F + y.F, x.kind)
        if x.op == "dot":
            m = self.merge(x.args[1], y.args[1], fx) if x.args[0] is y.args[0] and a == b else None
            return None if m is None else self.make("dot", (x.args[0], m), a, x.F + y.F, "f")
        if x.op not in ELEMENTWISE or a != b:
            return None
        key = ("merge", x.id, y.id)
        r = self.memo.get(key)
        if r is None:
            parts = [self.merge(p, q, fx) for p, q in zip(x.args, y.args)]
            whole = [p for p in parts if p is not None]
            r = self.make(x.op, whole, a, x.F + y.F, x.kind) if len(whole) == len(parts) else False
            self.memo[key] = r
        return r if isinstance(r, V) else None

    def below(self, x: V, y: V, rows: int) -> V | None:
        """x if y's rows follow x's `rows` rows: the same value with more rows."""
        if x is y and x.op == "const":
            return x
        try:
            return x if y.F == x.F and self.take(x, rows, None) is y else None
        except Bail:
            return None

    def transpose(self, v: V, rows: int) -> V:
        """Columns as rows, of a value with `rows` rows. Pushed to the loads, where it swaps strides; a pair cancels."""
        op, at = v.op, v.at
        if op == "const":
            return v
        if op == "T":
            return v.args[0]
        if op == "load" and len(at[3]) < 2:
            cs = at[3][0][0] if at[3] else SIZE[at[4]]
            return self.load(
                at[0], at[1], cs, ((at[2], rows),), at[4]
            )  # the step of a single row is kept for the way back
        if op == "affine" and len(at[2]) < 2:
            return self.affine(at[0], at[2][0][0] if at[2] else 0, normal(((at[1], rows),)), rows)
        if op == "bcast" and v.args[0].op == "load":
            sid, off, rs, _, dt = v.args[0].at
            return self.load(sid, off, 0, normal(((rs, rows),)), dt)
        if op in ELEMENTWISE and all(_turns(a) for a in v.args):
            return self.ew(op, *[self.transpose(a, rows) for a in v.args], at=at, kind=v.kind)
        if v.F is None:
            raise Bail(f"transpose of {op}")
        return self.make("T", (v,), (), rows, v.kind)


def _turns(v: V) -> bool:
    """Whether the transpose of a value goes down to its loads."""
    if v.op == "bcast":
        return v.args[0].op == "load"
    if v.op in ("load", "affine"):
        return len(v.at[3] if v.op == "load" else v.at[2]) < 2
    return v.op in ("const", "T") or (v.op in ELEMENTWISE and all(map(_turns, v.args)))


def _columns(cols: Pattern, sel: Selection) -> tuple[int, Pattern]:
    if sel is None:
        return 0, cols
    r = compose(cols, *sel)
    if r is None:
        raise Bail("columns of a multi-dimensional pattern")
    return r


def _continue(x: Pattern, y: Pattern, gap: int, unit: int | None) -> Pattern | None:
    """The pattern of x followed by y, which starts `gap` after x; `unit` is the step assumed between single
    elements."""
    if not x and not y:
        return ((gap, 2),) if unit is None or gap == unit else None
    if x == y:  # two equal blocks
        one = normal(((gap, 2), *x))
        if len(x) == 1 and gap == x[0][0] * x[0][1]:
            return ((x[0][0], 2 * x[0][1]),)
        return one if unit is None or len(one) <= 2 else None
    for whole, part, at_end in ((x, y, True), (y, x, False)):
        if whole and (
            whole[1:] == part or (len(part) == len(whole) and part[1:] == whole[1:] and part[0][0] == whole[0][0])
        ):
            step, count = whole[0]
            more = part[0][1] if len(part) == len(whole) else 1
            if gap == step * (count if at_end else more):
                return ((step, count + more), *whole[1:])
    return None
