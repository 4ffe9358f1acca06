"""DMA copies, transposes and sums; run-time indices in both oob modes."""
import ml_dtypes
import numpy as np
import pytest

import neuron_eager.nki.isa as nisa
import neuron_eager.nki.language as nl
from neuron_eager.errors import NkiOutOfBoundsError
from neuron_eager.nki.isa.trial import Trial

F32, BF16 = np.float32, ml_dtypes.bfloat16
SKIP = nisa.oob_mode.skip
rng = np.random.default_rng(6)
TABLE = rng.standard_normal((50, 8)).astype(F32)


@pytest.fixture
def t():
    with Trial() as trial:
        yield trial


def hbm(t, values, dtype=None):
    return t.tile(values, "shared_hbm", dtype)


def rows(t, values):
    return t.tile(np.asarray(values, np.uint32).reshape(-1, 1))


def gathered(t, table, index):
    return table.ap(pattern=[[8, len(index)], [1, 8]], vector_offset=rows(t, index), indirect_dim=0)


def test_copies_match_elements_in_row_major_order(t):
    x = rng.standard_normal((6, 4, 10)).astype(F32)
    nisa.dma_copy(dst := t.empty((24, 10)), hbm(t, x))
    np.testing.assert_array_equal(dst.numpy(), x.reshape(24, 10))
    nisa.dma_copy(back := t.empty((60, 4), buffer="shared_hbm"), dst)
    np.testing.assert_array_equal(back.numpy(), x.reshape(60, 4))


def test_copies_convert_through_float32(t):
    x = (rng.standard_normal((8, 8)) * 100).astype(F32)
    for dtype in (BF16, np.float16, ml_dtypes.float8_e5m2):
        nisa.dma_copy(dst := t.empty((8, 8), np.dtype(dtype)), hbm(t, x))
        np.testing.assert_array_equal(dst.numpy().astype(F32), x.astype(dtype).astype(F32))
    nisa.dma_copy(dst := t.empty((8, 8), nl.int8), hbm(t, x))
    np.testing.assert_array_equal(dst.numpy(), np.clip(np.rint(x), -128, 127).astype(np.int8))


def test_broadcast_and_strided_sources(t):
    x = hbm(t, TABLE)
    nisa.dma_copy(dst := t.empty((16, 8)), x[3:4, :].broadcast(0, 16))
    np.testing.assert_array_equal(dst.numpy(), np.broadcast_to(TABLE[3], (16, 8)))
    nisa.dma_copy(dst := t.empty((10, 4)), x[0:50:5, 0:8:2])
    np.testing.assert_array_equal(dst.numpy(), TABLE[::5, ::2])
    nisa.dma_copy(dst := t.empty((8, 50)), x.permute((1, 0)))
    np.testing.assert_array_equal(dst.numpy(), TABLE.T)


def test_dma_reaches_any_partitions(t):
    tile = t.tile(np.zeros((128, 8), F32))
    nisa.dma_copy(tile[5:55, :], hbm(t, TABLE))
    nisa.dma_copy(tile[60:110:5, :], hbm(t, TABLE[:10]))
    np.testing.assert_array_equal(tile.numpy()[5:55], TABLE)
    np.testing.assert_array_equal(tile.numpy()[60:110:5], TABLE[:10])


def test_overlapping_copy_in_hbm(t):
    x = hbm(t, TABLE)
    nisa.dma_copy(x[1:50, :], x[0:49, :])
    np.testing.assert_array_equal(x.numpy(), np.concatenate([TABLE[:1], TABLE[:49]]))


def test_gather_and_scatter_by_rows(t):
    index = [3, 49, 0, 3]
    nisa.dma_copy(dst := t.empty((4, 8)), gathered(t, hbm(t, TABLE), index))
    np.testing.assert_array_equal(dst.numpy(), TABLE[index])
    out, data = hbm(t, np.zeros((50, 8), F32)), rng.standard_normal((4, 8)).astype(F32)
    nisa.dma_copy(gathered(t, out, [7, 2, 49, 1]), t.tile(data))
    want = np.zeros((50, 8), F32)
    want[[7, 2, 49, 1]] = data
    np.testing.assert_array_equal(out.numpy(), want)


def test_scalar_offset_by_register_and_by_tile(t):
    register = nisa.register_alloc(5)
    for offset in (register, t.tile(np.int32([[5]]))):
        nisa.dma_copy(dst := t.empty((4, 8)), hbm(t, TABLE).ap([[8, 4], [1, 8]], scalar_offset=offset))
        np.testing.assert_array_equal(dst.numpy(), TABLE[5:9])


def test_index_out_of_bounds_is_an_error(t):
    with pytest.raises(NkiOutOfBoundsError, match=r"test_isa_dma.py:\d+: run-time index 50 is outside 0..49"):
        nisa.dma_copy(t.empty((2, 8)), gathered(t, hbm(t, TABLE), [1, 50]))
    with pytest.raises(NkiOutOfBoundsError, match="run-time index 50"):
        nisa.dma_copy(gathered(t, hbm(t, TABLE), [1, 50]), t.tile(TABLE[:2]))
    with pytest.raises(NkiOutOfBoundsError, match="47"):
        nisa.dma_copy(t.empty((4, 8)), hbm(t, TABLE).ap([[8, 4], [1, 8]], scalar_offset=nisa.register_alloc(47)))


