"""Ops that PyTorch core routes specially for out-of-tree devices give the CPU's results, forward and backward."""
import pytest
import torch
import torch.nn.functional as F

import neuron_eager

pytestmark = pytest.mark.usefixtures("without_kernels")


def _trained(module, x, d):
    module, x = module.to(d), x.to(d).requires_grad_()
    y = module(x)
    y = y[0] if isinstance(y, tuple) else y
    y.pow(2).sum().backward()
    return [y, x.grad, *(p.grad for p in module.parameters())]


def close(a, b, tolerance=1e-5):
    for x, y in zip(a, b):
        torch.testing.assert_close(y.cpu(), x, rtol=tolerance, atol=tolerance)


def both_devices(make, tolerance=1e-5):
    results = []
    for d in ("cpu", "neuron"):
        torch.manual_seed(0)
        results.append(_trained(*make(), d))
    close(*results, tolerance)


@pytest.mark.parametrize("make", [
    lambda: (torch.nn.Conv1d(3, 4, 3, padding=1), torch.randn(2, 3, 8)),
    lambda: (torch.nn.Conv2d(4, 8, 3, stride=2, groups=2), torch.randn(2, 4, 9, 9)),
    lambda: (torch.nn.Conv2d(3, 4, 3, bias=False, dilation=2), torch.randn(1, 3, 9, 9)),
    lambda: (torch.nn.Conv3d(2, 3, 2), torch.randn(1, 2, 4, 4, 4)),
    lambda: (torch.nn.ConvTranspose2d(4, 6, 3, stride=2, output_padding=1, groups=2), torch.randn(2, 4, 5, 5))],
    ids=["1d", "grouped", "dilated", "3d", "transposed"])
def test_convolution(make):
    both_devices(make, 1e-4)


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
@pytest.mark.parametrize(
    "options", [{}, {"bias": False}, {"num_layers": 2, "bidirectional": True}, {"batch_first": True}],
    ids=["plain", "no_bias", "deep", "batch_first"])
def test_recurrent(kind, options):
    both_devices(lambda: (getattr(torch.nn, kind)(3, 4, **options), torch.randn(5, 2, 3)))


@pytest.mark.parametrize("cell", ["LSTMCell", "GRUCell"])
def test_cells(cell):
    both_devices(lambda: (getattr(torch.nn, cell)(3, 4), torch.randn(2, 3)))


def test_double_backward_of_a_convolution():
    grads = []
    for d in ("cpu", "neuron"):
        torch.manual_seed(0)
        m, x = torch.nn.Conv2d(2, 3, 3).to(d), torch.randn(1, 2, 5, 5).to(d).requires_grad_()
        g, = torch.autograd.grad(m(x).pow(2).sum(), x, create_graph=True)
        g.pow(2).sum().backward()
        grads.append([m.weight.grad, x.grad])
    close(*grads, 1e-3)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.uint8])
def test_histc_counts_integers(dtype):
    x = torch.tensor([0, 1, 2, 3, 3, 7, 9], dtype=dtype).to("neuron")
    found = torch.histc(x, 8, 0, 7)
    assert found.dtype is dtype and found.tolist() == [1, 1, 1, 2, 0, 0, 0, 1]
    out = torch.empty(0, dtype=dtype, device="neuron")
    assert torch.histc(x, 8, 0, 7, out=out).tolist() == found.tolist()


def test_histc_of_floats(both):
    both(lambda d: torch.histc(torch.linspace(0, 1, 50).to(d), 10))


@pytest.mark.parametrize("lengths", ["lists", "cpu", "neuron"])
def test_ctc_loss(lengths):
    results = []
    for d in ("cpu", "neuron"):
        torch.manual_seed(0)
        logits = torch.randn(6, 2, 5).to(d).requires_grad_()
        sizes = [(6, 6), (3, 2)] if lengths == "lists" else [
            torch.tensor(v).to(d if lengths == "neuron" else "cpu") for v in ((6, 6), (3, 2))]
        loss = F.ctc_loss(logits.log_softmax(2), torch.randint(1, 5, (2, 3)).to(d), *sizes)
        loss.backward()
        results.append([loss, logits.grad])
    close(*results)


@pytest.mark.parametrize("mask", ["none", "causal", "bool", "float"])
@pytest.mark.parametrize("recorded", [False, True])
def test_attention_takes_the_fused_kernel_of_the_cpu(mask, recorded, both):
    def run(d):
        q, k, v = (torch.randn(2, 3, 5, 8).to(d).requires_grad_(recorded) for _ in range(3))
        given = {"bool": torch.rand(2, 1, 5, 5) > 0.3, "float": torch.randn(5, 5)}.get(mask)
        y = F.scaled_dot_product_attention(q, k, v, None if given is None else given.to(d), is_causal=mask == "causal")
        if not recorded:
            return y
        y.pow(2).sum().backward()
        return y.detach(), q.grad, k.grad, v.grad
    both(run)


def test_attention_by_math_where_the_cpu_does_so(both):
    def run(d):
        q, k = torch.randn(2, 3, 5, 8).to(d), torch.randn(2, 3, 7, 8).to(d)
        return F.scaled_dot_product_attention(q, k, torch.randn(2, 3, 7, 4).to(d))      # other head size of v
    both(run, exact=False)


def test_attention_under_transformations():
    q = torch.randn(4, 2, 5, 8)
    expected = torch.vmap(lambda x: F.scaled_dot_product_attention(x, x, x))(q)
    found = torch.vmap(lambda x: F.scaled_dot_product_attention(x, x, x))(q.to("neuron"))
    torch.testing.assert_close(found.cpu(), expected, rtol=1e-5, atol=1e-5)
    bad = torch.randn(2, 5, 8).to("neuron")
    with pytest.raises(RuntimeError, match="dtype"):
        F.scaled_dot_product_attention(bad, bad.double(), bad)


def test_no_crash_on_overlapping_copies():
    x = torch.arange(8.0).to("neuron")
    with pytest.raises(RuntimeError, match="single memory location"):
        x[1:].copy_(x[:-1])
    x[4:].copy_(x[:4])
    assert x.tolist() == [0, 1, 2, 3, 0, 1, 2, 3]
    assert "aten::_copy_from" not in neuron_eager.get_fallback_ops()
