"""Positions of extremes, membership and running sums, against PyTorch on the CPU, on both executors."""
from __future__ import annotations

import math

import pytest
import torch

aten = torch.ops.aten
FLOATS = (torch.float32, torch.bfloat16, torch.float16)
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.uint8)
SHAPES = ((5, 7), (3, 140, 13), (1,), ())


@pytest.mark.parametrize("dtype", (*FLOATS, *INTEGERS), ids=str)
def test_extremes(dtype, executor, check, samples):
    for shape in SHAPES:
        x = samples.make(shape, dtype, -3, 3)              # with ties: the first counts
        check(torch.argmax, x)
        check(torch.argmin, x)
        if shape:
            check(torch.argmax, x, -1)
            check(torch.argmin, x, 0, True)
            check(torch.max, x, -1)
            check(torch.min, x, 0, True)
    check(torch.max, samples.make((6, 7, 8), dtype).permute(2, 0, 1), 1)


def test_extremes_over_several_chunks(executor, check, samples):
    x = samples.make((2, 4500))
    check(torch.max, x, 1)
    check(torch.argmin, x.t(), 0)
    large = torch.tensor([[2**62, 2**62 + 1, -2**62], [-1, -2**63, 2**53 + 1]])
    check(torch.max, large, 1)
    check(torch.min, large, 1)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_extremes_of_what_is_not_finite(dtype, executor, check):
    nan, inf = math.nan, math.inf
    x = torch.tensor([[1, nan, 3, nan], [inf, -inf, 2, inf], [-inf, -inf, -inf, -inf], [3, 3, 1, 1]], dtype=dtype)
    for function in (torch.argmax, torch.argmin, torch.max, torch.min):
        check(function, x, 1)
        check(function, x, 0)
    check(torch.argmax, x)


@pytest.mark.parametrize("dtype", (*FLOATS, *INTEGERS), ids=str)
def test_isin(dtype, executor, check, samples):
    x, wanted = samples.make((20, 13), dtype, -9, 9), samples.make((5,), dtype, -9, 9)
    wanted = torch.cat([wanted, x.flatten()[40:42]])
    check(torch.isin, x, wanted)
    check(torch.isin, x.t(), wanted, invert=True)
    check(torch.isin, x[0, 0], wanted)


def test_isin_is_exact_for_large_integers(executor, check):
    check(torch.isin, torch.tensor([2**53, 2**53 + 1, -2**62]), torch.tensor([2**53 + 1, -2**62 + 1]))
    check(torch.isin, torch.tensor([math.nan, 1.0]), torch.tensor([math.nan, 1.0]))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_running_sums(dtype, executor, check, samples):
    x = samples.make((3, 40, 13), dtype)
    for dim in (0, 1, -1):
        check(torch.cumsum, x, dim, rtol=1e-5)
    check(torch.cumsum, x.transpose(0, 2)[::2], 1, rtol=1e-5)
    check(torch.cumsum, torch.ones(2, 4200), 1, dtype=dtype)
    check(torch.cumsum, torch.tensor(3.0, dtype=dtype), 0)


@pytest.mark.parametrize("dtype", (*INTEGERS, torch.bool), ids=str)
def test_running_sums_of_integers_are_exact(dtype, executor, check, samples):
    x = samples.make((3, 40, 13), dtype, -100, 100)
    check(torch.cumsum, x, -1)
    check(torch.cumsum, x, 1)
    if dtype is not torch.bool:
        check(torch.cumsum, x, 0, dtype=dtype)


def test_running_sums_wrap(executor, check):
    g = torch.Generator().manual_seed(0)
    check(torch.cumsum, torch.randint(-2**62, 2**62, (3, 2500), generator=g), 1)


def test_running_sum_in_place(executor, check, samples):
    check.written(lambda t: t.cumsum_(1), samples.make((4, 20))[:, ::2])
    check.written(lambda t: t.cumsum_(0), samples.make((4, 5), torch.int64))
    nan = torch.tensor([1.0, math.inf, 2.0, -math.inf, 3.0, math.nan])
    check(torch.cumsum, nan, 0)


@pytest.mark.parametrize("dtype", (*FLOATS, torch.int64, torch.uint8, torch.bool), ids=str)
def test_sort(dtype, executor, check, samples):
    for shape in ((7,), (5, 13), (2, 3, 40)):
        x = samples.make(shape, dtype, -3, 3)
        check(torch.sort, x, stable=True)
        check(torch.sort, x, stable=True, descending=True)
    check(torch.sort, samples.make((), dtype), stable=True)
    check(torch.sort, samples.make((4, 20), dtype)[:, ::2], stable=True)


def test_sort_of_several_tiles(executor, check, samples):
    check(torch.sort, samples.make((1, 2200), torch.int64, -1000, 1000), stable=True)
    check(torch.sort, torch.tensor([2**62 + 1, 2**62, -2**62, 2**62 + 1]), stable=True)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_order_of_what_is_not_finite(dtype, executor, check):
    nan, inf = math.nan, math.inf
    x = torch.tensor([[1, nan, 3, nan, 2], [inf, -inf, 2, inf, -inf], [-inf] * 5, [3, 3, 1, 1, 0]], dtype=dtype)
    check(torch.sort, x, stable=True)
    check(torch.sort, x, stable=True, descending=True)
    check(lambda t: torch.topk(t, 5).values, x)
    check(torch.topk, x[:1, [0, 1, 2, 4]], 3)


@pytest.mark.parametrize("dtype", (*FLOATS, torch.int64, torch.uint8), ids=str)
def test_largest_elements(dtype, executor, check, samples):
    x = (torch.arange(140)[:, None] * 7 + torch.arange(40) * 11) % 41
    x = x.to(dtype)
    check(torch.topk, x, 3)
    check(torch.topk, x, 12)
    check(torch.topk, x.t(), 4, 0)
    check(torch.topk, x[:5, None], 1)


@pytest.mark.parametrize("divisor", (1, 2, 3, 8, 12, 7, 100))
def test_integers_divided(divisor, executor, check):
    edges = torch.tensor([0, 1, -1, 7, -7, 8, -8, 2**62, -2**62, 2**63 - 1, -2**63, 12345, -999])
    check(torch.floor_divide, edges, divisor)
    for dtype in (torch.int32, torch.int8):
        check(torch.floor_divide, torch.arange(-100, 100, dtype=dtype), divisor)
    check(torch.floor_divide, torch.arange(250, dtype=torch.uint8), divisor)
    check.written(lambda t: t.floor_divide_(divisor), torch.arange(24).reshape(4, 6).t())


def test_a_division_by_zero_is_the_cpus_error():
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        torch.arange(4, device="neuron") // 0


@pytest.mark.parametrize("dtype", INTEGERS[:2], ids=str)
def test_integers_counted(dtype, executor):
    for bins, low in ((8, 0), (200, -5)):
        x = (torch.arange(2500) ** 2 % 211 - 3).to(dtype)
        got = torch.histc(x.to("neuron"), bins, low, low + bins - 1)
        expected = torch.histc(x.double(), bins, low, low + bins - 1).to(dtype)
        assert got.dtype is dtype and torch.equal(got.cpu(), expected)
