"""Elementwise ops against PyTorch on the CPU, on both executors."""
from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn

F = nn.functional
FLOATS = (torch.float32, torch.bfloat16, torch.float16)
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
NUMBERS = (*FLOATS, *INTEGERS)


@dataclass
class OpCase:
    """One op: a function of tensors, the dtypes it takes, and the range of its inputs."""

    name: str
    function: Callable[..., Any]
    dtypes: tuple[torch.dtype, ...] = FLOATS
    low: float = -4.0
    high: float = 4.0
    in_place: str | None = None
    special: bool = True
    rtol: float | None = None


UNARY = [
    OpCase("exp", torch.exp, (*NUMBERS, torch.bool), in_place="exp_"),
    OpCase("expm1", torch.expm1, FLOATS, in_place="expm1_"),
    OpCase("log", torch.log, FLOATS, 0.01, in_place="log_"),
    OpCase("log1p", torch.log1p, FLOATS, -0.9),
    OpCase("sqrt", torch.sqrt, NUMBERS, 0.0, in_place="sqrt_"),
    OpCase("rsqrt", torch.rsqrt, FLOATS, 0.01),
    OpCase("reciprocal", torch.reciprocal, FLOATS, 0.1, in_place="reciprocal_"),
    OpCase("sin", torch.sin, FLOATS), OpCase("cos", torch.cos, FLOATS),
    OpCase("tan", torch.tan, FLOATS, -1.2, 1.2, special=False),
    OpCase("tanh", torch.tanh, FLOATS, in_place="tanh_"),
    OpCase("sigmoid", torch.sigmoid, FLOATS, in_place="sigmoid_"),
    OpCase("erf", torch.erf, FLOATS),
    OpCase("relu", torch.relu, FLOATS, in_place="relu_"),
    OpCase("silu", F.silu, FLOATS), OpCase("mish", F.mish, FLOATS),
    OpCase("gelu", F.gelu, FLOATS, special=False),
    OpCase("gelu_tanh", lambda x: F.gelu(x, approximate="tanh"), FLOATS, special=False),
    OpCase("leaky_relu", lambda x: F.leaky_relu(x, 0.1), FLOATS),
    OpCase("threshold", lambda x: F.threshold(x, 0.5, 7), FLOATS),
    OpCase("hardsigmoid", F.hardsigmoid, FLOATS), OpCase("hardswish", F.hardswish, FLOATS, special=False),
    OpCase("relu6", F.relu6, FLOATS), OpCase("isinf", torch.isinf, FLOATS), OpCase("isposinf", torch.isposinf, FLOATS),
    OpCase("neg", torch.neg, NUMBERS, in_place="neg_"), OpCase("abs", torch.abs, NUMBERS, in_place="abs_"),
    OpCase("floor", torch.floor, FLOATS), OpCase("ceil", torch.ceil, FLOATS), OpCase("trunc", torch.trunc, FLOATS),
    OpCase("sign", torch.sign, FLOATS, special=False), OpCase("sgn", torch.sgn, FLOATS, special=False),
    OpCase("isneginf", torch.isneginf, FLOATS), OpCase("isnan", torch.isnan, FLOATS),
    OpCase("logical_not", torch.logical_not, (*NUMBERS, torch.bool), in_place="logical_not_"),
    OpCase("bitwise_not", torch.bitwise_not, (*INTEGERS, torch.bool), in_place="bitwise_not_"),
    OpCase("pow2", lambda x: x ** 2, FLOATS), OpCase("pow3", lambda x: x ** 3, FLOATS),
    OpCase("pow.5", lambda x: x ** 0.5, FLOATS, 0.0), OpCase("pow-1", lambda x: x ** -1, FLOATS, 0.1),
    OpCase("pow-.5", lambda x: x ** -0.5, FLOATS, 0.1), OpCase("pow0", lambda x: x ** 0, FLOATS),
    OpCase("pow1.7", lambda x: x ** 1.7, FLOATS, 0.0),
    OpCase("add2", lambda x: x + 2, (*NUMBERS, torch.bool)), OpCase("add.3", lambda x: x + 0.3, NUMBERS),
    OpCase("rsub", lambda x: 1 - x, NUMBERS), OpCase("mul.3", lambda x: x * 0.3, NUMBERS),
    OpCase("div3", lambda x: x / 3, NUMBERS), OpCase("rdiv", lambda x: 2 / x, FLOATS, 0.1),
    OpCase("clamp", lambda x: x.clamp(-1, 2), NUMBERS[:-1], in_place="clamp"),
    OpCase("clamp_min", lambda x: x.clamp(min=0.5), NUMBERS), OpCase("clamp_max", lambda x: x.clamp_max(1), NUMBERS),
    OpCase("clamp_nan", lambda x: x.clamp(float("nan"), 1.0), FLOATS),
    OpCase("hardtanh", lambda x: F.hardtanh(x, -1, 1), FLOATS),
    *(OpCase(f.__name__, lambda x, f=f: f(x, 1), (*NUMBERS, torch.bool))
      for f in (operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge)),
    OpCase("lt.5", lambda x: x < 0.5, NUMBERS),
]
BINARY = [
    OpCase("add", torch.add, (*NUMBERS, torch.bool), in_place="add_"),
    OpCase("sub", torch.sub, NUMBERS, in_place="sub_"),
    OpCase("mul", torch.mul, (*NUMBERS, torch.bool), in_place="mul_"),
    OpCase("add_alpha", lambda x, y: torch.add(x, y, alpha=3), NUMBERS, special=False),
    OpCase("sub_alpha", lambda x, y: torch.sub(x, y, alpha=-2), NUMBERS[:-1], special=False),
    OpCase("div", torch.div, NUMBERS, 1, 5),
    OpCase("maximum", torch.maximum, (*NUMBERS, torch.bool)), OpCase("minimum", torch.minimum, (*NUMBERS, torch.bool)),
    OpCase("pow", torch.pow, FLOATS, 0.1, 3.0, special=False, rtol=1e-5),
    OpCase("clamp_t", lambda x, y: torch.clamp(x, min=y), NUMBERS),
    OpCase("clamp_tt", lambda x, y: torch.clamp(x, y, y + 1), NUMBERS),
    *(OpCase(f.__name__, f, (*NUMBERS, torch.bool))
      for f in (torch.eq, torch.ne, torch.lt, torch.le, torch.gt, torch.ge)),
    *(OpCase(f.__name__, f, (*NUMBERS, torch.bool)) for f in (torch.logical_and, torch.logical_or, torch.logical_xor)),
    *(OpCase(f.__name__, f, (*INTEGERS, torch.bool)) for f in (torch.bitwise_and, torch.bitwise_or, torch.bitwise_xor)),
    OpCase("lerp", lambda x, y: torch.lerp(x, y, 0.3), FLOATS, special=False, in_place="lerp"),
    OpCase("where", lambda x, y: torch.where(x > 0, x, y), NUMBERS),
    OpCase("masked_fill", lambda x, y: x.masked_fill(y > 0, 2), NUMBERS),
    OpCase("masked_fill_t", lambda x, y: x.masked_fill(y > 0, torch.full((), 2, dtype=x.dtype)), NUMBERS),
]
CASES = {f"{case.name}{n}": (case, n) for n, table in ((1, UNARY), (2, BINARY)) for case in table}


