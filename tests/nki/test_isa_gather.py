"""Gathers, shuffles, searches."""
import ml_dtypes
import numpy as np
import pytest

import neuron_eager.nki.isa as nisa
import neuron_eager.nki.language as nl
from neuron_eager.nki.isa.trial import Trial

F32, BF16 = np.float32, ml_dtypes.bfloat16
rng = np.random.default_rng(8)


@pytest.fixture
def t():
    with Trial() as trial:
        yield trial


def test_shuffle_moves_partitions_within_each_quadrant(t):
    x = rng.standard_normal((128, 6)).astype(BF16)
    mask = [(i - 1) % 32 for i in range(32)]
    nisa.nc_stream_shuffle(dst := t.empty((128, 6), nl.bfloat16), t.tile(x), mask)
    want = np.concatenate([x[q:q + 32][mask] for q in range(0, 128, 32)])
    np.testing.assert_array_equal(dst.numpy().view(np.uint16), want.view(np.uint16))


def test_shuffle_in_place_and_with_kept_partitions(t):
    x = rng.standard_normal((32, 6)).astype(F32)
    tile = t.tile(x)
    nisa.nc_stream_shuffle(tile, tile, [31 - i if i < 4 else 255 for i in range(32)])
    want = x.copy()
    want[:4] = x[:27:-1]
    np.testing.assert_array_equal(tile.numpy(), want)


def test_shuffle_broadcasts_one_partition(t):
    x = rng.standard_normal((1, 6)).astype(F32)
    nisa.nc_stream_shuffle(dst := t.empty((128, 6)), t.tile(x), [0] * 32)
    np.testing.assert_array_equal(dst.numpy(), np.broadcast_to(x, (128, 6)))


@pytest.mark.parametrize("width", [1, 4])
def test_local_gather_reads_indices_down_the_partitions(t, width):
    src = rng.standard_normal((128, 64, 4)).astype(F32)
    index = rng.integers(0, 256 - width, (128, 5)).astype(np.uint16)
    nisa.local_gather(dst := t.empty((128, 70, width)), t.tile(src), t.tile(index), width, 70)
    flat, want = src.reshape(128, 256), np.empty((128, 70, width), F32)
    for core in range(8):
        order = index[16 * core:16 * core + 16].T.reshape(-1)[:70]
        for j, start in enumerate(order):
            want[16 * core:16 * core + 16, j] = flat[16 * core:16 * core + 16, start:start + width]
    np.testing.assert_array_equal(dst.numpy(), want)


def test_local_gather_into_a_view(t):
    src, index = rng.standard_normal((16, 20)).astype(F32), rng.integers(0, 20, (16, 1)).astype(np.uint16)
    whole = t.tile(np.zeros((16, 32), F32))
    nisa.local_gather(whole[:, 0:32:2], t.tile(src), t.tile(index))
    np.testing.assert_array_equal(whole.numpy()[:, ::2], src[:, index[:, 0]])
    assert (whole.numpy()[:, 1::2] == 0).all()


def test_nc_n_gather(t):
    data, index = rng.standard_normal((128, 5, 8)).astype(BF16), rng.integers(0, 40, (128, 3, 4)).astype(np.uint32)
    nisa.nc_n_gather(dst := t.empty((128, 12), nl.bfloat16), t.tile(data), t.tile(index))
    want = np.take_along_axis(data.reshape(128, 40), index.reshape(128, 12).astype(np.int64), 1)
    np.testing.assert_array_equal(dst.numpy().view(np.uint16), want.view(np.uint16))


def test_gather_index_out_of_bounds_is_an_error(t):
    with pytest.raises(IndexError, match="indices"):
        nisa.nc_n_gather(t.empty((1, 1)), t.tile(F32([[1, 2]])), t.tile(np.uint32([[2]])))


def test_max8(t):
    x = rng.standard_normal((128, 4, 25)).astype(BF16)
    nisa.max8(dst := t.empty((128, 8)), t.tile(x))
    np.testing.assert_array_equal(dst.numpy(), -np.sort(-x.astype(F32).reshape(128, 100), axis=1)[:, :8])


def test_find_index8_takes_duplicates_in_ascending_order(t):
    data = F32([[5, 1, 5, 2, 5, 9, 7, 7]])
    vals = F32([[5, 5, 7, 3, 9, 5, 5, 7]])
    for dtype in (np.uint32, np.uint16):
        nisa.nc_find_index8(dst := t.empty((1, 8), np.dtype(dtype)), t.tile(data), t.tile(vals))
        missing = np.iinfo(dtype).max
        assert dst.numpy()[0].tolist() == [0, 2, 6, missing, 5, 4, missing, 7]


def test_match_replace8_takes_duplicates_from_the_last_value(t):
    data = F32([[1, 2, 3, 4, 8, 8, 8, 8, 8, 8, 8]])
    vals = F32([[3, 8, 8, 8, 8, 8, 8, 8]])
    index = t.empty((1, 8), nl.uint32)
    nisa.nc_match_replace8(dst := t.empty((1, 11)), t.tile(data), t.tile(vals), float("-inf"), index)
    assert index.numpy()[0].tolist() == [2, 10, 9, 8, 7, 6, 5, 4]
    assert dst.numpy()[0].tolist() == [1, 2, -np.inf, 4] + [-np.inf] * 7


