"""Vector math against float64: the bound that each docstring states, on all magnitudes, and special values."""
from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from neuron_eager.native.vmath import BINARY, COMPARE, UNARY

F = np.float32


def _phi(x):
    return 0.5 * torch.erfc(-x / math.sqrt(2))


def _swish_dx(u):
    return torch.sigmoid(u) * (1 + u * torch.sigmoid(-u))


def _softplus(x):
    return torch.relu(x) + torch.log1p(torch.exp(-x.abs()))


EXACT = {f.__name__: f for f in (torch.abs, torch.square, torch.relu, torch.reciprocal, torch.sqrt, torch.sign,
                                 torch.ceil, torch.floor, torch.trunc, torch.round)} | {"negative": torch.neg}
# name: (exact function in float64, bound in ulp)
ULP = {
    "rsqrt": (torch.rsqrt, 1.5), "exp": (torch.exp, 1.3), "expm1": (torch.expm1, 2.2), "log": (torch.log, 0.9),
    "log1p": (torch.log1p, 1.5), "log2": (torch.log2, 2.0), "log10": (torch.log10, 2.1), "sin": (torch.sin, 2.1),
    "cos": (torch.cos, 2.1), "tan": (torch.tan, 3.0), "arctan": (torch.atan, 1.8), "tanh": (torch.tanh, 4.7),
    "tanh_dx": (lambda x: torch.cosh(x) ** -2, 4.2), "softplus": (_softplus, 2.5), "erf": (torch.erf, 6.0),
    "erfc": (torch.erfc, 5.0), "erf_dx": (lambda x: 2 / math.sqrt(math.pi) * torch.exp(-x * x), 3.1),
}
# name: (exact function, bound of the absolute error over 1 + |x|)
ABSOLUTE = {
    "sigmoid": (torch.sigmoid, 1e-7), "silu": (lambda x: x * torch.sigmoid(x), 1.2e-7), "silu_dx": (_swish_dx, 1.2e-7),
    "gelu": (lambda x: x * _phi(x), 2e-7), "gelu_tail": (lambda x: x * _phi(x), 1e-7),
    "gelu_dx": (lambda x: _phi(x) + x * torch.exp(-x * x / 2) / math.sqrt(2 * math.pi), 1.5e-7),
    "gelu_apprx_tanh": (lambda x: x * torch.sigmoid(2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)), 1.2e-7),
    "gelu_apprx_sigmoid": (lambda x: x * torch.sigmoid(1.702 * x), 1.2e-7),
    "gelu_apprx_sigmoid_dx": (lambda x: _swish_dx(1.702 * x), 1.8e-7),
    "mish": (lambda x: x * torch.tanh(_softplus(x)), 1.3e-7),
}


def points(seed=0):
    """About 1e5 finite float32 values: all bit patterns, the usual range, small, large, near multiples of pi / 2."""
    rng = np.random.default_rng(seed)
    bits = rng.integers(0, 1 << 32, 40000, dtype=np.uint64).astype(np.uint32).view(F)
    return np.concatenate([
        bits[np.isfinite(bits)], rng.uniform(-20, 20, 40000).astype(F),
        (rng.uniform(-1, 1, 10000) * 2.0 ** rng.integers(-40, 17, 10000)).astype(F),
        (rng.integers(1, 31000, 5000) * math.pi / 2).astype(F), np.array([0.0, -0.0, 1.0, -1.0], F)])


def exact(f, *xs):
    return f(*(torch.from_numpy(x.astype(np.float64)) for x in xs)).numpy()


def ulps(got, wanted):
    """Error of each element in ulp of the rounded wanted value; a wrong infinity or NaN counts as infinite."""
    with np.errstate(all="ignore"):
        rounded = wanted.astype(F)
        error = np.abs(got.astype(np.float64) - wanted) / np.spacing(np.abs(rounded)).astype(np.float64)
        same = (rounded == got) | (np.isnan(rounded) & np.isnan(got))
    return np.where(same, np.where(np.isfinite(rounded), error, 0), np.nan_to_num(error, nan=np.inf, posinf=np.inf))


def worst(got, x, wanted, error):
    i = int(np.argmax(error))
    return f"{error[i]} at {x[i]!r}: {got[i]!r}, exactly {wanted[i]!r}"


def test_every_function_has_a_bound():
    assert set(UNARY) == {*EXACT, *ULP, *ABSOLUTE}


@pytest.mark.parametrize("name", sorted({**EXACT, **ULP}))
def test_error_in_ulp(name, apply):
    f, bound = (EXACT[name], 0.5) if name in EXACT else ULP[name]
    x = points()
    got = apply(lambda build, v: getattr(build.m, name)(v), x)
    wanted = exact(f, x)
    error = ulps(got, wanted)
    assert error.max() <= bound, worst(got, x, wanted, error)


