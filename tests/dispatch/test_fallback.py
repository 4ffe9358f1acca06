"""The CPU fallback: every kind of argument and result gives what the CPU gives, bit for bit."""
import pytest
import torch
import torch.nn.functional as F

import neuron_eager
from neuron_eager.dispatch import fallback
from neuron_eager.dispatch.schema import by_name
from neuron_eager.errors import NoKernelError, UnsupportedLayoutError, ViewFallbackError

pytestmark = pytest.mark.usefixtures("without_kernels")
aten = torch.ops.aten

CASES = {
    "binary": lambda d: torch.randn(3, 4).to(d) + torch.randn(3, 4).to(d),
    "number on the right": lambda d: torch.randn(3).to(d) * 2.5,
    "number on the left": lambda d: 2 ** torch.randn(3).to(d),
    "number in a tensor's place": lambda d: torch.randn(3).to(d).remainder(0.7),
    "integer number": lambda d: torch.arange(4).to(d) + 2,
    "alpha": lambda d: torch.add(torch.ones(3).to(d), torch.ones(3).to(d), alpha=3),
    "optional tensor": lambda d: F.linear(torch.randn(2, 3).to(d), torch.randn(4, 3).to(d)),
    "list of tensors": lambda d: torch.cat([torch.randn(2, 3).to(d), torch.randn(1, 3).to(d)]),
    "list of optional tensors": lambda d: torch.randn(4, 5).to(d)[:, torch.tensor([0, 2]).to(d)],
    "indices on the CPU": lambda d: torch.randn(4, 5).to(d)[torch.tensor([0, 2])],
    "several results": lambda d: torch.randn(3, 4).to(d).max(1),
    "list result": lambda d: torch._foreach_mul([torch.randn(2).to(d), torch.randn(3).to(d)], 2.0),
    "in place": lambda d: torch.randn(3).to(d).mul_(3),
    "in place with itself": lambda d: (lambda x: x.add_(x))(torch.randn(3).to(d)),
    "in place on a slice": lambda d: (lambda x: (x[1:].mul_(2), x))(torch.randn(3, 4).to(d)),
    "index_put_": lambda d: torch.zeros(4).to(d).index_put_((torch.tensor([1, 2]),), torch.tensor(5.0)),
    "strided argument": lambda d: torch.randn(3, 4).to(d).t() * 2,
    "broadcast argument": lambda d: torch.randn(3, 1).to(d).expand(3, 4) + torch.randn(4).to(d),
    "channels last": lambda d: F.relu(torch.randn(2, 3, 4, 4).to(d).to(memory_format=torch.channels_last)),
    "0-dim on the CPU": lambda d: torch.randn(3).to(d) + torch.tensor(2.0),
    "0-dim both": lambda d: torch.tensor(1.0).to(d) + torch.tensor(2.0),
    "complex": lambda d: torch.view_as_complex(torch.randn(3, 2).to(d)).conj() * 2,
    "conjugated matmul": lambda d: (lambda x: x.mH @ x)(torch.view_as_complex(torch.randn(3, 3, 2).to(d))),
    "negated view": lambda d: torch.view_as_complex(torch.randn(3, 2).to(d)).conj().imag + 1,
    "empty": lambda d: torch.empty(0, 3).to(d).sum(0),
    "bool result": lambda d: torch.randn(3).to(d) > 0,
    "reduction to a number": lambda d: torch.randn(3).to(d).sum().item(),
    "random": lambda d: torch.nn.functional.dropout(torch.ones(50).to(d), 0.5),
    "factory": lambda d: torch.arange(5, device=d) + torch.eye(5, device=d),
    "triangle indices": lambda d: torch.tril_indices(3, 3, device=d),
    "float64": lambda d: torch.randn(3, dtype=torch.float64).to(d).exp(),
    "bfloat16": lambda d: torch.randn(3).bfloat16().to(d) @ torch.randn(3, 2).bfloat16().to(d),
    "sort": lambda d: torch.randn(5, 5).to(d).sort(stable=True),
    "solve": lambda d: torch.linalg.solve(torch.randn(3, 3).to(d), torch.randn(3).to(d)),
    "fft": lambda d: torch.fft.rfft(torch.randn(8).to(d)),
}


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.replace(" ", "_"))
def test_equal_to_cpu(case, both):
    both(lambda d: _seeded(CASES[case], d))


def _seeded(case, d):
    if d == "neuron":
        torch.neuron.manual_seed(0)
    return case(d)


def test_the_generator_argument_is_used():
    g = [torch.Generator().manual_seed(7) for _ in range(2)]
    a = torch.empty(5).uniform_(generator=g[0])
    assert torch.equal(torch.empty(5, device="neuron").uniform_(generator=g[1]).cpu(), a)


