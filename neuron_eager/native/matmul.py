"""Matrix multiplication blocks of the runtime library: C = A B with any shapes, strides and element types.

    mm_<type of A>_<type of B>_<layouts>(A, a_row, a_col, B, b_row, b_col, C, c_row, scratch, m, n, k, accumulate)
    C[i, j] = (accumulate ? C[i, j] : 0) + sum over p of A[i, p] B[p, j]

C has contiguous columns; exactly m x n elements of it are written. All strides are bytes. `scratch` holds
`scratch_bytes`. Layouts, one letter each: A  r (k contiguous), c (m contiguous), x (any);  B  n (n contiguous),
t (k contiguous), x (any); C  nothing (float32), b (bfloat16) or h (float16). At most gemv.ROWS rows go to the block in
`gemv`. A C that is not float32 is rounded once and never read, so it takes no `accumulate`, k is limited
(`direct_depth`), and there is no block for few rows.

Scheme (Goto and van de Geijn, "Anatomy of high-performance matrix multiplication", 2008): k is cut into depths of
DEPTH; B is packed into panels as wide as the register block; the register block, 4 rows x 64 columns with AVX-512 (16
accumulators), 6 x 16 with AVX2, runs over the rows. A in float32 is read in place, one broadcast per element; other
types are widened into scratch once per depth. bfloat16 times bfloat16 uses vdpbf16ps where the CPU has it, on pairs of
k, so k must be even for it (`emit` sees to that); it flushes denormals, as torch's own does.
"""
from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from llvmlite import ir

from . import gemv
from .build import Build, function, new_module
from .irtypes import BF16, F32, I32, I64, PTR, Value, const, declare, element, k64
from .target import Target

DEPTH = 512            # steps of k: the panel, 128 KiB with AVX-512, stays in the second-level cache
LONG_DEPTH = 1024      # where partial sums can not be kept in C
EDGE = 16              # panels are packed in tiles of up to 16 steps: the last may run over DEPTH


C_LETTERS = {"float32": "", "bfloat16": "b", "float16": "h"}


class Matrix(NamedTuple):
    """An operand: address, byte strides of a row and a column step (ints where known), element type."""

    p: Value
    rows: int | Value
    cols: int | Value
    dtype: str


def blocks(target: Target) -> tuple[tuple[int, int], ...]:
    """(rows, vectors) of the register blocks: of a whole panel first, then for panels with fewer columns left."""
    return ((4, 4), (8, 2), (8, 1)) if target.avx512 else ((6, 2), (8, 1))


def direct_depth(target: Target, a_dtype: str, b_dtype: str) -> int:
    """The largest k that a product can have whose C is not float32."""
    return LONG_DEPTH * (2 if a_dtype == b_dtype == "bfloat16" and target.bf16_dot else 1)


