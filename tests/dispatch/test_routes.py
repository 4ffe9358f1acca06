"""The route table, registration of kernels, and what explains them."""
import pytest
import torch

import neuron_eager
from neuron_eager.dispatch import route, routes
from neuron_eager.dispatch.plan import Decline, Reason
from neuron_eager.dispatch.routes import Kind
from neuron_eager.errors import KernelSignatureError, UnknownOpError

aten = torch.ops.aten


@pytest.mark.parametrize("op", [
    aten.mm.default, aten.mm, "aten::mm", "aten.mm", "mm", "aten.mm.default", "torch.ops.aten.mm.default",
    "aten::mm.default"])
def test_names_of_a_default_overload(op):
    assert routes.resolve(op) is aten.mm.default


@pytest.mark.parametrize("op", [aten.add.Tensor, "aten::add.Tensor", "aten.add.Tensor", "add.Tensor"])
def test_names_of_an_overload(op):
    assert routes.resolve(op) is aten.add.Tensor


@pytest.mark.parametrize("op, offered", [
    ("aten::matmull", "matmul"), (aten.add, "aten::add.Tensor"), ("aten.mm.nothing", "aten::mm.out"),
    ("other::thing", "aten::mm")])
def test_an_unknown_op_is_an_error_with_the_nearest_names(op, offered):
    with pytest.raises(UnknownOpError, match=offered.replace(".", r"\.")):
        routes.resolve(op)


@pytest.mark.parametrize("op, kind", [
    (aten.view.default, Kind.VIEW), (aten.as_strided.default, Kind.VIEW),
    (aten.linear.default, Kind.DECOMPOSITION), (aten.zeros.default, Kind.DECOMPOSITION),
    (aten.scaled_dot_product_attention.default, Kind.DECOMPOSITION),
    (aten.linalg_svd.default, Kind.DECOMPOSITION), (aten._linalg_svd.default, Kind.FALLBACK),
    (aten.mm.default, Kind.FALLBACK), (aten.convolution_overrideable.default, Kind.FALLBACK)])
def test_kinds(op, kind, without_kernels):
    assert route(op).kind is kind
    assert route(op).why


def test_every_op_with_a_cpu_kernel_reaches_this_package():
    """Except metadata ops, which the device serves, and ops on tensors the device does not have."""
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    names = torch._C._dispatch_get_registrations_for_dispatch_key("CPU")
    missing = [n for n in names if n.startswith("aten::") and not has(n, "PrivateUse1")]
    assert not missing


def test_register_override_and_unregister(without_kernels):
    x = torch.ones(3, device="neuron")
    neuron_eager.register_kernel("aten::relu", lambda self: self * 2)
    assert x.relu().tolist() == [2, 2, 2]
    neuron_eager.register_kernel(aten.relu, lambda self: self * 3)
    assert x.relu().tolist() == [3, 3, 3]
    assert route(aten.relu.default).kind is Kind.KERNEL
    neuron_eager.unregister_kernel("relu")
    assert x.relu().tolist() == [1, 1, 1]
    assert route(aten.relu.default).kind is Kind.FALLBACK


def test_a_kernel_gets_the_arguments_of_the_op(without_kernels):
    seen = []

    def softmax(self, dim, half_to_float):
        seen.append((self.device.type, dim, half_to_float))
        return self.clone()
    neuron_eager.register_kernel("aten::_softmax", softmax)
    torch.softmax(torch.ones(2, 3, device="neuron"), -1)
    assert seen == [("neuron", -1, False)]


@pytest.mark.parametrize("op, kernel, message", [
    ("aten::mm", lambda x: x, "too many positional"),
    ("aten::mm", lambda a, b, c: a, "missing a required argument"),
    ("aten::add.Tensor", lambda self, other: self, "alpha"),
    ("aten::mm", 3, "type int")])
def test_a_wrong_signature_is_one_error_at_registration(op, kernel, message):
    with pytest.raises(KernelSignatureError, match=message) as caught:
        neuron_eager.register_kernel(op, kernel)
    assert "Tensor self" in str(caught.value)       # the schema
    assert routes.resolve(op) not in {o for o, r in routes._kernels.items() if r.kernel is kernel}


