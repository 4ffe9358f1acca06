"""Mistakes of a user: each is one error or one line that says what is wrong, and nothing misleading beside it."""
from __future__ import annotations

import logging

import pytest
import torch

import neuron_eager

# isort: split
import nki
import nki.isa as nisa
import nki.language as nl

from neuron_eager.errors import FallbackError, KernelResultError, KernelTypeError


@pytest.fixture
def log(caplog):
    caplog.set_level(logging.WARNING, logger="neuron_eager")
    return caplog


@pytest.mark.parametrize("mode", ["warn", "error"])
@pytest.mark.parametrize("call", [
    lambda x: x + torch.ones(2, 3), lambda x: torch.mm(torch.ones(3, 2), x), lambda x: torch.nn.Linear(3, 4)(x),
    lambda x: torch.logaddexp2(x, torch.ones(2, 3))])
def test_mixed_devices_are_pytorch_s_error_and_no_fallback(log, call, mode):
    x = torch.ones(2, 3).to("neuron")
    with neuron_eager.fallback(mode), pytest.raises(RuntimeError, match="Expected all tensors to be on"):
        call(x)
    assert not log.records
    assert not neuron_eager.get_fallback_ops()


@pytest.mark.parametrize("mode", ["warn", "error"])
def test_shapes_that_do_not_fit_are_pytorch_s_error_and_no_fallback(log, mode):
    x = torch.ones(2, 3).to("neuron")
    with neuron_eager.fallback(mode), pytest.raises(RuntimeError, match="The size of tensor a"):
        x + torch.ones(5).to("neuron")
    assert not log.records
    assert not neuron_eager.get_fallback_ops()


def test_a_mix_of_devices_that_pytorch_allows_is_a_fallback(log):
    """Indices may lie on the CPU."""
    x = torch.arange(6.0).reshape(2, 3).to("neuron")
    assert x[torch.tensor([1])].tolist() == [[3, 4, 5]]
    if "aten::index.Tensor" in neuron_eager.get_fallback_ops():
        assert "arguments on cpu, neuron:0" in log.text
        with neuron_eager.fallback("error"), pytest.raises(FallbackError, match="arguments on cpu, neuron:0"):
            x[torch.tensor([0])]


def test_a_result_of_unknown_shape_is_a_fallback_with_that_reason(log):
    x = torch.arange(4.0).to("neuron")
    assert x[x > 1].tolist() == [2, 3]
    assert "the shape of its result depends on values" in log.text
    with neuron_eager.fallback("error"), pytest.raises(FallbackError, match="depends on values"):
        x[x > 1]


@pytest.mark.parametrize(("function", "detail"), [
    (lambda self: self.cpu(), r"float32\[3\] on cpu"), (lambda self: None, "it returned None"),
    (lambda self: (self, self), r"it returned tuple\(")])
def test_a_function_that_returns_something_else(function, detail):
    neuron_eager.register_kernel("aten::erfc", function)
    with pytest.raises(KernelResultError, match=detail):
        torch.erfc(torch.ones(3).to("neuron"))


def test_a_type_error_in_a_function():
    def add(self, other, *, alpha=1):
        raise TypeError("deep inside")
    neuron_eager.register_kernel("aten::add.Tensor", add)
    x = torch.ones(3).to("neuron")
    with pytest.raises(KernelTypeError, match=r"other=float32\[3\] on neuron:0.*deep inside"):
        x + x


def test_unregistering_gives_the_package_s_kernel_back():
    x = torch.ones(3).to("neuron")
    before = neuron_eager.explain("aten::add.Tensor", x, x)
    for factor in (2, 3):
        neuron_eager.register_kernel("aten::add.Tensor", lambda self, other, *, alpha=1, k=factor: self * k)
        assert (x + x).tolist() == [factor] * 3
    neuron_eager.unregister_kernel("aten::add.Tensor")
    assert neuron_eager.explain("aten::add.Tensor", x, x) == before
    assert (x + x).tolist() == [2] * 3


def test_a_name_in_force_cpu_that_is_no_op(log):
    with neuron_eager.config.override(force_cpu=["aten.mmm", "aten.add", "aten::mm", "softmax"]):
        torch.ones(3, 3).to("neuron") @ torch.ones(3, 3).to("neuron")
    said = [r.getMessage() for r in log.records if "FORCE_CPU: " in r.getMessage()]
    assert len(said) == 1
    assert "aten.mmm" in said[0]


