"""nki.jit: what goes in, what comes out, nested kernels, two cores, simulate."""
from __future__ import annotations

import dataclasses
import enum

import ml_dtypes
import numpy as np
import pytest
import torch

from neuron_eager import config, nki
from neuron_eager.errors import NkiError, NkiRecursionError, NkiTypeError, NkiUninitializedError
from neuron_eager.nki import isa as nisa
from neuron_eager.nki import language as nl
from neuron_eager.nki.interpreter import Interpreter
from neuron_eager.nki.jit import trace
from neuron_eager.nki.program import TensorSpec


@pytest.fixture(autouse=True)
def interpreter():
    with config.override(executor="interpreter"):
        yield


@nki.jit
def double(x):
    """Twice x."""
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    t = nl.load(x)
    nisa.tensor_scalar(dst=t, data=t, op0=nl.multiply, operand0=2.0)
    nl.store(out, t)
    return out


@nki.jit
def add_into(x, y):
    t = nl.load(x)
    nisa.tensor_tensor(dst=t, data1=t, data2=nl.load(y), op=nl.add)
    nisa.dma_copy(dst=x, src=t)
    return x


def test_numpy_in_numpy_out():
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    y = double(x)
    assert type(y) is np.ndarray and np.array_equal(y, 2 * x)
    low = double(x.astype(ml_dtypes.bfloat16))
    assert low.dtype == ml_dtypes.bfloat16


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.int32, torch.int8])
def test_torch_in_torch_out(dtype):
    x = torch.arange(12).reshape(3, 4).to(dtype)
    y = double(x)
    assert type(y) is torch.Tensor and y.dtype == dtype and torch.equal(y, 2 * x)


def test_strided_arguments():
    x = np.arange(48, dtype=np.float32).reshape(6, 8)
    for view in (x.T, x[::-1], x[:, ::2], x[::-1, ::-3], np.broadcast_to(x[:1], (5, 8))):
        assert np.array_equal(double(view), 2 * view)
    t = torch.from_numpy(x)
    for view in (t.T, t[1:, 2:], t[:, 3:4].expand(6, 5)):
        assert torch.equal(double(view), 2 * view)


def test_mutable_arguments_are_written_in_place_and_returned():
    for make in (np.array, torch.tensor):
        x, y = make([[1.0, 2.0]]), make([[3.0, 4.0]])
        before = x
        assert add_into(x, y) is before
        assert x.tolist() == [[4.0, 6.0]] and y.tolist() == [[3.0, 4.0]]


def test_constants_and_defaults():
    class Mode(enum.Enum):
        plain = 0
        scaled = 1

    @nki.jit
    def kernel(x, factor=3.0, mode=Mode.plain, ops=(nl.add,), name=None):
        assert name is None or isinstance(name, str)
        out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
        t = nl.load(x)
        if mode == Mode.scaled:
            nisa.tensor_scalar(dst=t, data=t, op0=nl.multiply, operand0=factor)
        for op in ops:
            nisa.tensor_scalar(dst=t, data=t, op0=op, operand0=1.0)
        nl.store(out, t)
        return out

    x = np.ones((2, 3), np.float32)
    assert kernel(x)[0, 0] == 2
    assert kernel(x, 5.0, mode=Mode.scaled, ops=[nl.add, nl.subtract], name="n")[0, 0] == 5


def test_lists_and_tuples_of_tensors():
    @nki.jit
    def kernel(xs):
        assert isinstance(xs, tuple)
        outs = []
        for x in xs:
            outs.append(nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm))
            nisa.dma_copy(dst=outs[-1], src=x)
        return tuple(outs)

    xs = [np.ones((2, 3), np.float32), np.zeros((4, 5), np.int32)]
    got = kernel(xs)
    assert isinstance(got, tuple) and all(np.array_equal(a, b) for a, b in zip(got, xs))


def test_a_kernel_may_return_nothing():
    @nki.jit
    def kernel(x):
        t = nl.load(x)
        nisa.tensor_scalar(dst=t, data=t, op0=nl.add, operand0=1.0)
        nl.store(x, t)

    x = np.zeros((2, 2), np.float32)
    assert kernel(x) is None and (x == 1).all()


