"""Every cast, and integer arithmetic at its limits: native code bit for bit as the interpreter."""

from __future__ import annotations

import nki.isa as nisa
import nki.language as nl
import numpy as np
import pytest

from neuron_eager.native import compile as native
from neuron_eager.nki.dtypes import ALL
from neuron_eager.nki.interpreter import Interpreter
from neuron_eager.nki.jit import trace
from neuron_eager.nki.program import TensorSpec

DTYPES = [
    "bool",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
    "float8_e4m3",
    "float8_e4m3fn",
    "float8_e5m2",
    "float16",
    "bfloat16",
    "float32",
    "float64",
]
WHOLE = [d for d in DTYPES if ALL[d].kind in "iu"]


def values(dtype, shape, seed=0):
    """Random values of a dtype with its limits, and NaN and infinities where it has them."""
    d, rng = ALL[dtype], np.random.default_rng(seed)
    if d.kind == "b":
        return rng.integers(0, 2, shape).astype(bool)
    if d.kind in "iu":
        info = np.iinfo(d.numpy)
        x = rng.integers(info.min, info.max, shape, d.numpy, endpoint=True)
        x.flat[:6] = [0, 1, info.max, info.min, info.max // 2, 5]
        return x
    x = (rng.normal(size=shape) * 10.0 ** rng.integers(-6, 12, shape)).astype(np.float64)
    special = [
        0.0,
        -0.0,
        np.nan,
        np.inf,
        -np.inf,
        0.5,
        1.5,
        2.5,
        -0.5,
        255.5,
        256.5,
        65535.5,
        2147483647.0,
        2147483648.0,
        -2147483649.0,
        4294967295.0,
        9.3e18,
        -9.3e18,
        1e-40,
        3.4e38,
    ]
    x.flat[: len(special)] = special
    with np.errstate(all="ignore"):
        return x.astype(np.float32).astype(d.numpy) if d.itemsize < 8 else x


def agree(kernel, *inputs):
    specs = [TensorSpec.contiguous(x.shape, x.dtype if x.dtype.kind != "V" else x.dtype.name) for x in inputs]
    program = trace(kernel, specs)
    want = Interpreter.replay(program, [x.copy() for x in inputs])
    got = [np.zeros(t.shape, t.dtype.numpy) for t in program.outputs]
    native.compile_program(program)([x.ctypes.data for x in (*inputs, *got)])
    for g, w in zip(got, want):
        g, w = (
            a.view(f"u{a.dtype.itemsize}") if a.dtype.kind in "iub" else a.astype(np.float64)
            for a in (g, np.asarray(w))
        )
        assert np.array_equal(g, w, equal_nan=w.dtype.kind == "f"), np.argwhere(~((g == w) | ((g != g) & (w != w))))[:5]


@pytest.mark.parametrize("source", DTYPES)
def test_casts(source):
    """On chip and by DMA, to every dtype."""
    for target in DTYPES:

        def kernel(x, target=target):
            by_copy, by_dma = (nl.ndarray(x.shape, ALL[target], nl.shared_hbm) for _ in range(2))
            a, b = nl.ndarray(x.shape, x.dtype), nl.ndarray(x.shape, ALL[target])
            nisa.dma_copy(a, x)
            nisa.tensor_copy(b, a)
            nisa.dma_copy(by_copy, b)
            nisa.dma_copy(by_dma, x)
            return by_copy, by_dma

        agree(kernel, values(source, (16, 21)))


@pytest.mark.parametrize("dtype", WHOLE)
def test_integer_arithmetic(dtype):
    """Arithmetic, comparisons, shifts and logic of full-range integers, in the form that the dtype takes."""
    ops = [
        nl.add,
        nl.subtract,
        nl.multiply,
        nl.maximum,
        nl.minimum,
        nl.less,
        nl.equal,
        nl.logical_and,
        nl.bitwise_and,
        nl.bitwise_or,
        nl.bitwise_xor,
        nl.left_shift,
        nl.right_shift,
    ]

    def kernel(x, y):
        a, b = nl.ndarray(x.shape, x.dtype), nl.ndarray(x.shape, x.dtype)
        nisa.dma_copy(a, x)
        nisa.dma_copy(b, y)
        outs = []
        for op in ops:
            c = nl.ndarray(x.shape, x.dtype)
            nisa.tensor_tensor(c, a, b, op)
            outs.append(nl.ndarray(x.shape, x.dtype, nl.shared_hbm))
            nisa.dma_copy(outs[-1], c)
        for op, number in ((nl.bitwise_and, 6), (nl.left_shift, 3), (nl.right_shift, 5), (nl.bitwise_xor, 1)):
            c = nl.ndarray(x.shape, x.dtype)
            nisa.tensor_scalar(c, a, op, number)
            outs.append(nl.ndarray(x.shape, x.dtype, nl.shared_hbm))
            nisa.dma_copy(outs[-1], c)
        return tuple(outs)

    x, y = values(dtype, (8, 37)), values(dtype, (8, 37), 1)
    y.flat[6:30] = np.arange(24) * 3  # counts of shifts, in and beyond the width
    agree(kernel, x, y)


@pytest.mark.parametrize("dtype", ["int32", "int64", "uint8", "bool"])
def test_integer_reductions(dtype):
    def kernel(x):
        a = nl.ndarray(x.shape, x.dtype)
        nisa.dma_copy(a, x)
        outs = []
        for op in (nl.add, nl.maximum, nl.minimum):
            kind = nl.int64 if x.dtype == nl.int64 else nl.float32
            c = nl.ndarray((x.shape[0], 1), kind)
            nisa.tensor_reduce(c, op, a, axis=1)
            outs.append(nl.ndarray((x.shape[0], 1), kind, nl.shared_hbm))
            nisa.dma_copy(outs[-1], c)
        return tuple(outs)

    x = values(dtype, (9, 37))
    agree(kernel, x if dtype == "int64" else np.minimum(x, 100).astype(x.dtype) if dtype != "int32" else x % 1000)


@pytest.mark.parametrize(
    "pair",
    [
        ("float32", "int32"),
        ("float32", "uint32"),
        ("bfloat16", "uint16"),
        ("int32", "float32"),
        ("float16", "int16"),
        ("uint8", "int8"),
        ("int64", "float64"),
    ],
    ids=str,
)
def test_bytes_read_as_another_dtype(pair):
    source, target = pair

    def kernel(x):
        out, a = nl.ndarray(x.shape, ALL[target], nl.shared_hbm), nl.ndarray(x.shape, x.dtype)
        nisa.dma_copy(a, x)
        nisa.dma_copy(out, a.view(ALL[target]))
        return out

    agree(kernel, values(source, (8, 37)))


def cast_into(out, x):
    a, b = nl.ndarray(x.shape, x.dtype), nl.ndarray(x.shape, out.dtype)
    nisa.dma_copy(a, x)
    nisa.tensor_scalar(b, a, nl.add, 1.0)
    nisa.dma_copy(out, b)
    return out


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint16", "int32", "int64", "float16", "bfloat16", "float32"])
def test_stores_stay_inside_their_rows(dtype):
    """Rows of every width up to two vectors and a bit, with gaps that must stay as they are."""
    d = ALL[dtype]
    for width in range(1, 36):
        specs = [TensorSpec((5, width), (40, 1), d), TensorSpec.contiguous((5, width), "float32")]
        out, x = np.zeros((5, 40), d.numpy), np.zeros((5, width), np.float32)
        out.view(np.uint8)[:] = 0x5A
        native.compile_program(trace(cast_into, specs))([out.ctypes.data, x.ctypes.data])
        assert (out[:, :width].astype(np.float32) == 1).all(), width
        assert (out.view(np.uint8)[:, width * d.itemsize :] == 0x5A).all(), width
