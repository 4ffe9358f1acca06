"""torch.autocast("neuron"): PyTorch's op lists, in bfloat16 and float16; gradient scaling."""
import re
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from neuron_eager.device import autocast

HALVES = [torch.bfloat16, torch.float16]


def header_list(macro):
    text = (Path(torch.__file__).parent / "include/ATen/autocast_mode.h").read_text()
    body = re.search(rf"#define {macro}\(_\)(.*?)\n\n", text, re.DOTALL)[1]
    return {name + ("." + overload if overload else "")
            for name, overload in re.findall(r"_\((\w+)(?:, (\w+))?\)", body)}


@pytest.mark.parametrize(("macro", "ours"), [
    ("AT_FORALL_LOWER_PRECISION_FP", autocast.LOWER_PRECISION), ("AT_FORALL_FP32", autocast.FLOAT32),
    ("AT_FORALL_FP32_SET_OPT_DTYPE", autocast.FLOAT32_RESULT), ("AT_FORALL_PROMOTE", autocast.WIDEST),
])
def test_the_lists_are_those_of_pytorch(macro, ours):
    assert set(ours) == header_list(macro)


@pytest.mark.parametrize("dtype", HALVES)
def test_each_kind_of_rule(dtype):
    x, h = torch.rand(4, 4, device="neuron"), torch.rand(4, 4, device="neuron", dtype=dtype)
    with torch.autocast("neuron", dtype=dtype):
        assert torch.is_autocast_enabled("neuron") and torch.get_autocast_dtype("neuron") == dtype
        for y in (x @ x, F.linear(x, x), torch.einsum("ij,jk", x, x), torch.addmm(x, x, x), torch.bmm(x[None], x[None]),
                  F.conv1d(x[None], x[:, :, None]), F.scaled_dot_product_attention(x[None], x[None], x[None])):
            assert y.dtype == dtype
        for y in (h.exp(), h.pow(2), h.log(), F.layer_norm(h, (4,)), F.mse_loss(h, h), 2.0 ** h, torch.cdist(h, h),
                  h.softmax(-1), h.sum(), h.sum(1), h.cumsum(0), h.prod(), h.norm(), h.norm(dim=0),
                  h.norm(2, 0, True), torch.linalg.vector_norm(h), torch.addcmul(x, h, h), torch.atan2(x, h),
                  torch.dot(x[0], h[0])):
            assert y.dtype == torch.float32
        assert torch.dot(h[0], h[0]).dtype == dtype
        assert h.softmax(-1, dtype=torch.float64).dtype == torch.float64
        assert (h + h).dtype == dtype and h.relu().dtype == dtype
        assert (x.double() @ x.double()).dtype == torch.float64
        assert torch.arange(3, device="neuron").sum().dtype == torch.int64
        with torch.autocast("neuron", enabled=False):
            assert (x @ x).dtype == torch.float32
    assert (x @ x).dtype == torch.float32


def test_values_equal_cpu_autocast(check):
    def program(x, w):
        with torch.autocast(x.device.type, dtype=torch.bfloat16):
            return F.linear(x, w)
    check(program, torch.randn(3, 4), torch.randn(5, 4), rtol=2e-2, atol=2e-2)


def test_unsafe_op_is_refused():
    p = torch.rand(3, device="neuron")
    with torch.autocast("neuron", dtype=torch.float16), pytest.raises(RuntimeError, match="unsafe to autocast"):
        F.binary_cross_entropy(p, p)


def test_two_half_dtypes_are_refused():
    a, b = torch.ones(3, device="neuron").half(), torch.ones(3, device="neuron").bfloat16()
    with torch.autocast("neuron", dtype=torch.float16), pytest.raises(RuntimeError, match="can not promote"):
        torch.dot(a, b)


def test_unsupported_dtype_disables():
    with pytest.warns(UserWarning, match="target dtype is not supported"), torch.autocast("neuron", dtype=torch.int8):
        assert not torch.is_autocast_enabled("neuron")


@pytest.mark.parametrize("dtype", HALVES)
def test_training(dtype):
    m = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.LayerNorm(8), nn.Linear(8, 3)).neuron()
    with torch.autocast("neuron", dtype=dtype):
        y = m(torch.randn(2, 3, device="neuron"))
        loss = F.cross_entropy(y, torch.tensor([0, 1], device="neuron"))
    assert y.dtype == dtype and loss.dtype == torch.float32
    loss.backward()
    assert all(p.grad.dtype == torch.float32 and p.grad.isfinite().all() for p in m.parameters())


def test_decorator_and_cpu_untouched():
    @torch.autocast("neuron", dtype=torch.bfloat16)
    def f(x):
        return x @ x

    assert f(torch.ones(2, 2, device="neuron")).dtype == torch.bfloat16
    assert f(torch.ones(2, 2)).dtype == torch.float32


def test_grad_scaler():
    m = nn.Linear(3, 3).neuron()
    o = torch.optim.SGD(m.parameters(), 0.1)
    scaler = torch.amp.GradScaler("neuron")
    for value in (1.0, float("inf"), 1.0):
        o.zero_grad()
        before = m.weight.detach().clone()
        scaler.scale((m(torch.full((2, 3), value, device="neuron")) * 1.0).sum()).backward()
        scaler.unscale_(o)
        scaler.step(o)
        scaler.update()
        assert torch.equal(before, m.weight) == (value != 1.0)
    assert scaler.get_scale() == 65536.0 / 2