def test_decorator_forms():
    def plain(x):
        return double.func(x)

    x = np.ones((2, 2), np.float32)
    for kernel in (nki.jit(plain), nki.jit()(plain), nki.jit(mode="trace")(plain)):
        assert isinstance(kernel, nki.Kernel) and kernel.func is plain and kernel.name == "plain"
        assert (kernel(x) == 2).all()
    assert double.__doc__ == "Twice x." and double.__name__ == "double"
    with pytest.raises(NkiTypeError, match="NEURON_PLATFORM_TARGET_OVERRIDE"):
        nki.jit(platform_target="trn2")(plain)
    assert double.with_schedule([("a", "b")]).schedule == (("a", "b"),)


def test_kernels_called_by_kernels_are_inlined():
    @nki.jit
    def outer(x):
        assert double.func is not None
        return double(double(x))

    x = np.ones((3, 3), np.float32)
    assert (outer(x) == 4).all()
    program = trace(outer, [TensorSpec.contiguous((3, 3), "float32")])
    assert [i.op for i in program.instrs] == ["dma_copy", "tensor_scalar", "dma_copy"] * 2


# ---- bad calls

def refused(kernel, *args, error=NkiError, match="", **kwargs):
    with pytest.raises(error, match=match) as caught:
        kernel(*args, **kwargs)
    assert __file__ in str(caught.value), str(caught.value)
    return caught.value


def test_wrong_argument_count():
    x = np.ones((2, 2), np.float32)
    refused(double, x, x, error=NkiTypeError, match=r"kernel double\(x\): too many positional arguments")
    refused(double, error=NkiTypeError, match="missing a required argument: 'x'")
    refused(double, x, y=x, error=NkiTypeError, match="unexpected keyword argument 'y'")


def test_returning_sbuf():
    @nki.jit
    def kernel(x):
        return nl.load(x)

    x = np.ones((2, 2), np.float32)
    refused(kernel, x, error=NkiTypeError, match="returns tensor 1 .*which is on chip; copy it to")

    @nki.jit
    def other(x):
        return 3

    refused(other, x, error=NkiTypeError, match="returns int; a kernel returns tensors in nl.shared_hbm")

    @nki.jit
    def private(x):
        return nl.zeros((2, 2), nl.float32, buffer=nl.private_hbm)

    refused(private, x, error=NkiTypeError, match="allocate outputs in nl.shared_hbm")


def test_output_never_written():
    @nki.jit
    def kernel(x, rows):
        out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm, name="out")
        if rows:
            nl.store(out[0:rows], nl.load(x)[0:rows])
        return out

    x = np.ones((4, 5), np.float32)
    refused(kernel, x, 0, error=NkiUninitializedError, match="output out .*: 20 of 20 elements were never written, the "
                                                             r"first at index \[0, 0\]")
    refused(kernel, x, 3, error=NkiUninitializedError, match=r"5 of 20 elements .* first at index \[3, 0\]")
    assert (kernel(x, 4) == 1).all()
    spec = [TensorSpec.contiguous((4, 5), "float32")]
    for rows, missing in ((0, 20), (3, 5)):
        with pytest.raises(NkiUninitializedError, match=f"{missing} of 20 elements"):
            trace(kernel, spec, {"rows": rows})


def test_endless_recursion():
    @nki.jit
    def kernel(x):
        return kernel(x)

    def helper(x, n):
        return helper(x, n + 1)

    @nki.jit
    def plain(x):
        return helper(x, 0)

    x = np.ones((4, 5), np.float32)
    refused(kernel, x, error=NkiRecursionError, match="kernel kernel calls kernels 200 deep")
    refused(plain, x, error=NkiRecursionError, match="kernel plain recurses without end")


def test_errors_of_python_name_the_kernel_and_its_arguments():
    @nki.jit
    def kernel(x, n):
        assert x.shape[0] == n, "rows differ"

    with pytest.raises(AssertionError, match="rows differ") as caught:
        kernel(np.ones((4, 5), np.float32), 3)
    assert "in kernel kernel(x=float32[4, 5], n=3) on trn3" in caught.value.__notes__


def test_mixed_devices_are_refused():
    with pytest.raises(NkiTypeError, match="got arrays on cpu, numpy"):
        add_into(np.ones((2, 2), np.float32), torch.ones(2, 2))


