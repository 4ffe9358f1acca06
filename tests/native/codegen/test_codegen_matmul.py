"""Matrix products and transposition of the runtime library against NumPy: ragged shapes, layouts, strides, types."""
from __future__ import annotations

import ctypes
import itertools

import ml_dtypes
import numpy as np
import pytest

from neuron_eager.native import gemv, library, matmul, transpose
from neuron_eager.native.irtypes import ELEMENTS

P, N = ctypes.c_void_p, ctypes.c_int64
NUMPY = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16,
         "float8_e4m3": ml_dtypes.float8_e4m3, "float8_e5m2": ml_dtypes.float8_e5m2}
SHAPES = [(5, 3, 2), (7, 64, 6), (6, 65, 16), (130, 200, 70), (16, 16, 130), (9, 33, 514), (8, 1, 8), (13, 81, 1040),
          (5, 20, 0), (37, 16, 64)]
FEW = [(1, 1, 2), (4, 65, 16), (1, 100, 64), (2, 37, 130), (3, 129, 34), (4, 16, 0), (1, 5, 1), (2, 3, 17)]


def laid_out(x, layout, contiguous):
    """The matrix in a layout: the letter of `contiguous` last axis, first axis, or neither."""
    if layout == contiguous:
        return np.ascontiguousarray(x)
    if layout == "x":
        return np.repeat(np.repeat(x, 2, 0), 3, 1)[::2, ::3]
    return np.asfortranarray(x)


