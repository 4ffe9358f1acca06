"""Reductions, scans, statistics."""
import ml_dtypes
import numpy as np
import pytest

import neuron_eager.nki.isa as nisa
import neuron_eager.nki.language as nl
from neuron_eager.nki.isa.trial import Trial

F32, BF16 = np.float32, ml_dtypes.bfloat16
RC = nisa.reduce_cmd
rng = np.random.default_rng(4)
X = rng.standard_normal((128, 6, 7)).astype(F32)
FLAT = X.reshape(128, 42)


@pytest.fixture
def t():
    with Trial() as trial:
        yield trial


@pytest.mark.parametrize(("op", "f"), [
    ("add", np.add), ("subtract", np.subtract), ("multiply", np.multiply), ("maximum", np.maximum),
    ("minimum", np.minimum), ("logical_and", np.logical_and), ("logical_or", np.logical_or),
    ("logical_xor", np.logical_xor)])
def test_tensor_reduce(t, op, f):
    nisa.tensor_reduce(dst := t.empty((128, 6)), getattr(nl, op), t.tile(X), axis=2)
    want = f.reduce(X, axis=2).astype(F32)
    np.testing.assert_allclose(dst.numpy(), want, rtol=1e-5, atol=1e-6)
    nisa.tensor_reduce(dst := t.empty((128, 1), nl.bfloat16), getattr(nl, op), t.tile(X), axis=(1, 2), negate=True)
    want = f.reduce(FLAT, axis=1, keepdims=True).astype(F32)
    np.testing.assert_allclose(dst.numpy().astype(F32), -want, rtol=1e-2, atol=1e-5)


@pytest.mark.parametrize(("axis", "shape"), [(-1, (128, 6)), (2, (128, 6, 1)), ([1, 2], (128, 1, 1)),
                                             ((2, 1), (128, 1))])
def test_axes_by_any_name_and_results_of_any_rank(t, axis, shape):
    nisa.tensor_reduce(dst := t.empty(shape), nl.maximum, t.tile(X), axis=axis, keepdims=len(shape) == 3)
    axes = tuple(a % 3 for a in (axis if isinstance(axis, (list, tuple)) else (axis,)))
    np.testing.assert_array_equal(dst.numpy().reshape(-1), X.max(axis=axes).reshape(-1))


def test_bit_reductions(t):
    x = rng.integers(0, 255, (128, 9)).astype(np.uint8)
    for op, f in (("bitwise_and", np.bitwise_and), ("bitwise_or", np.bitwise_or), ("bitwise_xor", np.bitwise_xor)):
        nisa.tensor_reduce(dst := t.empty((128, 1), nl.uint8), getattr(nl, op), t.tile(x), axis=1)
        np.testing.assert_array_equal(dst.numpy(), f.reduce(x, axis=1, keepdims=True))


def test_int64_sums_are_exact(t):
    x = rng.integers(-2 ** 60, 2 ** 60, (4, 9))
    nisa.tensor_reduce(dst := t.empty((4, 1), "int64"), nl.add, t.tile(x), axis=1)
    np.testing.assert_array_equal(dst.numpy(), x.sum(1, keepdims=True))


def test_tensor_partition_reduce(t):
    x = t.tile(FLAT.astype(BF16))
    wide = FLAT.astype(BF16).astype(F32)
    for op, want in (("add", wide.sum(0)), ("maximum", wide.max(0)), ("average", wide.mean(0))):
        nisa.tensor_partition_reduce(dst := t.empty((1, 42)), getattr(nl, op), x)
        np.testing.assert_allclose(dst.numpy()[0], want, rtol=1e-5, atol=1e-5)
    bits = rng.integers(0, 2 ** 31, (64, 5)).astype(np.int32)
    nisa.tensor_partition_reduce(dst := t.empty((1, 5), nl.int32), nl.bitwise_or, t.tile(bits))
    np.testing.assert_array_equal(dst.numpy()[0], np.bitwise_or.reduce(bits, axis=0))


@pytest.mark.filterwarnings("ignore:overflow")
@pytest.mark.parametrize(("op", "f"), [("add", np.add), ("multiply", np.multiply), ("maximum", np.maximum),
                                       ("minimum", np.minimum)])
