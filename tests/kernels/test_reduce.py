"""Reductions, softmax and norms against PyTorch on the CPU, on both executors."""
from __future__ import annotations

import math

import pytest
import torch

F = torch.nn.functional
FLOATS = (torch.float32, torch.bfloat16, torch.float16)
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
DIMS = {"ragged": (0, 1, (0, 1), -1), "permuted": (0, 1, 2, (0, 2), (1, 2), (0, 1, 2)), "cut": (1, (0, 2)),
        "four": (0, (1, 3), (0, 1, 2)), "transposed": (0, 1), "stepped": (1,), "expanded": (0, 1), "vector": (0,)}


def _over_layouts(check, samples, function, dtype, low=-4.0, rtol=1e-5):
    tensors = samples.layouts(dtype, low)
    for name, dims in DIMS.items():
        for dim in dims:
            check(lambda t, dim=dim: function(t, dim), tensors[name], rtol=rtol)
            check(lambda t, dim=dim: function(t, dim, keepdim=True), tensors[name], rtol=rtol)


@pytest.mark.parametrize("name", ("sum", "mean", "amax", "amin", "any", "all"))
def test_every_layout(name, executor, check, samples):
    function = getattr(torch, name)
    _over_layouts(check, samples, function, torch.bool if name in ("any", "all") else torch.float32)


@pytest.mark.parametrize("dtype", (*FLOATS, *INTEGERS, torch.bool), ids=str)
def test_every_dtype(dtype, executor, check, samples):
    x = samples.make((6, 71), dtype)
    for dim in (0, 1):
        check(lambda t, dim=dim: t.sum(dim), x, rtol=1e-2 if dtype.itemsize == 2 else 1e-5)
        check(lambda t, dim=dim: t.amax(dim), x)
        check(lambda t, dim=dim: t.amin(dim), x)
        check(lambda t, dim=dim: t.any(dim), x)
        check(lambda t, dim=dim: t.all(dim), x)
        if dtype.is_floating_point:
            check(lambda t, dim=dim: t.mean(dim), x, rtol=1e-2 if dtype.itemsize == 2 else 1e-5)
    for function in (torch.sum, torch.amax, torch.amin, torch.any, torch.all, torch.max, torch.min):
        check(function, x, rtol=1e-2 if dtype.itemsize == 2 else 1e-5)
    check(lambda t: t.sum(dtype=torch.float32), x, rtol=1e-5)
    check(lambda t: t.sum(1, dtype=torch.float32), x, rtol=1e-5)


def test_exact_integer_sums(executor, check):
    x = torch.tensor([[2**53, 1, 2**62, 3], [-1, 2**24 + 1, 5, 2**62]])
    check(torch.sum, x)
    check(lambda t: t.sum(0), x)
    check(lambda t: t.sum(1), x)
    check(lambda t: t.amax(1), x)
    check(lambda t: t.sum(1), torch.full((3, 300), 2**24 + 1, dtype=torch.int32))
    check(lambda t: t.amax(1), torch.tensor([[2**24 + 1, 2**24]], dtype=torch.int32))
    check(lambda t: t.sum(), torch.ones(70000, dtype=torch.bool))


def test_nan_and_infinity(executor, check):
    nan, inf = math.nan, math.inf
    x = torch.tensor([[1.0, nan, 2.0], [inf, -inf, 0.0], [-inf, -inf, -inf], [0.0, -0.0, 0.0]])
    for function in (torch.sum, torch.mean, torch.amax, torch.amin, torch.any, torch.all):
        for dim in (0, 1):
            check(lambda t, f=function, dim=dim: f(t, dim), x)


def test_large_reductions(executor, check, samples):
    for shape, dim in (((3, 5000), 1), ((700, 33), 0), ((5000,), 0), ((300, 2, 40), 0), ((2, 300, 40), 1)):
        for function in (torch.sum, torch.mean, torch.amax):
            check(lambda t, f=function, dim=dim: f(t, dim), samples.make(shape), rtol=2e-5)


def test_empty(check, samples):
    """Reductions of nothing are PyTorch's business, on the CPU."""
    x = torch.zeros(0, 3)
    for function in (lambda t: t.sum(), lambda t: t.sum(0), lambda t: t.sum(1), lambda t: t.mean(0), lambda t: t.any(0),
                     lambda t: t.all(), lambda t: t.amax(1)):
        check(function, x)
    with pytest.raises((RuntimeError, IndexError)):
        x.to("neuron").amax(0)


@pytest.mark.parametrize("function, error", [
    (lambda x: x.int().mean(), "could not infer output dtype"), (lambda x: x.sum(2), "out of range"),
    (lambda x: x.sum((0, 0)), "appears multiple times"), (lambda x: torch.softmax(x, 5), "out of range"),
    (lambda x: torch.softmax(x.int(), 0), "not implemented"),
    (lambda x: F.layer_norm(x, (4,)), "normalized_shape"),
])
def test_wrong_arguments_raise_pytorchs_errors(function, error):
    with pytest.raises((RuntimeError, IndexError), match=error):
        function(torch.ones(2, 3, device="neuron"))


