"""Gradients, losses and attention as training runs them, against PyTorch on the CPU, on both executors."""
from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn

import neuron_eager

aten = torch.ops.aten
FLOATS = (torch.float32, torch.bfloat16, torch.float16)
ATTENTION = aten._scaled_dot_product_flash_attention_for_cpu.default
ATTENTION_BACKWARD = aten._scaled_dot_product_flash_attention_for_cpu_backward.default


@dataclass
class Gradient:
    """A backward op of (gradient, input or result), and the range of the second one."""

    name: str
    function: Callable[..., Any]
    low: float = -4.0
    high: float = 4.0
    special: bool = True


GRADIENTS = [
    Gradient("silu", aten.silu_backward, special=False),
    Gradient("gelu", aten.gelu_backward, special=False),
    Gradient("gelu_tanh", lambda g, x: aten.gelu_backward(g, x, approximate="tanh"), special=False),
    Gradient("sigmoid", aten.sigmoid_backward, 0.0, 1.0),
    Gradient("tanh", aten.tanh_backward, -1.0, 1.0),
    Gradient("threshold", lambda g, x: aten.threshold_backward(g, x, 0)),
    Gradient("threshold.5", lambda g, x: aten.threshold_backward(g, x, 0.5)),
    Gradient("leaky_relu", lambda g, x: aten.leaky_relu_backward(g, x, 0.01, False)),
    Gradient("softplus", lambda g, x: aten.softplus_backward(g, x, 1, 20)),
    Gradient("softplus_steep", lambda g, x: aten.softplus_backward(g, x, 3.0, 5)),
]


@pytest.mark.parametrize("case", GRADIENTS, ids=lambda c: c.name)
def test_elementwise_gradients(case, executor, check, samples):
    for dtype in FLOATS:
        inputs = samples.layouts(dtype, case.low, case.high)
        gradients = samples.layouts(dtype, seed=7)
        for layout in ("ragged", "transposed", "stepped", "scalar", "empty"):
            check(case.function, gradients[layout], inputs[layout])
    check(case.function, samples.make((5, 9)).t(), samples.make((9, 5), low=case.low, high=case.high))
    if case.special:
        special = samples.special(torch.float32)
        check(case.function, torch.ones_like(special), special, exact=False)


def test_gradient_written_to_out(executor, check, samples):
    def out(target, g, x):
        aten.silu_backward.grad_input(g, x, grad_input=target)
    check.written(out, samples.make((6, 10))[:, ::2], samples.make((6, 5), seed=1), samples.make((6, 5), seed=2))


def test_softplus(executor, check, samples):
    for dtype in FLOATS:
        x = samples.make((7, 33), dtype, -30, 30)
        check(nn.functional.softplus, x)
        check(nn.functional.softplus, x, 2.5, 3.0)
    check(nn.functional.softplus, samples.special(torch.float32), exact=False)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_dropout_backward(dtype, executor, check, samples):
    check(aten.native_dropout_backward, samples.make((5, 13), dtype), samples.make((5, 13), torch.bool), 1.25)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("dim", (-1, 0, 1))
def test_softmax_backward(dim, dtype, executor, check, samples):
    g, x = samples.make((3, 9, 70), dtype), samples.make((3, 9, 70), torch.float32, seed=1)
    check(aten._softmax_backward_data, g, torch.softmax(x, dim).to(dtype), dim, dtype)
    check(aten._log_softmax_backward_data, g, torch.log_softmax(x, dim).to(dtype), dim, dtype)
    strided = samples.make((9, 3, 140), dtype).transpose(0, 1)[..., ::2]
    check(aten._softmax_backward_data, strided, torch.softmax(x, dim).to(dtype), dim, dtype)


