"""Random numbers: distributions, seeds, states."""
import ml_dtypes
import numpy as np
import pytest

import neuron_eager.nki.isa as nisa
import neuron_eager.nki.language as nl
from neuron_eager.nki.isa.trial import Trial

F32 = np.float32


@pytest.fixture
def t():
    with Trial() as trial:
        yield trial


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16", "int32", "uint32"])
@pytest.mark.parametrize("engine", ["vector", "gpsimd"])
def test_rng_bits_are_even(t, dtype, engine):
    nisa.rng(dst := t.empty((128, 512), dtype), nisa.engine[engine])
    values = dst.numpy().view(f"u{dst.dtype.itemsize}")
    for bit in range(8 * dst.dtype.itemsize):
        share = ((values >> np.array(bit, values.dtype)) & 1).mean()
        assert abs(share - 0.5) < 0.01, f"bit {bit} is set in {share:.3f}"


def test_rng_numbers_do_not_repeat(t):
    nisa.rng(a := t.empty((128, 512), nl.uint32))
    nisa.rng(b := t.empty((128, 512), nl.uint32))
    both = np.concatenate([a.numpy(), b.numpy()])
    assert len(np.unique(both)) > 0.999 * both.size
    rows = a.numpy().astype(np.float64)
    correlation = np.corrcoef(rows[:64])
    assert abs(correlation - np.eye(64)).max() < 0.3, "partitions are independent"


def test_a_seed_repeats_the_sequence(t):
    def draw():
        nisa.set_rng_seed(t.tile(np.int32([[42]])))
        nisa.rng(dst := t.empty((16, 100), nl.uint32))
        return dst.numpy()
    first = draw()
    np.testing.assert_array_equal(first, draw())
    nisa.rng(other := t.empty((16, 100), nl.uint32))
    assert (other.numpy() != first).mean() > 0.99


def test_rand2_is_uniform_between_its_bounds(t):
    low, high = np.linspace(-1, 0, 128, dtype=F32)[:, None], np.linspace(1, 5, 128, dtype=F32)[:, None]
    nisa.rand2(dst := t.empty((128, 2000)), t.tile(low), t.tile(high))
    unit = (dst.numpy() - low) / (high - low)
    assert unit.min() >= 0
    assert unit.max() <= 1
    np.testing.assert_allclose(np.histogram(unit, 10, (0, 1))[0] / unit.size, 0.1, atol=0.005)
    nisa.rand2(dst := t.empty((4, 100), nl.int8), 0.0, 100.0)
    assert dst.numpy().min() >= 0


def test_dropout_drops_the_given_share(t):
    x = np.ones((128, 2000), ml_dtypes.bfloat16)
    share = np.linspace(0, 1, 128, dtype=F32)[:, None]
    nisa.dropout(dst := t.empty(x.shape, nl.bfloat16), t.tile(x), t.tile(share))
    dropped = (dst.numpy() == 0).mean(1)
    np.testing.assert_allclose(dropped, share[:, 0], atol=0.06)
    assert dropped[0] == 0
    assert dropped[-1] == 1
    nisa.dropout(dst := t.empty((128, 2000), nl.int32), t.tile(np.full((128, 2000), 2 ** 24 + 1, np.int32)), 0.25)
    assert set(np.unique(dst.numpy())) == {0, 2 ** 24 + 1}
    assert abs((dst.numpy() == 0).mean() - 0.25) < 0.01


def test_states_are_saved_and_restored(t):
    for engine, words in ((nisa.engine.gpsimd, 6), (nisa.engine.vector, 24)):
        seeds = np.random.default_rng(0).integers(0, 2 ** 32, (128, words), dtype=np.uint32)
        nisa.rand_set_state(t.tile(seeds), engine)
        nisa.rng(t.empty((128, 77), nl.uint32), engine)
        nisa.rand_get_state(state := t.empty((128, words), nl.uint32), engine)
        nisa.rng(after := t.empty((128, 50), nl.uint32), engine)
        nisa.rand_set_state(t.tile(seeds), engine)
        nisa.rng(t.empty((128, 77), nl.uint32), engine)
        nisa.rng(again := t.empty((128, 50), nl.uint32), engine)
        np.testing.assert_array_equal(after.numpy(), again.numpy())
        assert len(np.unique(state.numpy()[:, :6])) > 700
