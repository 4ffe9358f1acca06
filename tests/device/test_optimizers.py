"""Optimizers step as on CPU, in every implementation PyTorch has of them."""
import copy

import pytest
import torch
from torch import nn

SGD = torch.optim.SGD


@pytest.mark.parametrize("make", [
    lambda p: SGD(p, 0.1, momentum=0.9), lambda p: SGD(p, 0.1, momentum=0.9, foreach=True),
    lambda p: SGD(p, 0.1, momentum=0.9, fused=True), lambda p: torch.optim.AdamW(p, 0.1),
    lambda p: torch.optim.AdamW(p, 0.1, foreach=False), lambda p: torch.optim.AdamW(p, 0.1, foreach=True),
    lambda p: torch.optim.AdamW(p, 0.1, fused=True), lambda p: torch.optim.Adam(p, 0.1, amsgrad=True),
    lambda p: torch.optim.RMSprop(p, 0.1), lambda p: torch.optim.Adagrad(p, 0.1), lambda p: torch.optim.NAdam(p, 0.1),
    lambda p: torch.optim.Adadelta(p, 0.1),
], ids=["sgd", "sgd_foreach", "sgd_fused", "adamw", "adamw_single", "adamw_foreach", "adamw_fused", "adam_amsgrad",
        "rmsprop", "adagrad", "nadam", "adadelta"])
def test_steps_equal_cpu(make, equal):
    torch.manual_seed(0)
    m = nn.Linear(3, 4)
    n = copy.deepcopy(m).neuron()
    a, b = make(m.parameters()), make(n.parameters())
    x = torch.randn(5, 3)
    for _ in range(3):
        for model, optimizer, data in ((m, a, x), (n, b, x.neuron())):
            optimizer.zero_grad()
            model(data).pow(2).sum().backward()
            optimizer.step()
    for p, q in zip(m.parameters(), n.parameters()):
        equal(q, p, rtol=1e-4, atol=1e-5)
    b.load_state_dict(copy.deepcopy(b.state_dict()))


def test_the_default_is_foreach():
    from torch.optim.optimizer import _default_to_fused_or_foreach
    assert _default_to_fused_or_foreach([nn.Parameter(torch.ones(2).neuron())], False, False) == (False, True)


@pytest.mark.parametrize("foreach", [None, True, False])
def test_clip_grad_norm(foreach, equal):
    m = nn.Linear(3, 3)
    n = copy.deepcopy(m).neuron()
    x = torch.randn(2, 3)
    m(x).sum().backward()
    n(x.neuron()).sum().backward()
    norm = nn.utils.clip_grad_norm_(n.parameters(), 1.0, foreach=foreach)
    equal(norm, nn.utils.clip_grad_norm_(m.parameters(), 1.0))
    equal(n.weight.grad, m.weight.grad)


def test_learning_rate_schedule_and_tensor_lr():
    m = nn.Linear(2, 2).neuron()
    o = torch.optim.AdamW(m.parameters(), lr=torch.tensor(0.1))
    s = torch.optim.lr_scheduler.CosineAnnealingLR(o, 5)
    for _ in range(3):
        m(torch.ones(1, 2, device="neuron")).sum().backward()
        o.step()
        s.step()
    assert m.weight.isfinite().all()


def test_the_optimizer_may_be_made_before_the_move():
    m = nn.Linear(2, 2)
    o = SGD(m.parameters(), 0.1)
    m.neuron()
    assert o.param_groups[0]["params"][0] is m.weight
    before = m.weight.detach().clone()
    m(torch.ones(1, 2, device="neuron")).sum().backward()
    o.step()
    assert not torch.equal(before, m.weight)
