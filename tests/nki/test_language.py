"""Every function of nki.language against NumPy, interpreted and as a recorded program."""
from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest

from neuron_eager import nki
from neuron_eager.errors import NkiShapeError, NkiTypeError
from neuron_eager.nki import language as nl
from neuron_eager.nki.interpreter import Interpreter
from neuron_eager.nki.jit import trace
from neuron_eager.nki.program import TensorSpec

BF16 = np.dtype(ml_dtypes.bfloat16)


def both(kernel, *arrays, **constants):
    """The kernel's result in the interpreter, after checking that replaying its trace gives the same bits."""
    got = nki.simulate(kernel)(*arrays, **constants)
    names = list(nki.Kernel(kernel).signature.parameters)
    specs = {n: TensorSpec.contiguous(a.shape, a.dtype) for n, a in zip(names, arrays)}
    program = trace(kernel, specs, constants)
    again = Interpreter.replay(program, arrays)
    for a, b in zip(got if isinstance(got, tuple) else (got,), again):
        assert a.dtype == b.dtype and a.tobytes() == b.tobytes()
    return got


def data(*shape, dtype=np.float32, low=-3.0, high=3.0, seed=0):
    rng = np.random.default_rng(seed)
    if np.dtype(dtype).kind in "iu":
        return rng.integers(int(low), int(high), shape).astype(dtype)
    return (rng.random(shape) * (high - low) + low).astype(dtype)


@nki.jit
def unary(x, op, dtype=None):
    t = op(nl.load(x), dtype=dtype)
    out = nl.ndarray(t.shape, t.dtype, buffer=nl.shared_hbm)
    nl.store(out, t)
    return out


@nki.jit
def binary(x, y, op, dtype=None):
    t = op(nl.load(x), nl.load(y), dtype=dtype)
    out = nl.ndarray(t.shape, t.dtype, buffer=nl.shared_hbm)
    nl.store(out, t)
    return out


@nki.jit
def with_scalar(x, op, number, left=False):
    t = op(number, nl.load(x)) if left else op(nl.load(x), number)
    out = nl.ndarray(t.shape, t.dtype, buffer=nl.shared_hbm)
    nl.store(out, t)
    return out


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


erf = np.vectorize(math.erf)
UNARY = {
    "exp": np.exp, "log": np.log, "sqrt": np.sqrt, "rsqrt": lambda x: 1 / np.sqrt(x), "sin": np.sin, "cos": np.cos,
    "tan": np.tan, "arctan": np.arctan, "tanh": np.tanh, "sigmoid": sigmoid, "relu": lambda x: np.maximum(x, 0),
    "gelu": lambda x: x * 0.5 * (1 + erf(x / math.sqrt(2))),
    "gelu_dx": lambda x: 0.5 * (1 + erf(x / math.sqrt(2))) + x * np.exp(-x * x / 2) / math.sqrt(2 * math.pi),
    "gelu_apprx_tanh": lambda x: 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x ** 3))),
    "gelu_apprx_sigmoid": lambda x: x * sigmoid(1.702 * x),
    "gelu_apprx_sigmoid_dx": lambda x: sigmoid(1.702 * x) * (1 + 1.702 * x * (1 - sigmoid(1.702 * x))),
    "silu": lambda x: x * sigmoid(x), "silu_dx": lambda x: sigmoid(x) * (1 + x * (1 - sigmoid(x))),
    "softplus": lambda x: np.log1p(np.exp(x)), "mish": lambda x: x * np.tanh(np.log1p(np.exp(x))), "erf": erf,
    "erf_dx": lambda x: 2 / math.sqrt(math.pi) * np.exp(-x * x), "reciprocal": lambda x: 1 / x, "square": np.square,
    "abs": np.abs, "sign": np.sign, "negative": np.negative, "ceil": np.ceil, "floor": np.floor, "trunc": np.trunc,
    "logical_not": lambda x: (x == 0).astype(x.dtype), "copy": lambda x: x,
}
POSITIVE = ("log", "sqrt", "rsqrt", "reciprocal")


@pytest.mark.parametrize("name", UNARY)
def test_unary(name):
    x = data(64, 33, low=0.1 if name in POSITIVE else -1.5, high=1.5)
    if name == "logical_not":
        x = np.round(x)
    want = UNARY[name](x.astype(np.float64))
    got = both(unary, x, op=getattr(nl, name))
    assert got.dtype == np.float32
    np.testing.assert_allclose(got, want, rtol=2e-6, atol=2e-7)
    low = x.astype(BF16)
    got = both(unary, low, op=getattr(nl, name))
    assert got.dtype == BF16
    want = UNARY[name](low.astype(np.float64))
    np.testing.assert_allclose(got.astype(np.float64), want, rtol=2 ** -8, atol=1e-6)


