"""Activation functions, scale and bias, accumulators of the Scalar and Vector engines."""
import math

import ml_dtypes
import numpy as np
import pytest
import torch

import neuron_eager.nki.isa as nisa
import neuron_eager.nki.language as nl
from neuron_eager.errors import NkiWarning
from neuron_eager.nki.isa.trial import Trial
from neuron_eager.nki.semantics.functions import FUNCTIONS

F32, BF16 = np.float32, ml_dtypes.bfloat16
RC = nisa.reduce_cmd
rng = np.random.default_rng(3)
X = (rng.standard_normal((128, 24)) * 2).astype(F32)


def derivative(f):
    def df(x):
        x = x.clone().requires_grad_()
        return torch.autograd.grad(f(x).sum(), x)[0]
    return df


F = torch.nn.functional
REFERENCE = {
    "copy": lambda x: x, "abs": torch.abs, "square": torch.square, "sign": torch.sign, "relu": torch.relu,
    "exp": torch.exp, "log": torch.log, "sqrt": torch.sqrt, "rsqrt": torch.rsqrt, "reciprocal": torch.reciprocal,
    "sin": torch.sin, "arctan": torch.arctan, "tanh": torch.tanh, "sigmoid": torch.sigmoid, "erf": torch.erf,
    "erf_dx": derivative(torch.erf), "gelu": F.gelu, "gelu_dx": derivative(F.gelu),
    "gelu_apprx_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "gelu_apprx_sigmoid": lambda x: x * torch.sigmoid(1.702 * x),
    "gelu_apprx_sigmoid_dx": derivative(lambda x: x * torch.sigmoid(1.702 * x)),
    "silu": F.silu, "silu_dx": derivative(F.silu), "softplus": F.softplus, "mish": F.mish,
    "trunc": torch.trunc, "floor": torch.floor, "ceil": torch.ceil, "cos": torch.cos, "tan": torch.tan,
    "negative": torch.neg,
}


@pytest.fixture
def t():
    with Trial() as trial:
        yield trial


def test_every_function_has_a_reference():
    assert set(REFERENCE) == set(FUNCTIONS)


@pytest.mark.filterwarnings("ignore::neuron_eager.errors.NkiWarning")
@pytest.mark.parametrize("name", REFERENCE)
def test_function_values(t, name):
    x = np.abs(X) + F32(0.1) if name in ("log", "sqrt", "rsqrt") else X
    nisa.activation(dst := t.empty(x.shape), getattr(nl, name), t.tile(x))
    want = REFERENCE[name](torch.from_numpy(x).double()).numpy()
    np.testing.assert_allclose(dst.numpy(), want, rtol=5e-6, atol=4e-7)


def test_scale_and_bias_in_float32_with_one_rounding(t):
    x = X.astype(BF16)
    scale, bias = rng.standard_normal((128, 1)).astype(F32), rng.standard_normal((128, 1)).astype(BF16)
    nisa.activation(dst := t.empty(x.shape, nl.bfloat16), nl.copy, t.tile(x), bias=t.tile(bias), scale=t.tile(scale))
    want = (x.astype(F32) * scale + bias.astype(F32)).astype(BF16)
    np.testing.assert_array_equal(dst.numpy().view(np.uint16), want.view(np.uint16))
    nisa.activation(dst, nl.exp, t.tile(x), 0.5, -1.0)
    want = np.exp(x.astype(F32) * F32(-1) + F32(0.5)).astype(BF16)
    np.testing.assert_array_equal(dst.numpy().view(np.uint16), want.view(np.uint16))


def test_in_place_and_special_values(t):
    x = t.tile(F32([[-np.inf, np.inf, np.nan, 0.0]]))
    nisa.activation(x, nl.exp, x)
    np.testing.assert_array_equal(x.numpy(), F32([[0, np.inf, np.nan, 1]]))


@pytest.mark.parametrize(("name", "want"), [
    ("gelu", [np.nan, np.inf, np.nan, 0]), ("gelu_dx", [0, 1, np.nan, 0.5]), ("silu_dx", [0, 1, np.nan, 0.5]),
    ("gelu_apprx_sigmoid_dx", [0, 1, np.nan, 0.5]), ("sign", [-1, 1, 0, 0]), ("sigmoid", [0, 1, np.nan, 0.5]),
    ("softplus", [0, np.inf, np.nan, math.log(2)]), ("tanh", [-1, 1, np.nan, 0]), ("erf", [-1, 1, np.nan, 0])])
def test_special_values(t, name, want):
    nisa.activation(x := t.empty((1, 4)), getattr(nl, name), t.tile(F32([[-np.inf, np.inf, np.nan, 0.0]])))
    np.testing.assert_allclose(x.numpy(), F32([want]), atol=1e-30)


def test_sum_accumulates_over_instructions(t):
    x, y, dst, out = t.tile(X), t.tile(2 * X), t.empty(X.shape), t.empty((128, 1))
    nisa.activation(dst, nl.square, x, reduce_op=nl.add, reduce_cmd=RC.reset_reduce)
    nisa.activation(dst, nl.copy, y)                               # idle: the accumulators stay
    nisa.activation(dst, nl.square, y, reduce_op=nl.add, reduce_cmd=RC.reduce, reduce_res=out)
    want = np.square(X).sum(1, keepdims=True) + np.square(2 * X).sum(1, keepdims=True)
    np.testing.assert_allclose(out.numpy(), want, rtol=1e-6)
    nisa.activation(dst, nl.square, x, reduce_op=nl.add, reduce_cmd=RC.reset, reduce_res=out)
    assert (out.numpy() == 0).all()


