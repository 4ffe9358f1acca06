"""torch.func transforms and tracing."""
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call, grad, hessian, jacfwd, jacrev, jvp, vjp, vmap


def test_vmap_and_grad(check):
    x = torch.randn(3, 4)
    check(lambda t: vmap(lambda a: a.sin().sum())(t), x)
    check(lambda t: grad(lambda a: (a ** 2).sum())(t), x)
    check(lambda t: vmap(grad(lambda a: (a ** 2).sum()))(t), x)
    check(lambda t: vmap(lambda a: F.softmax(a, -1))(t), x)


def test_jacobians(check):
    x = torch.randn(4)
    check(lambda t: [jacrev(lambda a: a.sin())(t), jacfwd(lambda a: a.sin())(t)], x)
    check(lambda t: hessian(lambda a: (a.sin() * a).sum())(t), x)
    check(lambda t: vmap(hessian(lambda a: (a.sin() * a).sum()))(t[None].expand(3, 4)), x)
    check(lambda t: jvp(torch.sin, (t,), (t,)), x)
    check(lambda t: vjp(torch.sin, t)[1](t), x)


def test_functional_call(equal):
    m = nn.Linear(4, 2)
    x = torch.randn(3, 4)
    expected = m(x)
    n = m.neuron()
    equal(functional_call(n, dict(n.named_parameters()), (x.neuron(),)), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("randomness", ["different", "same"])
def test_randomness(randomness):
    y = vmap(lambda a: a + torch.randn_like(a), randomness=randomness)(torch.zeros(3, 4, device="neuron"))
    assert torch.equal(y[0], y[1]) == (randomness == "same")


def test_forward_mode(equal):
    import torch.autograd.forward_ad as fwad
    x = torch.randn(3)
    with fwad.dual_level():
        dual = fwad.make_dual(x.neuron(), torch.ones(3, device="neuron"))
        equal(fwad.unpack_dual(dual.sin()).tangent, x.cos())


def test_dispatch_mode_sees_the_ops():
    from torch.utils._python_dispatch import TorchDispatchMode
    ops = []

    class Record(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            ops.append(str(func))
            return func(*args, **(kwargs or {}))

    x = torch.randn(2, device="neuron")
    with Record():
        (x + x).relu()
    assert ops == ["aten.add.Tensor", "aten.relu.default"]


def test_tensor_subclass():
    class Mine(torch.Tensor):
        pass

    x = torch.ones(2, device="neuron").as_subclass(Mine)
    assert type(x + 1) is Mine and (x + 1).is_neuron


def test_custom_ops(equal):
    @torch.library.custom_op("neuron_eager_tests::double", mutates_args=())
    def double(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @torch.library.custom_op("neuron_eager_tests::on_cpu", mutates_args=(), device_types="cpu")
    def on_cpu(x: torch.Tensor) -> torch.Tensor:
        return x * 3

    @torch.library.custom_op("neuron_eager_tests::bump_", mutates_args=("x",), device_types="cpu")
    def bump_(x: torch.Tensor) -> None:
        x.add_(1)

    x = torch.ones(3, device="neuron")
    equal(double(x), torch.full((3,), 2.0))
    equal(on_cpu(x), torch.full((3,), 3.0))
    bump_(x)
    equal(x, torch.full((3,), 2.0))