def test_invert():
    for dtype in (np.int32, np.uint8, np.uint32, np.int16):
        x = data(8, 5, dtype=dtype, low=0, high=100)
        assert np.array_equal(both(unary, x, op=nl.invert), ~x)


BINARY = {
    "add": np.add, "subtract": np.subtract, "multiply": np.multiply, "maximum": np.maximum, "minimum": np.minimum,
    "equal": np.equal, "not_equal": np.not_equal, "greater": np.greater, "greater_equal": np.greater_equal,
    "less": np.less, "less_equal": np.less_equal,
    "logical_and": np.logical_and, "logical_or": np.logical_or, "logical_xor": np.logical_xor,
    "abs_max": lambda x, y: np.where(np.abs(x) > np.abs(y), x, y),
    "abs_min": lambda x, y: np.where(np.abs(x) < np.abs(y), x, y),
}


@pytest.mark.parametrize("name", BINARY)
def test_binary(name):
    op = getattr(nl, name)
    x, y = np.round(data(32, 40)), np.round(data(32, 40, seed=1))
    assert np.array_equal(both(binary, x, y, op=op), BINARY[name](x, y).astype(np.float32))
    got = both(binary, x.astype(BF16), y.astype(BF16), op=op, dtype=nl.float32)
    assert np.array_equal(got, BINARY[name](x, y).astype(np.float32))
    assert np.array_equal(both(with_scalar, x, op=op, number=1.0), BINARY[name](x, 1.0).astype(np.float32))
    assert np.array_equal(both(with_scalar, x, op=op, number=1.0, left=True),
                          BINARY[name](np.float32(1.0), x).astype(np.float32))


def test_power():
    x, y = data(16, 8, low=0.1), data(16, 8, seed=1)
    np.testing.assert_allclose(both(binary, x, y, op=nl.power), x ** y, rtol=1e-5)


@pytest.mark.parametrize("name", ["bitwise_and", "bitwise_or", "bitwise_xor", "left_shift", "right_shift"])
def test_bits(name):
    x, y = data(16, 8, dtype=np.uint32, low=0, high=1 << 30), data(16, 8, dtype=np.uint32, low=0, high=20, seed=1)
    assert np.array_equal(both(binary, x, y, op=getattr(nl, name)), getattr(np, name)(x, y))


@nki.jit
def reduction(x, op, axis, keepdims=None, dtype=None):
    extra = {} if keepdims is None else {"keepdims": keepdims}
    t = op(nl.load(x), axis, dtype=dtype, **extra)
    out = nl.ndarray(t.shape, t.dtype, buffer=nl.shared_hbm)
    nl.store(out, t)
    return out


REDUCTIONS = {"sum": np.sum, "max": np.max, "min": np.min, "mean": np.mean, "prod": np.prod, "var": np.var}


@pytest.mark.parametrize("name", REDUCTIONS)
@pytest.mark.parametrize("axis", [-1, (2, 3), (1, 2, 3)])
def test_reductions(name, axis):
    x = data(16, 3, 4, 5)
    want = REDUCTIONS[name](x.astype(np.float64), axis=axis, keepdims=True)
    got = both(reduction, x, op=getattr(nl, name), axis=axis, keepdims=True)
    assert got.shape == want.shape
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-6)
    if name != "var":
        got = both(reduction, x, op=getattr(nl, name), axis=axis, keepdims=False)
        shape = REDUCTIONS[name](x, axis=axis).shape
        assert got.shape == (shape if len(shape) > 1 else (*shape, 1))
        low = both(reduction, x.astype(BF16), op=getattr(nl, name), axis=axis)
        assert low.dtype == BF16


def test_all():
    x = np.ones((8, 6), np.float32)
    x[3, 2] = 0
    assert np.array_equal(both(reduction, x, op=nl.all, axis=1)[:, 0], (x != 0).all(1).astype(np.float32))


@pytest.mark.parametrize("axis", [0, (0, 1), 1])
def test_reduction_axes_are_checked(axis):
    with pytest.raises(NkiShapeError, match="a reduction takes the last free dimensions"):
        nki.simulate(reduction)(data(8, 3, 4), nl.sum, axis)


@pytest.mark.parametrize("axis", [-1, (1, 2)])
def test_softmax(axis):
    @nki.jit
    def kernel(x):
        t = nl.softmax(nl.load(x), axis=axis)
        out = nl.ndarray(t.shape, t.dtype, buffer=nl.shared_hbm)
        nl.store(out, t)
        return out

    x = data(20, 3, 30, low=-20, high=20)
    e = np.exp(x - x.max(axis, keepdims=True))
    np.testing.assert_allclose(both(kernel, x), e / e.sum(axis, keepdims=True), rtol=1e-5, atol=1e-7)