def test_meta_tensors_give_shapes_by_tracing():
    y = double(torch.ones(2, 3, device="meta", dtype=torch.bfloat16))
    assert y.is_meta and y.shape == (2, 3) and y.dtype == torch.bfloat16
    x = torch.ones(2, 3, device="meta")
    assert add_into(x, x) is x


def test_gradients_are_not_lost_silently():
    @nki.jit
    def kernel(x):
        return double(x)

    x = torch.ones(2, 2, requires_grad=True)
    with torch.no_grad():
        kernel(x)
    with pytest.warns(UserWarning, match="kernel kernel got a tensor that requires a gradient"):
        kernel(x)


def test_names_of_old_versions_say_what_to_use():
    with pytest.raises(AttributeError, match="nki.benchmark ended with NKI 0.1; time the call"):
        nki.benchmark


def test_outside_a_kernel():
    with pytest.raises(NkiError, match="only inside a kernel"):
        nl.ndarray((2, 2), nl.float32)


# ---- simulate, environment

def test_simulate():
    x = np.ones((2, 2), np.float32)
    with config.override(executor="native"):
        assert (nki.simulate(double)(x) == 2).all()
        assert (nki.simulate(double.func)(torch.ones(2, 2)) == 2).all()
    from neuron_eager.nki.simulator import simulate_kernel
    assert (simulate_kernel(double.func, (x,)) == 2).all()


def test_simulator_variable(monkeypatch):
    from neuron_eager.nki.launch import runs_in_interpreter
    with config.override(executor="native"):
        monkeypatch.setenv("NKI_SIMULATOR", "1")
        assert runs_in_interpreter(double)
        monkeypatch.setenv("NKI_SIMULATOR", "0")


def test_target_variable(monkeypatch):
    @nki.jit
    def kernel(x, version):
        assert nisa.get_nc_version() == nisa.nc_version[version]
        return double(x)

    x = np.ones((2, 2), np.float32)
    for name, version in (("trn1", "gen2"), ("gen3", "gen3"), ("trn3", "gen4")):
        monkeypatch.setenv("NEURON_PLATFORM_TARGET_OVERRIDE", name)
        kernel(x, version)


def test_precise_fp_off_keeps_low_precision_in_float32(monkeypatch):
    @nki.jit
    def kernel(x):
        out = nl.ndarray(x.shape, nl.float32, buffer=nl.shared_hbm)
        t = nl.ndarray(x.shape, nl.bfloat16)
        nisa.tensor_scalar(dst=t, data=nl.load(x), op0=nl.add, operand0=2.0 ** -12)
        nisa.dma_copy(dst=out, src=t)
        return out

    x = np.ones((2, 2), np.float32)
    assert (kernel(x) == 1).all()
    monkeypatch.setenv("NKI_PRECISE_FP", "0")
    assert (kernel(x) == 1 + 2.0 ** -12).all()


# ---- two cores

def test_two_cores_share_outputs_and_exchange_tiles():
    @nki.jit
    def kernel(x):
        core, cores = nl.program_id(0), nl.num_programs()
        assert cores == 2 and nl.program_ndim() == 1
        out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
        rows = x.shape[0] // cores
        mine = nl.load(x[core * rows:(core + 1) * rows])
        theirs = nl.ndarray(mine.shape, mine.dtype)
        nisa.sendrecv(src=mine, dst=theirs, send_to_rank=1 - core, recv_from_rank=1 - core, pipe_id=0)
        nl.store(out[core * rows:(core + 1) * rows], theirs)
        nisa.core_barrier(out, (0, 1))
        total = nl.load(out[(1 - core) * rows:(2 - core) * rows])
        nisa.tensor_scalar(dst=total, data=total, op0=nl.add, operand0=float(core))
        nisa.core_barrier(out, (0, 1))
        nl.store(out[(1 - core) * rows:(2 - core) * rows], total)
        return out

    x = np.arange(24, dtype=np.float32).reshape(4, 6)
    want = np.concatenate([x[2:] + 1, x[:2]])
    assert np.array_equal(kernel[2](x), want)
    assert np.array_equal(nki.simulate(kernel[2])(x), want)


