"""torch.compile(backend="neuron") and PyTorch's tracers."""
import pytest
import torch
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx


@pytest.fixture(autouse=True)
def fresh_dynamo():
    yield
    torch._dynamo.reset()


def test_the_backend_is_listed():
    assert "neuron" in torch.compiler.list_backends()


def test_inference():
    def f(a, b):
        return (a * b + 1).relu().sum(0)[1:]

    x = torch.randn(3, 4, device="neuron")
    assert torch.equal(torch.compile(f, backend="neuron", fullgraph=True)(x, x), f(x, x))
    assert torch.equal(torch.compile(f, backend="neuron", dynamic=True)(x[:2], x[:2]), f(x[:2], x[:2]))


def test_training():
    m = nn.Sequential(nn.Linear(3, 4), nn.GELU(), nn.Linear(4, 1)).neuron()
    x = torch.randn(5, 3, device="neuron")
    m(x).sum().backward()
    expected = m[0].weight.grad.clone()
    m.zero_grad()
    torch.compile(m, backend="neuron")(x).sum().backward()
    assert torch.equal(m[0].weight.grad, expected)


def test_ops_are_counted_as_in_eager_mode():
    import neuron_eager
    f = torch.compile(lambda a: a.tanh(), backend="neuron")
    neuron_eager.clear_op_tracking()
    f(torch.ones(2, device="neuron"))
    assert "aten::tanh" in neuron_eager.get_executed_ops() + neuron_eager.get_fallback_ops()


def test_autocast_streams_and_breaks():
    @torch.compile(backend="neuron")
    def f(x):
        with torch.autocast("neuron", dtype=torch.bfloat16):
            y = x @ x
        s = torch.Stream("neuron")
        with s:
            y = y + 1
        torch._dynamo.graph_break()
        g = torch.Generator(device="neuron")
        g.manual_seed(1)
        return y + torch.rand(2, 2, device="neuron", generator=g)

    import warnings
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*lru_cache.*")      # dynamo stays out of our own frames
        assert f(torch.ones(2, 2, device="neuron")).shape == (2, 2)


def test_aot_autograd_makes_two_graphs():
    from functorch.compile import make_boxed_func
    from torch._dynamo.backends.common import aot_autograd
    graphs = []

    def compiler(graph, inputs):
        graphs.append([str(n.target) for n in graph.graph.nodes if n.op == "call_function"])
        return make_boxed_func(graph.forward)

    m = nn.Sequential(nn.Linear(3, 4), nn.GELU(), nn.Linear(4, 1)).neuron()
    x = torch.randn(5, 3, device="neuron")
    eager = m(x).sum()
    compiled = torch.compile(m, backend=aot_autograd(fw_compiler=compiler, bw_compiler=compiler))(x).sum()
    compiled.backward()
    assert torch.equal(eager, compiled) and len(graphs) == 2 and m[0].weight.grad.is_neuron


def test_fake_tensors_and_export(equal):
    from torch._subclasses import FakeTensorMode
    with FakeTensorMode() as mode:
        a = torch.randn(2, 3, device="neuron")
        assert (a @ a.t()).device.type == "neuron"
    x = torch.randn(2, 3)
    assert mode.from_tensor(x.neuron()).device.type == "neuron"
    m = nn.Linear(3, 3)
    expected = m(x)
    m.neuron()
    equal(torch.export.export(m, (x.neuron(),)).module()(x.neuron()), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("mode", ["real", "fake", "symbolic"])
def test_make_fx(mode):
    def f(a):
        return (a @ a.t()).relu()[1:]

    x = torch.randn(2, 3, device="neuron")
    assert torch.equal(make_fx(f, tracing_mode=mode)(x)(x), f(x))


def test_jit_trace():
    f = torch.jit.trace(lambda a: a * 2 + 1, torch.randn(2, device="neuron"))
    assert f(torch.ones(2, device="neuron")).tolist() == [3, 3]
