"""Integer lanes against Python integers: wrapping, every shift count, division that never traps."""
from __future__ import annotations

import numpy as np
import pytest

from neuron_eager.native.irtypes import I32, I64

TYPES = {"int32": (I32, np.int32), "int64": (I64, np.int64)}


def operands(dtype):
    info = np.iinfo(dtype)
    rng = np.random.default_rng(0)
    edge = np.array([0, 1, -1, 2, -2, 7, -7, 31, 32, 63, 64, info.min, info.max, info.min + 1], dtype)
    a, b = (g.ravel() for g in np.meshgrid(edge, edge))
    x = rng.integers(info.min, info.max, 500, dtype=dtype, endpoint=True)
    y = rng.integers(-50, 50, 500).astype(dtype)
    return np.concatenate([a, x]), np.concatenate([b, y])


def wrap(values, dtype):
    bits = 8 * np.dtype(dtype).itemsize
    return np.array([(v + (1 << (bits - 1))) % (1 << bits) - (1 << (bits - 1)) for v in values], dtype)


def trunc_divide(x, y):
    return 0 if y == 0 else (abs(x) // abs(y)) * (1 if (x < 0) == (y < 0) else -1)


EXPECT = {
    "add": lambda x, y, n: x + y, "subtract": lambda x, y, n: x - y, "multiply": lambda x, y, n: x * y,
    "maximum": lambda x, y, n: max(x, y), "minimum": lambda x, y, n: min(x, y),
    "bitwise_and": lambda x, y, n: x & y, "bitwise_or": lambda x, y, n: x | y, "bitwise_xor": lambda x, y, n: x ^ y,
    "left_shift": lambda x, y, n: x << y if 0 <= y < n else 0,
    "right_shift": lambda x, y, n: x >> y if 0 <= y < n else (-1 if x < 0 else 0),
    "divide": lambda x, y, n: trunc_divide(x, y), "floor_divide": lambda x, y, n: x // y if y else 0,
    "fmod": lambda x, y, n: x - y * trunc_divide(x, y) if y else 0, "mod": lambda x, y, n: x % y if y else 0,
    "abs_max": lambda x, y, n: x if abs(x) > abs(y) else y, "abs_min": lambda x, y, n: x if abs(x) < abs(y) else y,
}
UNARY = {"negative": lambda x: -x, "abs": abs, "invert": lambda x: ~x, "square": lambda x: x * x,
         "sign": lambda x: (x > 0) - (x < 0), "relu": lambda x: max(x, 0)}


def calculate(run, f, dtype, *arrays):
    t, np_type = TYPES[dtype]
    out = np.zeros(len(arrays[0]), np_type)

    def body(build, p, count):
        def turn(i, _):
            mask = build.below(i, count)
            values = [build.iload(build.at(q, (i, out.itemsize)), dtype, t, mask) for q in p[:-1]]
            build.vstore(f(build, *values), build.at(p[-1], (i, out.itemsize)), dtype, mask)
        build.loop(0, count, build.W, turn)
    run(body, *arrays, out)
    return out


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("name", EXPECT)
def test_binary(name, dtype, run):
    x, y = operands(TYPES[dtype][1])
    got = calculate(run, lambda build, a, b: getattr(build.i, name)(a, b), dtype, x, y)
    n = 8 * x.itemsize
    wanted = wrap([EXPECT[name](int(a), int(b), n) for a, b in zip(x, y)], TYPES[dtype][1])
    bad = np.flatnonzero(got != wanted)
    assert not len(bad), [(x[i], y[i], got[i], wanted[i]) for i in bad[:5]]


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("name", UNARY)
def test_unary(name, dtype, run):
    x = operands(TYPES[dtype][1])[0]
    got = calculate(run, lambda build, a: getattr(build.i, name)(a), dtype, x)
    assert np.array_equal(got, wrap([UNARY[name](int(a)) for a in x], TYPES[dtype][1]))


@pytest.mark.parametrize("signed", [True, False])
@pytest.mark.parametrize("name", ["equal", "not_equal", "greater", "greater_equal", "less", "less_equal"])
def test_comparisons(name, signed, run):
    x, y = operands(np.int32)
    got = calculate(run, lambda build, a, b: build.i.from_predicate(build.i.compare(name, a, b, signed), I32), "int32",
                    x, y)
    a, b = (x, y) if signed else (x.view(np.uint32), y.view(np.uint32))
    assert np.array_equal(got, getattr(np, name)(a, b).astype(np.int32))


def test_unsigned_operations(run):
    x, y = operands(np.int32)
    u, v = (z.view(np.uint32).astype(np.int64) for z in (x, y))
    for name, f in (("maximum", np.maximum), ("minimum", np.minimum), ("divide", np.floor_divide), ("mod", np.mod),
                    ("right_shift", np.right_shift)):
        got = calculate(run, lambda build, a, b, name=name: getattr(build.i, name)(a, b, signed=False), "int32", x, y)
        with np.errstate(all="ignore"):
            wanted = f(u, np.where(v < 32, v, 63) if name == "right_shift" else v)
        wanted = np.where((v == 0) & (name in ("divide", "mod")), 0, wanted)
        assert np.array_equal(got.view(np.uint32).astype(np.int64), wanted), name
