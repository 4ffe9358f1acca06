"""The same kernels for other CPUs: run where this one is a superset, compiled only where it is not."""
from __future__ import annotations

import pytest
import torch

from neuron_eager.native import compile as native
from neuron_eager.native.blocks import build
from neuron_eager.native.objects import compile_object
from neuron_eager.native.target import PRETEND, current
from neuron_eager.nki.jit import trace
from neuron_eager.nki.program import TensorSpec

NAMES = ["add", "softmax", "layernorm", "sum_cols", "causal_mask", "transpose", "matmul", "attention", "rope"]


def program(kernels, name, dtype):
    wide = {"layernorm": [(300, 64), (64,), (64,)], "add": [(300, 64)] * 2, "matmul": [(300, 64), (64, 96)],
            "attention": [(300, 64)] * 3, "rope": [(300, 64), (300, 4), (300, 4)]}
    return trace(getattr(kernels, name), [TensorSpec.contiguous(s, dtype) for s in wide.get(name, [(300, 64)])])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", NAMES)
def test_avx2(name, dtype, kernels):
    """x86-64-v3 runs on this machine, if it has that much, and agrees with the code for the machine itself."""
    host, target = current(), PRETEND["x86-64-v3"]
    if host.arch != target.arch or host.lanes < target.lanes:
        pytest.skip("not an x86-64 CPU with AVX2")
    p = program(kernels, name, dtype)
    torch.manual_seed(0)
    ins = [torch.randn(t.shape).to(getattr(torch, dtype)) for t in p.inputs]
    results = []
    for chosen in (host, target):
        out = torch.zeros(p.outputs[0].shape, dtype=getattr(torch, dtype))
        native.compile_program(p, chosen)([t.data_ptr() for t in (*ins, out)])
        results.append(out.float())
    limit = (2e-2 if dtype == "bfloat16" else 1e-5) * float(results[0].abs().clamp(max=1e4).max())
    assert float((results[0] - results[1]).abs().max()) <= max(limit, 1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_aarch64_compiles(name, kernels):
    target = PRETEND["aarch64"]
    lowered = native.lower(program(kernels, name, "bfloat16"))
    for q in {q.skeleton: q for q in lowered.groups}.values():
        assert compile_object(lambda q=q: build(lowered.g, q, target), target)[:4] == b"\x7fELF"
