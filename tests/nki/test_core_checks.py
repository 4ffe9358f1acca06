"""Faults that a kernel author meets: each is one error that names the author's line, interpreted and traced."""
from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neuron_eager import config, interpret, nki
from neuron_eager.errors import (
    NkiCapacityError,
    NkiError,
    NkiIndexError,
    NkiOutOfBoundsError,
    NkiShapeError,
    NkiTypeError,
    NkiUninitializedError,
    NkiValidationError,
    NkiValueNeededError,
)
from neuron_eager.nki import isa as nisa
from neuron_eager.nki import language as nl
from neuron_eager.nki.interpreter import Interpreter
from neuron_eager.nki.jit import trace
from neuron_eager.nki.program import TensorSpec
from neuron_eager.nki.psum import unwritten_boxes

X = np.ones((64, 32), np.float32)


def line_of(text):
    """The line of this file that holds a marker."""
    with open(__file__) as source:
        return next(i for i, line in enumerate(source, 1) if text in line and "line_of" not in line)


def refuse(body, error, match, marker, *, traced=True):
    """`body(x)` inside a kernel fails with this error at the marked line; by simulation and by tracing."""
    @nki.jit
    def kernel(x):
        body(x)
        out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
        nisa.dma_copy(dst=out, src=x)
        return out

    for run in (lambda: nki.simulate(kernel)(X), lambda: trace(kernel, [TensorSpec.contiguous(X.shape, X.dtype)])):
        with pytest.raises(error, match=match) as caught:
            run()
        assert caught.value.where == f"{__file__}:{line_of(marker)}", caught.value.where
        if not traced:
            break


def test_partitions():
    refuse(lambda x: nl.ndarray((256, 4), nl.float32),                              # 256 partitions
           NkiShapeError, r"shape \[256, 4\] has 256 partitions, and sbuf of trn3 has 128", "# 256 partitions")
    refuse(lambda x: nl.ndarray((8,), nl.float32),                                  # one dimension
           NkiShapeError, "at least one free dimension", "# one dimension")
    refuse(lambda x: nl.ndarray((8, 0), nl.float32),                                # nothing
           NkiShapeError, "dimension below 1", "# nothing")


def test_start_partition():
    def body(x):
        t = nl.load(x)
        nisa.memset(dst=t[16:48], value=0.0)                                        # start 16
    refuse(body, NkiValidationError, "starts at partition 16", "# start 16")


def test_buffers():
    def body(x):
        p = nl.zeros((64, 32), nl.float32, buffer=nl.psum)
        nisa.dma_copy(dst=x, src=p)                                                 # from PSUM
    refuse(body, NkiValidationError, "PSUM", "# from PSUM")


def test_element_counts():
    def body(x):
        t = nl.ndarray((64, 31), nl.float32)
        nisa.dma_copy(dst=t, src=x)                                                 # 31 of 32
    refuse(body, NkiError, "2048", "# 31 of 32")


def test_memset_values():
    refuse(lambda x: nisa.memset(dst=nl.ndarray((4, 4), nl.float32), value=1),      # int into float
           NkiError, "float32", "# int into float")
    refuse(lambda x: nisa.memset(dst=nl.ndarray((4, 4), nl.int32), value=1.0),      # float into int
           NkiError, "int32", "# float into int")


def test_matmul_size(monkeypatch):
    monkeypatch.setenv("NEURON_PLATFORM_TARGET_OVERRIDE", "trn2")

    def body(x):
        a, b = nl.zeros((32, 16), nl.bfloat16), nl.zeros((32, 513), nl.bfloat16)
        p = nl.ndarray((16, 513), nl.float32, buffer=nl.psum)
        nisa.nc_matmul(dst=p, stationary=a, moving=b)                               # N of 513
    refuse(body, NkiValidationError, r"513[\s\S]*512|512[\s\S]*513", "# N of 513")


def test_slices():
    refuse(lambda x: x[0:65],                                                       # beyond
           NkiIndexError, "slice 0:65 goes beyond dimension 0 of size 64", "# beyond")
    refuse(lambda x: nl.load(x) + 1,                                                # operator
           NkiTypeError, r"`\+` on tensor 1", "# operator")


@pytest.mark.parametrize("mode", [nisa.oob_mode.error, nisa.oob_mode.skip])
def test_dynamic_index_out_of_range(mode):
    @nki.jit
    def gather(x, index):
        t = nl.zeros((4, 32), nl.float32)
        i = nl.load(index)
        nisa.dma_copy(dst=t, src=x.vector_select(0, i), oob_mode=mode)              # gather
        out = nl.ndarray(t.shape, t.dtype, buffer=nl.shared_hbm)
        nl.store(out, t)
        return out

    index = np.array([[1], [64], [2], [-1]], np.int32)
    if mode is nisa.oob_mode.error:
        with pytest.raises(NkiOutOfBoundsError, match="64 is outside 0..63 of x") as caught:
            nki.simulate(gather)(X, index)
        assert f"{__file__}:{line_of('# gather')}" in str(caught.value)
    else:
        assert nki.simulate(gather)(X, index)[:, 0].tolist() == [1, 0, 1, 0]


