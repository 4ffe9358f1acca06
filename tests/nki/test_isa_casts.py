"""Roundings at the destination: every pair of dtypes, and chains of instructions in bfloat16."""
import os

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import neuron_eager.nki.isa as nisa
import neuron_eager.nki.language as nl
from neuron_eager.nki import dtypes
from neuron_eager.nki.isa.trial import Trial

F32, BF16 = np.float32, ml_dtypes.bfloat16
EXAMPLES = int(os.environ.get("NKI_ISA_EXAMPLES", "40"))
INTEGERS = ("int8", "int16", "int32", "uint8", "uint16", "uint32")
EDGES = F32([0.5, 1.5, 2.5, -0.5, -1.5, 126.5, 127.5, 128.0, -128.5, -129, 255.5, 256, 32767.5, 65535.5, 2.0 ** 31,
             -2.0 ** 31, 2.0 ** 32, 1e20, -1e20, np.inf, -np.inf, np.nan, 0.0, 1e-30])


@pytest.mark.parametrize("dtype", INTEGERS)
def test_float_to_integer_rounds_to_even_and_saturates(dtype):
    info = np.iinfo(dtype)
    with Trial() as t:
        dst = t.empty((1, len(EDGES)), dtype)
        nisa.tensor_copy(dst, t.tile(EDGES[None]))
    want = [0 if np.isnan(v) else int(min(max(np.rint(np.float64(v)), info.min), info.max)) for v in EDGES]
    assert dst.numpy()[0].tolist() == want


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float8_e4m3", "float8_e4m3fn", "float8_e5m2"])
def test_float_formats_are_exact(dtype):
    np_dtype = dtypes.as_dtype(dtype).numpy
    values = np.random.default_rng(1).standard_normal(512).astype(F32) * F32(50)
    values[:4] = [np.inf, -np.inf, np.nan, -0.0]
    with Trial() as t:
        dst = t.empty((1, 512), dtype)
        nisa.tensor_copy(dst, t.tile(values[None]))
        back = t.empty((1, 512))
        nisa.tensor_copy(back, dst)
    np.testing.assert_array_equal(dst.numpy()[0].view(f"u{np_dtype.itemsize}"),
                                  values.astype(np_dtype).view(f"u{np_dtype.itemsize}"))
    np.testing.assert_array_equal(back.numpy()[0], values.astype(np_dtype).astype(F32))


def test_tfloat32_keeps_ten_bits_of_mantissa():
    values = F32([1 + 2.0 ** -10, 1 + 2.0 ** -11, 1 + 3 * 2.0 ** -11, np.inf, np.nan, -1e-45])
    with Trial() as t:
        dst = t.empty((1, 6), "tfloat32")
        nisa.tensor_copy(dst, t.tile(values[None]))
    np.testing.assert_array_equal(dst.numpy()[0], F32([1 + 2.0 ** -10, 1, 1 + 2.0 ** -9, np.inf, np.nan, 0]))


def test_integers_convert_through_float32_and_bool_is_truth():
    with Trial() as t:
        narrow, flag = t.empty((1, 4), "int8"), t.empty((1, 4), "bool")
        source = t.tile(np.int32([[300, -300, 2 ** 24 + 1, 0]]))
        nisa.tensor_copy(narrow, source)
        nisa.tensor_copy(flag, source)
        assert narrow.numpy().tolist() == [[127, -128, 127, 0]]
        assert flag.numpy().tolist() == [[True, True, True, False]]


def test_the_64_bit_extensions_convert_directly():
    values = np.int64([[2 ** 53 + 1, -1, 2 ** 24 + 1, 300]])
    with Trial() as t:
        out = {d: t.empty((1, 4), d) for d in ("int32", "uint8", "float32", "float64", "bool")}
        for dst in out.values():
            nisa.dma_copy(dst, t.tile(values, "shared_hbm"))
        back = t.empty((1, 3), "int64")
        nisa.dma_copy(back, t.tile(np.float64([[2.5, 1e30, np.nan]]), "shared_hbm"))
        got = {d: v.numpy()[0].tolist() for d, v in out.items()}
    assert got["int32"] == values.astype(np.int32)[0].tolist(), "integers wrap"
    assert got["uint8"] == values.astype(np.uint8)[0].tolist()
    assert got["float32"] == values.astype(F32)[0].tolist()
    assert got["float64"] == values.astype(np.float64)[0].tolist()
    assert got["bool"] == [True] * 4
    assert back.numpy()[0].tolist() == [2, 2 ** 63 - 1, 0]


