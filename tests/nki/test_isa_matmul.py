"""The Tensor engine: products, accumulation, transposes."""
import ml_dtypes
import numpy as np
import pytest

import neuron_eager.nki.isa as nisa
import neuron_eager.nki.language as nl
from neuron_eager.errors import NkiUninitializedError, NkiWarning
from neuron_eager.nki.isa.trial import Trial

F32, BF16 = np.float32, ml_dtypes.bfloat16
rng = np.random.default_rng(7)
A = rng.standard_normal((96, 40)).astype(F32)
B = rng.standard_normal((96, 70)).astype(F32)


@pytest.fixture
def t():
    with Trial() as trial:
        yield trial


@pytest.mark.parametrize(("left", "right"), [
    ("float32", "float32"), ("bfloat16", "bfloat16"), ("float16", "bfloat16"), ("float8_e4m3", "float8_e5m2"),
    ("float8_e4m3fn", "bfloat16")])
def test_product_of_any_input_dtypes_in_float32(t, left, right):
    s, m = t.empty(A.shape, left), t.empty(B.shape, right)
    nisa.tensor_copy(s, t.tile(A))
    nisa.tensor_copy(m, t.tile(B))
    nisa.nc_matmul(dst := t.empty((40, 70), buffer="psum"), s, m)
    want = s.numpy().astype(np.float64).T @ m.numpy().astype(np.float64)
    np.testing.assert_allclose(dst.numpy(), want, rtol=1e-4, atol=1e-4)


def test_tfloat32_rounds_its_inputs(t):
    x = F32([[1 + 2.0 ** -11]])
    one = t.tile(F32([[1.0]]), dtype="tfloat32")
    nisa.nc_matmul(dst := t.empty((1, 1), buffer="psum"), t.tile(x, dtype="tfloat32"), one)
    assert dst.numpy() == 1


@pytest.mark.filterwarnings("ignore:nc_matmul overwrites")
def test_accumulate_flags(t):
    s, m, dst = t.tile(A), t.tile(B), t.empty((40, 70), buffer="psum")
    product = A.T @ B
    for flag, factor in ((False, 1), (True, 2), (False, 1), (None, 2), (None, 3)):
        nisa.nc_matmul(dst, s, m, accumulate=flag)
        np.testing.assert_allclose(dst.numpy(), factor * product, rtol=1e-4, atol=1e-4)


def test_overlapping_regions_accumulate_element_by_element(t):
    dst = t.empty((40, 100), buffer="psum")
    for start in (0, 30, 15):
        nisa.nc_matmul(dst[:, start:start + 70], t.tile(A), t.tile(B))
    want = np.zeros((40, 100), F32)
    for start in (0, 30, 15):
        want[:, start:start + 70] += A.T @ B
    np.testing.assert_allclose(dst.numpy(), want, rtol=1e-4, atol=1e-4)


def test_zeroed_psum_gives_the_plain_sum(t):
    dst = t.empty((40, 70), buffer="psum")
    nisa.memset(dst, 0.0)
    for _ in range(3):
        nisa.nc_matmul(dst, t.tile(A), t.tile(B))
    np.testing.assert_allclose(dst.numpy(), 3 * (A.T @ B), rtol=1e-4, atol=1e-4)


def test_a_sum_that_starts_nowhere_is_refused(t):
    with pytest.raises(NkiUninitializedError, match="accumulate = True: dst reads what nothing has written"):
        nisa.nc_matmul(t.empty((40, 70), buffer="psum"), t.tile(A), t.tile(B), accumulate=True)


@pytest.mark.filterwarnings("ignore:nc_matmul overwrites")
def test_a_sum_onto_something_else_is_undefined_before_trn3(t):
    dst = t.empty((40, 70), buffer="psum")
    nisa.memset(dst, 1.0)
    nisa.nc_matmul(dst, t.tile(A), t.tile(B), accumulate=True)
    np.testing.assert_allclose(dst.numpy(), 1 + A.T @ B, rtol=1e-4, atol=1e-4)
    with Trial("trn2") as older:
        dst = older.empty((40, 70), buffer="psum")
        nisa.memset(dst, 1.0)
        with pytest.warns(NkiWarning, match="an instruction other than a matmul has written"):
            nisa.nc_matmul(dst, older.tile(A), older.tile(B), accumulate=np.bool_(True))
        nisa.nc_matmul(dst, older.tile(A), older.tile(B), accumulate=np.bool_(False))
        np.testing.assert_allclose(dst.numpy(), A.T @ B, rtol=1e-4, atol=1e-4)


