"""Memory of neuron tensors: allocation, retagging, statistics, leaks."""
from __future__ import annotations

import gc
import os
import sys

import pytest
import torch

from neuron_eager.native import allocator
from neuron_eager.native.entry import Argument, Entry, Output, class_bytes, size_class

DTYPES = [torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint16, torch.uint32,
          torch.uint64, torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128,
          torch.float8_e4m3fn, torch.float8_e5m2]


@pytest.fixture
def live(rt):
    """Bytes held on device 0 since the test began."""
    gc.collect()
    start = rt.memory()["allocated"]
    return lambda: rt.memory()["allocated"] - start


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_empty_in_every_dtype(rt, live, dtype):
    t = rt.empty((2, 3), None, dtype)
    assert t.dtype is dtype and t.shape == (2, 3) and t.stride() == (3, 1) and t.device == torch.device("neuron", 0)
    assert live() == 6 * dtype.itemsize == t.untyped_storage().nbytes()
    del t
    assert live() == 0


@pytest.mark.parametrize("shape", [(), (0,), (1,), (3, 0, 2), (1, 5, 1), (2, 3, 4, 5), (1,) * 64, (0, 0)])
def test_contiguous_strides_are_pytorch_s(rt, shape):
    t = rt.empty(shape, None, torch.float32)
    assert t.shape == shape and t.stride() == torch.empty(shape).stride()
    t = rt.empty(torch.Size(shape), list(torch.empty(shape).stride()), torch.float32)
    assert t.shape == shape and t.stride() == torch.empty(shape).stride()


def test_strides(rt, live):
    t = rt.empty((2, 3), (1, 10), torch.float64)
    assert t.stride() == (1, 10) and live() == 8 * 22
    t = rt.empty((4, 5), (0, 1), torch.int8)
    assert t.stride() == (0, 1) and live() == 5
    rt.to_cpu(t)[0].fill_(7)
    assert t.tolist() == [[7] * 5] * 4


def test_wrong_arguments_raise_pytorch_s_errors(rt, live):
    for error, args in ((RuntimeError, ((-1,), None)), (RuntimeError, ((2, 2), (1,))), (TypeError, (("a",), None)),
                        (RuntimeError, ((2,), (-1,))), (RuntimeError, ((1 << 40, 1 << 40), None))):
        with pytest.raises(error):
            rt.empty(*args, torch.float32)
    with pytest.raises(TypeError):
        rt.empty((2,), None, "float32")
    with pytest.raises(RuntimeError):
        rt.empty((1 << 45,), None, torch.float64)           # 256 TiB
    assert live() == 0


def test_device_indices(rt):
    before = [rt.memory(i)["allocated"] for i in range(3)]
    t, u = rt.empty((10,), None, torch.int8, 1), rt.to_neuron(torch.zeros(20, dtype=torch.int8), 2)
    assert (t.device.index, u.device.index) == (1, 2)
    assert [rt.memory(i)["allocated"] - b for i, b in enumerate(before)] == [0, 10, 20]
    with pytest.raises(IndexError):
        rt.memory(64)


def test_retagging_shares_memory(rt, live):
    c = torch.arange(6.).view(2, 3)
    x = rt.to_neuron(c.t(), 0)
    assert x.data_ptr() == c.data_ptr() and x.shape == (3, 2) and x.stride() == (1, 3) and x.device.type == "neuron"
    back = rt.to_cpu(x)
    assert back.data_ptr() == c.data_ptr() and back.device.type == "cpu" and torch.equal(back, c.t())
    back[0, 0] = 9
    assert c[0, 0] == 9 and live() == 24
    view = x[1:]
    del x, c, back
    assert live() == 24 and view.tolist() == [[1.0, 4.0], [2.0, 5.0]]       # a view keeps it
    del view
    assert live() == 0


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
def test_retagging_special_tensors(rt):
    w = torch.ones(3, requires_grad=True)
    x = rt.to_neuron(w * 2, 0)
    assert not x.requires_grad and x.grad_fn is None
    assert type(rt.to_neuron(torch.nn.Parameter(torch.ones(2)), 0)) is torch.Tensor
    c = torch.tensor([1 + 2j])
    assert rt.to_cpu(rt.to_neuron(c.conj(), 0)).tolist() == [1 - 2j]
    assert rt.to_cpu(rt.to_neuron(c.conj().imag, 0)).tolist() == [-2.0]
    assert rt.to_neuron(torch.empty(0), 0).numel() == 0
    for wrong in (torch.ones(2).to_sparse(), 3, None):
        with pytest.raises(TypeError, match="expected a dense tensor"):
            rt.to_neuron(wrong, 0)
        with pytest.raises(TypeError, match="expected a dense tensor"):
            rt.to_cpu(wrong)
    with pytest.raises(TypeError):
        rt.to_neuron(torch.quantize_per_tensor(torch.ones(2), 1.0, 0, torch.qint8), 0)