def test_reductions_with_out(executor, samples):
    x = samples.make((4, 6))
    for out in (torch.empty(4, device="neuron"), torch.empty(8, device="neuron")[::2], torch.empty(0, device="neuron")):
        result = torch.sum(x.to("neuron"), 1, out=out)
        assert result is out
        torch.testing.assert_close(out.cpu(), x.sum(1))
    low = torch.empty(4, dtype=torch.bfloat16, device="neuron")
    torch.amax(x.to("neuron").bfloat16(), 1, out=low)
    assert torch.equal(low.cpu(), x.bfloat16().amax(1))


@pytest.mark.parametrize("order", (2, 1, math.inf))
def test_vector_norm(order, check, samples):
    for dim in (0, 1, None):
        check(lambda t, dim=dim: torch.linalg.vector_norm(t, order, dim), samples.make((6, 50)), rtol=1e-5)


# ---- softmax

@pytest.mark.parametrize("function", (torch.softmax, torch.log_softmax))
def test_softmax(function, executor, check, samples):
    for name, tensor in samples.layouts(torch.float32).items():
        for dim in range(tensor.dim()) if name not in ("scalar", "empty") else (0,):
            check(lambda t, dim=dim: function(t, dim), tensor, rtol=1e-5)
    for dtype in FLOATS:
        check(lambda t: function(t, -1), samples.make((5, 3000), dtype, -30, 30), rtol=1e-2)
        check(lambda t: function(t, -1), samples.make((130, 5), dtype), rtol=1e-2)
        if dtype is not torch.float32:
            check(lambda t: function(t, -1, dtype=torch.float32), samples.make((3, 40), dtype), exact=False, rtol=1e-5)


def test_softmax_of_hidden_rows(executor, check):
    inf = math.inf
    x = torch.tensor([[-inf, 1.0, 2.0], [-inf, -inf, -inf], [inf, 0.0, 1.0], [math.nan, 0.0, 1.0], [1e4, -1e4, 1e4]])
    for function in (torch.softmax, torch.log_softmax):
        check(lambda t, f=function: f(t, 1), x, exact=False)


def test_softmax_of_more_columns_than_stay_on_the_chip(kernels_only, check, samples):
    for function in (torch.softmax, torch.log_softmax):
        check(lambda t, f=function: f(t, -1), samples.make((3, 40000)), rtol=2e-5)


# ---- norms

@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("affine", ("none", "weight", "both", "mixed"))
def test_layer_norm(dtype, affine, executor, check, samples):
    for shape, width in (((5, 33), 1), ((2, 3, 40), 1), ((4, 3, 5), 2), ((131, 7), 1), ((2, 5000), 1)):
        x = samples.make(shape, dtype, -3, 5)
        normal = shape[-width:]
        side = torch.float32 if affine == "mixed" else dtype
        weight = None if affine == "none" else samples.make(normal, side, 0.5, 2, 1)
        bias = samples.make(normal, side, seed=2) if affine in ("both", "mixed") else None
        if affine == "mixed" and dtype is torch.float32:
            continue
        check(lambda t, w, b, normal=normal: F.layer_norm(t, normal, w, b), x, weight, bias,
              exact=affine != "mixed", rtol=1e-2 if dtype.itemsize == 2 else 2e-5)


def test_layer_norm_statistics(executor, check, samples):
    check(lambda t: torch.native_layer_norm(t, (40,), None, None, 1e-5), samples.make((5, 40)), rtol=2e-5)


def test_layer_norm_of_strided_rows(executor, check, samples):
    weight = samples.make((6,), seed=1)
    for x in (samples.make((4, 12))[:, ::2], samples.make((6, 4)).t(), samples.make((4, 5, 6))[:, 1:4]):
        check(lambda t, w: F.layer_norm(t, (6,), w), x, weight, rtol=2e-5)


def test_layer_norm_does_not_cancel(executor, check):
    check(lambda t: F.layer_norm(t, (64,)), torch.linspace(0, 1, 64).reshape(1, 64) + 1000, rtol=1e-3)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("affine", (False, True))
def test_batch_norm_with_running_statistics(dtype, affine, executor, check, samples):
    for shape in ((4, 6), (2, 5, 33), (3, 130, 4, 5)):
        mean, variance = samples.make(shape[1:2], dtype, seed=1), samples.make(shape[1:2], dtype, 0.5, 2, 2)
        weight, bias = (samples.make(shape[1:2], dtype, seed=i) if affine else None for i in (3, 4))
        check(lambda x, m, v, w, b: F.batch_norm(x, m, v, w, b), samples.make(shape, dtype), mean, variance, weight,
              bias, rtol=2e-2 if dtype.itemsize == 2 else 2e-5)


def test_batch_norm_in_training_updates_its_statistics(samples):
    x = samples.make((4, 3, 5))
    for device in ("cpu", "neuron"):
        norm = torch.nn.BatchNorm1d(3).to(device)
        y = norm(x.to(device)).cpu()
        if device == "cpu":
            expected, statistics = y, norm.running_mean
    torch.testing.assert_close(y, expected)
    torch.testing.assert_close(norm.running_mean.cpu(), statistics)


@pytest.mark.parametrize("dim", ((), None))
def test_along_no_dimension_in_particular(dim, check, samples):
    x = samples.make((3, 4))
    for function in (torch.sum, torch.mean, torch.amax, torch.all, torch.any):
        check(lambda t, f=function: f(t > 0 if f in (torch.all, torch.any) else t, dim=dim)
              if dim is not None or f is not torch.amax else f(t), x)
        check(lambda t, f=function: (t if f not in (torch.all, torch.any) else t > 0)[0, 0].sum(0), x)
