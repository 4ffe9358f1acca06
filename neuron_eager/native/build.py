"""Building LLVM functions: control flow, byte addresses, vector loads and stores of every element type.

Code is explicit vectors of W lanes and is compiled without optimisation passes, so what is written here is what runs.
Offsets and strides are bytes. A mask is a vector of i1; None means all lanes.
"""
from __future__ import annotations

from collections.abc import Callable, Sequence

from llvmlite import ir

from .convert import Convert
from .intmath import IntMath
from .irtypes import (
    F32,
    I1,
    I8,
    I32,
    I64,
    INTS,
    PTR,
    VOID,
    Value,
    const,
    declare,
    element,
    element_of,
    k64,
    lanes_of,
    suffix,
    vector,
    width_of,
)
from .target import Target
from .vmath import Math

Body = Callable[[Value, list[Value]], Sequence[Value] | None]
Term = Value                    # an int, an i64 value, or a pair (value, factor)
IDENTITY = {"add": 0.0, "subtract": 0.0, "multiply": 1.0, "maximum": float("-inf"), "minimum": float("inf")}


class Build:
    """A cursor in one function. `lanes` (W) is the default vector width.

    m: float32 math, i: integer math, c: conversions; b: the llvmlite builder for anything else.
    """

    def __init__(self, function: ir.Function, target: Target, lanes: int | None = None) -> None:
        self.fn, self.module, self.target = function, function.module, target
        self.W = lanes or target.lanes
        self.b = ir.IRBuilder(function.append_basic_block("entry"))
        self.m, self.i, self.c = Math(self.b, target.avx512), IntMath(self.b), Convert(self.b, target)

    # ---- control flow

    def loop(self, low: Value | int, high: Value | int, step: int, body: Body,
             accumulators: Sequence[Value] = ()) -> list[Value]:
        """for (i = low; i < high; i += step) accumulators = body(i, accumulators); returns the last ones.

        The test before the first turn is left out where both bounds are known.
        """
        b = self.b
        if isinstance(low, int) and isinstance(high, int):
            if low >= high:
                return list(accumulators)
            guard = None
        else:
            guard = self.i64(low), self.i64(high)
        low, high = self.i64(low), self.i64(high)
        before = b.block
        head, after = self.fn.append_basic_block("loop"), None
        if guard:
            after = self.fn.append_basic_block("after")
            b.cbranch(b.icmp_signed("<", *guard), head, after)
        else:
            b.branch(head)
        b.position_at_end(head)
        i = b.phi(I64)
        i.add_incoming(low, before)
        phis = []
        for a in accumulators:
            p = b.phi(a.type)
            p.add_incoming(a, before)
            phis.append(p)
        out = list(body(i, phis) or [])
        following = b.add(i, k64(step), flags=("nuw", "nsw"))
        i.add_incoming(following, b.block)
        for p, a in zip(phis, out):
            p.add_incoming(a, b.block)
        last = b.block
        after = after or self.fn.append_basic_block("after")
        b.cbranch(b.icmp_signed("<", following, high), head, after)
        b.position_at_end(after)
        if not guard:
            return out
        merged = []
        for a, r in zip(accumulators, out):
            p = b.phi(a.type)
            p.add_incoming(a, before)
            p.add_incoming(r, last)
            merged.append(p)
        return merged

    def when(self, condition: Value, then: Callable[[], Sequence[Value] | None],
             otherwise: Callable[[], Sequence[Value] | None] | Sequence[Value] = ()) -> list[Value]:
        """Branch; returns the values of the side taken. `otherwise` may be plain values."""
        b = self.b
        yes, no, end = (self.fn.append_basic_block(n) for n in ("then", "else", "end"))
        b.cbranch(condition, yes, no)
        b.position_at_end(yes)
        left = list(then() or [])
        yes = b.block
        b.branch(end)
        b.position_at_end(no)
        right = list((otherwise() or []) if callable(otherwise) else otherwise)
        no = b.block
        b.branch(end)
        b.position_at_end(end)
        merged = []
        for x, y in zip(left, right):
            p = b.phi(x.type)
            p.add_incoming(x, yes)
            p.add_incoming(y, no)
            merged.append(p)
        return merged

    def call(self, name: str, *args: Value, result: ir.Type = VOID) -> Value:
        """Call an external function (runtime library, libm); the object loader resolves the name."""
        return self.b.call(declare(self.module, name, result, *(a.type for a in args)), args)

    def stack(self, size: int, align: int = 64) -> Value:
        """Memory of this function's frame, `size` bytes; made once, in the entry block."""
        with self.b.goto_entry_block():
            p = self.b.alloca(ir.ArrayType(I8, size))
            p.align = align
            p.type = PTR
        return p

    # ---- integers and addresses

    def i64(self, x: Value | int) -> Value:
        return k64(x) if isinstance(x, int) else x

    def mul(self, x: Value | int, y: Value | int) -> Value:
        if isinstance(x, int) and isinstance(y, int):
            return k64(x * y)
        if isinstance(x, int):
            x, y = y, x
        if isinstance(y, int):
            if y == 1:
                return x
            y = k64(y)
        return self.b.mul(x, y)

    def minimum(self, x: Value | int, y: Value | int) -> Value:
        x, y = self.i64(x), self.i64(y)
        return self.b.select(self.b.icmp_signed("<", x, y), x, y)

    def maximum(self, x: Value | int, y: Value | int) -> Value:
        x, y = self.i64(x), self.i64(y)
        return self.b.select(self.b.icmp_signed(">", x, y), x, y)

    def at(self, p: Value, *terms: Term) -> Value:
        """p plus byte offsets; a term is an int, an i64 value, or (value, factor)."""
        offset, fixed = None, 0
        for t in terms:
            if isinstance(t, tuple):
                t = t[0] * t[1] if isinstance(t[0], int) and isinstance(t[1], int) else self.mul(*t)
            if isinstance(t, int):
                fixed += t
            else:
                offset = t if offset is None else self.b.add(offset, t)
        if offset is not None:
            p = self.b.gep(p, [offset], source_etype=I8)
        return self.b.gep(p, [k64(fixed)], source_etype=I8) if fixed else p

    # ---- vectors

    def const(self, value: float, t: ir.Type = F32, W: int | None = None) -> Value:
        """A vector constant with equal lanes."""
        return const(vector(t, W or self.W), value)

    def splat(self, x: Value, W: int | None = None) -> Value:
        """A vector with x in every lane; a vector is returned as it is."""
        if lanes_of(x) is not None:
            return x
        t = ir.VectorType(x.type, W or self.W)
        u = ir.Constant(t, ir.Undefined)
        return self.b.shuffle_vector(self.b.insert_element(u, x, ir.Constant(I32, 0)), u,
                                     ir.Constant(ir.VectorType(I32, t.count), [0] * t.count))

    def iota(self, t: ir.Type = I32, step: int = 1, W: int | None = None) -> Value:
        """The constant (0, step, 2 step, ...)."""
        n = W or self.W
        return ir.Constant(ir.VectorType(t, n), [k * step for k in range(n)])

    def lanes(self, n: int, W: int | None = None) -> Value:
        """The constant mask of the first n lanes."""
        W = W or self.W
        return ir.Constant(ir.VectorType(I1, W), [int(k < n) for k in range(W)])

    def below(self, i: Value | int, n: Value | int, W: int | None = None) -> Value:
        """Mask of the lanes with i + lane < n (i64)."""
        W = W or self.W
        left = self.minimum(self.b.sub(self.i64(n), self.i64(i)), W)
        return self.b.icmp_signed("<", self.iota(I32, 1, W), self.splat(self.b.trunc(left, I32), W))

    def extract(self, v: Value, lane: int) -> Value:
        return self.b.extract_element(v, ir.Constant(I32, lane))

    def shuffle(self, x: Value, y: Value, lanes: Sequence[int]) -> Value:
        return self.b.shuffle_vector(x, y, ir.Constant(ir.VectorType(I32, len(lanes)), list(lanes)))

    def butterfly(self, rows: Sequence[Value]) -> list[Value]:
        """Transpose of n vectors of n lanes in registers, n a power of two: log2 n rounds of two-input shuffles."""
        n, r = len(rows), list(rows)
        d = n // 2
        while d:
            q = list(r)
            for i in range(n):
                if not i & d:
                    q[i] = self.shuffle(r[i], r[i | d], [n + (k ^ d) if k & d else k for k in range(n)])
                    q[i | d] = self.shuffle(r[i], r[i | d], [n + k if k & d else k | d for k in range(n)])
            r, d = q, d // 2
        return r

    def apply(self, op: str, *args: Value) -> Value:
        """A binary or unary token on float32 or integer values, by their type."""
        return getattr(self.m if element_of(args[0]) == F32 else self.i, op)(*args)

    def identity(self, op: str, t: ir.Type = F32, W: int | None = None) -> Value:
        """The neutral element of a reduction, as a vector of element type t (float32 or a signed integer)."""
        if t == F32:
            return self.const(IDENTITY[op], t, W)
        low = -1 << (t.width - 1)
        value = {"add": 0, "subtract": 0, "multiply": 1, "maximum": low, "minimum": -1 - low, "bitwise_and": -1,
                 "bitwise_or": 0, "bitwise_xor": 0}[op]
        return self.const(value, t, W)

    def reduce(self, op: str, v: Value) -> Value:
        """The lanes of v combined into one scalar, by halves: a fixed order."""
        n = w = width_of(v)
        while w > 1:
            w //= 2
            v = self.apply(op, v, self.shuffle(v, v, [(k + w) % n for k in range(n)]))
        return self.extract(v, 0)

    # ---- memory: bits

    def load_bits(self, p: Value, size: int, mask: Value | None = None, W: int | None = 0,
                  stride: int | Value | None = None) -> Value:
        """Elements of `size` bytes as integers: W lanes (0: the default; None: a scalar), `stride` bytes apart.

        Lanes that are masked off are not read and give 0.
        """
        W = self.W if W == 0 else W
        t = vector(INTS[size], W)
        if W is None:
            return self.b.load(p, typ=t, align=size)
        if stride is None or isinstance(stride, int) and stride == size:
            if mask is None:
                return self.b.load(p, typ=t, align=size)
            f = declare(self.module, f"llvm.masked.load.{suffix(t)}.p0", t, PTR, I32, mask.type, t)
            return self.b.call(f, [p, ir.Constant(I32, size), mask, const(t, 0)])
        chosen = self._fixed(mask, W)
        if chosen is None:
            return self._gather(self._pointers(p, stride, W), size, mask)
        v = const(t, 0)
        for k in chosen:
            x = self.b.load(self.at(p, (k, stride)), typ=t.element, align=size)
            v = self.b.insert_element(v, x, ir.Constant(I32, k))
        return v

    def store_bits(self, v: Value, p: Value, mask: Value | None = None, stride: int | Value | None = None) -> None:
        """Integers or floats to memory as they are; lanes that are masked off are not written."""
        W, t = lanes_of(v), v.type
        size = _size(element_of(v))
        if W is None:
            self.b.store(v, p, align=size)
        elif stride is None or isinstance(stride, int) and stride == size:
            if mask is None:
                self.b.store(v, p, align=size)
                return
            chosen = self._fixed(mask, W)
            if chosen is not None and len(chosen) == 1:     # LLVM stores such a lane of a truncated vector untruncated
                k = chosen[0]
                self.b.store(self.extract(v, k), self.at(p, k * size), align=size)
                return
            f = declare(self.module, f"llvm.masked.store.{suffix(t)}.p0", VOID, t, PTR, I32, mask.type)
            self.b.call(f, [v, p, ir.Constant(I32, size), mask])
        else:
            chosen = self._fixed(mask, W)
            if chosen is None:
                self._scatter(v, self._pointers(p, stride, W), mask)
                return
            for k in chosen:
                self.b.store(self.extract(v, k), self.at(p, (k, stride)), align=size)

    def gather_bits(self, p: Value, offsets: Value, size: int, mask: Value | None = None) -> Value:
        """Elements at p + offsets (i64 lanes, bytes) as integers."""
        return self._gather(self._added(p, offsets), size, mask)

    def scatter_bits(self, v: Value, p: Value, offsets: Value, mask: Value | None = None) -> None:
        """Elements to p + offsets; of equal offsets the highest lane wins."""
        self._scatter(v, self._added(p, offsets), mask)

    def _fixed(self, mask: Value | None, W: int) -> list[int] | None:
        """The lanes of a mask that is a constant; None if it is not."""
        if mask is None:
            return list(range(W))
        constant = getattr(mask, "constant", None)
        if not isinstance(constant, list | tuple):
            return None
        return [k for k, on in enumerate(constant) if getattr(on, "constant", on)]

    def _pointers(self, p: Value, stride: int | Value, W: int) -> Value:
        if isinstance(stride, int):
            return self._added(p, self.iota(I64, stride, W))
        return self._added(p, self.b.mul(self.iota(I64, 1, W), self.splat(stride, W)))

    def _added(self, p: Value, offsets: Value) -> Value:
        W = lanes_of(offsets)
        base = self.splat(self.b.ptrtoint(p, I64), W)
        return self.b.inttoptr(self.b.add(base, offsets), ir.VectorType(PTR, W))

    def _gather(self, pointers: Value, size: int, mask: Value | None) -> Value:
        W = width_of(pointers)
        t, mask = vector(INTS[size], W), mask if mask is not None else self.lanes(W, W)
        f = declare(self.module, f"llvm.masked.gather.{suffix(t)}.v{W}p0", t, pointers.type, I32, mask.type, t)
        return self.b.call(f, [pointers, ir.Constant(I32, size), mask, const(t, 0)])

    def _scatter(self, v: Value, pointers: Value, mask: Value | None) -> None:
        W = width_of(pointers)
        mask = mask if mask is not None else self.lanes(W, W)
        f = declare(self.module, f"llvm.masked.scatter.{suffix(v.type)}.v{W}p0", VOID, v.type, pointers.type, I32,
                    mask.type)
        self.b.call(f, [v, pointers, ir.Constant(I32, _size(element_of(v))), mask])

    # ---- memory: values of an element type

    def vload(self, p: Value, dtype: str, mask: Value | None = None, W: int | None = 0,
              stride: int | Value | None = None) -> Value:
        """W elements as float32 lanes."""
        return self.c.to_float(self.load_bits(p, element(dtype).size, mask, W, stride), dtype)

    def sload(self, p: Value, dtype: str) -> Value:
        """One element as float32."""
        return self.vload(p, dtype, None, None)

    def iload(self, p: Value, dtype: str, t: ir.Type = I64, mask: Value | None = None, W: int | None = 0,
              stride: int | Value | None = None) -> Value:
        """W elements (None: one) as integers of type t; exact for every integer type."""
        return self.c.to_int(self.load_bits(p, element(dtype).size, mask, W, stride), dtype, t)

    def vstore(self, v: Value, p: Value, dtype: str, mask: Value | None = None,
               stride: int | Value | None = None) -> None:
        """A scalar or vector (float32, i1, i32 or i64) converted to dtype and stored."""
        self.store_bits(self.c.store_bits(v, dtype), p, mask, stride)

    def gather(self, p: Value, offsets: Value, dtype: str, mask: Value | None = None) -> Value:
        """Elements at p + offsets (i64 lanes, bytes) as float32."""
        return self.c.to_float(self.gather_bits(p, offsets, element(dtype).size, mask), dtype)

    def scatter(self, v: Value, p: Value, offsets: Value, dtype: str, mask: Value | None = None) -> None:
        self.scatter_bits(self.c.store_bits(v, dtype), p, offsets, mask)


def _size(t: ir.Type) -> int:
    return t.width // 8 if isinstance(t, ir.IntType) else {"half": 2, "float": 4, "double": 8}[str(t)]


def function(module: ir.Module, name: str, *arguments: ir.Type, result: ir.Type = VOID,
             internal: bool = False) -> ir.Function:
    """Define a function of this module; bodies are made with Build(function, target)."""
    f = ir.Function(module, ir.FunctionType(result, arguments), name)
    f.attributes.add("nounwind")
    if internal:
        f.linkage = "internal"
    return f


def new_module(name: str, target: Target) -> ir.Module:
    module = ir.Module(name)
    module.triple, module.data_layout = target.triple, target.data_layout
    return module