# ---- in place and out=

def test_in_place_returns_its_argument_and_bumps_its_version():
    x = torch.ones(3, device="neuron")
    version = x._version
    assert x.add_(1) is x and x._version == version + 1


def test_out_is_returned_and_keeps_its_storage(both):
    x, o = torch.ones(3, device="neuron"), torch.zeros(3, device="neuron")
    pointer = o.data_ptr()
    assert torch.add(x, x, out=o) is o
    assert o.tolist() == [2, 2, 2] and o.data_ptr() == pointer


@pytest.mark.parametrize("shape", [(0,), (2, 2), (10,), (3, 4)])
@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
def test_out_is_resized_as_on_cpu(shape, both):
    def run(d):
        o = torch.zeros(shape, device=d)
        torch.add(torch.ones(3, 4).to(d), torch.arange(4.0).to(d), out=o)
        return o
    both(run)


def test_resizing_an_out_with_elements_warns_as_pytorch_does():
    o = torch.zeros(2, device="neuron")
    with pytest.warns(UserWarning, match="was resized"):
        torch.add(torch.ones(3, device="neuron"), 1, out=o)


def test_several_outs_are_resized(both):
    def run(d):
        values, indices = torch.empty(0, device=d), torch.empty(0, dtype=torch.int64, device=d)
        torch.max(torch.arange(6.0).view(2, 3).to(d), 1, out=(values, indices))
        return values, indices
    both(run)


def test_a_strided_out_is_written_in_place(both):
    def run(d):
        base = torch.zeros(4, 6, device=d)
        torch.mul(torch.ones(4, 3).to(d), 2, out=base[:, ::2])
        return base
    both(run)


def test_out_of_another_dtype(both):
    both(lambda d: torch.add(torch.ones(3).to(d), 1, out=torch.empty(3, dtype=torch.float64, device=d)))
    with pytest.raises(RuntimeError, match="can't be cast to the desired output type Long"):
        torch.add(torch.ones(3, device="neuron"), 1.5, out=torch.empty(3, dtype=torch.int64, device="neuron"))


@pytest.mark.parametrize("run", [
    lambda x: x[1:].add_(x[:-1]), lambda x: torch.mul(x[1:], 2, out=x[:-1]), lambda x: x.expand(2, 8).add_(1)])
def test_overlaps_that_pytorch_refuses_are_refused(run):
    messages = []
    for d in ("cpu", "neuron"):
        with pytest.raises(RuntimeError, match="unsupported operation") as caught:
            run(torch.arange(8.0, device=d))
        messages.append(str(caught.value))
    assert messages[0] == messages[1]


def test_operands_on_one_storage_that_do_not_overlap(both):
    def run(d):
        x = torch.arange(8.0).to(d)
        x[:4].add_(x[4:])
        torch.mul(x[4:], 3, out=x[:4])
        return x
    both(run)


# ---- mixes of devices

@pytest.mark.parametrize("run, argument", [
    (lambda x, c: x + c, "other"), (lambda x, c: c + x, "self"), (lambda x, c: torch.mm(x, c), "mat2"),
    (lambda x, c: torch.cat([x, c]), "tensors"), (lambda x, c: x.add_(c), "other"),
    (lambda x, c: torch.add(x, x, out=c), "out"), (lambda x, c: c.sum().add_(x.sum()), "self"),
    (lambda x, c: torch.where(x > 0, x, c), "other"), (lambda x, c: torch.addmm(c, x, x), "self")])
def test_a_mix_that_pytorch_refuses_is_refused_with_its_message(run, argument):
    x, c = torch.ones(2, 2, device="neuron"), torch.ones(2, 2)
    message = ("Expected all tensors to be on the same device, but found at least two devices, neuron:0 and cpu! "
               rf"\(when checking argument for argument {argument} in")
    with pytest.raises(RuntimeError, match=message):
        run(x, c)
    assert c.tolist() == [[1, 1], [1, 1]]


# ---- custom ops

@torch.library.custom_op("dispatch_test::scale_", mutates_args=("x",), device_types="cpu")
def scale_(x: torch.Tensor, by: float) -> None:
    x.mul_(by)