def test_rms_norm():
    @nki.jit
    def kernel(x, w):
        t = nl.rms_norm(nl.load(x), nl.load(w), axis=1, n=x.shape[1], epsilon=1e-5)
        out = nl.ndarray(t.shape, t.dtype, buffer=nl.shared_hbm)
        nl.store(out, t)
        return out

    x, w = data(40, 64), data(1, 64, seed=1)
    want = x / np.sqrt((x.astype(np.float64) ** 2).mean(1, keepdims=True) + 1e-5) * w
    np.testing.assert_allclose(both(kernel, x, w), want, rtol=1e-5)


def test_where():
    @nki.jit
    def kernel(x, y):
        a, b = nl.load(x), nl.load(y)
        condition = nl.greater(a, b)
        out = nl.ndarray((3, *x.shape), x.dtype, buffer=nl.shared_hbm)
        nl.store(out[0], nl.where(condition, a, b))
        nl.store(out[1], nl.where(condition, a, 0.0))
        nl.store(out[2], nl.where(condition, 1.0, 2.0))
        return out

    x, y = data(8, 9), data(8, 9, seed=1)
    got = both(kernel, x, y)
    assert np.array_equal(got[0], np.where(x > y, x, y))
    assert np.array_equal(got[1], np.where(x > y, x, 0))
    assert np.array_equal(got[2], np.where(x > y, 1, 2))


def test_dropout_and_random():
    @nki.jit
    def kernel(x, seed):
        nl.random_seed(nl.load(seed))
        t = nl.dropout(nl.load(x), 0.25)
        r = nl.rand(x.shape, nl.float32)
        out = nl.ndarray((2, *x.shape), nl.float32, buffer=nl.shared_hbm)
        nl.store(out[0], t)
        nl.store(out[1], r)
        return out

    got = nki.simulate(kernel)(np.ones((128, 512), np.float32), np.array([[7]], np.int32))
    assert abs((got[0] == 0).mean() - 0.25) < 0.02 and set(np.unique(got[0])) == {0, 1}
    assert got[1].min() >= 0 and got[1].max() < 1 and abs(got[1].mean() - 0.5) < 0.01


def test_gather_flattened():
    @nki.jit
    def kernel(x, index):
        t = nl.gather_flattened(nl.load(x), nl.load(index))
        out = nl.ndarray(t.shape, t.dtype, buffer=nl.shared_hbm)
        nl.store(out, t)
        return out

    x, index = data(16, 20), data(16, 7, dtype=np.uint32, low=0, high=20)
    assert np.array_equal(both(kernel, x, index), np.take_along_axis(x, index.astype(np.int64), 1))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int32", "uint8"])
@pytest.mark.parametrize("buffer", [nl.sbuf, nl.shared_hbm])
def test_creation(dtype, buffer):
    @nki.jit
    def kernel(like):
        outs = []
        for t in (nl.zeros((40, 70), dtype, buffer=buffer), nl.ones((40, 70), dtype, buffer=buffer),
                  nl.full((40, 70), 3, dtype, buffer=buffer), nl.zeros_like(nl.load(like), dtype=dtype)):
            out = nl.ndarray(t.shape, t.dtype, buffer=nl.shared_hbm)
            out[...] = t
            outs.append(out)
        return tuple(outs)

    for got, value in zip(both(kernel, data(40, 70)), (0, 1, 3, 0)):
        assert str(got.dtype) == dtype and (got.astype(np.float32) == value).all()


def test_hbm_fill_of_odd_sizes():
    @nki.jit
    def kernel(like):
        return nl.full((3, 1111, 77), 2.5, nl.float32, buffer=nl.shared_hbm)

    assert (both(kernel, data(4, 4)) == 2.5).all()


def test_identity_and_constants():
    values = data(5, 6)

    @nki.jit
    def kernel(like):
        out = nl.ndarray((128, 128), nl.float32, buffer=nl.shared_hbm)
        nl.store(out, nl.shared_identity_matrix(128, dtype=nl.float32))
        small = nl.ndarray((8, 8), nl.uint8, buffer=nl.shared_hbm)
        nl.store(small, nl.shared_identity_matrix(8))
        fixed = nl.ndarray((5, 6), nl.float32, buffer=nl.shared_hbm)
        nl.store(fixed, nl.load(nl.shared_constant(values)))
        return out, small, fixed

    eye, small, fixed = both(kernel, data(4, 4))
    assert np.array_equal(eye, np.eye(128)) and np.array_equal(small, np.eye(8)) and np.array_equal(fixed, values)


def test_shared_constant_from_a_file(tmp_path):
    values = data(5, 6)
    np.save(tmp_path / "c.npy", values)

    @nki.jit
    def kernel(like, path):
        out = nl.ndarray((5, 6), nl.float32, buffer=nl.shared_hbm)
        nl.store(out, nl.load(nl.shared_constant(path)))
        return out

    assert np.array_equal(both(kernel, data(4, 4), path=str(tmp_path / "c.npy")), values)