def test_tensor_scalar_reduce(t, op, f):
    column = rng.standard_normal((128, 1)).astype(F32)
    dst, out = t.empty((128, 42), nl.bfloat16), t.empty((128, 1))
    nisa.tensor_scalar_reduce(dst, t.tile(X), nl.subtract, t.tile(column), getattr(nl, op))
    nisa.tensor_scalar_reduce(dst, t.tile(X), nl.subtract, t.tile(column), getattr(nl, op), out, reduce_cmd=RC.reduce)
    values = FLAT - column
    np.testing.assert_array_equal(dst.numpy().view(np.uint16), values.astype(BF16).view(np.uint16))
    np.testing.assert_allclose(out.numpy(), f.reduce(np.concatenate([values, values], 1), axis=1, keepdims=True),
                               rtol=1e-4, atol=1e-5)
    nisa.tensor_scalar_reduce(dst, t.tile(X), nl.add, 0.0, getattr(nl, op), out, reduce_cmd=RC.load_reduce,
                              reduce_init=3.0, reduce_res_negate=True)
    np.testing.assert_allclose(out.numpy(), -f(F32(3), f.reduce(FLAT, axis=1, keepdims=True)), rtol=1e-4, atol=1e-5)


def test_the_negation_does_not_touch_the_accumulators(t):
    dst, out = t.empty((128, 42)), t.empty((128, 1))
    nisa.tensor_scalar_reduce(dst, t.tile(X), nl.add, 0.0, nl.maximum, out, reduce_res_negate=True)
    nisa.tensor_scalar_reduce(dst, t.tile(X), nl.add, -100.0, nl.maximum, out, reduce_cmd=RC.reduce)
    np.testing.assert_array_equal(out.numpy(), FLAT.max(1, keepdims=True))


@pytest.mark.parametrize("op", ["add", "subtract", "multiply", "maximum", "minimum"])
def test_tensor_scalar_cumulative(t, op):
    f = {"add": np.add, "subtract": np.subtract, "multiply": np.multiply, "maximum": np.maximum,
         "minimum": np.minimum}[op]
    carry = {"add": 0, "subtract": 0, "multiply": 1, "maximum": -np.inf, "minimum": np.inf}[op]
    want, carry = np.empty((128, 84), F32), np.full(128, carry, F32)
    for j in range(84):
        carry = want[:, j] = f(FLAT[:, j % 42] * F32(0.5), carry)
    first, second = t.empty((128, 42)), t.empty((128, 42))
    nisa.tensor_scalar_cumulative(first, t.tile(X), nl.multiply, getattr(nl, op), 0.5)
    nisa.tensor_scalar_cumulative(second, t.tile(X), nl.multiply, getattr(nl, op), 0.5, reduce_cmd=RC.reduce)
    np.testing.assert_allclose(np.concatenate([first.numpy(), second.numpy()], 1), want, rtol=1e-5, atol=1e-5)


def test_cumulative_from_a_loaded_value(t):
    start = rng.standard_normal((128, 1)).astype(F32)
    nisa.tensor_scalar_cumulative(dst := t.empty((128, 42)), t.tile(X), nl.add, nl.add, 1.0, t.tile(start),
                                  RC.load_reduce)
    np.testing.assert_allclose(dst.numpy(), start + np.cumsum(FLAT + F32(1), axis=1), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("reverse0", "reverse1"), [(False, False), (True, True)])
def test_scan_keeps_its_carry_in_float32(t, reverse0, reverse1):
    a, b = FLAT.astype(BF16), (FLAT[:, ::-1] * F32(0.3)).astype(BF16)
    start = rng.standard_normal((128, 1)).astype(F32)
    nisa.tensor_tensor_scan(dst := t.empty((128, 42), nl.bfloat16), t.tile(a), t.tile(b), t.tile(start), nl.multiply,
                            nl.subtract, reverse0, reverse1)
    carry, want = start[:, 0], np.empty((128, 42), F32)
    for j in range(42):
        inner, other = a.astype(F32)[:, j] * carry, b.astype(F32)[:, j]
        carry = want[:, j] = other - inner if reverse1 else inner - other
    np.testing.assert_array_equal(dst.numpy().view(np.uint16), want.astype(BF16).view(np.uint16))


def test_bn_stats_and_bn_aggr_give_mean_and_population_variance(t):
    x = rng.standard_normal((128, 700)).astype(F32) * 3 + 1
    stats = t.empty((128, 12))
    for i, part in enumerate((x[:, :501], x[:, 501:])):
        nisa.bn_stats(stats[:, 6 * i:6 * i + 6], t.tile(part))
    assert (stats.numpy()[0, [0, 3, 6, 9]] == [251, 250, 100, 99]).all()
    nisa.bn_aggr(dst := t.empty((128, 2)), stats)
    np.testing.assert_allclose(dst.numpy(), np.stack([x.mean(1), x.var(1)], 1), rtol=1e-4)
