"""Calls that kernels serve, on the pure Python path and on the native one: what the kernel sees, what comes back."""
import gc
import weakref

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import neuron_eager
from neuron_eager.config import config
from neuron_eager.dispatch import plan
from neuron_eager.dispatch.plan import Arg, Decline, KernelCall, Operand, Out, Reason
from neuron_eager.errors import Float64Error, KernelResultError, KernelTypeError

pytestmark = pytest.mark.usefixtures("without_kernels")


class Add:
    """add.Tensor and its forms: out = x + alpha * y, numbers as operands."""

    operands = ("other", "alpha")

    def __init__(self, kernel):
        def add(out, ins):
            np.copyto(out, (ins[0] + ins[2].reshape(()) * (ins[1] if ins[1].shape == out.shape else ins[1].reshape(())))
                      .astype(out.dtype))
        self.kernel = kernel(add)

    def lower(self, call):
        out, other = call.outputs[0], call["other"]
        if out.dtype is torch.complex64:
            return Decline(Reason.DTYPE, "complex")
        return KernelCall(self.kernel, {"ins": (
            call["self"].broadcast(out.shape),
            other.broadcast(out.shape) if isinstance(other, Arg) else Operand(other), Operand(call["alpha"]))},
            [out], same_view=True)


@pytest.fixture
def add(numpy_executor, kernel):
    rule = Add(kernel)
    for name in ("aten::add.Tensor", "aten::add_.Tensor", "aten::add.out"):
        neuron_eager.register_kernel(name, rule)
    return numpy_executor


CASES = {
    "same shape": lambda d: torch.arange(12.0).view(3, 4).to(d) + torch.ones(3, 4).to(d),
    "broadcast": lambda d: torch.arange(12.0).view(3, 4).to(d) + torch.arange(4.0).to(d),
    "both broadcast": lambda d: torch.arange(3.0).view(3, 1).to(d) + torch.arange(4.0).to(d),
    "transposed": lambda d: torch.arange(12.0).view(3, 4).to(d).t() + torch.ones(4, 3).to(d),
    "sliced": lambda d: torch.arange(24.0).view(4, 6).to(d)[1:, ::2] + 1,
    "channels last": lambda d: (torch.arange(16.0).view(1, 2, 2, 4).to(d).to(memory_format=torch.channels_last) + 1),
    "float": lambda d: torch.ones(3).to(d) + 2.5, "int": lambda d: torch.ones(3).to(d) + 2,
    "alpha": lambda d: torch.add(torch.ones(3).to(d), torch.ones(3).to(d), alpha=4),
    "0-dim on the CPU": lambda d: torch.ones(3).to(d) + torch.tensor(2.0),
    "0-dim": lambda d: torch.tensor(1.0).to(d) + torch.tensor(2.0).to(d),
    "empty": lambda d: torch.empty(0, 3).to(d) + 1,
    "in place": lambda d: torch.ones(3).to(d).add_(torch.arange(3.0).to(d)),
    "in place with itself": lambda d: (lambda x: x.add_(x))(torch.ones(3).to(d)),
    "in place on a slice": lambda d: (lambda x: (x[1:].add_(2.0), x))(torch.ones(3, 4).to(d)),
    "out": lambda d: torch.add(torch.ones(3).to(d), 1, out=torch.empty(3, device=d)),
    "out, resized": lambda d: torch.add(torch.ones(3, 2).to(d), 1, out=torch.empty(0, device=d)),
    "out, strided": lambda d: (lambda o: (torch.add(torch.ones(3).to(d), 1, out=o[:, 1]), o))(torch.zeros(3, 2).to(d)),
    "halves of one storage": lambda d: (lambda x: (x[:4].add_(x[4:]), x))(torch.arange(8.0).to(d)),
    "recorded": lambda d: (lambda x: (x + x).sum().backward() or x.grad)(torch.ones(3).to(d).requires_grad_()),
    "declined": lambda d: torch.view_as_complex(torch.ones(3, 2).to(d)) + 1,
}


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.replace(" ", "_").replace(",", ""))
def test_equal_to_cpu(case, add, both):
    for _ in range(3):
        both(CASES[case])
    fallbacks = {n for n in neuron_eager.get_fallback_ops() if n.startswith("aten::add")}
    assert fallbacks == ({"aten::add.Tensor"} if case == "declined" else set())


def test_a_kind_of_call_is_planned_once(add):
    x, y = torch.ones(3, device="neuron"), torch.ones(3, device="neuron")
    for n in range(5):
        _ = x + float(n), x + y, torch.add(x, y, alpha=n + 2)
    assert len(add.compiled) == 2                   # a number, and two tensors whatever alpha
    _ = x[:2] + 1.0, x.double() + 1.0, torch.ones(2, 3, device="neuron").t() + 1.0
    assert len(add.compiled) == 5                   # another shape, dtype, strides


