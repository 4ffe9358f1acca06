"""range_select and select_reduce."""
import ml_dtypes
import numpy as np
import pytest

import neuron_eager.nki.isa as nisa
import neuron_eager.nki.language as nl
from neuron_eager.nki.isa.trial import Trial

F32, BF16 = np.float32, ml_dtypes.bfloat16
RC = nisa.reduce_cmd
LOWEST = np.finfo(F32).min
rng = np.random.default_rng(5)
X = rng.standard_normal((16, 32)).astype(F32)


@pytest.fixture
def t():
    with Trial() as trial:
        yield trial


def test_range_select_keeps_a_window_and_takes_its_maximum(t):
    low, high = np.arange(16, dtype=F32)[:, None] + 100, np.arange(16, dtype=F32)[:, None] + 110
    out = t.empty((16, 1))
    nisa.range_select(dst := t.empty((16, 32)), t.tile(X), nl.greater_equal, nl.less, t.tile(low), t.tile(high),
                      reduce_res=out, range_start=100, on_false_value=float(LOWEST))
    index = 100 + np.arange(32)[None]
    want = np.where((index >= low) & (index < high), X, LOWEST)
    np.testing.assert_array_equal(dst.numpy(), want)
    np.testing.assert_array_equal(out.numpy(), want.max(1, keepdims=True))


def test_range_select_maximum_runs_on_over_tiles(t):
    low, high = t.tile(np.zeros((16, 1), F32)), t.tile(np.full((16, 1), 64, F32))
    out = t.empty((16, 1))
    for i, part in enumerate((X[:, :20], X[:, 20:])):
        nisa.range_select(t.empty(part.shape), t.tile(part), nl.greater_equal, nl.less, low, high,
                          RC.reduce if i else RC.reset_reduce, out if i else None, range_start=20 * i)
    np.testing.assert_array_equal(out.numpy(), X.max(1, keepdims=True))


def test_the_fill_is_minus_infinity_in_bfloat16_but_not_in_the_maximum(t):
    nothing = t.tile(np.full((16, 1), -1, F32))
    out = t.empty((16, 1))
    nisa.range_select(dst := t.empty((16, 32), nl.bfloat16), t.tile(X), nl.equal, nl.equal, nothing, nothing,
                      reduce_res=out)
    assert (dst.numpy().astype(F32) == -np.inf).all()
    assert (out.numpy() == LOWEST).all()


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16, np.uint16])
def test_select_reduce(t, dtype):
    predicate = (X > 0).astype(dtype)
    other = rng.standard_normal((16, 1)).astype(F32)
    out = t.empty((16, 1))
    nisa.select_reduce(dst := t.empty((16, 4, 8)), t.tile(predicate), t.tile(X), t.tile(other), out, RC.reset_reduce)
    want = np.where(X > 0, X, other)
    np.testing.assert_array_equal(dst.numpy().reshape(16, 32), want)
    np.testing.assert_array_equal(out.numpy(), want.max(1, keepdims=True))
    nisa.select_reduce(dst, t.tile(predicate), t.tile(X), -5.0, reverse_pred=True)
    np.testing.assert_array_equal(dst.numpy().reshape(16, 32), np.where(X > 0, F32(-5), X))


def test_select_reduce_keeps_the_bits_of_what_it_selects(t):
    x = np.full((16, 32), np.nan, BF16)
    nisa.select_reduce(dst := t.empty((16, 32), nl.bfloat16), t.tile(np.ones((16, 32), np.uint8)), t.tile(x), 0.0)
    np.testing.assert_array_equal(dst.numpy().view(np.uint16), x.view(np.uint16))
