"""Printing says the device, runs nothing on it and leaves no record."""
import pytest
import torch

import neuron_eager
from neuron_eager.device import memory


@pytest.mark.parametrize("make", [
    lambda: torch.randn(2, 2), lambda: torch.randn(1000), lambda: torch.tensor([]), lambda: torch.tensor(1.5),
    lambda: torch.randn(2).bfloat16(), lambda: torch.randn(2, dtype=torch.cfloat),
    lambda: torch.randn(2, dtype=torch.cfloat).conj(),
    lambda: torch.tensor([True]), lambda: torch.arange(3), lambda: torch.tensor([float("nan"), 1e10, -3]),
    lambda: torch.randn(3, 4).t(), lambda: torch.zeros(0, 3), lambda: torch.tensor([1.0]).to(torch.float8_e5m2),
])
def test_the_text_is_that_of_cpu_with_the_device(make):
    c = make()
    text = repr(c.neuron())
    assert "device='neuron:0'" in text
    assert "".join(text.split()).replace(",device='neuron:0'", "") == "".join(repr(c).split())


def test_with_autograd():
    x = torch.ones(2, device="neuron", requires_grad=True)
    assert "grad_fn=<MulBackward0>" in repr(x * 2) and "requires_grad=True" in repr(x)
    assert repr(torch.nn.Parameter(x.detach())).startswith("Parameter containing:\ntensor([1., 1.]")
    assert "Linear(in_features=2" in repr(torch.nn.Linear(2, 2).neuron())


def test_nothing_runs_and_nothing_is_recorded():
    x = torch.randn(100, 100, device="neuron")
    neuron_eager.clear_op_tracking()
    before = torch.neuron.memory_stats()["allocation_requests"]
    repr(x), str(x[1:]), f"{x[0, 0]}"
    assert not set(neuron_eager.get_fallback_ops())
    assert set(neuron_eager.get_executed_ops()) <= {"aten::as_strided"}     # the views made here
    assert torch.neuron.memory_stats()["allocation_requests"] == before


def test_formats():
    assert f"{torch.tensor(1.5, device='neuron'):.2f}" == "1.50"
    assert torch.tensor([1, 2], device="neuron").tolist() == [1, 2]
    x = torch.tensor(3, device="neuron")
    assert x.item() == 3 and int(x) == 3 and float(x) == 3.0 and bool(x) and [0, 1, 2, 5][x] == 5


def test_the_alias_for_reading_shares_memory():
    x = torch.zeros(3, device="neuron")
    memory.to_cpu(x)[1] = 4
    assert x.tolist() == [0, 4, 0]