def test_static_arguments_are_part_of_the_key(numpy_executor, kernel):
    def scaled(out, x, by):
        np.copyto(out, x * by)

    class Rule:
        def lower(self, call):
            return KernelCall(kernel(scaled), {"x": call["self"]}, [Out((3,), (1,), torch.float32)],
                              {"by": call["exponent"]})
    neuron_eager.register_kernel("aten::pow.Tensor_Scalar", Rule())
    x = torch.ones(3, device="neuron")
    for by in (3.0, 4.0, 3.0, 4, -0.0, 0.0):
        assert x.pow(by).tolist() == [by] * 3
    assert len(numpy_executor.compiled) == 5        # 4 is not 4.0, and 0.0 not -0.0


def test_lists_of_tensors(numpy_executor, kernel, both):
    def cat(out, parts):
        np.copyto(out, np.concatenate(parts))

    class Rule:
        def lower(self, call):
            return KernelCall(kernel(cat), {"parts": tuple(call["tensors"])}, call.outputs)
    neuron_eager.register_kernel("aten::cat", Rule())
    for _ in range(3):
        both(lambda d: torch.cat([torch.ones(2).to(d), torch.arange(3.0).to(d)]))
    assert len(numpy_executor.compiled) == 1
    both(lambda d: torch.cat([torch.ones(2).to(d), torch.arange(4.0).to(d)]))
    assert len(numpy_executor.compiled) == 2


def test_a_kernel_that_returns_new_tensors(numpy_executor, monkeypatch, kernel):
    from neuron_eager.nki.dtypes import float32
    from neuron_eager.nki.program import TensorSpec
    shape = [3]
    compile_plain = type(numpy_executor).compile

    def compile_returning(self, k, specs, constants):
        fresh = TensorSpec.contiguous(shape, float32)
        executable = compile_plain(self, k, {**specs, "out": fresh}, constants)
        executable.outputs, executable.results = (fresh,), (len(specs),)
        return executable
    monkeypatch.setattr(type(numpy_executor), "compile", compile_returning)

    def double(x, out=None):
        np.copyto(out, x * 2)
    made = kernel(double)
    neuron_eager.register_kernel("aten::relu", made)
    x = torch.arange(3.0).to("neuron")
    for _ in range(3):
        assert x.relu().tolist() == [0, 2, 4]
    shape[:] = [2]
    neuron_eager.register_kernel("aten::relu", kernel(double))
    with pytest.raises(KernelResultError, match=r"float32\[2\].*float32\[3\]"):
        x.relu()


# ---- what is refused, and how

@pytest.mark.parametrize("run, message", [
    (lambda x: x + torch.ones(4).to("neuron"), "must match the size of tensor b"),
    (lambda x: torch.ones(3, dtype=torch.int64).to("neuron").add_(1.5), "can't be cast to the desired output type"),
    (lambda x: x.add_(torch.ones(2, 3).to("neuron")), "doesn't match the broadcast shape"),
    (lambda x: torch.add(x, 1.5, out=torch.empty(3, dtype=torch.int64, device="neuron")), "can't be cast"),
    (lambda x: x[1:].add_(x[:-1]), "refer to a single memory location"),
    (lambda x: x[:1].expand(3).add_(1), "single memory location"),
    (lambda x: x + torch.ones(3), "Expected all tensors to be on the same device"),
    (lambda x: torch.ones(3).add_(x), "Expected all tensors to be on the same device")],
    ids=["shapes", "in_place_dtype", "in_place_shape", "out_dtype", "overlap", "expanded", "mix", "mix_in_place"])
def test_pytorch_errors_are_kept(run, message, add):
    x = torch.ones(3).to("neuron")
    for _ in range(2):
        _ = x + x, x.add_(0.0), x[1:].add_(x[1:])               # warm plans that must not take the bad calls
        with pytest.raises(RuntimeError, match=message):
            run(x)


def test_an_error_in_a_rule_is_an_error(numpy_executor):
    class Rule:
        def lower(self, call):
            raise ValueError("the rule's own mistake")
    neuron_eager.register_kernel("aten::relu", Rule())
    with pytest.raises(ValueError, match="own mistake"):
        torch.ones(3).to("neuron").relu()


def test_a_type_error_in_a_kernel_survives_python_operators(numpy_executor, monkeypatch, kernel):
    def compile(k, specs, constants):
        raise TypeError("tiles of two dtypes")
    monkeypatch.setattr(numpy_executor, "compile", compile)
    neuron_eager.register_kernel("aten::add.Tensor", Add(kernel))
    x = torch.ones(3).to("neuron")
    with pytest.raises(KernelTypeError, match=r"aten::add.Tensor\(self=float32\[3\].*: tiles of two dtypes"):
        _ = x + x


