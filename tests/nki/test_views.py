"""Views of NkiTensor equal NumPy's strided views of the same memory."""
from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neuron_eager.errors import NkiIndexError, NkiShapeError, NkiTypeError
from neuron_eager.nki import access, dtypes, machine
from neuron_eager.nki import language as nl
from neuron_eager.nki.interpreter import Interpreter

DTYPES = ("float32", "bfloat16", "int32", "uint8", "float16", "int16")


@pytest.fixture(autouse=True)
def core():
    with machine.use(Interpreter("test")) as running:
        yield running


def filled(shape, dtype="float32", buffer=nl.sbuf):
    """A tensor whose bytes are all different as far as possible, and the same memory as a NumPy array."""
    t = nl.ndarray(shape, dtype, buffer=buffer, name="t")
    data = t.storage.data
    data[:] = np.arange(len(data)) % 61
    return t, data.view(dtypes.as_dtype(dtype).numpy).reshape(shape)


def same(t, a):
    assert t.shape == a.shape
    assert access.read(t).tobytes() == a.tobytes()


@pytest.mark.parametrize("key", [
    np.s_[:], np.s_[3], np.s_[-1], np.s_[1:5], np.s_[:, 2], np.s_[..., -1], np.s_[2:8:3, 1:4, ::2], np.s_[..., 0:1, :],
    np.s_[0, 0, 0], np.s_[:, 1:2, 3:4], np.s_[-6:-2, ...], np.s_[1, ..., 2]])
def test_index_in_hbm(key):
    t, a = filled((8, 4, 6), buffer=nl.shared_hbm)
    same(t[key], np.atleast_1d(a[key]))


def test_index_on_chip_keeps_partitions():
    t, a = filled((8, 4, 6))
    same(t[3], a[3:4])
    same(t[3, 1], a[3:4, 1])
    same(t[2:4, 1, 2], a[2:4, 1, 2:3])
    assert t[3, 1, 2].shape == (1, 1)


def test_ds():
    t, a = filled((8, 6))
    same(t[nl.ds(2, 4), nl.ds(1, 3)], a[2:6, 1:4])
    with pytest.raises(NkiIndexError, match=r"nl.ds\(6, 3\) goes beyond dimension 0 of size 8"):
        t[nl.ds(6, 3)]


@pytest.mark.parametrize(("key", "message"), [
    (np.s_[0:9], "slice 0:9 goes beyond dimension 0 of size 8; clip it"), (np.s_[8], "index 8 is outside dimension 0"),
    (np.s_[3:3], "slice 3:3 of dimension 0 of size 8 is empty"), (np.s_[0, 0, 0], "3 indices for 2 dimensions"),
    (np.s_[::-1], "slice step -1")])
def test_index_errors(key, message):
    t, _ = filled((8, 6))
    with pytest.raises(NkiIndexError, match=message) as error:
        t[key]
    assert "t (sbuf float32[8, 6])" in str(error.value)
    assert __file__ in error.value.where


def test_named_views():
    t, a = filled((8, 4, 6))
    same(t.slice(1, 1, 4, 2), a[:, 1:4:2])
    same(t.select(1, 3), a[:, 3])
    same(t.select(0, 3), a[3:4])
    same(t.permute((0, 2, 1)), a.transpose(0, 2, 1))
    same(t.slice(1, 2, 3).broadcast(1, 5), np.broadcast_to(a[:, 2:3], (8, 5, 6)))
    same(t.expand_dim(1), a[:, None])
    same(t.expand_dim(-1), a[..., None])
    same(t.expand_dim(2).squeeze_dim(2), a)
    same(t.reshape_dim(2, (2, -1)), a.reshape(8, 4, 2, 3))
    same(t.flatten_dims(1, 2), a.reshape(8, 24))
    same(t.reshape((8, 2, 12)), a.reshape(8, 2, 12))
    same(t.reshape(8, -1), a.reshape(8, 24))
    same(t.rearrange(("p", "a", ("b", "c")), ("p", "b", "a", "c"), {"c": 3}),
         a.reshape(8, 4, 2, 3).transpose(0, 2, 1, 3))
    same(t.rearrange(("p", "a", "b"), ("p", ("a", "b"))), a.reshape(8, 24))
    same(t.view(nl.uint8), a.view(np.uint8).reshape(8, 4, 24))
    same(t.view("bfloat16").view(nl.float32), a)
    assert t.get_pattern() == [[24, 8], [6, 4], [1, 6]]
    assert t.slice(1, 1, 2).offset == 6
    assert t.is_contiguous() and not t.permute((0, 2, 1)).is_contiguous()
    assert t.slice(0, 2, 4).is_contiguous()


