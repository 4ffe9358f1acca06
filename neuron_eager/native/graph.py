"""Value graphs: the one maker of nodes.

Nodes are hash-consed: equal ones are one object, so "these two row tiles run the same program" is `is`. Each method
returns the node for its meaning, simplified where that is exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import c_float
from typing import Any

import numpy as np

from ..nki.dtypes import ALL
from .patterns import Pattern, compose, normal, width
from .rewriting import MAX_PIECES, Rewriting
from .values import KIND, REDUCTIONS, SIZE, Bail, V, contiguous, literal

_INT_RANGE = {
    d: (np.iinfo(ALL[d].numpy).min, np.iinfo(ALL[d].numpy).max)
    for d in ("int8", "int16", "int32", "uint8", "uint16", "uint32", "int64")
}

Selection = tuple[int, Pattern] | None  # which columns: (first, pattern); None is all of them


class Graph(Rewriting):
    """Makes nodes; raises Bail beyond `limit` of them."""

    def __init__(self, limit: int = 1 << 62) -> None:
        self.table: dict[tuple[Any, ...], V] = {}
        self.memo: dict[tuple[Any, ...], Any] = {}
        self.limit = limit

    def make(self, op: str, args: Sequence[V], at: tuple[Any, ...], F: int | None, kind: str) -> V:
        key = (op, at, F, kind, *[a.id for a in args])
        v = self.table.get(key)
        if v is None:
            v = V()
            v.op, v.args, v.at, v.F, v.kind, v.id = op, tuple(args), at, F, kind, len(self.table)
            if v.id > self.limit:
                raise Bail("the value graph is too large")
            self.table[key] = v
        return v

    # ---- leaves
    def const(self, value: float | int | bool, kind: str = "f") -> V:
        if kind == "f":
            return self.make("const", (), (c_float(value).value.hex(),), None, "f")
        return self.make("const", (), (int(value),), None, kind)

    def load(self, sid: Any, off: int, rs: int, cols: Pattern, dt: str) -> V:
        """Memory at `off + row * rs + cols` bytes of storage `sid`, as dtype `dt`."""
        kind = KIND.get(dt)
        if kind is None:
            raise Bail(f"packed dtype {dt}")
        if width(cols) > 1 and all(step == 0 for step, _ in cols):
            return self.bcast(self.make("load", (), (sid, off, rs, (), dt), 1, kind))
        return self.make("load", (), (sid, off, rs, cols, dt), width(cols), kind)

    def gather(self, index: V, sid: Any, off: int, step: int, limit: int, cols: Pattern, dt: str) -> V:
        """Memory at `off + index * step + cols`, `index` one column per row, valid below `limit`."""
        if cols and all(s == 0 for s, _ in cols):
            return self.bcast(self.make("gather", (index,), (sid, off, step, limit, (), dt), 1, KIND[dt]))
        return self.make("gather", (index,), (sid, off, step, limit, cols, dt), width(cols), KIND[dt])

    def affine(self, base: int, row: int, cols: Pattern, F: int) -> V:
        """The int32 `base + row number * row + cols`; F columns."""
        if not cols or all(step == 0 for step, _ in cols):
            v = self.make("affine", (), (base, row, ()), 1, "i")
            return v if F == 1 else self.bcast(v)
        return self.make("affine", (), (base, row, cols), F, "i")

    def bcast(self, v: V) -> V:
        """One column as every column."""
        return v if v.F is None else self.make("bcast", (v,), (), None, v.kind)

    # ---- conversions
    def cvt(self, v: V, kind: str) -> V:
        """The same number in another lane kind (to f: rounded to nearest; to b: nonzero)."""
        if v.kind == kind:
            return v
        if v.op == "const":
            return (
                self.const(literal(v) != 0 if kind == "b" else literal(v), kind)
                if kind != "d"
                else self.ew("cvt", v, kind=kind)
            )
        if v.kind == "b" and kind == "b":
            return v
        truth = _truth_of(v)
        if truth is not None:
            return self._of_truth(v, truth, kind)
        return self.ew("cvt", v, kind=kind)

    def _of_truth(self, v: V, truth: V, kind: str) -> V:
        """v, which is 1 or 0 by a truth value, in another kind."""
        one = self.cvt(truth, kind)
        return one if v.op == "cvt" else self.red(v.at[0], one, v.at[1], v.F or 1)

    def to(self, v: V, dt: str) -> V:
        """What a cell of dtype `dt` gives back after `v` was stored in it."""
        if self.exact(v, dt):
            return v
        kind = KIND.get(dt)
        if kind is None:
            raise Bail(f"packed dtype {dt}")
        truth = _truth_of(v)
        if truth is not None and kind != "d":
            return self._of_truth(v, truth, kind)
        if dt in ("float32", "tfloat32") or (kind == "l" and v.kind in "iu"):
            return self.cvt(v, kind)
        if dt == "float64":
            return v if v.kind in "fb" else self.ew("to", v, at=(dt,), kind="d")
        if dt == "bool":
            return self.cvt(v, "b")
        if v.kind in "iulb" and kind == "f":
            v = self.cvt(v, "f")
            return v if self.exact(v, dt) else self.ew("to", v, at=(dt,), kind="f")
        return self.ew("to", v, at=(dt,), kind=kind)

    def exact(self, v: V, dt: str) -> bool:
        """Whether storing `v` as `dt` and reading it back gives `v` itself, kind included."""
        if v.kind == "b":
            return True
        if v.kind != KIND.get(dt):
            return False
        if dt in ("float32", "int32", "uint32", "int64", "float64", "tfloat32"):
            return True
        if v.op == "load" or v.op == "gather":
            return v.at[-1] == dt
        if v.op == "to":
            return v.at[0] == dt
        if v.op == "cvt":
            return v.args[0].kind == "b"
        if v.op in ("bcast", "T"):
            return self.exact(v.args[0], dt)
        if v.op == "const":
            value = literal(v)
            if v.kind in "iul":
                low, high = _INT_RANGE.get(dt, (0, 1))
                return low <= value <= high
            return value in (0.0, 1.0, -1.0)
        return False

    def bits(self, v: V, source: str, target: str) -> V:
        """The bytes of a cell of dtype `source` that holds `v`, read as dtype `target` of the same size."""
        if source == target:
            return v
        kind = KIND.get(target)
        if kind is None or source not in KIND or SIZE[source] != SIZE[target]:
            raise Bail(f"{source} bytes read as {target}")
        if v.op == "load":
            sid, off, rs, cols, _ = v.at
            return self.load(sid, off, rs, cols, target)
        return self.ew("bits", v, at=(source, target), kind=kind)

    # ---- elementwise
    def ew(self, op: str, *args: V, at: tuple[Any, ...] = (), kind: str | None = None) -> V:
        """`op` applied column by column. Arguments agree in width or are the same in every column."""
        kind = kind or args[0].kind
        for v in args:
            if v.op == "mosaic":
                return self._ew_pieces(op, args, at, kind)
        if any(v.op == "T" for v in args) and all(v.op in ("T", "const") for v in args):
            inner = self.ew(op, *[v.args[0] if v.op == "T" else v for v in args], at=at, kind=kind)
            return self.make("T", (inner,), (), next(v.F for v in args if v.op == "T"), kind)
        F = None
        for v in args:
            if v.F is not None:
                if F is not None and v.F != F:
                    raise Bail(f"{op}: widths {F} and {v.F}")
                F = v.F
        if op == "add":
            for x, y in (args, args[::-1]):
                if y.op == "const" and y.at[0] in ("0x0.0p+0", 0) and (x.kind != "f" or x.op in ("red", "dot")):
                    return x
            joined = self.join("add", *args) or self.join("add", args[1], args[0])
            if joined is not None:
                return joined
        elif op == "multiply":
            for x, y in (args, args[::-1]):
                if y.op == "const" and y.at[0] in ("0x1.0000000000000p+0", 1):
                    return x
        elif op in ("maximum", "minimum"):
            joined = self.join(op, *args) or self.join(op, args[1], args[0])
            if joined is not None:
                return joined
        return self.make(op, args, at, F, kind)

    def _ew_pieces(self, op: str, args: Sequence[V], at: tuple[Any, ...], kind: str) -> V:
        """Mosaics are pushed down to stores and reductions: apply `op` to each piece."""
        F = max(v.F or 0 for v in args)
        layouts = {v.at for v in args if v.op == "mosaic"}
        if len(layouts) > 1:
            if not all(contiguous(p) for layout in layouts for _, p in layout):
                raise Bail(f"{op}: operands put together from different patterns")
            cuts = sorted({start for layout in layouts for start, _ in layout} | {F})
            layout = tuple((a, normal(((1, b - a),))) for a, b in zip(cuts, cuts[1:]))
        else:
            layout = next(iter(layouts))
        if len(layout) > MAX_PIECES:
            raise Bail(f"{op}: a tile of {len(layout)} pieces")
        return self.mosaic(
            [(self.ew(op, *[self.take(v, 0, piece) for v in args], at=at, kind=kind), *piece) for piece in layout], F
        )

    def mosaic(self, parts: list[tuple[V, int, Pattern]], F: int) -> V:
        """Values side by side: part (v, start, pattern) holds the columns `start + pattern`. Merged where they
        continue each other."""
        parts = sorted((q for p in parts for q in _unfolded(*p)), key=lambda p: p[1])
        if all(contiguous(p) for _, _, p in parts):
            out: list[tuple[V, int, int]] = []
            for v, start, pattern in parts:
                n = width(pattern)
                merged = self.merge(out[-1][0], v, out[-1][2]) if out else None
                if merged is not None:
                    out[-1] = (merged, out[-1][1], out[-1][2] + n)
                else:
                    out.append((v, start, n))
            parts = [(v, start, normal(((1, n),))) for v, start, n in out]
        if len(parts) == 1:
            return parts[0][0]
        kinds = {p[0].kind for p in parts}
        if len(kinds) > 1:
            raise Bail("a tile of values of different kinds")
        return self.make("mosaic", [p[0] for p in parts], tuple(p[1:] for p in parts), F, parts[0][0].kind)

    # ---- reductions and contractions
    def red(self, op: str, v: V, count: int, F: int) -> V:
        """Reduce each run of `count` columns of v (F * count wide) to one of F columns."""
        if op not in REDUCTIONS:
            raise Bail(f"reduction {op}")
        if v.op == "mosaic":
            if F > 1:
                if any(not contiguous(p) or s % count or width(p) % count for s, p in v.at):
                    raise Bail("reduction across the pieces of a tile")
                return self.mosaic(
                    [
                        (self.red(op, a, count, width(p) // count), s // count, normal(((1, width(p) // count),)))
                        for a, (s, p) in zip(v.args, v.at)
                    ],
                    F,
                )
            total: V | None = None
            for a, (_, p) in zip(v.args, v.at):
                part = self.red(op, a, width(p), 1)
                total = part if total is None else self.ew(op, total, part)
            assert total is not None
            return total
        if v.F is None:
            if op in ("maximum", "minimum", "bitwise_and", "bitwise_or"):
                return v
            if op == "add":
                return self.ew("multiply", v, self.const(count, v.kind))
        if count == 1 and F == 1 and v.op == "red" and v.at[0] == op:
            return v
        return self.make(
            "red", (v,), (op, count), F, v.kind
        )  # count 1 stays a trivial reduction: a later chunk may join it

    def scan(self, x: V, y: V, start: V, at: tuple[Any, ...], F: int) -> V:
        """A running operation along the columns (see `instructions`); where tiles have several pieces, one scan after
        the other."""
        cuts = {0, F}
        for v in (x, y):
            if v.op == "mosaic":
                if not all(contiguous(p) for _, p in v.at):
                    raise Bail("a scan over a tile put together from patterns")
                cuts |= {s for s, _ in v.at}
        parts, order = [], sorted(cuts)
        for a, b in zip(order, order[1:]):
            piece = (a, normal(((1, b - a),)))
            part = self.make("scan", (self.take(x, 0, piece), self.take(y, 0, piece), start), at, b - a, "f")
            parts.append((part, *piece))
            start = self.bcast(self.take(part, 0, (b - a - 1, ())))
        return parts[0][0] if len(parts) == 1 else self.mosaic(parts, F)

    def dot(self, a: V, b: V, K: int) -> V:
        """Rows of `a` (K columns) times the matrix `b` (K rows, F columns)."""
        return self.make("dot", (a, b), (K,), b.F, "f")

    def join(self, op: str, x: V, y: V) -> V | None:
        """op(x, y) where y continues the reduction or contraction that x ends with: one longer one (re-associates
        float sums)."""
        if y.op == "red" and y.at[0] == op and y.F == 1:
            if x.op == "red" and x.at[0] == op and x.F == 1:
                m = self.merge(x.args[0], y.args[0], x.at[1])
                if m is not None:
                    return self.make("red", (m,), (op, x.at[1] + y.at[1]), 1, x.kind)
        elif not (op == "add" and y.op == "dot"):
            return None
        elif x.op == "dot":
            (A, B), (A2, B2), K = x.args, y.args, x.at[0]
            m = self.merge(A, A2, K)
            b = self.below(B, B2, K) if m is not None else None
            if m is not None and b is not None:
                return self.make("dot", (m, b), (K + y.at[0],), x.F, "f")
        if x.op == op:
            rest = self.join(op, x.args[1], y)
            if rest is not None:
                return self.make(op, (x.args[0], rest), (), x.F, x.kind)
        return None


def _truth_of(v: V) -> V | None:
    """The truth value that v is a 1 or 0 of, or the largest or smallest 1 or 0 of; None for any other value."""
    if v.op == "red" and v.at[0] in ("maximum", "minimum"):
        v = v.args[0]
    return v.args[0] if v.op == "cvt" and v.args[0].kind == "b" else None


def _unfolded(v: V, start: int, pattern: Pattern) -> list[tuple[V, int, Pattern]]:
    """A part that is itself put together, as its own parts."""
    if v.op != "mosaic":
        return [(v, start, pattern)]
    out = []
    for a, (s, p) in zip(v.args, v.at):
        where = compose(pattern, s, p)
        if where is None:
            raise Bail("a tile of nested pieces")
        out += _unfolded(a, start + where[0], where[1])
    return out