def test_a_kernel_may_not_read_what_it_writes_unless_it_says_so(numpy_executor, kernel):
    def neg(out, x):
        np.copyto(out, -x)

    class Rule:
        def lower(self, call):
            return KernelCall(kernel(neg), {"x": call["self"]}, call.outputs)
    neuron_eager.register_kernel("aten::neg_", Rule())
    x = torch.ones(3).to("neuron")
    assert x.neg_().tolist() == [-1, -1, -1]
    assert "aten::neg_" in neuron_eager.get_fallback_ops()


# ---- settings that decide

def test_forced_ops_take_the_cpu(add):
    x = torch.ones(3).to("neuron")
    for name in ("aten.add.Tensor", "aten::add.Tensor", "aten.add", "add"):
        neuron_eager.clear_op_tracking()
        with config.override(force_cpu=frozenset({name})):
            assert (x + x).tolist() == [2, 2, 2]
        assert neuron_eager.get_fallback_ops() == ["aten::add.Tensor"]
        row = next(r for r in neuron_eager.op_report() if r.op == "aten::add.Tensor")
        assert row.reason.startswith("forced")
        _ = x + x
        assert neuron_eager.get_executed_ops() == ["aten::add.Tensor"]


def test_float64_policies(add, caplog):
    x = torch.ones(3, dtype=torch.float64).to("neuron")
    for _ in range(3):
        y = x + x
    assert y.dtype is torch.float64 and "aten::add.Tensor" in neuron_eager.get_executed_ops()
    said = [r for r in caplog.records if "float64" in r.getMessage()]
    assert len(said) == 1
    with config.override(float64="cpu"):
        _ = x + x
        assert next(r for r in neuron_eager.op_report() if r.route == "fallback").reason.startswith("dtype policy")
    with config.override(float64="error"), pytest.raises(Float64Error, match="aten::add.Tensor got a float64 tensor"):
        _ = x + x


def test_the_default_dtype_is_followed(numpy_executor, kernel, both):
    def div(out, x, y):
        np.copyto(out, x / y)

    class Rule:
        def lower(self, call):
            return KernelCall(kernel(div), {"x": call["self"], "y": call["other"]}, call.outputs)
    neuron_eager.register_kernel("aten::div.Tensor", Rule())
    for dtype in (torch.float32, torch.float64, torch.float32):
        torch.set_default_dtype(dtype)
        try:
            assert both(lambda d: torch.arange(1, 4).to(d) / torch.arange(2, 5).to(d)).dtype is dtype
        finally:
            torch.set_default_dtype(torch.float32)


def test_plans_keep_no_tensor_alive(add):
    x = torch.ones(1000).to("neuron")
    died = weakref.ref(x.untyped_storage())
    _ = x + x, x + 1.0, x.add_(x)
    del x, _
    gc.collect()
    assert died() is None


# ---- helpers for rules

@given(st.data())
@settings(max_examples=200, deadline=None)
def test_reshaped_says_what_view_does(data):
    base = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
    x = torch.empty(base)
    if data.draw(st.booleans()) and x.dim() > 1:
        x = x.transpose(0, -1)
    if data.draw(st.booleans()):
        x = x[::2]
    if data.draw(st.booleans()):
        x = x.unsqueeze(0).expand(2, *x.shape)
    factors, rest = [], x.numel()
    while rest > 1 and len(factors) < 4:
        f = data.draw(st.sampled_from([k for k in range(1, rest + 1) if rest % k == 0]))
        factors.append(f)
        rest //= f
    new = [*factors, rest]
    try:
        expected = x.view(new)
    except RuntimeError:
        expected = None
    found = plan.reshaped(x.shape, x.stride(), new)
    if expected is None:
        assert found is None
    else:
        assert found is not None
        used = [(a, b) for n, a, b in zip(new, found, expected.stride()) if n > 1]
        assert all(a == b for a, b in used)


@given(st.lists(st.one_of(
    st.tuples(st.sampled_from([torch.float32, torch.float64, torch.int64, torch.int32, torch.bool, torch.bfloat16,
                               torch.uint8, torch.complex64]), st.sampled_from([(), (2,)])),
    st.sampled_from([1, 1.0, True, 1j])), min_size=2, max_size=2))
@settings(max_examples=300, deadline=None)
def test_result_type_is_pytorch_s(values):
    made = [torch.ones(v[1], dtype=v[0]) if isinstance(v, tuple) else v for v in values]
    assert plan.result_type(made) is torch.result_type(*made)