def test_index_out_of_bounds_is_skipped_and_bits_stay(t):
    marks = np.full((4, 8), 2 ** 24 + 1, np.int32)
    table = np.arange(400, dtype=np.int32).reshape(50, 8)
    dst = t.tile(marks)
    nisa.dma_copy(dst, gathered(t, hbm(t, table), [3, 50, 0, 2 ** 31]), oob_mode=SKIP)
    np.testing.assert_array_equal(dst.numpy(), [table[3], marks[1], table[0], marks[3]])
    out = hbm(t, np.zeros((50, 8), np.int32))
    nisa.dma_copy(gathered(t, out, [3, 50, 0, 51]), t.tile(table[:4]), oob_mode=SKIP)
    want = np.zeros((50, 8), np.int32)
    want[[3, 0]] = table[[0, 2]]
    np.testing.assert_array_equal(out.numpy(), want)
    nisa.dma_copy(dst, hbm(t, table).ap([[8, 4], [1, 8]], scalar_offset=nisa.register_alloc(47)), oob_mode=SKIP)
    np.testing.assert_array_equal(dst.numpy()[1], marks[1])


def test_packed_values_are_skipped_too(t):
    table = rng.integers(0, 2 ** 32, (50, 8), dtype=np.uint32)
    dst = t.tile(np.full((2, 8), 7, np.uint32), dtype=nl.float8_e4m3fn_x4)
    nisa.dma_copy(dst, gathered(t, hbm(t, table, nl.float8_e4m3fn_x4), [9, 60]), oob_mode=SKIP)
    np.testing.assert_array_equal(dst.numpy(), [table[9], np.full(8, 7)])


@pytest.mark.parametrize(("shape", "axes"), [((16, 24), (1, 0)), ((4, 3, 8), (2, 1, 0)), ((4, 2, 3, 8), (3, 1, 2, 0))])
def test_dma_transpose(t, shape, axes):
    x = rng.standard_normal(shape).astype(BF16)
    want = x.transpose(axes)
    for given in (None, axes):
        nisa.dma_transpose(dst := t.empty(want.shape, nl.bfloat16), hbm(t, x), axes=given)
        np.testing.assert_array_equal(dst.numpy().view(np.uint16), want.view(np.uint16))


def test_gather_transpose(t):
    table = rng.standard_normal((50, 16)).astype(BF16)
    index = rng.integers(0, 50, 32)
    src = hbm(t, table).ap([[16, 32], [1, 16]], vector_offset=rows(t, index), indirect_dim=0)
    nisa.dma_transpose(dst := t.empty((16, 32), nl.bfloat16), src, axes=(1, 0))
    np.testing.assert_array_equal(dst.numpy().view(np.uint16), table[index].T.view(np.uint16))


def test_gather_transpose_reads_two_dimensional_indices_by_columns(t):
    table = rng.standard_normal((50, 16)).astype(BF16)
    index = rng.integers(0, 50, (128, 2)).astype(np.uint32)
    src = hbm(t, table).ap([[16, 256], [1, 16]], vector_offset=t.tile(index), indirect_dim=0)
    nisa.dma_transpose(dst := t.empty((16, 256), nl.bfloat16), src, axes=(1, 0))
    np.testing.assert_array_equal(dst.numpy().view(np.uint16), table[index.T.reshape(-1)].T.view(np.uint16))


def test_gather_transpose_leaves_skipped_columns_alone(t):
    table = rng.standard_normal((50, 16)).astype(BF16)
    index = np.arange(16)
    index[5] = 77
    src = hbm(t, table).ap([[16, 16], [1, 16]], vector_offset=rows(t, index), indirect_dim=0)
    dst = t.tile(np.ones((16, 16), BF16))
    nisa.dma_transpose(dst, src, oob_mode=SKIP)
    want = table[np.minimum(index, 49)].T.copy()
    want[:, 5] = 1
    np.testing.assert_array_equal(dst.numpy().astype(F32), want.astype(F32))


def test_dma_compute_sums_in_float32(t):
    parts = [rng.standard_normal((16, 8)).astype(BF16) for _ in range(16)]
    nisa.dma_compute(dst := t.empty((16, 8), nl.bfloat16), [hbm(t, p) for p in parts], nl.add, scales=[1.0] * 16)
    want = np.zeros((16, 8), F32)
    for p in parts:
        want += p.astype(F32)
    np.testing.assert_array_equal(dst.numpy().astype(F32), want.astype(BF16).astype(F32))


def test_dma_compute_scatters_and_gathers_with_read_modify_write(t):
    table, data = hbm(t, TABLE), rng.standard_normal((4, 8)).astype(F32)
    index = [7, 2, 49, 60]
    at = gathered(t, table, index)
    nisa.dma_compute(at, [at, t.tile(data)], nl.add, oob_mode=SKIP)
    want = TABLE.copy()
    want[index[:3]] += data[:3]
    np.testing.assert_array_equal(table.numpy(), want)
    dst = t.tile(data)
    nisa.dma_compute(dst, [gathered(t, hbm(t, TABLE), [1, 2, 3, 1]), dst], nl.add)
    np.testing.assert_array_equal(dst.numpy(), TABLE[[1, 2, 3, 1]] + data)