def test_two_cores_report_faults():
    @nki.jit
    def unbalanced(x):
        out = nl.zeros(x.shape, x.dtype, buffer=nl.shared_hbm)
        if nl.program_id(0) == 0:
            nisa.core_barrier(out, (0, 1))
        return out

    x = np.ones((2, 2), np.float32)
    with pytest.raises(NkiError, match="core 0 waits in core_barrier, but core 1 has ended without it"):
        unbalanced[2](x)

    @nki.jit
    def failing(x):
        if nl.program_id(0) == 1:
            raise ValueError("core 1 is broken")
        nisa.core_barrier(x, (0, 1))
        return x

    with pytest.raises(ValueError, match="core 1 is broken"):
        failing[2](x)

    @nki.jit
    def diverging(x):
        return nl.zeros((2 + nl.program_id(0), 2), x.dtype, buffer=nl.shared_hbm)

    with pytest.raises(NkiError, match="the cores allocate different shared_hbm tensors"):
        diverging[2](x)
    with pytest.raises(NkiTypeError, match="runs on 1 or 2 cores"):
        unbalanced[4]


# ---- configuration objects

def test_nki_objects_have_every_class_attribute_as_a_field():
    class Plain(nl.NKIObject):
        rows: int
        columns: int = 4
        scale = 2.0

        def size(self):
            return self.rows * self.columns

    @dataclasses.dataclass
    class Decorated(nl.NKIObject):
        rows: int = 1
        names: list = dataclasses.field(default_factory=list)
        section = None

        def __post_init__(self):
            self.total = self.rows + 1

    p = Plain(rows=3)
    assert (p.rows, p.columns, p.scale, p.size()) == (3, 4, 2.0, 12) and Plain().rows is None
    d = Decorated(2, section="s")
    assert (d.rows, d.names, d.section, d.total) == (2, [], "s", 3) and Decorated().names is not d.names
    with pytest.raises(TypeError, match="an unknown field 'colums'"):
        Plain(colums=1)

    class Own(nl.NKIObject):
        def __init__(self, a):
            self.b = a

    assert Own(5).b == 5


# ---- loops and registers

def test_loops_with_run_time_bounds():
    @nki.jit
    def kernel(x, count):
        out = nl.zeros(x.shape, x.dtype, buffer=nl.shared_hbm)
        bound = nisa.register_alloc()
        nisa.register_load(bound, nl.load(count))
        t = nl.ndarray((1, x.shape[1]), x.dtype)

        def body(i):
            nisa.dma_copy(dst=t, src=x.ap([[x.shape[1], 1], [1, x.shape[1]]], scalar_offset=i))
            nisa.dma_copy(dst=out[nl.ds(i, 1)], src=t)

        nl.fori_loop(0, bound, body)
        return out

    x = np.arange(40, dtype=np.float32).reshape(8, 5)
    for n in (0, 3, 8):
        want = np.where(np.arange(8)[:, None] < n, x, 0)
        count = np.array([[n]], np.int32)
        assert np.array_equal(kernel(x, count), want)
        specs = [TensorSpec.contiguous(x.shape, x.dtype), TensorSpec.contiguous((1, 1), "int32")]
        program = trace(kernel, specs)
        assert not program.liftable and "fori_loop" in program.why
        assert np.array_equal(Interpreter.replay(program, [x, count])[0], want)


def test_loops_with_known_bounds_are_unrolled():
    @nki.jit
    def kernel(x):
        out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)

        def body(i):
            nl.store(out[i], nl.load(x[nl.ds(i, 1)]))

        stop = nisa.register_alloc(x.shape[0])
        nl.fori_loop(0, stop, body)
        return out

    x = np.arange(40, dtype=np.float32).reshape(8, 5)
    assert np.array_equal(kernel(x), x)
    program = trace(kernel, [TensorSpec.contiguous(x.shape, x.dtype)])
    assert program.liftable and not any(t.dynamic for i in program.instrs for t in i.tensors(i.reads + i.writes))
    assert np.array_equal(Interpreter.replay(program, [x])[0], x)


