"""Modules on neuron: Parameters stay themselves, ties stay tied, parametrizations work."""
import copy

import pytest
import torch
from torch import nn


def test_parameters_keep_their_identity():
    m = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    before = list(m.parameters())
    m.to("neuron")
    for p, q in zip(before, m.parameters()):
        assert p is q and type(q) is nn.Parameter and q.is_leaf and q.requires_grad and q.is_neuron
    assert m[1].running_mean.is_neuron and m[1].num_batches_tracked.is_neuron


def test_tied_weights_stay_tied():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding, self.head = nn.Embedding(5, 3), nn.Linear(3, 5, bias=False)
            self.head.weight = self.embedding.weight

        def forward(self, i):
            return self.head(self.embedding(i))

    m = Tied()
    n = copy.deepcopy(m).neuron()
    assert n.head.weight is n.embedding.weight and len(list(n.parameters())) == 1
    i = torch.tensor([1, 2])
    m(i).sum().backward()
    n(i.neuron()).sum().backward()
    torch.testing.assert_close(n.head.weight.grad.cpu(), m.head.weight.grad)
    n.cpu()
    assert n.head.weight is n.embedding.weight and not n.head.weight.is_neuron


def test_gradients_move_too():
    m = nn.Linear(2, 2)
    m(torch.ones(1, 2)).sum().backward()
    m.neuron()
    assert m.weight.grad.is_neuron


def test_attributes_hooks_and_weak_references_stay():
    import weakref
    m = nn.Linear(2, 2)
    seen, reference = [], weakref.ref(m.weight)
    m.weight.note = 7
    m.weight.register_hook(lambda g: seen.append("hook"))
    m.weight.register_post_accumulate_grad_hook(lambda p: seen.append("after"))
    for move, device in ((m.neuron, "neuron"), (m.cpu, "cpu")):
        move()
        m(torch.ones(1, 2, device=device)).sum().backward()
        assert seen[-2:] == ["hook", "after"] and len(seen) % 2 == 0
        assert m.weight.note == 7 and reference() is m.weight and m.weight.grad.device.type == device


def test_a_module_with_a_live_graph_moves():
    m = nn.utils.weight_norm(nn.Linear(3, 3)).neuron()      # keeps the graph of its weight
    assert m(torch.ones(1, 3, device="neuron")).is_neuron
    m.cpu()
    loss = m(torch.ones(1, 3)).sum()
    m.neuron()
    with pytest.raises(RuntimeError, match="moved to another device after the forward pass"):
        loss.backward()


def test_ties_survive_meta():
    with torch.device("meta"):
        m = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    m[1].weight = m[0].weight
    m.to_empty(device="neuron")
    assert m[0].weight is m[1].weight and m[0].weight.is_neuron


def test_moves_between_other_devices_are_pytorchs_own():
    assert not torch.__future__.get_swap_module_params_on_conversion()
    m = nn.Linear(2, 2)
    weight = m.weight
    assert m.double().weight is weight and weight.dtype == torch.float64
    frozen = nn.Linear(2, 2)
    frozen.weight.requires_grad_(False)
    frozen.to("neuron", torch.bfloat16)
    assert not frozen.weight.requires_grad and frozen.bias.requires_grad and frozen.weight.dtype == torch.bfloat16


def test_dtype_changes_and_back():
    m = nn.Linear(2, 2).neuron().bfloat16()
    assert m.weight.dtype == torch.bfloat16 and type(m.weight) is nn.Parameter
    assert m.float().cpu().weight.device.type == "cpu"


def test_parametrizations(equal):
    torch.manual_seed(0)
    for wrap in (nn.utils.parametrizations.weight_norm, nn.utils.parametrizations.orthogonal):
        m = wrap(nn.Linear(3, 3))
        x = torch.randn(2, 3)
        expected = m(x)
        n = copy.deepcopy(m).neuron()
        equal(n(x.neuron()), expected, rtol=1e-4, atol=1e-5)
        n(x.neuron()).sum().backward()


def test_hashes_weak_references_and_attributes():
    import weakref
    x = torch.randn(2, device="neuron")
    reference, table = weakref.ref(x), {x: 1}
    assert table[x] == 1
    p = nn.Parameter(x)
    p.note = 3
    assert p.note == 3
    table.clear()
    del x, p
    assert reference() is None


def test_lazy_and_quantities():
    m = nn.LazyLinear(4).neuron()
    assert m(torch.ones(1, 3, device="neuron")).shape == (1, 4) and type(m) is nn.Linear
    assert nn.Sequential(nn.LazyLinear(4)).double().to("neuron")(torch.ones(1, 3, device="neuron").double()).is_neuron
    assert nn.LazyLinear(4).double()(torch.ones(1, 3).double()).shape == (1, 4)
    assert nn.LazyBatchNorm1d().neuron()(torch.ones(2, 3, device="neuron")).shape == (2, 3)
    assert nn.utils.parameters_to_vector(m.parameters()).is_neuron