def scratch_bytes(target: Target, a_dtype: str, b_dtype: str, m: int, k: int, c_dtype: str = "float32") -> int:
    """Scratch that a product of at most m rows and depth k needs, in bytes."""
    width = blocks(target)[0][1] * target.lanes
    depth = DEPTH if _plain(c_dtype) == "float32" else LONG_DEPTH
    panel = 4 * width * (depth + EDGE)
    rows = 0 if _plain(a_dtype) == "float32" else 4 * (m + EDGE) * (min(k, depth) + EDGE)
    return -(-max(panel + rows, gemv.scratch_bytes(k)) // 64) * 64


def emit(build: Build, a: Matrix, b: Matrix, c: Value, c_row: int | Value, scratch: Value, m: int | Value,
         n: int | Value, k: int | Value, accumulate: int | Value = 0, c_dtype: str = "float32") -> None:
    """Call the runtime function for this product. Strides given as ints choose the layout.

    c_dtype: float32, or bfloat16 or float16 where k is an int within `direct_depth` and `accumulate` is 0.
    """
    name = name_for(build.target, a, b, k, c_dtype)
    i = build.i64
    build.call(name, a.p, i(a.rows), i(a.cols), b.p, i(b.rows), i(b.cols), c, i(c_row), scratch, i(m), i(n), i(k),
               i(accumulate))


def name_for(target: Target, a: Matrix, b: Matrix, k: int | Value, c_dtype: str = "float32") -> str:
    left, right = _plain(a.dtype), _plain(b.dtype)
    layout_b = "n" if _is(b.cols, element(right).size) else "t" if _is(b.rows, element(right).size) else "x"
    if left == "float32":
        layout_a = "x"
    else:
        layout_a = "r" if _is(a.cols, element(left).size) else "c" if _is(a.rows, element(left).size) else "x"
        if left == right == "bfloat16" and target.bf16_dot and not (isinstance(k, int) and k % 2 == 0):
            layout_a = "x"
    return f"mm_{left}_{right}_{layout_a}{layout_b}{C_LETTERS[_plain(c_dtype)]}"


def _plain(dtype: str) -> str:
    return "float32" if dtype == "tfloat32" else str(dtype)


def _is(stride: int | Value, size: int) -> bool:
    return isinstance(stride, int) and stride == size


def module(name: str, target: Target) -> ir.Module:
    """The object of one mm_ function."""
    m = new_module(name, target)
    f = function(m, name, PTR, I64, I64, PTR, I64, I64, PTR, I64, PTR, I64, I64, I64, I64)
    left, right, layouts = _parse(name)
    to = next(d for d, letter in C_LETTERS.items() if letter == layouts[2:])
    _Product(f, target, left, right, layouts[0], layouts[1], to).emit()
    return m


def _parse(name: str) -> tuple[str, str, str]:
    """mm_float8_e4m3_bfloat16_rn -> (float8_e4m3, bfloat16, rn)"""
    body, layouts = name[3:].rsplit("_", 1)
    parts = body.split("_")
    cut = 2 if parts[0] == "float8" else 1
    return "_".join(parts[:cut]), "_".join(parts[cut:]), layouts


Masks = list[Value] | None                                   # of the columns of a panel, one for each vector
Panel = Callable[[tuple[int, int], Masks], None]


class _Product(Build):
    def __init__(self, f: ir.Function, target: Target, left: str, right: str, layout_a: str, layout_b: str,
                 to: str) -> None:
        super().__init__(f, target)
        self.to, self.size = to, element(to).size
        self.depth = DEPTH if to == "float32" else LONG_DEPTH
        self.left, self.right, self.layout_a, self.layout_b = left, right, layout_a, layout_b
        self.blocks = blocks(target)
        self.width = self.blocks[0][1] * self.W
        self.pitch = 4 * self.width                             # bytes of one step of a packed panel
        self.pairs = left == right == "bfloat16" and target.bf16_dot and layout_a != "x" and layout_b != "x"
        (self.A, self.a_row, self.a_col, self.B, self.b_row, self.b_col, self.C, self.c_row, self.panel, self.M, self.N,
         self.K, self.accumulate) = f.args
        self.V = ir.VectorType(F32, self.W)
        self.VI = ir.VectorType(I32, self.W)

    def emit(self) -> None:
        b = self.b
        if self.to == "float32":
            few, many = self.fn.append_basic_block("few"), self.fn.append_basic_block("many")
            b.cbranch(b.icmp_signed("<=", self.M, k64(gemv.ROWS)), few, many)
            b.position_at_end(few)
            self.call(f"gv_{self.left}_{self.right}_{self.layout_b}", *self.fn.args)
            b.ret_void()
            b.position_at_end(many)
        self.packed = self.at(self.panel, self.pitch * (self.depth + EDGE))      # A, where it is packed
        self.steps = b.lshr(self.K, k64(1)) if self.pairs else self.K
        self.loop(0, self.maximum(self.steps, 1), self.depth, self._depth)       # k = 0 still writes zeros
        b.ret_void()

    def _depth(self, start: Value, _: Sequence[Value]) -> None:
        b = self.b
        count = self.minimum(b.sub(self.steps, start), self.depth)
        a, row, step = self._left_operand(start, count)
        keep = b.or_(b.icmp_signed("!=", start, k64(0)), b.icmp_signed("!=", self.accumulate, k64(0)))

        def panel(j: Value, _: Sequence[Value]) -> None:
            def whole(shape: tuple[int, int], masks: Masks) -> None:
                self._pack(start, count, j, shape[1], masks)
                self._row_blocks(shape, a, row, step, count, keep, j, masks)
            self._by_width(j, whole)

        self.loop(0, self.N, self.width, panel)

    def _by_width(self, j: Value, body: Panel, which: int = 0) -> None:
        """body(block, masks of its columns) for the narrowest register block that holds the columns left.

        Without mask registers a full panel gets code of its own, with None for the masks.
        """
        b, left, shape = self.b, self.b.sub(self.N, j), self.blocks[which]

        def masked() -> None:
            body(shape, [self.below(b.add(j, k64(v * self.W)), self.N) for v in range(shape[1])])

        def ragged() -> None:
            if which + 1 == len(self.blocks):
                masked()
                return
            narrower = b.icmp_signed("<=", left, k64(self.blocks[which + 1][1] * self.W))
            self.when(narrower, lambda: self._by_width(j, body, which + 1), masked)

        if which == 0 and not self.target.avx512:
            self.when(b.icmp_signed(">=", left, k64(self.width)), lambda: body(shape, None), ragged)
        else:
            ragged()

    # ---- A

    def _left_operand(self, start: Value, count: Value) -> tuple[Value, Value, Value]:
        """(address, row stride, step stride) of A at a depth: as it is, or packed."""
        b, unit = self.b, 2 if self.pairs else 1
        size = element(self.left).size
        here = self.at(self.A, self.mul(self.b.mul(start, self.a_col), unit))
        if self.left == "float32":
            return here, self.a_row, self.a_col
        if self.pairs and self.layout_a == "r":
            return here, self.a_row, k64(4)
        if self.layout_a == "c":
            pitch = b.shl(b.and_(b.add(self.M, k64(EDGE - 1)), k64(-EDGE)), k64(2))
            self.loop(0, count, 1, lambda p, _: self._pack_column(self.at(here, (b.mul(p, self.a_col), unit)),
                                                                  self.at(self.packed, (p, pitch))))
            return self.packed, k64(4), pitch
        pitch = b.shl(b.add(self.minimum(self.K, self.depth), k64(EDGE)), k64(2))

        def row(i: Value, _: Sequence[Value]) -> None:
            source, to = self.at(here, (i, self.a_row)), self.at(self.packed, (i, pitch))
            if self.layout_a == "x":
                self.loop(0, count, 1, lambda p, _: self.vstore(
                    self.sload(self.at(source, (p, self.a_col)), self.left), self.at(to, (p, 4)), "float32"))
                return
            self._ragged(count, lambda p, mask: self.vstore(
                self.vload(self.at(source, (p, size)), self.left, mask), self.at(to, (p, 4)), "float32"))

        self.loop(0, self.M, 1, row)
        return self.packed, pitch, k64(4)

    def _pack_column(self, source: Value, to: Value) -> None:
        """One step of A with contiguous rows: widened, or two of them interleaved into pairs."""
        def piece(i: Value, mask: Value | None) -> None:
            p = self.at(source, (i, element(self.left).size))
            x = self._interleave(p, self.a_col, mask) if self.pairs else self.vload(p, self.left, mask)
            self.store_bits(x, self.at(to, (i, 4)))
        self._ragged(self.M, piece)

    def _ragged(self, n: Value, body: Callable[[Value, Value | None], None]) -> None:
        """body(i, mask) for i = 0, W, ... < n; the mask is None for whole vectors where that makes better code."""
        if self.target.avx512:
            self.loop(0, n, self.W, lambda i, _: body(i, self.below(i, n)))
            return
        whole = self.b.and_(n, k64(-self.W))
        self.loop(0, whole, self.W, lambda i, _: body(i, None))
        self.when(self.b.icmp_signed("<", whole, n), lambda: body(whole, self.below(whole, n)))

    # ---- B

    def _pack(self, start: Value, count: Value, j: Value, vectors: int, masks: Masks) -> None:
        """Steps start .. start + count of columns j .. j + width to the panel, as float32 or as pairs."""
        b, size = self.b, element(self.right).size
        unit = 2 if self.pairs else 1
        origin = self.at(self.B, self.mul(b.mul(start, self.b_row), unit), b.mul(j, self.b_col))

        def step(p: Value, _: Sequence[Value]) -> None:
            source, to = self.at(origin, self.mul(b.mul(p, self.b_row), unit)), self.at(self.panel, (p, self.pitch))
            for v in range(vectors):
                q, mask = self.at(source, v * self.W * size), masks[v] if masks else None
                x = self._interleave(q, self.b_row, mask) if self.pairs else self.vload(q, self.right, mask)
                self.store_bits(x, self.at(to, 4 * self.W * v))

        def scalar(p: Value, _: Sequence[Value]) -> None:
            source, to = self.at(origin, b.mul(p, self.b_row)), self.at(self.panel, (p, self.pitch))
            self.loop(0, self.minimum(b.sub(self.N, j), vectors * self.W), 1, lambda c, _: self.vstore(
                self.sload(self.at(source, b.mul(c, self.b_col)), self.right), self.at(to, (c, 4)), "float32"))

        if self.layout_b == "n":
            self.loop(0, count, 1, step)
        elif self.layout_b == "x":
            self.loop(0, count, 1, scalar)
        else:
            left = b.sub(b.sub(self.N, j), k64(1))
            self._ragged(count, lambda p, mask: self._transposed_step(
                origin, p, mask, vectors, None if masks is None else left))

    def _transposed_step(self, origin: Value, p: Value, mask: Value | None, vectors: int, last: Value | None) -> None:
        """W steps of all columns of a panel, where B is stored column by column: W x W tiles through registers."""
        b, W = self.b, self.W
        unit = 4 if self.pairs else element(self.right).size
        to = self.at(self.panel, (p, self.pitch))

        def tile(c: Value, _: Sequence[Value]) -> None:
            columns = []
            for i in range(W):
                column = b.add(c, k64(i))
                column = column if last is None else self.minimum(column, last)   # past the end: the last column again
                q = self.at(origin, b.mul(column, self.b_col), (p, unit))
                columns.append(self.load_bits(q, 4, mask) if self.pairs else self.vload(q, self.right, mask))
            for i, row in enumerate(self.butterfly(columns)):
                self.store_bits(row, self.at(to, self.pitch * i, (c, 4)))

        self.loop(0, vectors * W, W, tile)

    def _interleave(self, p: Value, next_row: Value, mask: Value | None) -> Value:
        """Pairs (p[i], p[i + one row]) of 16-bit elements, the first in the low half."""
        low, high = (self.b.zext(self.load_bits(q, 2, mask), self.VI) for q in (p, self.at(p, next_row)))
        return self.b.or_(low, self.b.shl(high, const(self.VI, 16)))

    # ---- the register block

    def _row_blocks(self, shape: tuple[int, int], a: Value, row: Value, step: Value, count: Value, keep: Value,
                    j: Value, masks: Masks) -> None:
        """All rows of a panel: whole register blocks, then what is left in blocks of 4, 2 and 1."""
        b, (rows, vectors) = self.b, shape

        def micro(r: int, i: Value) -> None:
            self._micro((r, vectors), i, a, row, step, count, keep, j, masks)

        whole = b.mul(b.udiv(self.M, k64(rows)), k64(rows))
        self.loop(0, whole, rows, lambda i, _: micro(rows, i))
        rest = b.sub(self.M, whole)
        for r in (4, 2, 1):
            if r < rows:
                at = b.add(whole, b.and_(rest, k64(-2 * r)))
                self.when(b.icmp_signed("!=", b.and_(rest, k64(r)), k64(0)), partial(micro, r, at))

    def _micro(self, shape: tuple[int, int], i: Value, a: Value, row: Value, step: Value, count: Value, keep: Value,
               j: Value, masks: Masks) -> None:
        """The register block: rows from i on, all columns of the panel at j, `count` steps."""
        b, (rows, vectors) = self.b, shape
        pa = [self.at(a, b.mul(b.add(i, k64(r)), row)) for r in range(rows)]
        pc = [self.at(self.C, b.mul(b.add(i, k64(r)), self.c_row), (j, self.size)) for r in range(rows)]
        cells = [(r, v) for r in range(rows) for v in range(vectors)]

        def mask(v: int) -> Value | None:
            return masks[v] if masks else None

        def previous() -> list[Value]:
            return [self.vload(self.at(pc[r], 4 * self.W * v), "float32", mask(v)) for r, v in cells]

        sums = [const(self.V, 0)] * len(cells)
        if self.to == "float32":
            sums = self.when(keep, previous, sums)

        def turn(p: Value, sums: Sequence[Value]) -> list[Value]:
            at = self.at(self.panel, (p, self.pitch))
            columns = [self._panel_vector(self.at(at, 4 * self.W * v)) for v in range(vectors)]
            out = []
            for r in range(rows):
                x = self._broadcast(self.at(pa[r], b.mul(p, step)))
                out += [self._multiply_add(x, columns[v], sums[r * vectors + v]) for v in range(vectors)]
            return out

        sums = self.loop(0, count, 1, turn, sums)
        for (r, v), s in zip(cells, sums):
            self.vstore(s, self.at(pc[r], self.size * self.W * v), self.to, mask(v))

    def _panel_vector(self, p: Value) -> Value:
        if self.pairs:
            return self.b.bitcast(self.load_bits(p, 4), ir.VectorType(BF16, 2 * self.W))
        return self.b.load(p, typ=self.V, align=4)

    def _broadcast(self, p: Value) -> Value:
        if self.pairs:
            x = self.splat(self.b.load(p, typ=I32, align=2))
            return self.b.bitcast(x, ir.VectorType(BF16, 2 * self.W))
        return self.splat(self.b.load(p, typ=F32, align=4))

    def _multiply_add(self, x: Value, y: Value, total: Value) -> Value:
        if self.pairs:
            f = declare(self.module, "llvm.x86.avx512bf16.dpbf16ps.512", self.V, self.V, x.type, y.type)
            return self.b.call(f, [total, x, y])
        return self.m.fma(x, y, total)