@torch.library.custom_op("dispatch_test::twice", mutates_args=())
def twice(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@torch.library.custom_op("dispatch_test::fill_all", mutates_args=("xs",), device_types="cpu")
def fill_all(xs: list[torch.Tensor], value: float) -> None:
    for x in xs:
        x.fill_(value)


def test_a_mutating_custom_op_updates_the_neuron_tensor():
    x = torch.ones(4, device="neuron")
    scale_(x[1:3], 5.0)
    assert x.tolist() == [1, 5, 5, 1]
    assert "dispatch_test::scale_" in neuron_eager.get_fallback_ops()


def test_a_mutated_list_of_tensors():
    xs = [torch.ones(2, device="neuron"), torch.ones(3, device="neuron")]
    fill_all(xs, 3.0)
    assert [x.tolist() for x in xs] == [[3, 3], [3, 3, 3]]


def test_a_custom_op_for_every_device():
    assert twice(torch.ones(2, device="neuron")).tolist() == [2, 2]


def test_ops_without_any_kernel():
    library = torch.library.Library("dispatch_test_bare", "DEF")
    library.define("nothing(Tensor x) -> Tensor")
    with pytest.raises(NoKernelError, match="dispatch_test_bare::nothing has no neuron kernel"):
        torch.ops.dispatch_test_bare.nothing(torch.ones(2, device="neuron"))
    library._destroy()


def test_a_view_is_never_made_by_the_fallback():
    library = torch.library.Library("dispatch_test_view", "DEF")
    library.define("rows(Tensor(a) x) -> Tensor(a)")
    library.impl("rows", lambda x: x[1:], "CPU")
    with pytest.raises(ViewFallbackError, match="dispatch_test_view::rows returns a view"):
        torch.ops.dispatch_test_view.rows(torch.ones(2, device="neuron"))
    library._destroy()


# ---- layouts the device does not have

@pytest.mark.parametrize("make", [
    lambda: torch.eye(3).to_sparse().to("neuron"), lambda: torch.eye(3, device="neuron").to_sparse(),
    lambda: torch.eye(3, device="neuron").to_sparse_csr(),
    lambda: torch.sparse_coo_tensor(torch.zeros(1, 1, dtype=torch.int64, device="neuron"),
                                    torch.ones(1, device="neuron"), (3,)),
    lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]).to("neuron").unbind(),
    lambda: torch.quantize_per_tensor(torch.ones(3, device="neuron"), 0.1, 0, torch.qint8)],
    ids=["coo_copied", "coo_made", "csr_made", "coo_from_parts", "nested", "quantized"])
@pytest.mark.filterwarnings("ignore")
def test_other_layouts_are_one_clear_error(make):
    with pytest.raises(UnsupportedLayoutError, match="dense, strided tensors only"):
        make()


# ---- generated code

def test_the_generated_source_can_be_read():
    assert fallback.source(aten.mm.default) == '''\
def run(self, mat2):
    try:
        h_self = host(self)
        h_mat2 = host(mat2)
    except OnHost:
        raise refusal(name, (('self', self), ('mat2', mat2), )) from None
    result = call(h_self, h_mat2)
    return neuron(result)
'''


def test_errors_show_the_generated_source():
    import traceback
    try:
        torch.ones(2, 3, device="neuron") @ torch.ones(2, 3, device="neuron")
    except RuntimeError as error:
        assert "result = call(h_self, h_mat2)" in "".join(traceback.format_exception(error))
    else:
        pytest.fail("no error")


@pytest.mark.parametrize("name", ["add.Tensor", "mul.Tensor", "mm", "tanh", "eq.Scalar", "pow.Tensor_Scalar", "gelu",
                                  "sum.dim_IntList", "mean.dim", "where.self", "cat", "clamp", "_softmax", "relu_",
                                  "add_.Tensor", "native_layer_norm", "addmm", "masked_fill_.Scalar", "fill_.Scalar"])
def test_the_cheap_callable_runs_exactly_this_overload(name):
    """The fallback calls torch.add and the like instead of the overload, where that is the same op."""
    from torch.utils._python_dispatch import TorchDispatchMode
    op = by_name(f"aten::{name}")
    seen = []

    class Record(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen.append(func)
            return func(*args, **(kwargs or {}))
    x = torch.rand(3, 3)
    arguments = {"mm": (x, x), "add.Tensor": (x, x), "mul.Tensor": (x, x), "eq.Scalar": (x, 1.0),
                 "pow.Tensor_Scalar": (x, 2.0), "sum.dim_IntList": (x, [0], False), "mean.dim": (x, [0], False),
                 "where.self": (x > 0, x, x), "cat": ([x, x], 0), "clamp": (x, 0.0, None), "_softmax": (x, 0, False),
                 "add_.Tensor": (x, x), "native_layer_norm": (x, [3], None, None, 1e-5), "addmm": (x, x, x),
                 "masked_fill_.Scalar": (x, x > 2, 0.0), "fill_.Scalar": (x, 1.0)}.get(name, (x,))
    with Record():
        fallback.target(op)(*arguments)
    assert seen[0] is op
