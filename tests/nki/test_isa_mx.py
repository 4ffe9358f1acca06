"""Microscaling: quantization, packed products, scale layout."""
import ml_dtypes
import numpy as np
import pytest

import neuron_eager.nki.isa as nisa
import neuron_eager.nki.language as nl
from neuron_eager.nki.isa.trial import Trial
from neuron_eager.nki.semantics.mx import unpack

F32, BF16 = np.float32, ml_dtypes.bfloat16
ELEMENT = {"float8_e4m3fn_x4": (ml_dtypes.float8_e4m3fn, 8), "float8_e5m2_x4": (ml_dtypes.float8_e5m2, 15)}
rng = np.random.default_rng(9)


@pytest.fixture
def t():
    with Trial() as trial:
        yield trial


def quantized(t, x, dtype, scale_dtype="uint8"):
    shape = x.shape[0], x.shape[1] // 4
    dst, scale = t.empty(shape, dtype), t.tile(np.zeros(shape, np.uint8))
    if scale_dtype != "uint8":
        scale = scale.view(scale_dtype)
    nisa.quantize_mx(dst, t.tile(x), scale)
    return dst, scale


def reference(x, dtype):
    """(codes, scale exponents per block of 8 × 4) by the documented rule, one block at a time."""
    element, emax = ELEMENT[dtype]
    codes, exponents = np.zeros(x.shape, element), np.zeros((x.shape[0] // 8, x.shape[1] // 4), int)
    for i in range(0, x.shape[0], 8):
        for j in range(0, x.shape[1], 4):
            block = x[i:i + 8, j:j + 4].astype(np.float64)
            largest = np.abs(block).max()
            e = -127 if largest == 0 else int(np.floor(np.log2(largest))) - (emax - 1)
            exponents[i // 8, j // 4] = e
            codes[i:i + 8, j:j + 4] = (block / 2.0 ** e).astype(F32).astype(element)
    return codes, exponents


@pytest.mark.parametrize("dtype", ELEMENT)
@pytest.mark.parametrize(("partitions", "source"), [(32, BF16), (128, np.float16)])
def test_quantize_mx(t, dtype, partitions, source):
    x = (rng.standard_normal((partitions, 24)) * np.exp2(rng.integers(-6, 6, (partitions, 24)))).astype(source)
    x[8:16, 4:8] = 0
    dst, scale = quantized(t, x, dtype)
    codes, exponents = reference(x, dtype)
    np.testing.assert_array_equal(unpack(dst).reshape(partitions, 24), codes.astype(F32))
    got = scale.numpy()
    for block in range(partitions // 8):
        row = block // 4 * 32 + block % 4
        assert got[row].tolist() == (exponents[block] + 127).tolist()
    assert exponents[1, 1] == -127
    assert (got[4:32] == 0).all(), "other partitions of the scale tile keep their values"


@pytest.mark.parametrize(("left", "right"), [("float8_e4m3fn_x4", "float8_e4m3fn_x4"),
                                             ("float8_e5m2_x4", "float8_e4m3fn_x4")])
def test_product_of_quantized_tiles(t, left, right):
    a, b = rng.standard_normal((64, 64)).astype(BF16), rng.standard_normal((64, 96)).astype(BF16)
    sa, ssa = quantized(t, a, left, "float8_e8m0fnu")
    sb, ssb = quantized(t, b, right)
    dst = t.empty((16, 24), buffer="psum")
    nisa.nc_matmul_mx(dst, sa, sb, ssa, ssb)
    dequantized = [c.astype(np.float64) * np.exp2(np.kron(e, np.ones((8, 4))))
                   for c, e in (reference(a, left), reference(b, right))]
    wide = [v.reshape(64, -1, 4).transpose(0, 2, 1).reshape(256, -1) for v in dequantized]
    np.testing.assert_allclose(dst.numpy(), wide[0].T @ wide[1], rtol=1e-4, atol=1e-4)
    full = [v.astype(np.float64).reshape(64, -1, 4).transpose(0, 2, 1).reshape(256, -1) for v in (a, b)]
    assert np.abs(dst.numpy() - full[0].T @ full[1]).mean() < 2, "close to the product of the unquantized tiles"
    nisa.nc_matmul_mx(dst, sa, sb, ssa, ssb)
    np.testing.assert_allclose(dst.numpy(), 2 * (wide[0].T @ wide[1]), rtol=1e-4, atol=1e-4)


def test_four_bit_values_unpack_from_the_low_end(t):
    tile = t.tile(np.uint16([[0x8721]]), dtype="float4_e2m1fn_x4")
    assert unpack(tile).tolist() == [[[0.5, 1.0, 6.0, -0.0]]]


def test_scales_of_a_sliced_buffer(t):
    x = rng.standard_normal((32, 16)).astype(BF16)
    whole = t.tile(np.full((32, 12), 9, np.uint8))
    nisa.quantize_mx(t.empty((32, 4), nl.float8_e5m2_x4), t.tile(x), whole[:, 4:8])
    exponents = reference(x, "float8_e5m2_x4")[1]
    got = whole.numpy()
    np.testing.assert_array_equal(got[:4, 4:8], exponents + 127)
    assert (np.delete(got, range(4, 8), 1) == 9).all()
    assert (got[4:] == 9).all()


def test_scales_of_several_tiles_share_a_buffer(t):
    """Scales of several tiles lie beside each other in each quadrant, four partitions apart."""
    x, y = rng.standard_normal((64, 8)).astype(BF16), rng.standard_normal((64, 8)).astype(BF16)
    whole = t.tile(np.zeros((64, 2), np.uint8))
    qx, qy = t.empty((64, 2), nl.float8_e4m3fn_x4), t.empty((64, 2), nl.float8_e4m3fn_x4)
    nisa.quantize_mx(qx, t.tile(x), whole)
    nisa.quantize_mx(qy, t.tile(y), whole[4:, :])
    want = {v: reference(w, "float8_e4m3fn_x4")[1] + 127 for v, w in (("x", x), ("y", y))}
    got = whole.numpy()
    np.testing.assert_array_equal(np.concatenate([got[0:4], got[32:36]]), want["x"])
    np.testing.assert_array_equal(np.concatenate([got[4:8], got[36:40]]), want["y"])
    nisa.nc_matmul_mx(packed := t.empty((2, 2), buffer="psum"), qx, qy, whole, whole[4:, :])
    _, scale = quantized(t, y, "float8_e4m3fn_x4")
    nisa.nc_matmul_mx(apart := t.empty((2, 2), buffer="psum"), qx, qy, whole, scale)
    np.testing.assert_array_equal(packed.numpy(), apart.numpy())