@pytest.mark.parametrize(("call", "message"), [
    (lambda t: t.permute((1, 0, 2)), "partition dimension stays first"),
    (lambda t: t.permute((0, 0, 1)), "not a permutation"),
    (lambda t: t.broadcast(1, 3), "needs a dimension of size 1, not 4"),
    (lambda t: t[0:1].broadcast(0, 8), "partition dimension cannot be broadcast"),
    (lambda t: t.expand_dim(0), "before the partition dimension"),
    (lambda t: t.squeeze_dim(1), "needs a dimension of size 1"),
    (lambda t: t.reshape_dim(1, (3, 2)), "does not have 4 elements"),
    (lambda t: t.reshape_dim(0, (4, 2)), "partition dimension cannot be split"),
    (lambda t: t.permute((0, 2, 1)).flatten_dims(1, 2), "not contiguous in memory"),
    (lambda t: t.flatten_dims(0, 1), "cannot be merged"),
    (lambda t: t.reshape((4, 48)), "changes the partition dimension from 8"),
    (lambda t: t.reshape((8, 25)), "does not have 192 elements"),
    (lambda t: t.permute((0, 2, 1)).reshape((8, 24)), "would have to copy"),
    (lambda t: t.permute((0, 2, 1)).view(nl.uint8), "contiguous last dimension"),
    (lambda t: t.slice(2, 0, 1).view(nl.float64), "not a multiple of 8"),
    (lambda t: t.vector_select(0, t), "needs a tensor in HBM"),
    (lambda t: t.select(0, nl.zeros((1, 1), nl.int32)), "partition dimension cannot be selected"),
    (lambda t: t.ap([[24, 8], [1, 24]], scalar_offset=t, vector_offset=t), "not both"),
    (lambda t: t.ap([[48, 4], [1, 24]]), "its stride must be 24"),
    (lambda t: t.ap([[24, 8], [1, 0]]), "count below 1"),
    (lambda t: t.ap([24, 8]), "access pattern is"),
])
def test_view_errors(call, message):
    t, _ = filled((8, 4, 6))
    with pytest.raises((NkiShapeError, TypeError), match=message):
        call(t)


def test_ap():
    t, a = filled((8, 24))
    flat = a.reshape(-1)
    same(t.ap([[24, 8], [2, 12]]), a[:, ::2])
    same(t.ap(pattern=[[24, 4], [1, 3]], offset=2 * 24 + 5), a[2:6, 5:8])
    same(t.ap([[24, 8], [0, 3], [4, 6]], offset=1),
         np.lib.stride_tricks.as_strided(flat[1:], (8, 3, 6), (96, 0, 16)))
    same(t.ap([[48, 8], [1, 48]], dtype=nl.bfloat16), a.view(nl.bfloat16.numpy).reshape(8, 48))
    same(t[2:4, 3:6].ap([[24, 2], [1, 2]]), a[2:4, 3:5])          # inherits the offset of the view
    with pytest.raises(NkiIndexError, match="runs beyond the 24 elements of a partition"):
        t.ap([[24, 4], [1, 20]], offset=5)
    with pytest.raises(NkiIndexError, match="reaches element"):
        t.ap([[24, 8], [1, 24]], offset=24)


def test_run_time_offsets(core):
    t, a = filled((8, 6), buffer=nl.shared_hbm)
    reg = core.register(3)
    same(t.ap([[6, 2], [1, 6]], scalar_offset=reg, indirect_dim=0), a[3:5])
    same(t[nl.ds(reg, 4)], a[3:7])
    same(t[reg], a[3])
    same(t.select(1, reg), a[:, 3])
    index = nl.ndarray((4, 1), nl.int32)
    access.write(index, np.array([[7], [0], [5], [0]], np.int32))
    same(t.vector_select(0, index), a[[7, 0, 5, 0]])
    same(t.ap([[6, 4], [2, 3]], vector_offset=index), a[[7, 0, 5, 0], ::2])
    assert t.vector_select(0, index).is_indirect() and not t.is_indirect()
    with pytest.raises(NkiShapeError, match="indexed at run time"):
        t.vector_select(0, index).slice(0, 0, 2)
    with pytest.raises(NkiShapeError, match="only one run-time select"):
        t.vector_select(0, index).select(1, reg)
    with pytest.raises(NkiTypeError, match="must hold integers"):
        t.vector_select(0, nl.ndarray((4, 1), nl.float32))


