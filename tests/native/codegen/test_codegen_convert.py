"""Conversions between element types and registers, loads and stores, against NumPy and ml_dtypes."""
from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from neuron_eager.native.irtypes import ELEMENTS, I32, I64

F = np.float32
NUMPY = {"float32": np.float32, "tfloat32": np.float32, "float64": np.float64, "float16": np.float16, "bool": np.bool_,
         "bfloat16": ml_dtypes.bfloat16, **{n: getattr(ml_dtypes, n) for n in ELEMENTS if n.startswith("float8")},
         **{n: np.dtype(n).type for n in ELEMENTS if "int" in n}}
FLOATS = [n for n, e in ELEMENTS.items() if e.kind == "f" and n != "float8_e8m0fnu"]
INTEGERS = [n for n, e in ELEMENTS.items() if e.kind in "iu"]


def values(seed=0):
    """float32 values of all magnitudes, halves and ties between neighbours of the small types among them."""
    rng = np.random.default_rng(seed)
    bits = rng.integers(0, 1 << 32, 60000, dtype=np.uint64).astype(np.uint32).view(F)
    coarse = rng.integers(0, 1 << 16, 4000).astype(np.uint32) << 16
    ties = np.concatenate([(coarse | 0x8000), (coarse | 0x8001), (coarse | 0x7FFF), coarse]).astype(np.uint32).view(F)
    small = (rng.integers(-600, 600, 4000) * 2.0 ** -13).astype(F)
    halves = (rng.integers(-1 << 18, 1 << 18, 4000) / 2).astype(F)
    fp8 = np.arange(256, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn).astype(F)
    middle = ((fp8[:-1] + fp8[1:]) / 2).astype(F)
    edge = np.array([0, -0.0, np.inf, -np.inf, np.nan, 2**31, 2**31 - 128, -2**31, 2**32, 2**63, -2**63, 1e30, 240,
                     248, 448, 464, 480, 57344, 61440, 65504, 65519.996, 65520, 3.3895314e38, 3.4e38, 1e-45, 127.5,
                     128.5], F)
    return np.concatenate([bits, ties, small, halves, fp8, middle, edge])


def same(got, wanted):
    if got.dtype.kind in "iub":
        return got == wanted
    with np.errstate(all="ignore"):
        g, w = got.astype(np.float64), wanted.astype(np.float64)
    return ((g == w) & (np.signbit(g) == np.signbit(w))) | (np.isnan(g) & np.isnan(w))


def to_type(x, name):
    """float32 values as a store gives them."""
    dtype, kind = NUMPY[name], ELEMENTS[name].kind
    with np.errstate(all="ignore"):
        if kind == "f":
            return x.astype(dtype)
        if kind == "b":
            return x != 0
        info = np.iinfo(dtype)
        r = np.rint(x.astype(np.float64))
        r = np.nan_to_num(r, nan=0, posinf=1e30, neginf=-1e30)
        return np.array([min(max(int(v), info.min), info.max) for v in r], dtype)


@pytest.mark.parametrize("name", [*FLOATS, *INTEGERS, "bool"])
def test_store_rounds_and_saturates(name, apply):
    x = values()
    got = apply(lambda build, v: v, x, out=NUMPY[name], to=name)
    wanted = to_type(x, name)
    ok = same(got, wanted)
    assert ok.all(), [(x[i], got[i], wanted[i]) for i in np.flatnonzero(~ok)[:5]]


@pytest.mark.parametrize("name", [n for n in NUMPY if ELEMENTS[n].size <= 2])
def test_load_of_every_bit_pattern(name, apply):
    size = ELEMENTS[name].size
    raw = np.arange(1 << 8 * size, dtype=f"u{size}").astype(f"u{size}")
    source = raw.view(NUMPY[name]) if name != "bool" else (raw & 1).view(np.bool_)
    got = apply(lambda build, v: v, source, dtype=name)
    with np.errstate(all="ignore"):
        assert same(got, source.astype(F)).all()