def test_blocks_are_reused(rt):
    rt.empty_cache()
    assert rt.cached == 0
    t = rt.empty((100,), None, torch.float32)
    address = t.data_ptr()
    assert address % 64 == 0
    view = t[5:9]
    del t
    assert rt.cached == 0                           # the view holds it
    del view
    assert rt.cached == 128 + 448
    assert rt.empty((100,), None, torch.float32).data_ptr() == address
    large = rt.empty((1 << 20,), None, torch.float32)
    del large
    assert rt.cached == 128 + 448                   # large blocks go back to the system
    rt.empty_cache()
    assert rt.cached == 0


def test_the_cache_has_a_limit(rt):
    old = rt.words[allocator.RT_LIMIT]
    try:
        rt.empty_cache()
        rt.words[allocator.RT_LIMIT] = 2000
        tensors = [rt.empty((100,), None, torch.float32) for _ in range(10)]
        del tensors
        assert 0 < rt.cached <= 2000
    finally:
        rt.words[allocator.RT_LIMIT] = old


def test_peak(rt):
    rt.reset_peak(3)
    t = [rt.empty((1000,), None, torch.int8, 3) for _ in range(5)]
    del t[1:]
    m = rt.memory(3)
    assert m["peak"] == 5000 and m["allocated"] == 1000
    rt.reset_peak(3)
    assert rt.memory(3)["peak"] == 1000
    assert m["allocations"] - m["frees"] == 1


def test_size_classes():
    sizes = sorted({*range(0, 5000, 7), *(2**k + d for k in range(1, 20) for d in (-1, 0, 1))})
    classes = [size_class(n) for n in sizes]
    for n, c in zip(sizes, classes):
        room = class_bytes(c, n)
        assert n <= room <= max(64, n * 1.26 + 64) and room % 64 == 0 and 0 < c < allocator.CLASSES
    assert classes == sorted(classes)


def test_native_and_python_size_classes_agree(rt):
    for n in [*range(0, 3000, 61), *(2**k + d for k in range(10, 20) for d in (-1, 0, 1))]:
        rt.empty_cache()
        t = rt.empty((n,), None, torch.int8)
        del t
        c = size_class(n)
        assert rt.cached == (0 if c == allocator.UNCACHED else 128 + class_bytes(c, n))
    rt.empty_cache()


def test_a_block_that_cannot_be_had_is_a_memory_error(rt, kernels, ints):
    """An output that is too large frees the outputs made before it."""
    e, x = Entry(rt, "large", print), ints(1)
    small, large = Output((8,), (1,), torch.int64), Output((1 << 50,), (1,), torch.int64)
    e.install((x,), {}, kernels.negate, 0, 0, pointers=[small, large], results=[small, large])
    before = rt.memory()["allocated"]
    with pytest.raises(MemoryError):
        e.call(x)
    assert rt.memory()["allocated"] == before


def resident():
    with open("/proc/self/statm") as f:
        return int(f.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize("n", [20_000, pytest.param(1_000_000, marks=pytest.mark.slow)])
def test_warm_calls_leak_nothing(rt, kernels, n):
    x, w, v, o = (rt.to_neuron(torch.ones(8, dtype=torch.int64), 0) for _ in range(4))
    e = Entry(rt, "leak", lambda *a, **k: None, operands={1}, keywords=("out", "alpha"))
    out = Output((8,), (1,), torch.int64)
    plan = dict(kernel=kernels.add, r0=0, r1=8)
    e.install((x, w), {}, **plan, pointers=[Argument(0), Argument(1), out], results=[out])
    e.install((x, w), {"out": o}, **plan, pointers=[Argument(0), Argument(1), Argument(2)], results=[Argument(2)])
    e.install((x, w), {"alpha": "t"}, **plan, pointers=[Argument(0), Argument(1), out, out], results=[out, Argument(0)])
    call, sizes, number = e.call, [1, 2], 3.5

    def body(count):
        for _ in range(count):
            call(x, w)
            call(x, w, out=o)
            call(x, w, alpha="t")
            call(x, number, sizes)                  # a miss
            rt.to_neuron(rt.to_cpu(x), 0)
            rt.empty((8,), None, torch.float32)

    body(1000)
    gc.collect()
    counts = [sys.getrefcount(q) for q in (x, w, o, sizes, number)]
    none, live, before = sys.getrefcount(None), rt.memory()["allocated"], resident()
    body(n)
    gc.collect()
    assert [sys.getrefcount(q) for q in (x, w, o, sizes, number)] == counts
    assert abs(sys.getrefcount(None) - none) < 100
    assert rt.memory()["allocated"] == live and resident() - before < 1 << 20
    del v