def test_activation_reduce_sums_before_dst_rounds(t):
    nisa.activation_reduce(t.empty(X.shape, nl.float8_e4m3), nl.exp, t.tile(X), nl.add, out := t.empty((128, 1)),
                           scale=0.5)
    np.testing.assert_allclose(out.numpy(), np.exp(X * F32(0.5)).sum(1, keepdims=True), rtol=1e-6)


def test_reduce_res_may_alias_dst(t):
    dst = t.empty((128, 24))
    nisa.activation_reduce(dst, nl.copy, t.tile(X), nl.add, dst[:, 0:1])
    np.testing.assert_allclose(dst.numpy()[:, :1], X.sum(1, keepdims=True), rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(dst.numpy()[:, 1:], X[:, 1:])


def test_accumulators_of_two_engines_are_apart(t):
    x, dst, s, v = t.tile(X), t.empty(X.shape), t.empty((128, 1)), t.empty((128, 1))
    nisa.activation(dst, nl.copy, x, reduce_op=nl.add, reduce_cmd=RC.reset_reduce)
    nisa.tensor_scalar_reduce(dst, x, nl.multiply, 2.0, nl.maximum, reduce_res=v)
    nisa.activation(dst, nl.copy, x, reduce_op=nl.add, reduce_cmd=RC.reduce, reduce_res=s)
    np.testing.assert_allclose(s.numpy(), 2 * X.sum(1, keepdims=True), rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(v.numpy(), (X * 2).max(1, keepdims=True))


@pytest.mark.parametrize(("op0", "op1", "reverse0", "reverse1", "want"), [
    ("multiply", "add", False, False, lambda x: x * F32(2) + F32(3)),
    ("multiply", "subtract", False, True, lambda x: F32(3) - x * F32(2)),
    ("subtract", "bypass", True, False, lambda x: F32(2) - x),
    ("bypass", "bypass", False, False, lambda x: x),
])
def test_activate2_stages(t, op0, op1, reverse0, reverse1, want):
    nisa.activate2(dst := t.empty(X.shape), nl.square, t.tile(X), 2.0, 3.0, getattr(nl, op0), getattr(nl, op1),
                   reverse0=reverse0, reverse1=reverse1)
    np.testing.assert_array_equal(dst.numpy(), np.square(want(X)))


@pytest.mark.parametrize(("op", "fold"), [
    ("add", lambda v: v.sum(1)), ("maximum", lambda v: v.max(1)), ("minimum", lambda v: v.min(1)),
    ("abs_max", lambda v: v[np.arange(len(v)), np.abs(v).argmax(1)]),
    ("abs_min", lambda v: v[np.arange(len(v)), np.abs(v).argmin(1)])])
def test_activate2_reductions(t, op, fold):
    out = t.empty((128, 1))
    nisa.activate2(t.empty(X.shape), nl.copy, t.tile(X), 0.0, 0.0, nl.bypass, nl.bypass, reduce_op=getattr(nl, op),
                   reduce_res=out, reduce_cmd=RC.reset_reduce)
    np.testing.assert_allclose(out.numpy()[:, 0], fold(X), rtol=1e-5, atol=1e-6)


def test_prelu_takes_its_slope_from_relu_param(t):
    slope = rng.random((128, 1)).astype(F32)
    nisa.activate2(dst := t.empty(X.shape), nl.prelu, t.tile(X), 0.0, 0.0, nl.bypass, nl.bypass,
                   relu_param=t.tile(slope))
    np.testing.assert_array_equal(dst.numpy(), np.where(X >= 0, X, X * slope))


def test_exponential_with_a_running_sum(t):
    x, largest = t.tile(X), t.tile(X.max(1, keepdims=True))
    dst, out = t.empty(X.shape), t.empty((128, 1))
    nisa.exponential(dst, x, largest, reduce_cmd=RC.reset_reduce)
    nisa.exponential(dst, x, largest, reduce_res=out, reduce_cmd=RC.reduce)
    e = np.exp(X - X.max(1, keepdims=True))
    np.testing.assert_allclose(dst.numpy(), e, rtol=1e-6)
    np.testing.assert_allclose(out.numpy(), 2 * e.sum(1, keepdims=True), rtol=1e-6)
    nisa.exponential(dst, x, 0.0, reduce_res=out, reduce_cmd=RC.load_reduce, reduce_init=100.0)
    np.testing.assert_allclose(out.numpy(), 100 + np.exp(X).sum(1, keepdims=True), rtol=1e-6)


@pytest.mark.parametrize(("name", "inside", "outside"), [
    ("sin", [-3.14, 3.14, np.inf, np.nan], [3.2, -9.0]),
    ("arctan", [1.57], [-1.6]),
    ("log", [1e-19, 0.0, np.inf], [1e-20, 1e20]),
    ("sqrt", [0.0, 1e-34, 1e35], [1e-36, 1e36]),
    ("rsqrt", [1e-26], [1e-27]),
    ("reciprocal", [-1e-12, 4e12], [1e-13, -5e12]),
])
def test_a_warning_where_the_chip_gives_something_else(t, name, inside, outside):
    nisa.activation(dst := t.empty((1, len(inside))), getattr(nl, name), t.tile(F32([inside])))
    with pytest.warns(NkiWarning, match=rf"nl.{name}: {len(outside)} of {len(outside)} inputs are outside") as warned:
        nisa.activation(dst := t.empty((1, len(outside))), getattr(nl, name), t.tile(F32([outside])))
    assert (warned[0].filename, len(warned)) == (__file__, 1)
    np.testing.assert_allclose(dst.numpy(), REFERENCE[name](torch.tensor([outside])), rtol=1e-5)