@pytest.mark.filterwarnings("ignore:nl.*inputs are outside")
@pytest.mark.parametrize("name", CASES)
def test_every_dtype(name, executor, check, samples):
    case, count = CASES[name]
    for dtype in case.dtypes:
        args = [samples.make((3, 67), dtype, case.low, case.high, seed) for seed in range(count)]
        check(case.function, *args, rtol=case.rtol)
        if dtype.is_floating_point and case.special:
            x = samples.special(dtype)
            args = [x] if count == 1 else [x.repeat_interleave(16), x.repeat(16)]
            check(case.function, *args, exact=False, rtol=2e-5 if dtype is torch.float32 else 1e-2)


@pytest.mark.filterwarnings("ignore:nl.*inputs are outside")
@pytest.mark.parametrize("name", CASES)
def test_every_layout(name, executor, check, samples):
    case, count = CASES[name]
    layouts = [samples.layouts(case.dtypes[0], case.low, case.high, seed) for seed in range(count)]
    for layout in layouts[0]:
        check(case.function, *(given[layout] for given in layouts), rtol=case.rtol)


@pytest.mark.parametrize("name", [n for n, (c, _) in CASES.items() if c.in_place and c.in_place.endswith("_")])
def test_in_place(name, executor, check, samples):
    case, count = CASES[name]
    dtype = case.dtypes[0]
    method = getattr(torch.Tensor, case.in_place)
    layouts = [samples.layouts(dtype, case.low, case.high, seed) for seed in range(count)]
    for layout in ("ragged", "transposed", "stepped", "offset", "cut", "empty", "scalar"):
        x = layouts[0][layout]
        check.written(lambda t, *o: method(t, *o), x, *(given[layout] for given in layouts[1:]))


