"""Matrix products and attention against PyTorch on the CPU, on both executors."""
from __future__ import annotations

import math

import pytest
import torch

F = torch.nn.functional
FLOATS = (torch.float32, torch.bfloat16, torch.float16)
SHAPES = ((1, 1, 1), (3, 5, 7), (128, 128, 512), (130, 257, 515), (1, 300, 40), (4, 64, 1), (33, 1, 65))


def _rtol(dtype):
    return 2e-5 if dtype is torch.float32 else 2e-2


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_mm(dtype, executor, check, samples):
    for m, k, n in SHAPES if dtype is torch.float32 or executor == "native" else SHAPES[:2]:
        check(torch.mm, samples.make((m, k), dtype, -1, 1), samples.make((k, n), dtype, -1, 1, 1), rtol=_rtol(dtype))


def test_mm_of_every_layout(executor, check, samples):
    a, b = (6, 40), (40, 9)

    def layouts(rows, columns, seed):
        return (samples.make((rows, columns), seed=seed), samples.make((columns, rows), seed=seed).t(),
                samples.make((rows, 2 * columns), seed=seed)[:, ::2], samples.make((2 * rows, columns), seed=seed)[::2],
                samples.make((rows, 1), seed=seed).expand(rows, columns),
                samples.make((rows + 2, columns + 3), seed=seed)[2:, 3:])
    for x in layouts(*a, 0):
        for y in layouts(*b, 1):
            check(torch.mm, x, y, rtol=2e-5)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_addmm(dtype, executor, check, samples):
    x, y = samples.make((5, 30), dtype, -1, 1), samples.make((30, 7), dtype, -1, 1, 1)
    for bias in ((7,), (5, 7), (5, 1), (1,), ()):
        b = samples.make(bias, dtype, seed=2)
        for scales in ({}, {"alpha": 0.5}, {"beta": 2.0}, {"alpha": -1.5, "beta": 0.3}, {"beta": 0}):
            check(torch.addmm, b, x, y, rtol=_rtol(dtype), **scales)
    nan = torch.full((7,), math.nan, dtype=dtype)
    check(torch.addmm, nan, x, y, beta=0, rtol=_rtol(dtype))


def test_linear(executor, check, samples):
    for shape in ((4, 20), (2, 3, 20), (20,)):
        check(F.linear, samples.make(shape), samples.make((6, 20), seed=1), samples.make((6,), seed=2), rtol=2e-5)
        check(F.linear, samples.make(shape), samples.make((6, 20), seed=1), rtol=2e-5)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_bmm(dtype, executor, check, samples):
    x, y = samples.make((3, 5, 20), dtype, -1, 1), samples.make((3, 20, 6), dtype, -1, 1, 1)
    check(torch.bmm, x, y, rtol=_rtol(dtype))
    check(torch.bmm, samples.make((3, 20, 5)).transpose(1, 2), samples.make((3, 6, 20)).transpose(1, 2), rtol=2e-5)
    check(torch.bmm, samples.make((5, 3, 20)).transpose(0, 1), samples.make((1, 20, 6)).expand(3, 20, 6), rtol=2e-5)
    x, y = samples.make((2, 5, 8), dtype), samples.make((2, 8, 6), dtype, seed=1)
    check(torch.baddbmm, samples.make((6,), dtype), x, y, beta=0.5, alpha=2.0, rtol=_rtol(dtype))
    check(torch.matmul, samples.make((2, 3, 4, 5), dtype), samples.make((2, 3, 5, 6), dtype, seed=1), rtol=_rtol(dtype))


def test_products_written_into_arguments(executor, check, samples):
    x, y = samples.make((4, 6)), samples.make((6, 5), seed=1)
    for out in (torch.zeros(4, 5), torch.zeros(5, 4).t(), torch.zeros(4, 10)[:, ::2]):
        check.written(lambda o, a, b: torch.mm(a, b, out=o), out, x, y)


@pytest.mark.parametrize("shapes", (((0, 3), (3, 4)), ((2, 3), (3, 0)), ((2, 0), (0, 4))), ids=str)
def test_empty(shapes, check, samples):
    check(torch.mm, *(samples.make(s) for s in shapes))
    check(torch.bmm, *(samples.make((2, *s)) for s in shapes))


def test_special_values(executor, check):
    x = torch.tensor([[1.0, math.inf], [math.nan, 1.0], [0.0, 2.0]])
    check(torch.mm, x, torch.tensor([[1.0, 0.0], [2.0, 1.0]]))


@pytest.mark.parametrize("function, error", [
    (lambda x: torch.mm(x, x), "cannot be multiplied"), (lambda x: torch.mm(x, x.t().bfloat16()), "dtype"),
    (lambda x: torch.bmm(x, x), "3D"), (lambda x: torch.addmm(torch.ones(5, device="neuron"), x, x.t()), "expand"),
])
def test_wrong_arguments_raise_pytorchs_errors(function, error):
    with pytest.raises(RuntimeError, match=error):
        function(torch.ones(2, 3, device="neuron"))


# ---- attention

@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("mask", ("none", "bool", "float", "causal"))
def test_attention(dtype, mask, executor, check, samples):
    for heads, s, keys, d in (((2, 3), 5, 5, 8), ((1, 2), 130, 130, 32), ((3,), 4, 4, 16)):
        q, k, v = (samples.make((*heads, n, d), dtype, -2, 2, i) for i, n in enumerate((s, keys, keys)))
        given = None
        if mask in ("bool", "float"):
            given = samples.make((s, keys), torch.bool)
            given[:, 0] = True
        if mask == "float":
            given = torch.zeros(s, keys, dtype=dtype).masked_fill(~given, -math.inf)
        check(lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, m, is_causal=mask == "causal").contiguous(),
              q, k, v, given, rtol=2e-5 if dtype is torch.float32 else 2e-2)


def test_attention_with_fewer_queries_than_keys(executor, check, samples):
    q, k, v = samples.make((2, 2, 1, 8)), samples.make((2, 2, 9, 8), seed=1), samples.make((2, 2, 9, 8), seed=2)
    mask = torch.zeros(2, 1, 1, 9).masked_fill(torch.arange(9) > 6, torch.finfo(torch.float32).min)
    check(lambda *a: F.scaled_dot_product_attention(*a, scale=0.3).contiguous(), q, k, v, mask, rtol=2e-5)


def test_attention_of_projected_heads(executor, check, samples):
    """Heads as a model makes them: views of one projection, [batch, tokens, heads, size] transposed."""
    q, k, v = samples.make((2, 7, 3 * 4 * 8)).view(2, 7, 3, 4, 8).unbind(2)
    check(lambda *a: F.scaled_dot_product_attention(*(t.transpose(1, 2) for t in a)).transpose(1, 2).reshape(2, 7, 32),
          q, k, v, rtol=2e-5)


def test_attention_without_a_visible_key(executor, check, samples):
    q, k, v = (samples.make((1, 1, 3, 4), seed=i) for i in range(3))
    mask = torch.tensor([[True, True, True], [False, False, False], [True, False, True]])
    check(lambda *a: F.scaled_dot_product_attention(*a).contiguous(), q, k, v, mask, exact=False, rtol=2e-5)