@pytest.mark.parametrize("name", sorted(ABSOLUTE))
def test_absolute_error(name, apply):
    f, bound = ABSOLUTE[name]
    x = points(1)
    got = apply(lambda build, v: getattr(build.m, name)(v), x)
    with np.errstate(all="ignore"):
        wanted = exact(f, x)
        inside = np.isfinite(wanted.astype(F))
        error = np.where(inside, np.abs(got - wanted) / (1 + np.abs(x.astype(np.float64))), 0)
    assert error.max() <= bound, worst(got, x, wanted, error)


def test_gelu_tail_is_accurate_relatively(apply):
    x = np.linspace(-12.8, 6, 20001).astype(F)
    got = apply(lambda build, v: build.m.gelu_tail(v), x)
    error = ulps(got, exact(lambda x: x * _phi(x), x))
    assert error.max() <= 7


@pytest.mark.parametrize("name", UNARY)
def test_scalars_equal_vectors(name, apply, apply_scalar):
    x = np.concatenate([points(2)[::400], [F(np.inf), F(-np.inf), F(np.nan), F(3e38), F(1e-45)]]).astype(F)
    got = apply_scalar(lambda build, v: getattr(build.m, name)(v), x)
    vector = apply(lambda build, v: getattr(build.m, name)(v), x)
    assert np.array_equal(np.nan_to_num(got).view(np.uint32), np.nan_to_num(vector).view(np.uint32))
    assert np.array_equal(np.isnan(got), np.isnan(vector))


inf, nan = math.inf, math.nan
SPECIAL = {      # values at +inf, -inf, nan, +0, -0
    "exp": (inf, 0, nan, 1, 1), "expm1": (inf, -1, nan, 0.0, -0.0), "log": (inf, nan, nan, -inf, -inf),
    "log1p": (inf, nan, nan, 0.0, -0.0), "log2": (inf, nan, nan, -inf, -inf), "sin": (nan, nan, nan, 0.0, -0.0),
    "cos": (nan, nan, nan, 1, 1), "tan": (nan, nan, nan, 0.0, -0.0),
    "arctan": (math.pi / 2, -math.pi / 2, nan, 0.0, -0.0),
    "tanh": (1, -1, nan, 0.0, -0.0), "tanh_dx": (0, 0, nan, 1, 1), "erf": (1, -1, nan, 0.0, -0.0),
    "erfc": (0, 2, nan, 1, 1), "erf_dx": (0, 0, nan, 2 / math.sqrt(math.pi), 2 / math.sqrt(math.pi)),
    "sigmoid": (1, 0, nan, 0.5, 0.5), "silu": (inf, nan, nan, 0.0, -0.0), "silu_dx": (1, 0, nan, 0.5, 0.5),
    "gelu": (inf, nan, nan, 0.0, -0.0), "gelu_tail": (inf, nan, nan, 0.0, -0.0), "gelu_dx": (1, 0, nan, 0.5, 0.5),
    "gelu_apprx_tanh": (inf, nan, nan, 0.0, -0.0), "gelu_apprx_sigmoid": (inf, nan, nan, 0.0, -0.0),
    "gelu_apprx_sigmoid_dx": (1, 0, nan, 0.5, 0.5), "softplus": (inf, 0, nan, math.log(2), math.log(2)),
    "mish": (inf, nan, nan, 0.0, -0.0), "sqrt": (inf, nan, nan, 0.0, -0.0), "rsqrt": (0, nan, nan, inf, -inf),
    "reciprocal": (0.0, -0.0, nan, inf, -inf), "relu": (inf, 0, nan, 0, 0), "sign": (1, -1, 0, 0, 0),
    "abs": (inf, inf, nan, 0.0, 0.0), "square": (inf, inf, nan, 0.0, 0.0), "floor": (inf, -inf, nan, 0.0, -0.0),
}


@pytest.mark.parametrize("name", sorted(SPECIAL))
def test_special_values(name, apply):
    got = apply(lambda build, v: getattr(build.m, name)(v), np.array([inf, -inf, nan, 0.0, -0.0], F))
    wanted = np.array(SPECIAL[name], F)
    np.testing.assert_allclose(got, wanted, rtol=2e-7, atol=0, equal_nan=True)
    zero_sign_matters = name in ("expm1", "log1p", "sin", "tan", "arctan", "tanh", "erf", "silu", "gelu", "sqrt")
    if zero_sign_matters:
        assert np.array_equal(np.signbit(got[3:]), np.signbit(wanted[3:]))


