"""LLVM code of single nodes: one element, or a vector of elements, in the lane kind of the node."""

from __future__ import annotations

from collections.abc import Callable

from .build import Build
from .irtypes import F32, F64, I1, I8, I32, I64, Value, const, declare, like, suffix, vector
from .values import COMPARISONS, KIND, SIZE, V, literal

CELL = {"f": "float32", "i": "int32", "u": "uint32", "l": "int64", "d": "float64"}  # of values kept in memory
TYPES = {"f": F32, "d": F64, "i": I32, "u": I32, "l": I64, "b": I1}
Get = Callable[[V], Value]
INT_OPS = frozenset(
    [
        "add",
        "subtract",
        "multiply",
        "abs",
        "sign",
        "square",
        "maximum",
        "minimum",
        "bitwise_and",
        "bitwise_or",
        "bitwise_xor",
        "invert",
        "left_shift",
        "right_shift",
        "divide",
        "mod",
        "fmod",
        "negative",
        "relu",
    ]
)


class Lanes(Build):
    """A function under construction that knows how to compute nodes. W is the vector width."""

    def constant(self, v: V, W: int | None) -> Value:
        return const(vector(TYPES[v.kind], W), literal(v))

    def identity_of(self, op: str, kind: str) -> Value:
        if kind == "u" and op in ("maximum", "minimum"):
            return self.const(0 if op == "maximum" else -1, I32)
        return self.identity(op, TYPES[kind])

    def combine(self, op: str, kind: str, x: Value, y: Value) -> Value:
        """One step of a reduction."""
        if kind == "u" and op in ("maximum", "minimum"):
            return getattr(self.i, op)(x, y, signed=False)
        return self.apply(op, x, y)

    def fold(self, op: str, kind: str, v: Value) -> Value:
        """The lanes of a vector as one number, by halves."""
        W = v.type.count
        w = W
        while w > 1:
            w //= 2
            v = self.combine(op, kind, v, self.shuffle(v, v, [(k + w) % W for k in range(W)]))
        return self.extract(v, 0)

    # ---- memory
    def fetch(self, p: Value, dt: str, mask: Value | None, W: int | None, stride: int | None = None) -> Value:
        """Elements of memory in the kind of their dtype."""
        if W is not None and stride == 0:
            return self.splat(self.fetch(p, dt, None, None), W)
        kind = KIND[dt]
        if kind == "f":
            return self.vload(p, dt, mask, W, stride)
        if kind == "d":
            raw = self.load_bits(p, 8, mask, W, stride)
            return self.b.bitcast(raw, like(raw, F64))
        return self.iload(p, dt, TYPES[kind], mask, W, stride)

    def fetch_at(self, p: Value, offsets: Value, dt: str, mask: Value | None) -> Value:
        """Elements at byte offsets, one a lane, in the kind of their dtype."""
        raw = self.gather_bits(p, offsets, SIZE[dt], mask)
        kind = KIND[dt]
        if kind == "f":
            return self.c.to_float(raw, dt)
        return self.b.bitcast(raw, like(raw, F64)) if kind == "d" else self.c.to_int(raw, dt, TYPES[kind])

    def put(self, v: Value, kind: str, p: Value, dt: str, mask: Value | None = None, stride: int | None = None) -> None:
        """Store a value of a kind as elements of a dtype, rounded once."""
        if kind == "d":
            v = self.b.bitcast(v, like(v, I64)) if dt == "float64" else self.convert(v, "d", KIND[dt])
            if dt == "float64":
                self.store_bits(v, p, mask, stride)
                return
        if kind == "u" and SIZE[dt] == 8:
            v = self.convert(v, "u", "l")
        self.vstore(v, p, dt, mask, stride)

    # ---- conversions
    def convert(self, v: Value, source: str, target: str) -> Value:
        """A number from one kind to another: `cvt` nodes."""
        b, t = self.b, like(v, TYPES[target])
        if source == target or {source, target} == {"i", "u"}:
            return v
        if target == "b":
            if source == "f":
                return self.m.truth(v)
            return b.fcmp_unordered("!=", v, const(v.type, 0)) if source == "d" else self.i.truth(v)
        if source == "b":
            return b.uitofp(v, t) if target in "fd" else b.zext(v, t)
        if target in "fd":
            if source in "fd":
                return b.fptrunc(v, t) if target == "f" else b.fpext(v, t)
            return b.uitofp(v, t) if source == "u" else b.sitofp(v, t)
        if source == "f":
            return self.c.float_to_int(v, {"i": "int32", "u": "uint32", "l": "int64"}[target])
        if source == "d":
            return self._double_to_int(v, {"i": "int32", "u": "uint32", "l": "int64"}[target])
        if target == "l":
            return b.zext(v, t) if source == "u" else b.sext(v, t)
        return b.trunc(v, t)

    def _double_to_int(self, v: Value, dt: str) -> Value:
        """The integer of a dtype, in the type of its kind: nearest even, saturating, NaN to 0."""
        wide = like(v, I64)
        whole = self.b.call(declare(self.module, f"llvm.roundeven.{suffix(v.type)}", v.type, v.type), [v])
        r = self.b.call(declare(self.module, f"llvm.fptosi.sat.{suffix(wide)}.{suffix(v.type)}", wide, v.type), [whole])
        if dt == "int64":
            return r
        bits = 8 * SIZE[dt]
        low, high = (0, (1 << bits) - 1) if dt.startswith("u") else (-(1 << (bits - 1)), (1 << (bits - 1)) - 1)
        r = self.i.maximum(self.i.minimum(r, const(wide, high)), const(wide, low))
        return self.b.trunc(r, like(v, I32))

    def cell(self, v: Value, source: str, dt: str) -> Value:
        """What a cell of a dtype gives back: `to` nodes."""
        kind = KIND[dt]
        if kind == "f":
            return self.c.round(self.convert(v, source, "f"), dt)
        if kind == "d":
            return self.convert(v, source, "d")
        if source == "d":
            return self._double_to_int(v, dt)
        if source == "f":
            raw = self.c.float_to_int(v, dt)
        else:
            raw = self.c.from_int(self.convert(v, "u", "l") if source == "u" and kind == "l" else v, dt)
        return self.c.to_int(raw, dt, TYPES[kind])

    def reinterpret(self, v: Value, source_kind: str, source: str, target: str) -> Value:
        """The bytes of a cell of dtype `source`, read as `target`."""
        if source_kind == "d":
            raw = self.b.bitcast(v, like(v, I64))
        else:
            raw = self.c.store_bits(v, source)
        kind = KIND[target]
        if kind == "f":
            return self.c.to_float(raw, target)
        if kind == "d":
            return self.b.bitcast(raw, like(raw, F64))
        if target == "bool":
            return self.b.zext(raw, like(raw, I32))
        return self.c.to_int(raw, target, TYPES[kind])

    # ---- elementwise nodes
    def compute(self, n: V, get: Get) -> Value:
        op, args = n.op, n.args
        if op == "select":
            return self.b.select(self.truth(args[0], get), get(args[1]), get(args[2]))
        x = get(args[0])
        kind = args[0].kind
        if op == "cvt":
            return self.convert(x, kind, n.kind)
        if op == "to":
            return self.cell(x, kind, n.at[0])
        if op == "bits":
            return self.reinterpret(x, kind, *n.at)
        if op in COMPARISONS:
            return self.compare(op, kind, x, get(args[1]))
        if op.endswith("_bool"):
            return self._logic(op, x, args, get)
        values = [x, *(get(a) for a in args[1:])]
        if kind == "f":
            return getattr(self.m, op)(*values)
        if op not in INT_OPS:
            raise NotImplementedError(f"{op} of kind {kind}")
        if op == "right_shift" or (kind == "u" and op in ("maximum", "minimum", "divide", "mod", "fmod")):
            return getattr(self.i, op)(*values, signed=False)
        return getattr(self.i, op)(*values)

    def _logic(self, op: str, x: Value, args: tuple[V, ...], get: Get) -> Value:
        b = self.b
        if op == "not_bool":
            return b.not_(x)
        return {"and_bool": b.and_, "or_bool": b.or_, "xor_bool": b.xor}[op](x, get(args[1]))

    def truth(self, n: V, get: Get) -> Value:
        return get(n) if n.kind == "b" else self.convert(get(n), n.kind, "b")

    def compare(self, op: str, kind: str, x: Value, y: Value) -> Value:
        if kind == "f":
            return self.m.compare(op, x, y)
        if kind == "b":
            x, y = (self.b.zext(v, like(v, I8)) for v in (x, y))
        return self.i.compare(op, x, y, signed=kind in "il")

    def numbers(self, first: Value, step: int) -> Value:
        """Vector of the int32 `first + lane * step`."""
        return self.b.add(self.splat(first), self.iota(I32, step)) if step else self.splat(first)

    def scan_step(self, at: tuple[str, str, bool, bool], x: Value, y: Value, carry: Value) -> Value:
        """One step of a scan on float32 scalars."""
        op0, op1, reverse0, reverse1 = at
        if op1 == "first":  # carry op0 x
            return self.apply(op0, x, carry)
        inner = self.apply(op0, carry, x) if reverse0 else self.apply(op0, x, carry)
        return self.apply(op1, y, inner) if reverse1 else self.apply(op1, inner, y)