def product(target, name, a, b, accumulate=0, k=None):
    m, n, k = len(a), b.shape[1], a.shape[1]
    types = [next(d for d, t in NUMPY.items() if np.dtype(t) == x.dtype) for x in (a, b)]
    to = {"b": "bfloat16", "h": "float16"}.get(name[-1], "float32")
    c = np.full((m + 1, n + 3), 7, NUMPY[to])
    room = matmul.scratch_bytes(target, *types, m, k, to)
    scratch = np.full(room + 64 + 64, 0xA5, np.uint8)
    at = -(-scratch.ctypes.data // 64) * 64
    f = ctypes.CFUNCTYPE(None, P, N, N, P, N, N, P, N, P, N, N, N, N)(library.address(name, target))
    f(a.ctypes.data, *a.strides, b.ctypes.data, *b.strides, c.ctypes.data, c.strides[0], at, m, n, k, accumulate)
    end = at - scratch.ctypes.data + room
    assert (scratch[end:] == 0xA5).all(), "wrote past its scratch"
    assert (c[m:] == 7).all() and (c[:, n:] == 7).all(), "wrote outside of C"
    return c[:m, :n]


def check(target, left, right, layout_a, layout_b, shapes):
    rng = np.random.default_rng(0)
    for m, n, k in shapes:
        a = laid_out(rng.standard_normal((m, k)).astype(NUMPY[left]), layout_a, "r")
        b = laid_out(rng.standard_normal((k, n)).astype(NUMPY[right]), layout_b, "n")
        wanted = a.astype(np.float64) @ b.astype(np.float64)
        scale = np.abs(a).astype(np.float64) @ np.abs(b).astype(np.float64) + 1
        for accumulate in (0, 1):
            got = product(target, f"mm_{left}_{right}_{layout_a}{layout_b}", a, b, accumulate)
            error = np.abs(got - wanted - 7 * accumulate) / scale
            assert error.size == 0 or error.max() < 2e-6, (m, n, k, accumulate, error.max())


@pytest.mark.parametrize("layout_b", "ntx")
@pytest.mark.parametrize("left", ["float32", "bfloat16", "float16"])
def test_products(left, layout_b, target):
    for layout_a in "x" if left == "float32" else "rc":
        even = [s for s in SHAPES + FEW if s[2] % 2 == 0]
        check(target, left, left, layout_a, layout_b, even if left == "bfloat16" else SHAPES + FEW)


@pytest.mark.parametrize(("dtype", "letter"), [("bfloat16", "b"), ("float16", "h")])
def test_result_rounded_to_the_operands_type(dtype, letter, target):
    rng = np.random.default_rng(2)
    longest = matmul.direct_depth(target, dtype, dtype)
    for m, n, k in [(1, 70, 2), (6, 17, 40), (37, 130, 300), (9, 5, longest), (5, 9, 0)]:
        a, b = (rng.standard_normal(s).astype(NUMPY[dtype]) for s in ((m, k), (k, n)))
        wide = product(target, f"mm_{dtype}_{dtype}_rn", a, b) if m > gemv.ROWS else None
        got = product(target, f"mm_{dtype}_{dtype}_rn{letter}", a, b)
        wanted = (a.astype(np.float64) @ b.astype(np.float64)).astype(NUMPY[dtype])
        np.testing.assert_allclose(got.astype(float), wanted.astype(float), rtol=2**-7, atol=1e-3)
        if wide is not None and k <= 600:
            assert np.array_equal(got, wide.astype(NUMPY[dtype]))
    a, b = matmul.Matrix(None, 80, 2, dtype), matmul.Matrix(None, 2, 80, dtype)
    assert matmul.name_for(target, a, b, 40, dtype).endswith("_rt" + letter)


@pytest.mark.parametrize(("left", "right", "layouts"), [
    ("bfloat16", "bfloat16", "xn"), ("bfloat16", "bfloat16", "xt"), ("float8_e4m3", "bfloat16", "rn"),
    ("float8_e5m2", "float8_e5m2", "ct"), ("float32", "bfloat16", "xt"), ("float16", "float32", "xn")])
def test_mixed_types_and_odd_depth(left, right, layouts, target):
    check(target, left, right, *layouts, [*SHAPES[:4], (5, 7, 3), (33, 9, 77), (3, 40, 9), (1, 3, 5)])


def test_nan_and_infinity_stay_in_their_row_and_column(target):
    a, b = np.ones((9, 20), np.float32), np.ones((20, 70), np.float32)
    a[3, 5], b[7, 66] = np.nan, np.inf
    c = product(target, "mm_float32_float32_xn", a, b)
    assert np.isnan(c[3]).all() and np.isfinite(np.delete(np.delete(c, 3, 0), 66, 1)).all()
    assert np.isinf(np.delete(c[:, 66], 3)).all()


def test_broadcast_operand(target):
    """Stride 0: one row of A, or one column of B, repeated."""
    a = np.broadcast_to(np.arange(12, dtype=np.float32), (9, 12))
    b = np.broadcast_to(np.arange(12, dtype=np.float32)[:, None], (12, 21))
    assert np.array_equal(product(target, "mm_float32_float32_xx", a, b), a @ b)


def test_name_follows_strides(target):
    def name(a, b, k=64):
        return matmul.name_for(target, matmul.Matrix(None, *a), matmul.Matrix(None, *b), k)
    assert name((256, 4, "float32"), (512, 4, "float32")) == "mm_float32_float32_xn"
    assert name((256, 4, "tfloat32"), (4, 512, "float32")) == "mm_float32_float32_xt"
    assert name((128, 2, "bfloat16"), (2, 128, "bfloat16")) == "mm_bfloat16_bfloat16_rt"
    assert name((2, 128, "bfloat16"), (6, 128, "bfloat16")) == "mm_bfloat16_bfloat16_cx"
    assert name((1, 64, "float8_e4m3"), (2, 128, "float8_e5m2")) == "mm_float8_e4m3_float8_e5m2_cx"
    assert matmul._parse("mm_float8_e4m3_float8_e5m2_cx") == ("float8_e4m3", "float8_e5m2", "cx")
    odd = name((126, 2, "bfloat16"), (128, 2, "bfloat16"), 63)
    assert odd == ("mm_bfloat16_bfloat16_xn" if target.bf16_dot else "mm_bfloat16_bfloat16_rn")


def test_few_rows_have_their_own_block(target):
    assert gemv.ROWS == 4
    library.address("mm_float32_float32_xn", target)
    assert (target, "gv_float32_float32_n") in library._addresses


def test_emit_calls_the_library(run):
    rng = np.random.default_rng(1)
    a, b, c = rng.standard_normal((10, 6)), rng.standard_normal((6, 9)), np.zeros((10, 9))
    a, b, c = (x.astype(np.float32) for x in (a, b, c))
    scratch = np.zeros(1 << 20, np.uint8)

    def body(build, p, n):
        matmul.emit(build, matmul.Matrix(p[0], 24, 4, "float32"), matmul.Matrix(p[1], 36, 4, "float32"), p[2], 36, p[3],
                    n, 9, 6)
    run(body, a, b, c, scratch, n=10)
    np.testing.assert_allclose(c, a @ b, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("size", [1, 2, 4, 8])
def test_transpose_of_bits(size, target):
    rng = np.random.default_rng(size)
    f = ctypes.CFUNCTYPE(None, P, N, P, N, N, N)(library.address(f"tr_b{size}", target))
    for rows, columns in itertools.product((0, 1, 5, 16, 17, 33), (1, 8, 15, 16, 40)):
        x = rng.integers(0, 255, (columns + 1, rows + 3)).astype(f"u{size}")
        out = np.full((rows + 1, columns + 2), 9, f"u{size}")
        f(x.ctypes.data, x.strides[0], out.ctypes.data, out.strides[0], rows, columns)
        assert np.array_equal(out[:rows, :columns], x[:columns, :rows].T), (rows, columns)
        assert (out[rows:] == 9).all() and (out[:, columns:] == 9).all()


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float8_e4m3"])
def test_transpose_that_widens(dtype, run):
    x = np.arange(19 * 45).reshape(19, 45).astype(NUMPY[dtype])
    out = np.zeros((45, 19), np.float32)

    def body(build, p, n):
        transpose.emit(build, p[0], x.strides[0], p[1], 76, n, 19, dtype, to_float=True)
    run(body, x, out, n=45)
    assert x.itemsize == ELEMENTS[dtype].size
    with np.errstate(all="ignore"):
        assert np.array_equal(out, x.T.astype(np.float32), equal_nan=True)


@pytest.mark.slow
def test_many_shapes(target):
    rng = np.random.default_rng(7)
    shapes = [tuple(int(v) for v in rng.integers(1, 300, 3)) for _ in range(60)]
    for layout_b in "nt":
        check(target, "float32", "float32", "x", layout_b, shapes)
        for layout_a in "rc":
            check(target, "bfloat16", "bfloat16", layout_a, layout_b, [(m, n, 2 * k) for m, n, k in shapes])