def test_reading_before_writing():
    @nki.jit
    def kernel(x):
        t = nl.ndarray(x.shape, x.dtype, name="t")
        nisa.dma_copy(dst=t[:, 0:30], src=x[:, 0:30])
        nisa.tensor_scalar(dst=t, data=t, op0=nl.add, operand0=1.0)                 # tail
        out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
        nl.store(out, t)
        return out

    with interpret():
        assert np.isnan(kernel(X)[:, 30:]).all()
    for context in (interpret(check_uninitialized=True), config.override(executor="interpreter",
                                                                        check_uninitialized=True)):
        with context, pytest.raises(NkiUninitializedError) as caught:
            kernel(X)
        assert str(caught.value).startswith(
            f"{__file__}:{line_of('# tail')}: tensor_scalar: data reads t (sbuf float32[64, 32]), where 128 of 2048 "
            "elements were never written, the first at index [0, 30]")


def test_check_mode_accepts_correct_kernels():
    @nki.jit
    def kernel(x, index):
        t = nl.ndarray((4, 32), nl.float32)
        nisa.dma_copy(dst=t, src=x.vector_select(0, nl.load(index)))
        p = nl.ndarray((32, 32), nl.float32, buffer=nl.psum)
        for k in range(2):
            nisa.nc_matmul(dst=p, stationary=t, moving=t, accumulate=k > 0)
        out = nl.ndarray((32, 32), nl.float32, buffer=nl.shared_hbm)
        nl.store(out, nl.copy(p))
        return out

    with interpret(check_uninitialized=True):
        assert kernel(X, np.array([[1], [5], [2], [0]], np.int32))[0, 0] == 8

    @nki.jit
    def accumulates(x):
        t = nl.load(x)
        p = nl.ndarray((32, 32), nl.float32, buffer=nl.psum)
        nisa.nc_matmul(dst=p, stationary=t, moving=t, accumulate=True)              # onto nothing
        out = nl.ndarray((32, 32), nl.float32, buffer=nl.shared_hbm)
        nl.store(out, nl.copy(p))
        return out

    with interpret(check_uninitialized=True), pytest.raises(NkiUninitializedError, match="dst reads"):
        accumulates(X)


def test_poison():
    @nki.jit
    def kernel(x):
        outs = []
        for dtype in ("float32", "bfloat16", "int32", "uint8", "float8_e5m2"):
            t = nl.ndarray((4, 4), dtype)
            out = nl.ndarray((4, 4), nl.float32, buffer=nl.shared_hbm)
            nisa.dma_copy(dst=out, src=t)
            outs.append(out)
        return tuple(outs)

    f32, bf16, i32, u8, f8 = nki.simulate(kernel)(X)
    assert np.isnan(f32).all() and np.isnan(bf16).all() and np.isnan(f8).all() and (i32 == 4).all() and (u8 == 4).all()


# ---- PSUM: the first write of an element overwrites

def test_accumulation():
    @nki.jit
    def kernel(x, y):
        a, b = nl.load(x), nl.load(y)
        outs = []

        def result(p):
            out = nl.ndarray(p.shape, p.dtype, buffer=nl.shared_hbm)
            nl.store(out, nl.copy(p))
            outs.append(out)

        p = nl.ndarray((32, 40), nl.float32, buffer=nl.psum)
        for _ in range(3):
            nisa.nc_matmul(dst=p, stationary=a, moving=b)
        result(p)
        q = nl.zeros((32, 40), nl.float32, buffer=nl.psum)
        for _ in range(2):
            nisa.nc_matmul(dst=q, stationary=a, moving=b)
        result(q)
        r = nl.ndarray((32, 40), nl.float32, buffer=nl.psum)
        nisa.nc_matmul(dst=r[:, 0:20], stationary=a, moving=b[:, 0:20])
        nisa.nc_matmul(dst=r[:, 10:40], stationary=a, moving=b[:, 10:40])           # 10..20 adds, the rest overwrites
        result(r)
        nisa.nc_matmul(dst=r, stationary=a, moving=b, accumulate=False)
        result(r)
        return tuple(outs)

    rng = np.random.default_rng(0)
    x, y = rng.random((64, 32), np.float32), rng.random((64, 40), np.float32)
    product = x.T @ y
    overlap = product.copy()
    overlap[:, 10:20] *= 2
    specs = [TensorSpec.contiguous(x.shape, x.dtype), TensorSpec.contiguous(y.shape, y.dtype)]
    program = trace(kernel, specs)
    assert all(isinstance(i.args["accumulate"], bool) for i in program.instrs if i.op == "nc_matmul")
    for got in (nki.simulate(kernel)(x, y), Interpreter.replay(program, [x, y])):
        for a, b in zip(got, (3 * product, 2 * product, overlap, product)):
            np.testing.assert_allclose(a, b, rtol=1e-4)