@pytest.mark.parametrize("function", (torch.add, torch.mul, torch.maximum, torch.lt, torch.logical_and))
def test_broadcasting(function, executor, check, samples):
    shapes = ((4, 1), (3,)), ((2, 1, 5), (3, 1)), ((), (3, 4)), ((1,), (2, 3)), ((3, 0), (3, 1)), ((2, 3, 4), (4,))
    for a, b in shapes:
        check(function, samples.make(a), samples.make(b, seed=1))


MIXED = [(torch.float32, torch.bfloat16), (torch.bfloat16, torch.float16), (torch.float32, torch.int64),
         (torch.int32, torch.int64), (torch.bool, torch.float32), (torch.uint8, torch.int8), (torch.bool, torch.int64),
         (torch.int64, torch.float16)]


@pytest.mark.parametrize("dtypes", MIXED, ids=str)
def test_mixed_dtypes(dtypes, executor, check, samples):
    x, y = (samples.make((4, 9), dtype, seed=i) for i, dtype in enumerate(dtypes))
    for function in (torch.add, torch.mul, torch.eq, torch.lt, torch.maximum, torch.div):
        check(function, x, y)
        check(function, x, y[0, 0])
        check(function, x[0, 0], y)
    check(lambda a, b: torch.where(a > 0, a, b), x, y)


def test_integers_wrap_before_they_are_compared(executor, check):
    x = torch.tensor([1, 200, 255], dtype=torch.uint8)
    check(lambda t: t > 300, x)
    check(lambda t: t > -1, x)
    check(lambda t, o: torch.maximum(t, o), x, torch.tensor(-3, dtype=torch.int8))
    check(lambda t: t < 200, torch.tensor([1, -3], dtype=torch.int8))


def test_zero_dimensional_cpu_operands(executor, check, samples):
    x = samples.make((3, 5)).to("neuron")
    assert torch.equal((x + torch.tensor(2.5)).cpu(), x.cpu() + 2.5)
    assert torch.equal((torch.tensor(2) * x).cpu(), x.cpu() * 2)


def test_integers_are_exact_and_wrap(executor, check):
    big = torch.tensor([2**53 + 1, -2**53 - 1, 2**62, 2**24 + 1, -1, 0, 2**63 - 1, -2**63])
    other = torch.tensor([1, -1, 3, 2**24 + 3, 7, 0, 1, -1])
    for function in (torch.add, torch.sub, torch.mul, torch.maximum, torch.minimum, torch.eq, torch.lt, torch.ge,
                     torch.bitwise_xor, torch.clamp_min):
        check(function, big, other)
    check(torch.abs, big)
    check(torch.neg, big)
    check(lambda x: x + (2**53 + 1), big)
    check(lambda x: x == 2**53 + 1, big)
    for dtype, top in ((torch.int32, 2**31 - 1), (torch.int16, 2**15 - 1), (torch.int8, 127), (torch.uint8, 255)):
        x = torch.tensor([top, top - 1, 0, 1], dtype=dtype)
        for function in (torch.add, torch.mul, torch.sub):
            check(function, x, x.flip(0).clone())
        check(lambda x: x * 3, x)
        check(torch.neg, x)
    near = torch.tensor([2**24 + 1, 2**24, 2**24 + 2], dtype=torch.int32)
    check(lambda x: x == 2**24 + 1, near)
    check(torch.lt, near, near.roll(1))