@pytest.mark.parametrize("name", ["float32", "float64", "int32", "uint32", "int64"])
def test_load_of_wide_types(name, apply):
    rng = np.random.default_rng(1)
    if ELEMENTS[name].kind == "f":
        source = values()
        with np.errstate(all="ignore"):
            source = (source.astype(NUMPY[name]) * (1 + 2.0**-30)).astype(NUMPY[name])
    else:
        info = np.iinfo(NUMPY[name])
        source = rng.integers(info.min, info.max, 5000, dtype=NUMPY[name], endpoint=True) >> rng.integers(
            0, 60, 5000).astype(NUMPY[name])
        source = np.concatenate([source, np.array([info.min, info.max, 0, 1], NUMPY[name])])
    got = apply(lambda build, v: v, source, dtype=name)
    with np.errstate(all="ignore"):
        assert same(got, source.astype(F)).all()


@pytest.mark.parametrize("name", FLOATS)
def test_round_is_store_then_load(name, apply):
    x = values(2)
    stored = apply(lambda build, v: v, x, out=NUMPY[name], to=name)
    got = apply(lambda build, v: build.c.round(v, name), x)
    with np.errstate(all="ignore"):
        wanted = stored.astype(F) if name != "float64" else x
    assert same(got, wanted).all()


@pytest.mark.parametrize("source", [*INTEGERS, "bool"])
@pytest.mark.parametrize("to", ["int64", "int32", "uint8", "bool", "float64"])
def test_integers_are_exact(source, to, apply):
    """Through int64 registers nothing is lost: wrap to narrower types, truth for bool."""
    rng = np.random.default_rng(3)
    dtype = NUMPY[source]
    if source == "bool":
        x = rng.integers(0, 2, 1001).astype(bool)
    else:
        info = np.iinfo(dtype)
        x = rng.integers(info.min, info.max, 1001, dtype=dtype, endpoint=True)
        x[:3] = info.min, info.max, 0
    size = x.itemsize
    got = apply(lambda build, v: v, x, out=NUMPY[to], to=to,
                load=lambda build, p, mask: build.iload(p, source, I64, mask))
    assert size == ELEMENTS[source].size
    wanted = x.astype(np.int64) != 0 if to == "bool" else x.astype(np.int64).astype(NUMPY[to])
    assert np.array_equal(got, wanted)


def test_int32_registers_and_floats_to_integers(apply):
    x = np.array([1.5, 2.5, -0.5, 3e9, -3e9, np.nan, 7], F)
    got = apply(lambda build, v: v, x, out=np.int32, to="int32",
                load=lambda build, p, mask: build.iload(p, "float32", I32, mask))
    assert got.tolist() == [2, 2, 0, 2**31 - 1, -2**31, 0, 7]


@pytest.mark.parametrize("to", ["bool", "uint8", "int64", "float32", "bfloat16"])
def test_predicates_are_stored_as_one_and_zero(to, apply):
    x = np.array([1, 0, -1, np.nan, 0.0, -0.0, 5, 9, 0] * 5, F)
    got = apply(lambda build, v: build.m.truth(v), x, out=NUMPY[to], to=to)
    assert np.array_equal(got.astype(F), (x != 0).astype(F))


# ---- memory