@settings(deadline=None, max_examples=50)
@given(st.integers(0, 2 ** 31), st.lists(st.integers(1, 6), min_size=2, max_size=4))
def test_unwritten_boxes_cover_what_is_not_written_once(seed, shape):
    written = np.random.default_rng(seed).random(shape) < 0.6
    covered = np.zeros(shape, int)
    for box in unwritten_boxes(written):
        covered[box] += 1
    assert np.array_equal(covered, (~written).astype(int))


# ---- capacity

def test_capacity_lists_the_largest_live_tiles():
    def body(x):
        big = nl.zeros((128, 50_000), nl.float32, name="big")
        small = nl.zeros((128, 20_000), nl.float32, name="small")
        nisa.tensor_copy(dst=small[:, 0:1], src=big[:, 0:1])

    @nki.jit
    def kernel(x):
        body(x)
        out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
        nisa.dma_copy(dst=out, src=x)
        return out

    for run in (lambda: nki.simulate(kernel)(X), lambda: trace(kernel, [TensorSpec.contiguous(X.shape, X.dtype)])):
        with pytest.raises(NkiCapacityError) as caught:
            run()
        text = str(caught.value)
        assert "280000 bytes of sbuf per partition are live" in text and "trn3 has 245760" in text
        assert text.index("200000 bytes  big") < text.index("80000 bytes  small") and __file__ in text


def test_tiles_that_are_not_live_together_fit():
    @nki.jit
    def kernel(x):
        for _ in range(4):
            nl.zeros((128, 40_000), nl.float32)     # four tiles that follow each other need the memory of one
        return nl.ones((4, 4), nl.float32, buffer=nl.shared_hbm)

    nki.simulate(kernel)(X)


def test_psum_capacity():
    @nki.jit
    def kernel(x):
        banks = [nl.zeros((128, 512), nl.float32, buffer=nl.psum) for _ in range(9)]
        out = nl.ndarray((128, 512), nl.float32, buffer=nl.shared_hbm)
        for bank in banks:
            nl.store(out, nl.copy(bank))
        return out

    with pytest.raises(NkiCapacityError, match="18432 bytes of psum per partition"):
        nki.simulate(kernel)(X)


def test_addresses():
    @nki.jit
    def kernel(x, second, apart):
        a = nl.ndarray((64, 32), nl.float32, name="a", address=(0, 0))
        b = nl.ndarray((64, 32), nl.float32, name="b", address=(0, second))
        nisa.dma_copy(dst=a, src=x)
        if apart:
            nisa.dma_copy(dst=x, src=a)
        nisa.dma_copy(dst=b, src=x)
        out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
        nisa.dma_copy(dst=out, src=b if apart else a)
        return out

    simulated = nki.simulate(kernel)
    simulated(X.copy(), 128, False)
    simulated(X.copy(), 64, True)
    with pytest.raises(NkiCapacityError, match="a: float32.* and .*b: float32.*overlap while both are live"):
        simulated(X.copy(), 64, False)
    with pytest.raises(NkiCapacityError, match="does not fit into sbuf"):
        simulated(X.copy(), 300_000, False)


# ---- Python that needs values

@pytest.mark.parametrize("use", [
    lambda t: 1 if t else 0, lambda t: int(t[0, 0]), lambda t: float(t[0, 0]), lambda t: np.asarray(t),
    lambda t: t.numpy()])
def test_values_are_known_in_the_interpreter_only(use):
    @nki.jit
    def kernel(x):
        t = nl.load(x)
        use(t)
        out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
        nl.store(out, t)
        return out

    nki.simulate(kernel)(X)
    with pytest.raises(NkiValueNeededError, match="not known while the kernel is traced; run it under"):
        trace(kernel, [TensorSpec.contiguous(X.shape, X.dtype)])


def test_repr_shows_buffer_shape_dtype_and_values():
    shown = []

    @nki.jit
    def kernel(x):
        t = nl.load(x)
        shown.append(repr(t[0:2, 0:2]))
        out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
        nl.store(out, t)
        return out

    nki.simulate(kernel)(X)
    assert shown[0] == "<sbuf t: float32[2, 2]\n[[1. 1.]\n [1. 1.]]>"
    trace(kernel, [TensorSpec.contiguous(X.shape, X.dtype)])
    assert shown[1] == "<sbuf t: float32[2, 2]>"
