"""Gradients equal CPU's: models, double backward, hooks, custom functions, checkpoints, threads."""
import copy
import threading

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from neuron_eager import config


def train_alike(model, *inputs, equal, loss=lambda y: y.pow(2).mean(), **tolerance):
    """One forward and backward on both devices; outputs and every gradient agree."""
    other = copy.deepcopy(model).neuron()
    here, there = model(*inputs), other(*(x.neuron() for x in inputs))
    here, there = (t[0] if isinstance(t, tuple) else t for t in (here, there))
    equal(there, here, **tolerance)
    loss(here).backward()
    loss(there).backward()
    for p, q in zip(model.parameters(), other.parameters()):
        equal(q.grad, p.grad, **tolerance)


@pytest.mark.parametrize(("model", "shape"), [
    (lambda: nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.LayerNorm(4), nn.Linear(4, 2)), (5, 3)),
    (lambda: nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
                           nn.Linear(64, 5)), (2, 3, 8, 8)),
    (lambda: nn.ConvTranspose1d(3, 4, 3, stride=2), (2, 3, 8)),
    (lambda: nn.Conv3d(2, 2, 2, groups=2), (1, 2, 4, 4, 4)),
    (lambda: nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True), (2, 5, 16)),
    (lambda: nn.LSTM(4, 6, num_layers=2, bidirectional=True, batch_first=True), (2, 3, 4)),
    (lambda: nn.GRU(3, 4), (5, 2, 3)),
    (lambda: nn.RNN(3, 4), (5, 2, 3)),
    (lambda: nn.MultiheadAttention(8, 2, batch_first=True).requires_grad_() and _SelfAttention(), (2, 4, 8)),
], ids=["mlp", "conv2d", "conv_transpose", "conv3d_groups", "transformer", "lstm", "gru", "rnn", "attention"])
def test_models(model, shape, equal):
    torch.manual_seed(0)
    train_alike(model(), torch.randn(shape), equal=equal, rtol=1e-4, atol=1e-4)


class _SelfAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x):
        return self.attention(x, x, x)[0]


def test_transformer_inference(equal):
    m = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True).eval()
    x = torch.randn(2, 5, 16)
    with torch.no_grad():
        equal(copy.deepcopy(m).neuron()(x.neuron()), m(x), rtol=1e-4, atol=1e-5)


def test_embedding(equal):
    m = nn.Embedding(10, 4)
    train_alike(m, torch.randint(0, 10, (2, 3)), equal=equal)


@pytest.mark.parametrize("causal", [False, True])
def test_scaled_dot_product_attention(causal, equal):
    q = torch.randn(2, 2, 5, 8)
    here, there = q.clone().requires_grad_(), q.neuron().requires_grad_()
    a, b = (F.scaled_dot_product_attention(t, t, t, is_causal=causal) for t in (here, there))
    equal(b, a, rtol=1e-4, atol=1e-5)
    a.sum().backward()
    b.sum().backward()
    equal(there.grad, here.grad, rtol=1e-4, atol=1e-4)


def test_in_place_on_views(equal):
    c = torch.randn(3, 4, requires_grad=True)
    x = c.detach().neuron().requires_grad_()
    for t in (c, x):
        y = t * 1
        y[0].mul_(2)
        y[:, 1] = 3
        y.t()[2].add_(y[0, 0])
        y.sum().backward()
    equal(x.grad, c.grad)


def test_double_backward_and_hooks(equal):
    x = torch.randn(3).neuron().requires_grad_()
    seen = []
    x.register_hook(lambda g: seen.append(g.is_neuron))
    (g,) = torch.autograd.grad((x ** 3).sum(), x, create_graph=True)
    g.sum().backward()
    equal(x.grad, (6 * x).detach().cpu())
    assert seen == [True, True]


def test_module_hooks():
    m, seen = nn.Linear(2, 2).neuron(), []
    m.register_forward_hook(lambda mod, args, out: seen.append(out.is_neuron))
    m.register_full_backward_hook(lambda mod, gi, go: seen.append(go[0].is_neuron))
    m(torch.ones(1, 2, device="neuron", requires_grad=True)).sum().backward()
    assert seen == [True, True]


def test_gradcheck():
    x = torch.tensor([0.5, -1.2, 2.0], dtype=torch.double).neuron().requires_grad_()
    with config.override(float64="cpu"):
        assert torch.autograd.gradcheck(lambda t: (t.sin() * t).sum(), x)
        assert torch.autograd.gradgradcheck(lambda t: (t ** 3).sum(), x)


def test_custom_function(equal):
    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * 2

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            assert x.is_neuron
            return g * 2

    x = torch.randn(3).neuron().requires_grad_()
    Double.apply(x).sum().backward()
    equal(x.grad, torch.full((3,), 2.0))


def test_nested_backward(equal):
    class Nested(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(ctx, g):
            with torch.enable_grad():
                q = ctx.saved_tensors[0].detach().requires_grad_()
                (q * q).sum().backward()
            return g * q.grad

    x = torch.randn(3).neuron().requires_grad_()
    Nested.apply(x).sum().backward()
    equal(x.grad, 2 * x.detach().cpu())


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoint(reentrant, equal):
    m = nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5), nn.Linear(3, 3)).neuron()
    x = torch.randn(2, 3, device="neuron", requires_grad=True)
    torch.manual_seed(1)
    m(x).sum().backward()
    expected, x.grad = x.grad.cpu(), None
    torch.manual_seed(1)
    checkpoint(m, x, use_reentrant=reentrant).sum().backward()
    equal(x.grad, expected)


def test_an_exception_in_backward_reaches_the_caller():
    class Broken(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, g):
            raise ValueError("kernel exploded")

    x = torch.ones(3, device="neuron", requires_grad=True)
    with pytest.raises(ValueError, match="kernel exploded"):
        Broken.apply(x).sum().backward()


def test_backward_runs_in_the_calling_thread():
    seen = []
    x = torch.ones(3, device="neuron", requires_grad=True)
    y = x * 2
    y.register_hook(lambda g: seen.append(threading.get_ident()))
    y.sum().backward()
    assert seen == [threading.get_ident()]


def test_threads():
    m, errors = nn.Linear(4, 4).neuron(), []

    def work():
        try:
            for _ in range(20):
                x = torch.randn(3, 4, device="neuron")
                copy.deepcopy(m)(x).pow(2).sum().backward()
                assert torch.equal(x + x, 2 * x)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(60)
    assert errors == []


def test_distributions():
    from torch import distributions as d
    zero, one = torch.zeros(3, device="neuron"), torch.ones(3, device="neuron")
    normal = d.Normal(zero, one)
    for s in (normal.rsample((2,)), normal.log_prob(zero), d.Categorical(logits=zero).sample((3,)),
              d.Gamma(one, one).rsample(), d.Bernoulli(one / 2).sample(), d.VonMises(zero, one).sample(),
              d.MultivariateNormal(zero, torch.eye(3, device="neuron")).rsample(), d.Beta(one, one).sample(),
              d.Dirichlet(one).rsample(), d.kl_divergence(normal, normal), d.Poisson(one).sample()):
        assert s.is_neuron