def test_wrong_can_run_and_reference_are_refused():
    def kernel(self, mat2):
        return self
    with pytest.raises(KernelSignatureError, match="can_run"):
        neuron_eager.register_kernel("aten::mm", kernel, can_run=lambda x: True)
    with pytest.raises(KernelSignatureError, match="reference"):
        neuron_eager.register_kernel("aten::mm", kernel, reference=lambda: None)


@pytest.mark.parametrize("answer, reason, text", [
    ("only float32", Reason.SHAPE, "only float32"),
    (Decline(Reason.DTYPE, "not int64"), Reason.DTYPE, "not int64"),
    (False, Reason.SHAPE, "can_run returned False")])
def test_can_run_declines_with_a_reason(answer, reason, text, without_kernels):
    asked = []

    def can_run(self, mat2):
        asked.append(self.shape)
        return True if self.shape[0] == 2 else answer
    neuron_eager.register_kernel("aten::mm", lambda self, mat2: torch.zeros_like(self), can_run=can_run)
    a, b = (torch.ones(n, n, device="neuron") for n in (2, 3))
    for _ in range(3):
        assert torch.mm(a, a).sum().item() == 0
        assert torch.mm(b, b).sum().item() == 27
    assert len(asked) == 2                          # once per kind of call
    rows = {r.shapes[0]: r for r in neuron_eager.op_report() if r.op == "aten::mm"}
    assert rows[2, 2].route == "kernel" and rows[2, 2].calls == 3
    assert rows[3, 3].route == "fallback" and rows[3, 3].calls == 3
    assert rows[3, 3].reason == f"{reason.value} ({text})"
    said = neuron_eager.explain("mm", b, b)
    assert (said.route, said.reason) == ("fallback", reason) and text in str(said)
    assert neuron_eager.explain("mm", a, a).route == "kernel"


def test_an_error_in_a_kernel_is_an_error(without_kernels):
    def kernel(self):
        raise ZeroDivisionError("in the kernel")
    neuron_eager.register_kernel("aten::relu", kernel)
    with pytest.raises(ZeroDivisionError, match="in the kernel"):
        torch.ones(3, device="neuron").relu()
    assert "aten::relu" not in neuron_eager.get_fallback_ops()


def test_kernels_are_loaded_at_the_first_use_of_an_op(without_kernels):
    loads = []

    def load():
        loads.append(1)
        neuron_eager.register_kernel("aten::tanh", lambda self: self + 1)
        neuron_eager.register_kernel("aten::erf", lambda self: self + 2)
    routes.provide(["aten::tanh", "aten::erf"], load)
    assert not loads
    x = torch.zeros(2, device="neuron")
    assert x.tanh().tolist() == [1, 1] and x.erf().tolist() == [2, 2]
    assert loads == [1]


def test_providing_for_an_op_twice_is_an_error():
    routes.provide(["aten::digamma"], lambda: None)
    with pytest.raises(ValueError, match="digamma"):
        routes.provide(["aten::digamma"], lambda: None)


def test_a_kernel_for_a_composed_op_steps_aside_for_autograd(without_kernels):
    calls = []

    def linear(input, weight, bias=None):
        calls.append(1)
        return input @ weight.T + (0 if bias is None else bias)
    neuron_eager.register_kernel("aten::linear", linear)
    x, w = torch.randn(2, 3, device="neuron"), torch.randn(4, 3, device="neuron")
    torch.testing.assert_close(torch.nn.functional.linear(x, w).cpu(), x.cpu() @ w.cpu().T)
    assert calls == [1]
    w.requires_grad_()
    torch.nn.functional.linear(x, w).sum().backward()       # PyTorch's composition, which has derivatives
    assert calls == [1]
    torch.testing.assert_close(w.grad.cpu(), x.cpu().sum(0).expand(4, 3))
    with torch.no_grad():
        torch.nn.functional.linear(x, w)
    assert calls == [1, 1]


def test_explain_without_arguments(without_kernels):
    assert neuron_eager.explain("aten::view").route == "view"
    assert neuron_eager.explain("aten::linear").route == "decomposition"
    assert neuron_eager.explain("mm").reason is Reason.NO_KERNEL
    with pytest.raises(UnknownOpError):
        neuron_eager.explain("aten::nothing")