def test_softmax_backward_over_several_chunks(executor, check, samples):
    g, y = samples.make((130, 2100)), torch.softmax(samples.make((130, 2100), seed=1), -1)
    check(aten._softmax_backward_data, g, y, -1, torch.float32)
    check(aten._log_softmax_backward_data, g, y.log(), -1, torch.float32)
    check(aten._softmax_backward_data, torch.tensor(2.0), torch.tensor(1.0), 0, torch.float32)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_layer_norm_backward(dtype, executor, check, samples):
    x, weight, bias = samples.make((3, 47, 40), dtype), samples.make((40,), dtype), samples.make((40,), dtype)
    g = samples.make((3, 47, 40), dtype, seed=3)
    _, mean, rstd = torch.native_layer_norm(x, [40], weight, bias, 1e-5)
    for mask in ([True] * 3, [True, False, False], [False, True, True]):
        def asked(*args, mask=mask):
            return [t for t, wanted in zip(aten.native_layer_norm_backward(*args, mask), mask) if wanted]
        check(asked, g, x, [40], mean, rstd, weight, bias, rtol=1e-5)
    check(lambda *a: aten.native_layer_norm_backward(*a, [True, False, False])[0], g, x, [40], mean, rstd, None, None,
          rtol=1e-5)


@pytest.mark.parametrize("reduction", (0, 1, 2), ids=("none", "mean", "sum"))
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_nll_loss(dtype, reduction, executor, check, samples):
    x = torch.log_softmax(samples.make((150, 37)), -1).to(dtype)
    target = torch.arange(150) * 7 % 37
    target[::3] = -100
    check(aten.nll_loss_forward, x, target, None, reduction, -100, rtol=1e-6)
    out, total = aten.nll_loss_forward(x, target, None, reduction, -100)
    check(aten.nll_loss_backward, samples.make(out.shape, dtype), x, target, None, reduction, -100, total)
    check(aten.nll_loss_forward, x[:1], target[1:2], None, reduction, 3)


def test_nll_loss_of_nothing_counted(executor, check, samples):
    x = samples.make((4, 5))
    check(aten.nll_loss_forward, x, torch.full((4,), 2), None, 1, 2)
    check(aten.nll_loss_forward, x, torch.full((4,), 2), None, 2, 2)


def test_nll_loss_ignores_what_is_not_finite(executor, check, samples):
    x = samples.make((4, 5))
    x[1] = math.nan
    x[2] = math.inf
    check(aten.nll_loss_forward, x, torch.tensor([0, -100, -100, 4]), None, 1, -100)


def test_nll_loss_of_a_class_outside(kernels_only):
    x = torch.zeros(4, 5, device="neuron")
    for wrong in (5, -1):
        with pytest.raises(IndexError):
            nn.functional.nll_loss(x, torch.tensor([0, wrong, 1, 1], device="neuron"))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_embedding_backward(dtype, executor, check, samples):
    index = torch.arange(3 * 50).reshape(3, 50) ** 2 % 29
    g = samples.make((3, 50, 20), dtype)
    check(aten.embedding_dense_backward, g, index, 31, 4, False)
    if dtype is not torch.float32:
        return
    check(aten.embedding_dense_backward, g, index, 31, -1, False)
    check(aten.embedding_dense_backward, g, index.int(), 31, -1, True, rtol=2e-6)
    check(aten.embedding_dense_backward, g[:1].expand(3, 50, 20), torch.arange(50).expand(3, 50), 60, -1, False)
    check(aten.embedding_dense_backward, g.transpose(0, 1), index.t(), 31, -1, False)
    check(aten.embedding_dense_backward, g[0, 0], torch.tensor(3), 5, -1, False)


@pytest.mark.parametrize("kind", ("plain", "causal", "masked"))
@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16), ids=str)
def test_attention(dtype, kind, executor, check, samples):
    queries, keys = (40, 40) if kind == "causal" else (140, 60)
    q, k, v = (samples.make((2, n, 2, 16), dtype, seed=i).transpose(1, 2)
               for i, n in enumerate((queries, keys, keys)))
    mask = samples.make((1, 1, queries, keys), dtype).where(samples.make((1, 1, queries, keys), torch.bool), -math.inf)
    mask = mask if kind == "masked" else None
    causal = kind == "causal"
    got, expected = attended("neuron", q, k, v, mask, causal), attended("cpu", q, k, v, mask, causal)
    exact = attended("cpu", *(t if t is None else t.double() for t in (q, k, v, mask)), causal)
    for g, e, t in zip(got, expected, exact):
        assert (g.dtype, g.shape, g.stride()) == (e.dtype, e.shape, e.stride())
        largest, own = t.abs().max().item(), (e.double() - t).abs().max().item()
        assert (g.double() - t).abs().max().item() <= 2 * own + 2e-6 * largest


