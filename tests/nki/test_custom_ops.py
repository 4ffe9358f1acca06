"""nki_op and wrap_nki: eager, fake shapes, autograd, torch.compile, tracking."""
from __future__ import annotations

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import neuron_eager
from neuron_eager import nki, nki_op, wrap_nki
from neuron_eager.nki import isa as nisa
from neuron_eager.nki import language as nl


@nki.jit
def scale_kernel(x, factor):
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    for i in range(0, x.shape[0], 128):
        t = nl.load(x[i:min(i + 128, x.shape[0])])
        nisa.tensor_scalar(dst=t, data=t, op0=nl.multiply, operand0=factor)
        nl.store(out[i:min(i + 128, x.shape[0])], t)
    return out


@nki.jit
def accumulate_kernel(total, x):
    t = nl.load(total)
    nisa.tensor_tensor(dst=t, data1=t, data2=nl.load(x), op=nl.add)
    nisa.dma_copy(dst=total, src=t)
    return total


@nki.jit
def split_kernel(x):
    outs = []
    for half in (x[:, 0:2], x[:, 2:4]):
        outs.append(nl.ndarray(half.shape, x.dtype, buffer=nl.shared_hbm))
        nisa.dma_copy(dst=outs[-1], src=half)
    return tuple(outs)


@nki_op("nki_tests::scale")
def scale(x: torch.Tensor, factor: float) -> torch.Tensor:
    return scale_kernel(x, factor)


@nki_op("nki_tests::accumulate", mutates_args=("total",))
def accumulate(total: torch.Tensor, x: torch.Tensor) -> None:
    accumulate_kernel(total, x)


scale.register_autograd(lambda ctx, grad: (scale(grad, ctx.factor), None),
                        setup_context=lambda ctx, inputs, output: setattr(ctx, "factor", inputs[1]))

DEVICES = ("cpu", "neuron")


@pytest.mark.parametrize("device", DEVICES)
def test_eager(device):
    x = torch.arange(12.0, device=device).reshape(3, 4)
    y = scale(x, 3.0)
    assert y.device == x.device and torch.equal(y.cpu(), 3 * x.cpu())
    total, version = torch.ones(3, 4, device=device), None
    version = total._version
    assert accumulate(total, x) is None
    assert torch.equal(total.cpu(), 1 + x.cpu()) and total._version > version
    assert torch.equal(torch.ops.nki_tests.scale(x, 2.0).cpu(), 2 * x.cpu())


def test_calls_are_tracked():
    neuron_eager.clear_op_tracking()
    x = torch.ones(3, 4, device="neuron")
    scale(x, 3.0)
    wrap_nki(split_kernel)(x)
    assert {"nki_tests::scale", "nki::split_kernel"} <= set(neuron_eager.get_executed_ops())
    assert "nki_tests::scale" not in neuron_eager.get_fallback_ops()


def test_fake_shapes_come_from_tracing():
    with FakeTensorMode():
        x = torch.empty(300, 5, dtype=torch.bfloat16, device="neuron")
        y = scale(x, 3.0)
        assert y.shape == (300, 5) and y.dtype == torch.bfloat16 and y.device.type == "neuron"
        a, b = split_kernel(torch.empty(3, 4))
        assert a.shape == b.shape == (3, 2)


@pytest.mark.parametrize("device", DEVICES)
def test_autograd(device):
    x = torch.ones(3, 4, device=device, requires_grad=True)
    (scale(x, 3.0) * 2).sum().backward()
    assert torch.equal(x.grad.cpu(), torch.full((3, 4), 6.0))


def test_the_operator_passes_torchs_own_checks():
    torch.library.opcheck(scale, (torch.ones(3, 4, requires_grad=True), 2.0))
    torch.library.opcheck(accumulate, (torch.ones(3, 4), torch.ones(3, 4)))


@pytest.mark.parametrize("device", DEVICES)
def test_compile(device):
    split, add = wrap_nki(split_kernel), wrap_nki(accumulate_kernel)

    def model(x):
        y = scale(x, 3.0) + 1
        a, b = split(y)
        total = torch.zeros_like(a)
        add(total, x=b)
        accumulate(total, a)
        return total * wrapped(y, 2.0)[:, 0:2]

    wrapped = wrap_nki(scale_kernel)
    x = torch.arange(12.0, device=device).reshape(3, 4)
    want = model(x)
    torch._dynamo.reset()
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    assert torch.allclose(compiled(x).cpu(), want.cpu())
