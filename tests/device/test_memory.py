"""The memory figures: every storage once, on its device, from its making until its last tensor is gone."""
import gc

import pytest
import torch


@pytest.fixture
def allocated():
    gc.collect()
    base = torch.neuron.memory_allocated()
    torch.neuron.reset_peak_memory_stats()
    return lambda: torch.neuron.memory_allocated() - base


def test_a_tensor_counts_until_it_dies(allocated):
    x = torch.empty(1000, device="neuron")
    assert allocated() == 4000
    del x
    assert allocated() == 0


def test_copies_and_results_count(allocated):
    x = torch.ones(1000).to("neuron")
    y = x + x
    assert allocated() == 8000
    del x, y
    assert allocated() == 0


def test_views_do_not_count(allocated):
    x = torch.empty(10, 100, device="neuron")
    view = x.t()[1:].detach()
    assert allocated() == 4000
    del x
    assert allocated() == 4000
    del view
    assert allocated() == 0


def test_tensors_saved_for_backward_count(allocated):
    x = torch.ones(1000, device="neuron", requires_grad=True)
    y = (x * x).exp()
    assert allocated() >= 8000
    y.sum().backward()
    del y
    assert allocated() == 8000      # x and its gradient
    del x
    assert allocated() == 0


def test_resizing_counts(allocated):
    x = torch.empty(10, device="neuron")
    x.resize_(1000)
    assert allocated() == 4000
    x.untyped_storage().resize_(0)
    assert allocated() == 0
    x.untyped_storage().resize_(8000)
    assert allocated() == 8000


def test_in_place_ops_do_not_count(allocated):
    x = torch.ones(1000, device="neuron")
    before = allocated()
    for _ in range(5):
        x.add_(1).mul_(2)
    assert allocated() == before


def test_peak(allocated):
    base = torch.neuron.memory_allocated()
    for _ in range(3):
        torch.empty(1000, device="neuron")
    assert torch.neuron.max_memory_allocated() - base == 4000
    torch.neuron.reset_peak_memory_stats()
    assert torch.neuron.max_memory_allocated() == torch.neuron.memory_allocated()


def test_statistics():
    x = torch.empty(1000, device="neuron")
    stats = torch.neuron.memory_stats()
    for name in ("allocated_bytes", "reserved_bytes", "active_bytes"):
        assert set(stats[name]) == {"current", "peak", "allocated", "freed"}
        assert stats[name]["current"] == stats[name]["allocated"] - stats[name]["freed"] >= 4000
    assert stats["allocation_requests"] >= 1
    assert torch.accelerator.memory_stats()["allocated_bytes.all.current"] == torch.neuron.memory_allocated()
    assert torch.accelerator.memory_allocated() == torch.neuron.memory_allocated()
    assert torch.neuron.memory.memory_allocated is torch.neuron.memory_allocated
    assert torch.neuron.memory_reserved() >= torch.neuron.memory_allocated()
    assert torch.neuron.max_memory_reserved() >= torch.neuron.memory_reserved()
    assert "neuron:0" in torch.neuron.memory_summary() and "peak" in torch.neuron.memory_summary(abbreviated=True)
    free, total = torch.accelerator.get_memory_info()
    assert 0 < free <= total
    torch.neuron.empty_cache()
    torch.accelerator.empty_cache()
    torch.neuron.reset_accumulated_memory_stats()
    assert torch.neuron.memory_stats()["allocation_requests"] == 0
    del x


def test_memory_is_returned():
    import resource
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(100):
        torch.empty(1 << 20, device="neuron").fill_(1.0)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100 << 10      # kilobytes; 400 MB went through