@pytest.mark.parametrize("dtype", FLOATS)
def test_scalars_are_not_rounded_to_the_tensors_dtype(dtype, executor, check, samples):
    x = samples.make((64,), dtype)
    check(lambda t: t * 0.1, x)
    check(lambda t: t + 1e-3, x)
    check(lambda t: torch.add(t, t, alpha=0.1), x)
    check(lambda t: t.div(3.7), x)


def test_out(executor, check, samples):
    x, y = samples.make((4, 6)).to("neuron"), samples.make((4, 6), seed=1).to("neuron")
    expected = x.cpu() + y.cpu()
    for out in (torch.zeros(4, 6), torch.zeros(6, 4).t(), torch.zeros(4, 12)[:, ::2], torch.zeros(5, 8)[1:, 2:]):
        target = torch.zeros(5 * 12, device="neuron").as_strided(out.shape, out.stride(), 3)
        assert torch.add(x, y, out=target) is target and torch.equal(target.cpu(), expected)
    grown = torch.empty(0, device="neuron")
    assert torch.equal(torch.add(x, y, out=grown).cpu(), expected)
    low = torch.empty(4, 6, dtype=torch.bfloat16, device="neuron")
    assert torch.equal(torch.add(x, y, out=low).cpu(), expected.bfloat16())
    flags = torch.empty(4, 6, dtype=torch.uint8, device="neuron")
    assert torch.equal(torch.lt(x, y, out=flags).cpu(), (x.cpu() < y.cpu()).byte())
    alias = x.clone()
    assert torch.exp(alias, out=alias) is alias and torch.allclose(alias.cpu(), x.cpu().exp())


def test_fused_multiply_and_divide(executor, check, samples):
    for dtype in FLOATS:
        x, a, b = (samples.make((4, 9), dtype, 0.5, 3, seed) for seed in range(3))
        check(torch.addcmul, x, a, b, value=0.3)
        check(torch.addcdiv, x, a, b, value=-0.3)
        check(lambda x, a, w: torch.lerp(x, a, w), x, a, b)
    x, a, b = (samples.make((4, 9), torch.int64, seed=seed) for seed in range(3))
    check(torch.addcmul, x, a, b, value=2)


@pytest.mark.parametrize("function, error", [
    (lambda x: x + torch.ones(4, device="neuron"), "must match the size"),
    (lambda x: torch.add(x.int(), 1, alpha=0.5), "integral input tensors"),
    (lambda x: (x > 0) - (x > 0), "Subtraction"),
    (lambda x: x.int().add_(0.5), "can't be cast"),
    (lambda x: torch.lerp(x, x.bfloat16(), 0.5), "dtype"),
])
def test_wrong_arguments_raise_pytorchs_errors(function, error):
    with pytest.raises(RuntimeError, match=error):
        function(torch.ones(2, 3, device="neuron"))


@pytest.mark.parametrize("dtype", (torch.bfloat16, torch.float16), ids=str)
def test_signs_of_pairs(dtype, executor, check, samples):
    for x in (samples.make((5, 64), dtype), samples.make((640,), dtype), samples.make((6, 100), dtype)[1:, 1:65],
              samples.make((401,), dtype)[1:], samples.special(dtype).repeat(4), samples.make((64, 4), dtype).t()):
        check(torch.neg, x, exact=False)
        check(torch.abs, x, exact=False)
        check.written(torch.Tensor.neg_, x)


def test_float64_is_computed_in_float32(executor, check, samples):
    """The policy of config.float64: the dtype stays, the arithmetic is float32; choices and copies are exact."""
    x, y = samples.make((5, 33), torch.float64), samples.make((5, 33), torch.float64, seed=1)
    for function in (torch.add, torch.mul, torch.maximum, torch.lt):
        check(function, x, y)
    for function in (torch.exp, torch.tanh, lambda t: t * 0.1, lambda t: t.sum(0), lambda t: t.amax(1),
                     lambda t: torch.softmax(t, -1), lambda t: torch.nn.functional.layer_norm(t, (33,)), F.gelu):
        check(function, x, rtol=1e-5)
    exact = torch.tensor([0.1, 1 / 3, 1e300, -1e-3], dtype=torch.float64)
    for function in (lambda t: torch.where(t > 0, t, -1.0), lambda t: t.masked_fill(t < 0, 0.1), torch.clone):
        got = function(exact.to("neuron"))
        assert torch.equal(got.cpu(), function(exact))
