"""Transposition in blocks of the runtime library.

    tr_b<bytes of an element>(source, source_column, to, to_row, rows, columns)      bits as they are
    tr_f_<element type>( the same )                                                  widened to float32
    to[r, c] = source[r, c], where r is contiguous in source and `source_column` bytes lie from c to c + 1; in `to`, c
    is contiguous and `to_row` bytes lie from r to r + 1.

Tiles of 16 x 16 (8 x 8 for 8-byte elements, and for floats without AVX-512) go through registers: log2 rounds of
two-input shuffles. Exactly rows x columns elements are read and written; the two areas must not overlap.
"""
from __future__ import annotations

from collections.abc import Sequence

from llvmlite import ir

from .build import Build, function, new_module
from .irtypes import I64, PTR, Value, element, k64
from .target import Target

CHUNK = 128         # columns of source at a time: its rows stay in the TLB while all of them are read


def emit(build: Build, source: Value, source_column: int | Value, to: Value, to_row: int | Value, rows: int | Value,
         columns: int | Value, dtype: str, to_float: bool = False) -> None:
    """Call the runtime function for this transposition."""
    name = f"tr_f_{dtype}" if to_float and dtype not in ("float32", "tfloat32") else f"tr_b{element(dtype).size}"
    i = build.i64
    build.call(name, source, i(source_column), to, i(to_row), i(rows), i(columns))


def module(name: str, target: Target) -> ir.Module:
    """The object of one tr_ function."""
    m = new_module(name, target)
    f = function(m, name, PTR, I64, PTR, I64, I64, I64)
    if name.startswith("tr_f_"):
        dtype = name[5:]
        _Transpose(f, target, dtype, element(dtype).size, 4).emit()
    else:
        size = int(name[4:])
        _Transpose(f, target, "", size, size).emit()
    return m


class _Transpose(Build):
    def __init__(self, f: ir.Function, target: Target, dtype: str, size: int, to_size: int) -> None:
        super().__init__(f, target)
        self.dtype, self.size, self.to_size = dtype, size, to_size
        self.T = 8 if to_size == 8 or to_size == 4 and not target.avx512 else 16
        self.source, self.source_column, self.to, self.to_row, self.rows, self.columns = f.args

    def emit(self) -> None:
        b, T = self.b, self.T
        whole_rows, whole_columns = b.and_(self.rows, k64(-T)), b.and_(self.columns, k64(-T))

        def chunk(c0: Value, _: Sequence[Value]) -> None:
            c1 = self.minimum(b.add(c0, k64(CHUNK)), whole_columns)
            self.loop(0, whole_rows, T, lambda r, _: self.loop(c0, c1, T, lambda c, _: self._tile(r, c, None)))

        self.loop(0, whole_columns, CHUNK, chunk)
        self.loop(0, whole_rows, T, lambda r, _: self._edge(r, b.add(r, k64(T)), whole_columns, self.columns))
        self._edge(whole_rows, self.rows, k64(0), self.columns)
        b.ret_void()

    def _edge(self, r0: Value, r1: Value, c0: Value, c1: Value) -> None:
        """Rows r0 .. r1 of columns c0 .. c1, where at least one side is shorter than a tile."""
        b, T = self.b, self.T
        if self.target.avx512:
            self.loop(r0, r1, T, lambda r, _: self.loop(c0, c1, T, lambda c, _: self._tile(r, c, (r1, c1))))
            return

        def row(r: Value, _: Sequence[Value]) -> None:
            def cell(c: Value, _: Sequence[Value]) -> None:
                p = self.at(self.source, b.mul(c, self.source_column), (r, self.size))
                q = self.at(self.to, b.mul(r, self.to_row), (c, self.to_size))
                self.store_bits(self._load(p, None, None), q)
            self.loop(c0, c1, 1, cell)

        self.loop(r0, r1, 1, row)

    def _load(self, p: Value, mask: Value | None, W: int | None) -> Value:
        return self.vload(p, self.dtype, mask, W) if self.dtype else self.load_bits(p, self.size, mask, W)

    def _tile(self, r: Value, c: Value, limits: tuple[Value, Value] | None) -> None:
        b, T = self.b, self.T
        row_mask = self.below(r, limits[0], T) if limits else None
        column_mask = self.below(c, limits[1], T) if limits else None
        tiles = []
        for i in range(T):
            column = b.add(c, k64(i))
            if limits:
                column = self.minimum(column, b.sub(limits[1], k64(1)))          # past the end: the last one again
            p = self.at(self.source, b.mul(column, self.source_column), (r, self.size))
            tiles.append(self._load(p, row_mask, T))
        for i, v in enumerate(self.butterfly(tiles)):
            q = self.at(self.to, b.mul(b.add(r, k64(i)), self.to_row), (c, self.to_size))
            mask = column_mask
            if limits:
                mask = b.and_(column_mask, self.splat(self.extract(row_mask, i), T))
            self.store_bits(v, q, mask)