def test_match_replace8_does_not_find_its_own_replacements(t):
    data, vals = F32([[1, 1, 2, 3, 4, 5, 6, 7]]), F32([[9, 9, 9, 9, 9, 1, 2, 2]])
    nisa.nc_match_replace8(dst := t.empty((1, 8)), t.tile(data), t.tile(vals), 1.0, index := t.empty((1, 8), nl.uint16))
    assert dst.numpy()[0].tolist() == [1, 1, 1, 3, 4, 5, 6, 7]
    assert index.numpy()[0].tolist() == [65535] * 5 + [0, 65535, 2]


def test_top_values_by_max8_and_replacement(t):
    x = rng.permutation(64).astype(F32)[None].repeat(4, 0)
    work, found = t.tile(x), []
    for _ in range(3):
        nisa.max8(best := t.empty((4, 8)), work)
        nisa.nc_match_replace8(work, work, best, -1.0)
        found.append(best.numpy())
    np.testing.assert_array_equal(np.concatenate(found, 1), np.broadcast_to(np.arange(63, 39, -1), (4, 24)))


def test_nonzero_with_count_touches_every_sixteenth_partition(t):
    x = np.zeros((32, 8), np.int32)
    x[0, [1, 2, 5]] = 1
    x[16, 7] = -4
    x[1] = 1
    dst = t.tile(np.full((32, 9), 77, np.int32))
    nisa.nonzero_with_count(dst, t.tile(x), index_offset=16, padding_val=-1)
    got = dst.numpy()
    assert got[0].tolist() == [17, 18, 21, -1, -1, -1, -1, -1, 3]
    assert got[16].tolist() == [23, -1, -1, -1, -1, -1, -1, -1, 1]
    assert (np.delete(got, [0, 16], 0) == 77).all()


def test_topk_reads_a_snake_of_16_partitions(t):
    n, k = 42, 8
    sequence = rng.permutation(2 * n).astype(BF16)
    src = np.zeros((32, 3), BF16)
    for core in range(2):
        for e in range(n):
            src[16 * core + e % 16, e // 16] = sequence[core * n + e]
    nisa.topk(val := t.empty((32, k), nl.bfloat16), idx := t.empty((32, k), nl.uint32), t.tile(src), n)
    for p in range(32):
        part = sequence[p // 16 * n:p // 16 * n + n].astype(F32)
        order = np.argsort(part)[-k:]
        assert idx.numpy()[p].tolist() == order.tolist()
        assert val.numpy()[p].astype(F32).tolist() == part[order].tolist()


@pytest.mark.parametrize("dtype", [np.int32, np.float32])
def test_sequence_bounds(t, dtype):
    ids = np.array([[0, 1, 1, 2, 2, 2, 0, 3, 3]], dtype)
    nisa.sequence_bounds(dst := t.empty((1, 2, 9), np.dtype(dtype)), t.tile(ids))
    assert dst.numpy()[0].tolist() == [[9, 1, 1, 3, 3, 3, 9, 7, 7], [-1, 3, 3, 6, 6, 6, -1, 9, 9]]


def snake(order, partitions, group):
    """An index tile for `.indirect()`: offset j of each group of partitions at [j % group, j // group]."""
    index = np.zeros((partitions, -(-len(order) // group)), np.uint16)
    for j, column in enumerate(order):
        index[j % group::group, j // group] = column
    return index


def test_columns_picked_at_run_time_on_vector_and_scalar(t):
    x, order = rng.standard_normal((32, 64)).astype(F32), [63, 0, 5, 5, 17, *range(30)]
    index = t.tile(snake(order, 32, 16))
    nisa.activation(dst := t.empty((32, 35)), nl.square, t.tile(x).indirect(index, num_elem=35))
    np.testing.assert_array_equal(dst.numpy(), np.square(x[:, order]))
    out = t.tile(np.zeros((32, 64), F32))
    nisa.tensor_copy(out.indirect(t.tile(snake([9, 3], 32, 16)), num_elem=2), t.tile(x[:, :2]))
    want = np.zeros((32, 64), F32)
    want[:, [9, 3]] = x[:, :2]
    np.testing.assert_array_equal(out.numpy(), want)


def test_columns_picked_at_run_time_by_the_tensor_engine(t):
    a, b = rng.standard_normal((64, 40)).astype(BF16), rng.standard_normal((64, 50)).astype(BF16)
    left, right = list(range(39, -1, -1)), [7, 3, 49, *range(33)]
    stationary = t.tile(a).indirect(t.tile(snake(left, 64, 32)), num_elem=40)
    moving = t.tile(b).indirect(t.tile(snake(right, 64, 32)), num_elem=36)
    nisa.nc_matmul(dst := t.empty((40, 36), buffer="psum"), stationary, moving)
    want = a.astype(F32)[:, left].T @ b.astype(F32)[:, right]
    np.testing.assert_allclose(dst.numpy(), want, rtol=1e-4, atol=1e-4)


def test_a_picked_column_out_of_bounds_is_an_error(t):
    x = t.tile(np.zeros((16, 8), F32))
    with pytest.raises(IndexError, match="run-time index 8 is outside 0..7"):
        nisa.tensor_copy(t.empty((16, 1)), x.indirect(t.tile(np.full((16, 1), 8, np.uint16)), num_elem=1))