def test_moves():
    @nki.jit
    def kernel(x, row):
        t = nl.load(x, dtype=nl.bfloat16)
        results = (t, nl.load_transpose2d(x), nl.transpose(nl.load(x)), nl.copy(t, dtype=nl.float32),
                   nl.broadcast_to(nl.load(row), (64, row.shape[1])), nl.broadcast_to(nl.load(x)[:, 0:1], (30, 9)),
                   nl.expand_dims(nl.load(x), 1))
        outs = []
        for r in results:
            outs.append(nl.ndarray(r.shape, r.dtype, buffer=nl.shared_hbm))
            nl.store(outs[-1], r)
        return tuple(outs)

    x, row = data(30, 50), data(1, 13)
    cast, t1, t2, copied, rows, columns, expanded = both(kernel, x, row)
    assert np.array_equal(cast, x.astype(BF16))
    assert np.array_equal(t1, x.T) and np.array_equal(t2, x.T)
    assert np.array_equal(copied, x.astype(BF16).astype(np.float32))
    assert np.array_equal(rows, np.broadcast_to(row, (64, 13)))
    assert np.array_equal(columns, np.broadcast_to(x[:, :1], (30, 9)))
    assert expanded.shape == (30, 1, 50)


def test_matmul():
    @nki.jit
    def kernel(x, y, transposed):
        p = nl.matmul(nl.load(x), nl.load(y), transpose_x=transposed)
        out = nl.ndarray(p.shape, nl.float32, buffer=nl.shared_hbm)
        nl.store(out, nl.copy(p))
        return out

    x, y = data(64, 100), data(64, 200, seed=1)
    np.testing.assert_allclose(both(kernel, x, y, transposed=True), x.T @ y, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(both(kernel, np.ascontiguousarray(x.T), y, transposed=False), x.T @ y, rtol=1e-4,
                               atol=1e-4)


def test_assignment():
    @nki.jit
    def kernel(x):
        out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
        t = nl.load(x)
        t[:, 2:4] = 7.0
        t[:, 0:2] = t[:, 4:6]
        out[...] = t
        out[0, 0:1] = 1.5
        return out

    x = data(8, 6)
    want = x.copy()
    want[:, 2:4], want[:, 0:2], want[0, 0] = 7, x[:, 4:6], 1.5
    assert np.array_equal(both(kernel, x), want)


def test_tokens_are_values_and_functions():
    assert str(nl.add) == "add" and repr(nl.add) == "nl.add"
    assert nl.add == nl.add and nl.add != nl.subtract and {nl.add: 1}[nl.add] == 1
    import copy
    import pickle
    assert pickle.loads(pickle.dumps(nl.exp)) is nl.exp and copy.deepcopy({"op": nl.exp})["op"] is nl.exp
    with pytest.raises(TypeError, match="only a value for op="):
        nl.average(1, 2)
    with pytest.raises(NkiTypeError, match="one argument must be a tile"):
        nl.add(1, 2)


def test_dtypes_are_strings():
    assert nl.float32 == "float32" and nl.bfloat16.itemsize == 2 and str(nl.bool_) == "bool"
    assert nl.float8_e4m3fn_x4.itemsize == 4 and nl.float4_e2m1fn_x4.itemsize == 2
    assert np.dtype("int32") == nl.int32


def test_tile_size(monkeypatch):
    size = nl.tile_size
    assert (size.pmax, size.psum_bank_fmax, size.psum_bank_fmax_bytes, size.psum_num_banks) == (128, 512, 2048, 8)
    monkeypatch.setenv("NEURON_PLATFORM_TARGET_OVERRIDE", "trn1")
    small = size.sbuf_fmax_bytes
    assert size.sbuf_size_bytes == 24 << 20
    monkeypatch.setenv("NEURON_PLATFORM_TARGET_OVERRIDE", "gen4")
    assert small < size.sbuf_fmax_bytes == size.total_available_sbuf_size == size.sbuf_fmax * 4
    monkeypatch.setenv("NKI_DMA_TRANSPOSE_AS_PE_TRANSPOSE", "1")
    assert size.psum_num_banks == 7


def test_removed_names_say_what_to_use():
    with pytest.raises(AttributeError, match="nl.mgrid is not part of NKI 0.6; use slices"):
        nl.mgrid
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        nl.nonsense


def test_buffers():
    assert nl.hbm is nl.private_hbm and nl.is_hbm(nl.shared_hbm) and nl.is_on_chip(nl.psum) and nl.is_psum("psum")
    assert not nl.is_sbuf(nl.psum) and str(nl.sbuf) == "sbuf"