def test_while_loop_and_dynamic_range():
    @nki.jit
    def countdown(start):
        total = nl.zeros((1, 1), nl.float32)
        left = nl.load(start)
        register = nisa.register_alloc()
        nisa.register_load(register, left)

        def body(r):
            nisa.tensor_scalar(dst=total, data=total, op0=nl.add, operand0=1.0)
            nisa.tensor_scalar(dst=left, data=left, op0=nl.subtract, operand0=1)
            nisa.register_load(r, left)
            return r

        nl.while_loop(register, body)
        out = nl.ndarray((1, 1), nl.float32, buffer=nl.shared_hbm)
        nl.store(out, total)
        return out

    @nki.jit
    def ranged(x, count):
        total = nl.zeros((1, x.shape[1]), nl.float32)
        bound = nisa.register_alloc()
        nisa.register_load(bound, nl.load(count))
        for i in nl.dynamic_range(bound):
            nisa.tensor_tensor(dst=total, data1=total, data2=nl.load(x[nl.ds(i, 1)]), op=nl.add)
        out = nl.ndarray((1, x.shape[1]), nl.float32, buffer=nl.shared_hbm)
        nl.store(out, total)
        return out

    for n in (0, 4):
        start = np.array([[n]], np.int32)
        assert countdown(start)[0, 0] == n
        program = trace(countdown, [TensorSpec.contiguous((1, 1), "int32")])
        assert Interpreter.replay(program, [start])[0][0, 0] == n
        x = np.arange(40, dtype=np.float32).reshape(8, 5)
        assert np.array_equal(ranged(x, start)[0], x[:n].sum(0))
        program = trace(ranged, [TensorSpec.contiguous((8, 5), "float32"), TensorSpec.contiguous((1, 1), "int32")])
        assert np.array_equal(Interpreter.replay(program, [x, start])[0][0], x[:n].sum(0))


def test_first_matmul_of_a_loop_with_run_time_bounds():
    @nki.jit
    def kernel(x, count):
        t = nl.load(x)
        bound = nisa.register_alloc()
        nisa.register_load(bound, nl.load(count))
        outside = nl.ndarray((4, 4), nl.float32, buffer=nl.psum)

        def body(i):
            inside = nl.ndarray((4, 4), nl.float32, buffer=nl.psum)
            nisa.nc_matmul(dst=inside, stationary=t, moving=t)
            nisa.nc_matmul(dst=outside, stationary=t, moving=t)

        nl.fori_loop(0, bound, body)
        out = nl.ndarray((4, 4), nl.float32, buffer=nl.shared_hbm)
        nl.store(out, nl.copy(outside))
        return out

    x = np.eye(4, dtype=np.float32)
    assert np.array_equal(kernel(x, np.array([[3]], np.int32)), 3 * x)
    with pytest.raises(NkiTypeError, match="whether this is the first write of dst .* depends on the iteration"):
        trace(kernel, [TensorSpec.contiguous((4, 4), "float32"), TensorSpec.contiguous((1, 1), "int32")])


@pytest.mark.parametrize(("use", "message"), [
    (lambda r: [0 for _ in range(r)], "cannot be turned into a Python int"),
    (lambda r: 1 if r else 0, "cannot be a condition of Python's if or while"),
    (lambda r: r + 1, "cannot be an operand of Python's `\\+`"), (lambda r: r < 3, "cannot be an operand"),
    (lambda r: r == 3, "cannot be compared")])
def test_registers_in_host_control_flow(use, message):
    @nki.jit
    def kernel(x):
        use(nisa.register_alloc(3))
        return double(x)

    x = np.ones((2, 2), np.float32)
    refused(kernel, x, error=NkiTypeError, match=message)
    with pytest.raises(NkiTypeError, match=message):
        trace(kernel, [TensorSpec.contiguous((2, 2), "float32")])


def test_loop_rules():
    @nki.jit
    def ordered(x):
        with nl.no_reorder():
            nl.fori_loop(0, 3, lambda i: None)
        return double(x)

    @nki.jit
    def frozen(x):
        nl.fori_loop(0, 3, lambda i: nisa.register_move(i, 5))
        return double(x)

    x = np.ones((2, 2), np.float32)
    refused(ordered, x, match="nl.fori_loop does not work inside nl.no_reorder")
    refused(frozen, x, error=NkiTypeError, match="a loop variable cannot be written")


def test_device_print(capsys):
    @nki.jit
    def kernel(x):
        nl.device_print("tile:", nl.load(x))
        return double(x)

    kernel(np.full((2, 2), 1.5, np.float32))
    out = capsys.readouterr().out
    assert out.startswith("tile: <sbuf tensor") and "1.5" in out and "float32[2, 2]" in out