def test_more_than_two_dimensions(t):
    image = rng.standard_normal((96, 9, 9)).astype(F32)
    nisa.nc_matmul(dst := t.empty((40, 4, 7), buffer="psum"), t.tile(A), t.tile(image)[:, 0:8:2, 1:8])
    np.testing.assert_allclose(dst.numpy(), np.einsum("km,khw->mhw", A, image[:, 0:8:2, 1:8]), rtol=1e-4, atol=1e-4)


def test_double_row(t):
    s = rng.standard_normal((128, 2, 16)).astype(ml_dtypes.float8_e4m3)
    m = rng.standard_normal((128, 2, 24)).astype(ml_dtypes.float8_e5m2)
    nisa.nc_matmul(dst := t.empty((16, 24), buffer="psum"), t.tile(s), t.tile(m),
                   perf_mode=nisa.matmul_perf_mode.double_row)
    want = np.einsum("kim,kin->mn", s.astype(np.float64), m.astype(np.float64))
    np.testing.assert_allclose(dst.numpy(), want, rtol=1e-4, atol=1e-4)


def test_bfloat16_dst_rounds_at_each_accumulation(t):
    dst = t.empty((40, 70), nl.bfloat16, "psum")
    nisa.nc_matmul(dst, t.tile(A), t.tile(B))
    once = (A.T @ B).astype(BF16)
    nisa.nc_matmul(dst, t.tile(A), t.tile(B))
    np.testing.assert_allclose(dst.numpy().astype(F32), (once.astype(F32) + A.T @ B), rtol=1e-2, atol=1e-3)


def test_transposing_matmul_passes_bits(t):
    x = rng.standard_normal((32, 24)).astype(F32)
    x[3, :4] = [np.nan, np.inf, -np.inf, -0.0]
    eye = np.eye(32, dtype=F32)
    nisa.nc_matmul(dst := t.empty((24, 32), buffer="psum"), t.tile(x), t.tile(eye), is_transpose=True)
    np.testing.assert_array_equal(dst.numpy().view(np.uint32), x.T.view(np.uint32))


def test_tiled_products(t):
    nisa.nc_matmul(dst := t.empty((40, 70), buffer="psum"), t.tile(A[:64]), t.tile(B[:64]), tile_position=(64, 0),
                   tile_size=(64, 128))
    np.testing.assert_allclose(dst.numpy(), A[:64].T @ B[:64], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", [np.float32, BF16, np.int32, np.uint8, ml_dtypes.float8_e4m3])
def test_nc_transpose_passes_bits_on_both_engines(t, dtype):
    itemsize = np.dtype(dtype).itemsize
    x = rng.integers(0, 256, (32, 4, 5 * itemsize), dtype=np.uint8).view(dtype)
    for buffer, engine in (("psum", "tensor"), ("sbuf", "vector")):
        instr = nisa.nc_transpose(dst := t.empty((20, 32), np.dtype(dtype), buffer), t.tile(x))
        assert instr.engine == engine
        np.testing.assert_array_equal(dst.numpy().view(f"u{itemsize}"), x.reshape(32, 20).T.view(f"u{itemsize}"))
    instr = nisa.nc_transpose(t.empty((20, 32), np.dtype(dtype), "psum"), t.tile(x), engine=nisa.engine.vector)
    assert instr.engine == "vector"


@pytest.mark.parametrize(("k", "m", "n"), [(1, 1, 1), (128, 128, 512), (128, 128, 509), (3, 128, 512), (128, 1, 17),
                                           (128, 100, 33)])
def test_products_of_any_size(t, k, m, n):
    s, x = rng.standard_normal((k, m)).astype(F32), rng.standard_normal((k, n)).astype(F32)
    nisa.nc_matmul(dst := t.empty((m, n), buffer="psum"), t.tile(s), t.tile(x))
    np.testing.assert_allclose(dst.numpy(), s.T.astype(np.float64) @ x, rtol=1e-4, atol=1e-4)