class TestExplain:
    def test_names_the_kernel_its_place_and_what_it_applies(self):
        x = torch.ones(3).to("neuron")
        why = neuron_eager.explain("aten::add.Tensor", x, x).why
        assert "NKI kernel elementwise (" in why
        assert "elementwise.py:" in why
        assert "function=add_scaled" in why
        assert "add_scaled" in neuron_eager.explain("aten::add.Tensor").why

    def test_says_why_a_call_would_be_declined(self):
        x = torch.ones(3).to("neuron")
        answer = neuron_eager.explain("aten::add.Tensor", x, 1j)
        assert (answer.route, str(answer.reason)) == ("fallback", "dtype")
        assert "complex" in answer.why
        assert neuron_eager.explain("aten::add.Tensor", x, torch.ones(3)).route == "fallback"

    @pytest.mark.parametrize(("args", "kwargs"), [((1,), {}), ((1, 2, 3), {}), ((1, 2), {"alfa": 1})])
    def test_refuses_arguments_that_are_not_the_op_s(self, args, kwargs):
        with pytest.raises(TypeError, match="aten::add.Tensor takes self, other, alpha"):
            neuron_eager.explain("aten::add.Tensor", *args, **kwargs)


def test_the_report_says_that_a_kernel_is_interpreted():
    x = torch.ones(3).to("neuron")
    with neuron_eager.config.override(executor="interpreter"), neuron_eager.track_ops() as ops:
        torch.exp(x)
    assert [(row.op, row.route) for row in ops] == [("aten::exp", "kernel")]
    assert ops.rows[0].reason.startswith("interpreted")


# ---- NKI kernels that do not fit the op they are registered for. Each is `x + x`, or none of it.

@nki.jit
def twice(x):
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    nl.store(out, nl.load(x))
    return out, out


@nki.jit
def nothing(x):
    nl.load(x)


@nki.jit
def own_argument(x):
    tile = nl.load(x)
    nisa.tensor_tensor(dst=tile, data1=tile, data2=tile, op=nl.add)
    nl.store(x, tile)
    return x


@nki.jit
def half(x):
    out = nl.ndarray(x.shape, nl.bfloat16, buffer=nl.shared_hbm)
    nl.store(out, nl.load(x, dtype=nl.bfloat16))
    return out


@nki.jit
def faulty(x):
    return x.rows


@pytest.mark.parametrize(("kernel", "detail"), [
    (twice, "returns is 2, and of results that the op has 1"), (nothing, "returns is 0, and of results"),
    (own_argument, "returns its argument self"), (half, r"result 0 is torch.bfloat16\[2, 3\]")])
@pytest.mark.parametrize("executor", ["native", "interpreter"])
def test_a_kernel_with_other_results(kernel, detail, executor):
    neuron_eager.register_kernel("aten::erfc", kernel)
    with neuron_eager.config.override(executor=executor), pytest.raises(KernelResultError, match=detail):
        torch.erfc(torch.ones(2, 3).to("neuron"))


@pytest.mark.parametrize("executor", ["native", "interpreter"])
def test_a_kernel_that_writes_its_argument_serves_the_in_place_op(executor):
    neuron_eager.register_kernel("aten::erfc_", own_argument)
    x = torch.ones(2, 3).to("neuron")
    with neuron_eager.config.override(executor=executor):
        assert x.erfc_() is x
        assert x.erfc_().tolist() == [[4, 4, 4]] * 2


def test_a_fault_in_a_kernel_tells_op_and_arguments():
    neuron_eager.register_kernel("aten::erfc", faulty)
    with pytest.raises(AttributeError, match="rows") as raised:
        torch.erfc(torch.ones(2, 3).to("neuron"))
    assert raised.value.__notes__ == ["in kernel faulty for aten::erfc(self float32[2,3])"]


def test_a_number_where_a_kernel_takes_a_tensor_is_declined(log):
    @nki.jit
    def add(self, other, alpha):
        out = nl.ndarray(self.shape, self.dtype, buffer=nl.shared_hbm)
        tile = nl.load(self)
        nisa.tensor_tensor(dst=tile, data1=tile, data2=nl.load(other), op=nl.add)
        nl.store(out, tile)
        return out
    neuron_eager.register_kernel("aten::add.Tensor", add)
    x = torch.ones(2, 3).to("neuron")
    assert (x + x).tolist() == [[2, 2, 2]] * 2
    assert not log.records
    assert (x + 1).tolist() == [[2, 2, 2]] * 2
    assert "other is a Python number, and the kernel takes a tensor" in log.text


def test_only_ops_that_compute_warn_of_float64(log):
    x = torch.full((3,), 1 / 3, dtype=torch.float64, device="neuron")
    assert torch.cat([x.clone(), x]).tolist() == [1 / 3] * 6
    assert not log.records
    x + x
    assert [r.getMessage().partition(";")[0] for r in log.records] == [
        "aten::add.Tensor computes float64 tensors in float32"]