@pytest.mark.parametrize("size", [1, 2, 4, 8])
@pytest.mark.parametrize("n", [1, 7, 8, 16, 17, 33])
def test_bit_copies_with_strides(size, n, run):
    """Strided reads and writes, a constant or a run-time mask at the end, positive, negative and zero strides."""
    rng = np.random.default_rng(n)
    dtype = f"u{size}"
    for step_in, step_out in ((1, 1), (3, 1), (1, 2), (-2, 3), (0, 1)):
        source = rng.integers(0, 255, 40 * 3 + 200).astype(dtype)
        target = np.zeros(200, dtype)

        def body(build, p, count, step_in=step_in, step_out=step_out):
            origin = build.at(p[0], 100 * size)

            def piece(i, mask):
                v = build.load_bits(build.at(origin, (i, size * step_in)), size, mask, stride=size * step_in)
                build.store_bits(v, build.at(p[1], (i, size * step_out)), mask, stride=size * step_out)

            whole = n // build.W * build.W
            build.loop(0, whole, build.W, lambda i, _: piece(i, None))
            if n > whole:
                piece(build.i64(whole), build.lanes(n - whole) if n % 2 else build.below(build.i64(whole), count))

        run(body, source, target, n=n)
        wanted = np.zeros(200, dtype)
        wanted[:n * step_out:step_out] = [source[100 + k * step_in] for k in range(n)]
        assert np.array_equal(target, wanted), (step_in, step_out)


@pytest.mark.parametrize("name", ["float32", "bfloat16", "int64", "uint8"])
def test_gather_and_scatter(name, run):
    rng = np.random.default_rng(6)
    n, dtype = 37, NUMPY[name]
    size = ELEMENTS[name].size
    source = rng.integers(0, 100, 64).astype(dtype)
    index, place = rng.integers(0, 64, n), rng.permutation(64)[:n]
    target = np.zeros(64, F)

    def body(build, p, count):
        def turn(i, _):
            mask = build.below(i, count)
            offsets = build.b.mul(build.iload(build.at(p[1], (i, 8)), "int64", I64, mask), build.const(size, I64))
            v = build.gather(p[0], offsets, name, mask)
            to = build.b.mul(build.iload(build.at(p[2], (i, 8)), "int64", I64, mask), build.const(4, I64))
            build.scatter(v, p[3], to, "float32", mask)
        build.loop(0, count, build.W, turn)

    run(body, source, index, place, target, n=n)
    wanted = np.zeros(64, F)
    wanted[place] = source[index].astype(F)
    assert np.array_equal(target, wanted)


def test_misaligned_addresses(run):
    source, target = np.arange(100, dtype=np.uint8), np.zeros(100, np.uint8)
    wanted = np.frombuffer(source[3:67].tobytes(), F).copy()

    def body(build, p, count):
        build.store_bits(build.load_bits(build.at(p[0], 3), 4, W=16), build.at(p[1], 1))
    run(body, source, target)
    assert target[1:65].tobytes() == wanted.tobytes() and target[65:].sum() == 0 and target[0] == 0


@pytest.mark.parametrize("lanes", [4, 8, 16])
def test_butterfly_transposes(lanes, run):
    x = np.arange(lanes * lanes, dtype=F).reshape(lanes, lanes)
    out = np.zeros_like(x)

    def body(build, p, count):
        rows = [build.vload(build.at(p[0], 4 * lanes * k), "float32", W=lanes) for k in range(lanes)]
        for k, v in enumerate(build.butterfly(rows)):
            build.vstore(v, build.at(p[1], 4 * lanes * k), "float32")
    run(body, x, out)
    assert np.array_equal(out, x.T)


def test_loops_and_branches(run):
    """A loop of run-time bounds may make no turn; branches merge values."""
    out = np.zeros((5, 3), np.int64)

    def body(build, p, count):
        def turn(k, _):
            total, = build.loop(2, k, 1, lambda i, acc: [build.b.add(acc[0], i)], [build.i64(100)])
            even = build.b.icmp_signed("==", build.b.and_(k, build.i64(1)), build.i64(0))
            parity, = build.when(even, lambda: [build.i64(10)], [build.i64(20)])
            fixed, = build.loop(0, 4, 2, lambda i, acc: [build.b.add(acc[0], i)], [k])
            for c, v in enumerate((total, parity, fixed)):
                build.store_bits(v, build.at(p[0], (k, 24), 8 * c))
        build.loop(0, count, 1, turn)
    run(body, out, n=5)
    assert out.tolist() == [[100 + sum(range(2, k)), 20 if k % 2 else 10, k + 2] for k in range(5)]