def attended(device: str, q, k, v, mask, causal: bool) -> list[torch.Tensor]:
    """Result, logsumexp and gradients of attention, on the CPU."""
    q, k, v, mask = (t if t is None else t.to(device) for t in (q, k, v, mask))
    out, sums = ATTENTION(q, k, v, 0.0, causal, attn_mask=mask)
    g = (torch.arange(out.numel()).reshape(out.shape) % 13 - 6).to(out.dtype).to(device)
    return [t.cpu() for t in (out, sums, *ATTENTION_BACKWARD(g, q, k, v, out, sums, 0.0, causal, attn_mask=mask))]


def test_attention_is_recorded_as_one_op(kernels_only):
    q, k, v = (torch.randn(2, 3, 20, 16).to("neuron").requires_grad_() for _ in range(3))
    neuron_eager.clear_op_tracking()
    out = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    out.sum().backward()
    ran = neuron_eager.get_executed_ops()
    assert "aten::_scaled_dot_product_flash_attention_for_cpu" in ran
    assert "aten::_scaled_dot_product_flash_attention_for_cpu_backward" in ran


@pytest.mark.parametrize("dtype", FLOATS[:2], ids=str)
@pytest.mark.parametrize("sizes", [(2, 130, 9, 4, 3, 1), (3, 7, 30, 3, 2, 2), (2, 4, 3, 4, 3, 1)], ids=str)
def test_depthwise_convolution(sizes, dtype, executor, check, samples):
    batch, channels, length, taps, padding, dilation = sizes
    x, weight = samples.make((batch, channels, length), dtype), samples.make((channels, 1, taps), dtype, -1, 1, seed=1)
    bias = samples.make((channels,), dtype, seed=2)
    options = {"padding": padding, "dilation": dilation, "groups": channels}
    check(nn.functional.conv1d, x, weight, bias, **options, rtol=1e-5)
    check(nn.functional.conv1d, x.transpose(1, 2).contiguous().transpose(1, 2), weight, None, **options, rtol=1e-5)
    g = samples.make(nn.functional.conv1d(x, weight, None, **options).shape, dtype, seed=3)
    def backward(g, x, weight, mask):
        return [t for t in aten.convolution_backward(g, x, weight, [channels], [1], [padding], [dilation], False, [0],
                                                     channels, mask) if t is not None]
    check(backward, g, x, weight, [True, True, True], rtol=1e-4)
    check(backward, g, x, weight, [False, True, False], rtol=1e-4)


def network() -> nn.Module:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(32, 2, 64, dropout=0.0, activation="gelu", batch_first=True)
    return nn.Sequential(nn.Embedding(50, 32), layer, nn.LayerNorm(32), nn.Linear(32, 50))


def trained(device: str, steps: int, make: Callable[..., torch.optim.Optimizer]) -> tuple[list[float], nn.Module]:
    model = network().to(device)
    optimizer = make(model.parameters())
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    tokens = (torch.arange(4 * 12).reshape(4, 12) * 11 % 50).to(device)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
    return losses, model


@pytest.mark.parametrize("make", [
    lambda p: torch.optim.AdamW(p, lr=1e-3), lambda p: torch.optim.AdamW(p, lr=1e-3, amsgrad=True),
    lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.01, nesterov=True),
], ids=("adamw", "amsgrad", "sgd"))
def test_training_runs_without_fallback(make, kernels_only):
    losses, model = trained("neuron", 4, make)
    expected, cpu = trained("cpu", 4, make)
    assert losses == pytest.approx(expected, rel=1e-4)
    assert losses[-1] < losses[0]
    for p, q in zip(model.parameters(), cpu.parameters()):
        torch.testing.assert_close(p.cpu(), q, rtol=1e-3, atol=2e-4)


def test_a_schedule_compiles_nothing_after_the_second_step(kernels_only):
    counts = []
    parameters = [torch.ones(s, device="neuron", requires_grad=True) for s in ((8, 8), (5,))]
    optimizer = torch.optim.AdamW(parameters, lr=1e-3)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    for _ in range(5):
        for p in parameters:
            p.grad = torch.full_like(p, 0.5)
        optimizer.step()
        schedule.step()
        counts.append(len(neuron_eager.compile_report()))
    assert counts[0] and counts[1:] == counts[1:2] * 4

