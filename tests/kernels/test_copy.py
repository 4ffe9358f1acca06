"""Copies, casts, fills, ranges and transposes against PyTorch on the CPU, on both executors."""
from __future__ import annotations

import math

import pytest
import torch

FLOATS = (torch.float32, torch.bfloat16, torch.float16)
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
EVERY = (*FLOATS, *INTEGERS, torch.bool, torch.float64)
PAIRS = [(a, b) for a in EVERY for b in EVERY if a is not b]


@pytest.mark.parametrize("source", EVERY, ids=str)
def test_casts(source, executor, check, samples):
    values = samples.make((3, 37), source, -100, 100)
    if source.is_floating_point:
        top = 300.0 if source in (torch.float16, torch.bfloat16) else 3e10
        values.view(-1)[:8] = torch.tensor([math.nan, math.inf, -math.inf, -0.0, 2.5, -2.5, top, -top]).to(source)
    elif source is not torch.bool:
        info = torch.iinfo(source)
        values.view(-1)[:5] = torch.tensor([info.max, info.min, info.max - 1, 0, 1]).to(source)
    for target in EVERY:
        if target is not source:
            check(lambda t, target=target: t.to(target), values, exact=False)


def test_casts_of_large_integers_are_exact(executor, check):
    values = torch.tensor([2**53 + 1, 2**24 + 1, -2**31 - 1, 2**63 - 1, -2**63, 2**32 + 7, 255, 256])
    for target in (torch.int32, torch.int16, torch.uint8, torch.bool, torch.float64, torch.float32):
        check(lambda t, target=target: t.to(target), values, exact=False)
    check(lambda t: t.to(torch.int64), torch.tensor([2.0**52 + 0.5, 1e300, -7.9, math.nan], dtype=torch.float64))


@pytest.mark.parametrize("dtype", EVERY, ids=str)
def test_every_layout_becomes_contiguous(dtype, executor, check, samples):
    for tensor in samples.layouts(dtype).values():
        check(lambda t: t.contiguous(), tensor, exact=False)
        check(lambda t: t.clone(memory_format=torch.contiguous_format), tensor, exact=False)


@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16, torch.int64, torch.uint8, torch.float64), ids=str)
def test_copy_into_every_layout(dtype, executor, check, samples):
    for name, target in samples.layouts(dtype).items():
        if name in ("expanded", "row"):
            continue
        for source in (samples.make(target.shape, dtype, seed=3), samples.make(target.shape, torch.float32, 0, 9, 4)):
            check.written(torch.Tensor.copy_, target, source)
    check.written(torch.Tensor.copy_, samples.make((4, 6), dtype), samples.make((6,), dtype, seed=2))      # broadcast


@pytest.mark.parametrize("shape", [(3, 5), (128, 128), (129, 257), (1, 300), (300, 1), (2, 40, 70)], ids=str)
def test_transposes(shape, executor, check, samples):
    for dtype in (torch.float32, torch.bfloat16, torch.int64, torch.uint8):
        check(lambda t: t.transpose(-1, -2).contiguous(), samples.make(shape, dtype), exact=False)


def test_permutations(executor, check, samples):
    x = samples.make((2, 3, 4, 5))
    for order in ((3, 2, 1, 0), (0, 2, 1, 3), (1, 3, 0, 2), (0, 3, 1, 2), (2, 0, 3, 1)):
        check(lambda t, order=order: t.permute(order).contiguous(), x)
        check.written(torch.Tensor.copy_, x.permute(order), samples.make(x.permute(order).shape, seed=1))


@pytest.mark.parametrize("dtype", EVERY, ids=str)
def test_fill(dtype, executor, check, samples):
    for value in (3, 0.7, True, -1 if dtype.is_signed else 1):
        for name in ("ragged", "vector", "transposed", "stepped", "cut", "scalar", "empty"):
            check.written(lambda t, value=value: t.fill_(value), samples.layouts(dtype)[name])
    check.written(torch.Tensor.zero_, samples.layouts(dtype)["offset"])
    check.written(lambda t: t.fill_(torch.tensor(2.0)), samples.make((3, 4), dtype))
    check.written(lambda t: t[1].fill_(1), samples.make((3, 4), dtype))


def test_exact_fills(executor, check):
    check.written(lambda t: t.fill_(2**53 + 1), torch.zeros(4, dtype=torch.int64))
    check.written(lambda t: t.fill_(2**24 + 1), torch.zeros(4, dtype=torch.int32))
    check.written(lambda t: t.fill_(0.1), torch.zeros(4, dtype=torch.float64))
    check.written(lambda t: t.fill_(2**40 + 1), torch.zeros(4, dtype=torch.float64))
    for value in (math.nan, math.inf, -math.inf):
        check.written(lambda t, value=value: t.fill_(value), torch.zeros(130, 3))


def test_factories(executor):
    for factory in (torch.zeros, torch.ones, lambda shape, **k: torch.full(shape, 2.5, **k)):
        for shape in ((), (0,), (5,), (3, 400)):
            assert torch.equal(factory(shape, device="neuron").cpu(), factory(shape))
    assert torch.equal(torch.full((3,), 7, device="neuron").cpu(), torch.full((3,), 7))


@pytest.mark.parametrize("arguments", [
    (5,), (0,), (2, 9), (1, 10, 3), (10, 0, -3), (0.0, 1.0, 0.1), (1.5, -1.5, -0.25), (7, 7), (129,), (700,),
    (2**40, 2**40 + 5)], ids=str)
def test_arange(arguments, executor):
    torch.testing.assert_close(torch.arange(*arguments, device="neuron").cpu(), torch.arange(*arguments))
    if len(arguments) < 3 and max(arguments) < 2**20:
        for dtype in (torch.int32, torch.float32, torch.bfloat16, torch.float64):
            torch.testing.assert_close(torch.arange(*arguments, dtype=dtype, device="neuron").cpu(),
                                       torch.arange(*arguments, dtype=dtype))


def test_a_range_does_not_compile_for_every_length(kernels_only):
    from neuron_eager import opcache
    for n in (100, 200, 300):
        torch.arange(n, device="neuron")
    with opcache.count_compiles() as count:
        for n in range(301, 320):
            torch.arange(n, device="neuron")
    assert count.compiles == 0


@pytest.mark.parametrize("dtype", (torch.bfloat16, torch.uint8, torch.bool), ids=str)
def test_narrow_elements_move_in_words(dtype, executor, check, samples):
    x = samples.make((6, 260), dtype)
    for source in (x[:, :128], x[:, 1:129], x[1:, 2:130], x[::2, 4:], x.view(6, 2, 130)[:, :, :96], x.view(-1)[1:641]):
        check(lambda t: t.contiguous(), source, exact=False)
        check.written(torch.Tensor.copy_, source, samples.make(source.shape, dtype, seed=1))
    check(lambda t: torch.nn.functional.embedding(torch.tensor([1, 0]).to(t.device), t), samples.make((3, 64), dtype),
          exact=False)


@pytest.mark.parametrize("dtype", (torch.bfloat16, torch.float16, torch.uint8, torch.int16, torch.bool), ids=str)
def test_fills_of_narrow_elements(dtype, executor, check, samples):
    for value in (3, 0.7, True):
        for target in (samples.make((5, 64), dtype), samples.make((6, 130), dtype)[1:, 1:65],
                       samples.make((6, 128), dtype)[:, :96], samples.make((321,), dtype)[1:]):
            check.written(lambda t, value=value: t.fill_(value), target)
