"""Warm ops leave memory and reference counts where they were. NEURON_TEST_LEAK_CALLS=1000000 runs the long form."""
import gc
import os
import sys

import pytest
import torch

import neuron_eager

CALLS = int(os.environ.get("NEURON_TEST_LEAK_CALLS", "20000"))


def resident():
    with open("/proc/self/statm") as f:
        return int(f.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize("route", ["fallback", "function"])
def test_warm_ops_leak_nothing(route, without_kernels):
    if route == "function":
        neuron_eager.register_kernel("aten::add.Tensor", lambda self, other, *, alpha=1: self.clone())
    x, y = torch.ones(16).to("neuron"), torch.ones(4, 4).to("neuron")
    out = torch.empty(16, device="neuron")

    def run(n):
        for _ in range(n // 8):
            _ = x + x, x * 2.0, y @ y, x[2:6], x.view(4, 4), x.mul_(1.0), torch.mul(x, x, out=out), torch.cat([x, x])
    run(2000)
    gc.collect()
    counts, records = [sys.getrefcount(t) for t in (x, y, out)], len(neuron_eager.dispatch.tracking.records)
    held, memory = torch.neuron.memory_allocated(), resident()
    run(CALLS)
    gc.collect()
    assert [sys.getrefcount(t) for t in (x, y, out)] == counts
    assert len(neuron_eager.dispatch.tracking.records) == records
    assert torch.neuron.memory_allocated() == held
    assert resident() - memory < 4 << 20