def test_large_angles_do_not_depend_on_their_neighbours(apply):
    """Lanes beyond the range of the polynomial are computed apart: the others keep their value."""
    x = points(3)[:2000]
    x = x[np.abs(x) < 1e5]
    for name in ("sin", "cos", "tan"):
        alone = apply(lambda build, v, name=name: getattr(build.m, name)(v), x)
        mixed = np.empty(2 * len(x), F)
        mixed[::2], mixed[1::2] = x, 3e38
        both = apply(lambda build, v, name=name: getattr(build.m, name)(v), mixed)
        assert both[::2].tobytes() == alone.tobytes()
        assert np.abs(both[1] - exact(getattr(torch, name), np.array([3e38], F))[0]) < 1e-6 * max(1, abs(both[1]))


# ---- two operands

def pairs(seed=4):
    rng = np.random.default_rng(seed)
    special = np.array([0.0, -0.0, 1, -1, 2, -2, 0.5, 3, -3, 1e-40, -1e-40, 1e30, -1e30, 3.4e38, inf, -inf, nan], F)
    a, b = (g.ravel() for g in np.meshgrid(special, special))
    x, y = (rng.uniform(-30, 30, 20000).astype(F) for _ in range(2))
    u, v = ((rng.uniform(-1, 1, 20000) * 2.0 ** rng.integers(-60, 60, 20000)).astype(F) for _ in range(2))
    return np.concatenate([a, x, u]), np.concatenate([b, y, v])


def binary(name, x, y):
    a, b = (torch.from_numpy(v) for v in (x, y))
    if name in ("abs_max", "abs_min"):
        first = a.abs() > b.abs() if name == "abs_max" else a.abs() < b.abs()
        return torch.where(first, a, b).numpy()
    if name == "prelu":
        return torch.where(a > 0, a, a * b).numpy()
    name = {"power": "pow", "mod": "remainder"}.get(name, name)
    return getattr(torch, name)(a, b).numpy()


@pytest.mark.parametrize("name", [n for n in BINARY if n != "power"])
def test_binary_functions_are_exact(name, apply):
    x, y = pairs()
    got = apply(lambda build, a, b: getattr(build.m, name)(a, b), x, y)
    wanted = binary(name, x, y)
    if name in ("fmod", "mod"):
        with np.errstate(all="ignore"):
            wanted = np.fmod(x, y)
            if name == "mod":
                wanted = np.where((wanted != 0) & ((wanted < 0) != (y < 0)), wanted + y, wanted)
    same = (got == wanted) | (np.isnan(got) & np.isnan(wanted))
    assert same.all(), (x[~same][:5], y[~same][:5], got[~same][:5], wanted[~same][:5])


def test_power(apply):
    rng = np.random.default_rng(5)
    x, y = pairs()
    x = np.concatenate([x, rng.uniform(0, 10, 40000).astype(F), -np.arange(1, 50, dtype=F)])
    y = np.concatenate([y, rng.uniform(-38, 38, 40000).astype(F), np.tile(np.array([2, 3, -1, -2, 0.5, 7, 0], F), 7)])
    got = apply(lambda build, a, b: build.m.power(a, b), x, y)
    with np.errstate(all="ignore"):
        wanted = np.power(x.astype(np.float64), y.astype(np.float64))
    error = ulps(got, wanted)
    i = int(np.argmax(error))
    assert error.max() <= 0.6, (error[i], x[i], y[i], got[i], wanted[i])


@pytest.mark.parametrize("exponent", [1, 2, 3, 0.5, -0.5, -1, -2, 2.5, 0])
def test_power_of_a_constant(exponent, apply):
    x = np.concatenate([np.linspace(0, 40, 1001), [inf, nan, 1e-38, 1e30]]).astype(F)
    got = apply(lambda build, v: build.m.power(v, build.const(exponent)), x)
    error = ulps(got, exact(lambda v: torch.pow(v, exponent), x))
    assert error.max() <= 1.5


@pytest.mark.parametrize("name", COMPARE)
def test_comparisons(name, apply):
    x, y = pairs()
    y[::7] = x[::7]
    got = apply(lambda build, a, b: build.m.as_float(build.m.compare(name, a, b)), x, y)
    f = {"equal": np.equal, "not_equal": np.not_equal, "greater": np.greater, "greater_equal": np.greater_equal,
         "less": np.less, "less_equal": np.less_equal}[name]
    assert np.array_equal(got, f(x, y).astype(F))


def test_reductions_propagate_nan(run):
    for op, f in (("add", np.sum), ("maximum", np.max), ("minimum", np.min), ("multiply", np.prod)):
        for x in (np.arange(1, 17, dtype=F) / 4, np.array([1] * 9 + [nan] + [2] * 6, F), np.full(16, -inf, F)):
            out = np.zeros(1, F)

            def body(build, p, n, op=op):
                v = build.vload(p[0], "float32", W=16)
                build.vstore(build.reduce(op, v), p[1], "float32")
            run(body, x, out)
            np.testing.assert_allclose(out[0], f(x), rtol=1e-6)
