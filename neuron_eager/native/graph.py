"""Value graphs: what a tile holds, as hash-consed nodes over the kernel's HBM arguments.

A node stands for `F` columns of every row (partition) of a tile; F is None when all columns of a row are equal. Its lane kind
says in what form one element is computed:

    f  float32             every float dtype of NKI arithmetic
    d  float64             only moved and cast
    i  int32               bool, int8..int32, uint8, uint16
    u  uint32
    l  int64
    b  truth value         result of a comparison; 1 or 0 in every other kind

Equal nodes are one object, so "these two row tiles run the same program" is `is`. Rewriting a value for other rows or columns
(`take`) goes down to the loads, where it changes offsets and strides only.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from ctypes import c_float
from typing import Any

import numpy as np

from ..nki.dtypes import ALL
from .patterns import Pattern, compose, elements, fit, normal, width

SIZE: dict[str, int] = {name: d.itemsize for name, d in ALL.items()}
KIND: dict[str, str] = {"float64": "d", "uint32": "u", "int64": "l"}
KIND |= {name: "f" if d.is_float else "i" for name, d in ALL.items() if name not in KIND and d.packed == 1}
REDUCTIONS = frozenset({"add", "multiply", "maximum", "minimum", "bitwise_and", "bitwise_or", "bitwise_xor"})
COMPARISONS = frozenset({"equal", "not_equal", "greater", "greater_equal", "less", "less_equal"})
ELEMENTWISE = (
    frozenset(
        [
            "add",
            "subtract",
            "multiply",
            "divide",
            "maximum",
            "minimum",
            "power",
            "mod",
            "fmod",
            "select",
            "cvt",
            "to",
            "bits",
            "and_bool",
            "or_bool",
            "xor_bool",
            "not_bool",
            "bitwise_and",
            "bitwise_or",
            "bitwise_xor",
            "invert",
            "left_shift",
            "right_shift",
            "logical_shift",
            "abs",
            "square",
            "relu",
            "rsqrt",
            "reciprocal",
            "sqrt",
            "exp",
            "log",
            "sin",
            "cos",
            "tan",
            "arctan",
            "tanh",
            "sigmoid",
            "gelu",
            "gelu_dx",
            "gelu_apprx_tanh",
            "gelu_apprx_sigmoid",
            "gelu_apprx_sigmoid_dx",
            "silu",
            "silu_dx",
            "softplus",
            "mish",
            "erf",
            "erf_dx",
            "sign",
            "negative",
            "ceil",
            "floor",
            "trunc",
            "prelu",
        ]
    )
    | COMPARISONS
)
MAX_PIECES = 256
_INT_RANGE = {
    d: (np.iinfo(ALL[d].numpy).min, np.iinfo(ALL[d].numpy).max)
    for d in ("int8", "int16", "int32", "uint8", "uint16", "uint32", "int64")
}

Selection = tuple[int, Pattern] | None  # which columns: (first, pattern); None is all of them


class Bail(Exception):
    """The program, or this part of it, has no form as a value graph; the reason is the message."""


class V:
    """A value. `at` holds its static parameters, `id` its number in the graph."""

    __slots__ = ("op", "args", "at", "F", "kind", "id")
    op: str
    args: tuple[V, ...]
    at: tuple[Any, ...]
    F: int | None
    kind: str
    id: int

    def __repr__(self) -> str:
        inner = ", ".join(f"%{a.id}" for a in self.args)
        return f"%{self.id}:{self.kind}{'' if self.F is None else self.F} = {self.op}{self.at}({inner})"


def literal(v: V) -> float | int:
    """The number a `const` node stands for."""
    return float.fromhex(v.at[0]) if v.kind in "fd" else v.at[0]


def nodes(roots: Iterable[V]) -> list[V]:
    """Every node under `roots`, arguments before users."""
    seen: set[int] = set()
    out: list[V] = []

    def visit(v: V) -> None:
        seen.add(v.id)
        for a in v.args:
            if a.id not in seen:
                visit(a)
        out.append(v)

    for r in roots:
        if r.id not in seen:
            visit(r)
    return out


class Graph:
    """Makes nodes. Each method returns the one node for its meaning, simplified where that is exact."""

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
        if v.op == "cvt" and v.args[0].kind == "b":
            return self.cvt(v.args[0], kind)
        return self.ew("cvt", v, kind=kind)

    def to(self, v: V, dt: str) -> V:
        """What a cell of dtype `dt` gives back after `v` was stored in it."""
        if self.exact(v, dt):
            return v
        kind = KIND.get(dt)
        if kind is None:
            raise Bail(f"packed dtype {dt}")
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
            return self.load(*v.at[:4], target)
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
        """Values side by side: part (v, start, pattern) holds the columns `start + pattern`. Merged where they continue each other."""
        parts = sorted(parts, key=lambda p: p[1])
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
        """A running operation along the columns (see `instructions`); where tiles have several pieces, one scan after the other."""
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
        """op(x, y) where y continues the reduction or contraction that x ends with: one longer one (re-associates float sums)."""
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

    # ---- rewriting
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
        if v.F is None or (v.F == 1 and op != "scan"):
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
            r = self.memo[key] = False if None in parts else self.make(x.op, parts, a, x.F + y.F, x.kind)  # type: ignore[arg-type]
        return r or None

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
            return self.load(at[0], at[1], cs, ((at[2], rows),), at[4])  # the step of a single row is kept for the way back
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


def contiguous(pattern: Pattern) -> bool:
    return not pattern or (len(pattern) == 1 and pattern[0][0] == 1)


def _columns(cols: Pattern, sel: Selection) -> tuple[int, Pattern]:
    if sel is None:
        return 0, cols
    r = compose(cols, *sel)
    if r is None:
        raise Bail("columns of a multi-dimensional pattern")
    return r


def _continue(x: Pattern, y: Pattern, gap: int, unit: int | None) -> Pattern | None:
    """The pattern of x followed by y, which starts `gap` after x; `unit` is the step assumed between single elements."""
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