def test_operators_are_refused():
    t, _ = filled((8, 6))
    for use in (lambda: t + t, lambda: 2 * t, lambda: t @ t, lambda: -t, lambda: t < t, lambda: t ** 2, lambda: t / 2):
        with pytest.raises(NkiTypeError, match="operators on tensors are not part of NKI"):
            use()
    with pytest.raises(NkiTypeError, match="cannot be iterated"):
        list(t)
    with pytest.raises(NkiTypeError, match="cannot be an index"):
        range(nl.zeros((1, 1), nl.int32))


# ---- random chains against NumPy

@st.composite
def chains(draw):
    shape = tuple(draw(st.lists(st.integers(1, 8), min_size=2, max_size=4)))
    dtype = draw(st.sampled_from(DTYPES))
    chip = draw(st.booleans())
    return shape, dtype, chip, draw(st.integers(0, 2 ** 31)), draw(st.integers(1, 6))


def step(rng, t, a, chip):
    """One random view of both; None where it does not apply."""
    d = int(rng.integers(1 if chip else 0, a.ndim))
    n = a.shape[d]
    kind = rng.integers(0, 8)
    if kind == 0:
        start = int(rng.integers(0, n))
        stop, by = int(rng.integers(start + 1, n + 1)), int(rng.integers(1, 3))
        key = (slice(None),) * d + (slice(start, stop, by),)
        return t[key], a[key]
    if kind == 1 and a.ndim > 2:
        i = int(rng.integers(0, n))
        key = (slice(None),) * d + (i,)
        return t[key], a[key]
    if kind == 2:
        order = rng.permutation(a.ndim)
        order = [0, *[int(i) for i in order if i != 0]] if chip else [int(i) for i in order]
        return t.permute(order), a.transpose(order)
    if kind == 3 and n == 1:
        size = int(rng.integers(1, 4))
        return t.broadcast(d, size), np.broadcast_to(a, a.shape[:d] + (size,) + a.shape[d + 1:])
    if kind == 4 and a.ndim < 5:
        return t.expand_dim(d), np.expand_dims(a, d)
    if kind == 5:
        parts = [f for f in range(1, n + 1) if n % f == 0]
        f = int(rng.choice(parts))
        return t.reshape_dim(d, (f, -1)), a.reshape(a.shape[:d] + (f, n // f) + a.shape[d + 1:])
    if kind == 6:
        rest = a.shape[1:] if chip else a.shape
        flat = (a.shape[0], int(np.prod(rest))) if chip else (int(np.prod(rest)), 1)
        try:
            return t.reshape(flat), a.reshape(flat)
        except NkiShapeError:
            return None
    if kind == 7 and a.shape[-1] > 1 and a.strides[-1] == a.itemsize:
        other = rng.choice([x for x in DTYPES if dtypes.as_dtype(x).itemsize <= a.itemsize])
        return t.view(str(other)), a.view(dtypes.as_dtype(str(other)).numpy)
    return None


@settings(deadline=None)
@given(chains())
def test_random_views_equal_numpy(chain):
    shape, dtype, chip, seed, length = chain
    rng = np.random.default_rng(seed)
    with machine.use(Interpreter("test")):
        t, a = filled(shape, dtype, nl.sbuf if chip else nl.shared_hbm)
        for _ in range(length):
            made = step(rng, t, a, chip)
            if made is not None:
                t, a = made
        same(t, a)
        if a.flags.writeable and 0 not in a.strides:
            values = rng.integers(0, 50, a.shape).astype(np.uint8).astype(a.dtype)
            access.write(t, values)
            assert a.tobytes() == values.tobytes()


@settings(deadline=None)
@given(st.integers(1, 8), st.integers(1, 40), st.integers(0, 2 ** 31), st.sampled_from(DTYPES))
def test_random_access_patterns_equal_as_strided(partitions, free, seed, dtype):
    rng = np.random.default_rng(seed)
    with machine.use(Interpreter("test")):
        t, a = filled((partitions, free), dtype)
        item = a.itemsize
        dims = [(int(rng.integers(0, 5)), int(rng.integers(1, 5))) for _ in range(rng.integers(1, 4))]
        first = int(rng.integers(0, partitions))
        count = int(rng.integers(1, partitions - first + 1))
        reach = sum(s * (n - 1) for s, n in dims)
        column = int(rng.integers(0, free))
        offset = first * free + column
        pattern = [[free, count], *map(list, dims)]
        if column + reach >= free:
            with pytest.raises(NkiIndexError):
                t.ap(pattern, offset=offset)
            return
        strides = (free * item, *(s * item for s, _ in dims))
        same(t.ap(pattern, offset=offset),
             np.lib.stride_tricks.as_strided(a.reshape(-1)[offset:], (count, *(n for _, n in dims)), strides))