# ---- chains: the reference rounds after every instruction, and nowhere else

def _b(x):
    return np.asarray(x, F32).astype(BF16).astype(F32)


BINARY = {"add": np.add, "subtract": np.subtract, "multiply": np.multiply, "maximum": np.maximum, "minimum": np.minimum}
step = st.one_of(
    st.tuples(st.just("tensor_tensor"), st.sampled_from(sorted(BINARY)), st.integers(0, 2), st.integers(0, 2)),
    st.tuples(st.just("tensor_scalar"), st.sampled_from(sorted(BINARY)), st.sampled_from(sorted(BINARY)),
              st.floats(-4, 4, width=16), st.floats(-4, 4, width=16), st.booleans(), st.integers(0, 2)),
    st.tuples(st.just("stt"), st.sampled_from(sorted(BINARY)), st.sampled_from(sorted(BINARY)),
              st.floats(-4, 4, width=16), st.integers(0, 2), st.integers(0, 2)),
    st.tuples(st.just("activation"), st.sampled_from(["exp", "tanh", "relu", "square", "abs"]),
              st.floats(-2, 2, width=16), st.floats(-2, 2, width=16), st.integers(0, 2)),
)
FUNCTIONS = {"exp": np.exp, "tanh": np.tanh, "relu": lambda x: np.maximum(x, F32(0)), "square": np.square,
             "abs": np.abs}


@settings(max_examples=EXAMPLES, deadline=None)
@given(st.lists(st.tuples(step, st.integers(0, 2)), min_size=1, max_size=8), st.integers(0, 2 ** 32 - 1))
def test_chains_in_bfloat16_round_at_each_destination(steps, seed):
    rng = np.random.default_rng(seed)
    values = [_b(rng.standard_normal((8, 16))) for _ in range(3)]
    with Trial() as t, np.errstate(all="ignore"):
        tiles = [t.tile(v.astype(BF16)) for v in values]
        for (kind, *p), to in steps:
            if kind == "tensor_tensor":
                op, a, b = p
                nisa.tensor_tensor(tiles[to], tiles[a], tiles[b], getattr(nl, op))
                values[to] = _b(BINARY[op](values[a], values[b]))
            elif kind == "tensor_scalar":
                op0, op1, x, y, reverse, a = p
                nisa.tensor_scalar(tiles[to], tiles[a], getattr(nl, op0), x, reverse, getattr(nl, op1), y)
                inner = BINARY[op0](F32(x), values[a]) if reverse else BINARY[op0](values[a], F32(x))
                values[to] = _b(BINARY[op1](inner, F32(y)))
            elif kind == "stt":
                op0, op1, x, a, b = p
                nisa.scalar_tensor_tensor(tiles[to], tiles[a], getattr(nl, op0), x, getattr(nl, op1), tiles[b])
                values[to] = _b(BINARY[op1](BINARY[op0](values[a], F32(x)), values[b]))
            else:
                op, scale, bias, a = p
                nisa.activation(tiles[to], getattr(nl, op), tiles[a], bias=bias, scale=scale)
                values[to] = _b(FUNCTIONS[op](values[a] * F32(scale) + F32(bias)))
        for tile, value in zip(tiles, values):
            np.testing.assert_array_equal(tile.numpy().astype(F32), value)


def test_without_precise_formats_nothing_is_rounded(monkeypatch):
    monkeypatch.setenv("NKI_PRECISE_FP", "0")
    with Trial() as t:
        x = t.tile(np.ones((32, 16), F32), dtype="bfloat16")
        nisa.tensor_scalar(y := t.empty((32, 16), "float8_e4m3"), x, nl.add, 1e-3)
        nisa.tensor_copy(z := t.empty((32, 16), "bfloat16"), y)
        nisa.nc_matmul(p := t.empty((16, 16), buffer="psum"), z, z)
        nisa.nc_transpose(q := t.empty((16, 32), "bfloat16", "psum"), z)
    np.testing.assert_allclose(z.numpy(), 1.001, rtol=1e-6)
    np.testing.assert_allclose(p.numpy(), 32 * 1.001 ** 2, rtol=1e-6)
    np.testing.assert_allclose(q.numpy(), 1.001, rtol=1e-6)
