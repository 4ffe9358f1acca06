"""Entries: what a plan matches, what it runs, what goes to the miss function."""
from __future__ import annotations

import ctypes
import math
import struct

import pytest
import torch

from neuron_eager.native.entry import Argument, Constant, Entry, Foreach, Output, constant


def like(t):
    return Output(tuple(t.shape), t.stride(), t.dtype, t.device.index)


class Recorder:
    """A miss function that installs a plan made by `plan(args, kwargs)`, if any, and calls again."""

    def __init__(self, rt, plan, **options):
        self.calls = []
        self.plan = plan
        self.entry = Entry(rt, "test", self.miss, **options)
        self.call = self.entry.call

    def miss(self, *args, **kwargs):
        self.calls.append((args, kwargs))
        plan = self.plan(*args, **kwargs)
        if plan is None or self.entry.install(args, kwargs, **plan) is None:
            return "missed"
        return self.call(*args, **kwargs)


@pytest.fixture
def adder(rt, kernels):
    def plan(x, y):
        out = like(x)
        return dict(kernel=kernels.add, r0=0, r1=x.numel(), pointers=[Argument(0), Argument(1), out], results=[out])
    return Recorder(rt, plan)


def test_a_hit_runs_the_kernel_and_makes_a_tensor(adder, ints):
    x, y = ints(1, 2, 3), ints(10, 20, 30)
    for _ in range(3):
        r = adder.call(x, y)
        assert type(r) is torch.Tensor and r.device == x.device and r.dtype is torch.int64
        assert r.tolist() == [11, 22, 33]
    assert len(adder.calls) == 1 and adder.entry.hits == 3 and adder.entry.misses == 1


def test_shapes_strides_dtypes_and_devices_are_guarded(rt):
    base = torch.arange(12)
    variants = [base[:6], base[:6].view(2, 3), base[:6].view(3, 2), base[:6].view(3, 2).t(), base[:12:2], base[:0],
                base[0], base[:1], base[:6].float(), base[:6].int(), base[:6].expand(2, 6), base[:2].view(1, 2, 1)]
    tensors = [rt.to_neuron(v, 0) for v in variants] + [rt.to_neuron(base[:6], 1)]
    e = Entry(rt, "guards", lambda t: "missed")
    plans = []
    for t in tensors:
        assert e.call(t) == "missed"
        plans.append(e.install((t,), {}, NOTHING, 0, 0, pointers=[], results=[Argument(0)]))
        assert e.call(t) is t
    assert [p.hits for p in plans] == [1] * len(tensors)


def test_each_kind_of_tensor_has_its_own_plan(adder, rt):
    for _ in range(2):
        for shape in [(3,), (3, 1), (1, 3), (2, 3, 4), (0,), (1,), (0, 3), (1, 1, 1, 1, 1)]:
            a, b = torch.randint(9, shape), torch.randint(9, shape)
            r = adder.call(rt.to_neuron(a, 0), rt.to_neuron(b, 0))
            assert r.shape == shape and torch.equal(rt.to_cpu(r), a + b)
    assert len(adder.calls) == 8


def test_data_pointer_and_storage_offset_are_not_keys(adder, ints):
    x = ints(*range(10))
    for i in range(7):
        assert adder.call(x[i:i + 3], x[i:i + 3]).tolist() == [2 * i, 2 * i + 2, 2 * i + 4]
    assert len(adder.calls) == 1


def test_many_plans(adder, rt):
    tensors = [rt.to_neuron(torch.full((n,), n), 0) for n in range(1, 600)]
    for _ in range(2):
        for n, t in enumerate(tensors, 1):
            assert adder.call(t, t)[n - 1].item() == 2 * n
    assert len(adder.calls) == 599 and len(adder.entry.plans) == 599


def test_operands_are_data(rt, kernels, ints):
    def plan(x, v):
        out = Output((2,), (1,), torch.int64)
        return dict(kernel=kernels.copy_operand, r0=0, r1=0, pointers=[Argument(1), out], results=[out])
    r, x = Recorder(rt, plan, operands={1}), ints(0)
    for v in (2.5, -0.0, math.inf, 1e300, 5e-324, 0.1):
        narrow, exact = r.call(x, v).tolist()
        assert struct.pack("<qq", narrow, exact)[8:] == struct.pack("<d", v)
        expected = torch.tensor(v, dtype=torch.float64).float().view(torch.int32).item()
        assert narrow & 0xFFFFFFFF == expected & 0xFFFFFFFF
    assert math.isnan(struct.unpack("<d", struct.pack("<q", r.call(x, math.nan).tolist()[1]))[0])
    assert len(r.calls) == 1
    for v in (3, -4, 2**63 - 1, -2**63, 0):
        narrow, exact = r.call(x, v).tolist()
        assert exact == v and struct.unpack("<f", struct.pack("<q", narrow)[:4])[0] == torch.tensor(v).float().item()
    assert len(r.calls) == 2                        # one plan for floats, one for ints
    r.call(x, True)
    r.call(x, False)
    assert len(r.calls) == 4                        # a bool is part of the key


def test_constants(rt, kernels, ints):
    def plan(x, y):
        out = like(x)
        return dict(kernel=kernels.add_times, r0=0, r1=x.numel(), results=[out],
                    pointers=[Argument(0), Argument(1), constant(5), out])
    r = Recorder(rt, plan)
    assert r.call(ints(1, 2), ints(10, 20)).tolist() == [51, 102]
    assert isinstance(constant(1.5), Constant)


def test_statics_are_compared_exactly(rt, ints):
    r = Recorder(rt, lambda *a, **k: dict(kernel=NOTHING, r0=0, r1=0, pointers=[], results=[Argument(0)]),
                 keywords=("approximate", "dtype", "memory_format"))
    x, fresh = ints(1), "no"
    calls = [((x, [0, 1], True), {}), ((x, [0, 2], True), {}), ((x, [0, 1], False), {}), ((x, [], True), {}),
             ((x, None, True), {}), ((x, 1e-5), {}), ((x, 2e-5), {}), ((x, 0.0), {}), ((x, -0.0), {}),
             ((x, math.nan), {}),
             ((x,), {"approximate": fresh + "ne"}), ((x,), {"approximate": "tanh"}), ((x, 1), {}), ((x, True), {}),
             ((x, 1.0), {}), ((x, -1), {}), ((x, 1 << 40), {}), ((x, [True, False]), {}), ((x, [1, 0]), {}),
             ((x, [1.0, 0.0]), {}), ((x, [[]]), {}), ((x,), {"dtype": torch.float32}), ((x,), {"dtype": torch.int64}),
             ((x,), {"dtype": torch.float32, "approximate": "tanh"}), ((x, torch.device("cpu")), {}),
             ((x,), {"memory_format": torch.channels_last}), ((x, "none"), {}), ((x,), {})]
    for _ in range(3):
        for args, kwargs in calls:
            args = [list(a) if type(a) is list else a for a in args]
            assert r.call(*args, **kwargs) in ("missed", x)
    nested = sum(1 for a, _ in r.calls if a[1:] == ([[]],))
    assert nested == 3 and len(r.calls) == len(calls) - 1 + 3


def test_a_list_may_change_after_its_plan_was_made(rt, ints):
    r = Recorder(rt, lambda *a: dict(kernel=NOTHING, r0=0, r1=0, pointers=[], results=[Argument(0)]))
    sizes = [5]
    r.call(ints(1), sizes)
    sizes[0] = 6
    r.call(ints(1), sizes)
    assert len(r.calls) == 2


def test_no_plan_for_other_objects(rt, ints):
    class Equal:
        def __eq__(self, other):
            raise AssertionError("a plan compared it")
        __hash__ = None

    class Text(str):
        pass

    plan = dict(kernel=0, r0=0, r1=0, pointers=[], results=[Argument(0)])
    r, x = Recorder(rt, lambda *a, **k: plan, keywords=("k",)), ints(1)
    others = [(x, Equal()), (x, 1 << 80), (x, -(1 << 63) - 1), (x, (1, 2)), (x, {}), (x, 1j), (x, Text("a")),
              (x, [x, [x]]), tuple([x] * 33), ([x] * 65,), (x, [0] * 300), (x, torch.Generator())]
    for args in others:
        assert r.call(*args) == "missed"
    assert r.call(x, other=1) == "missed" and r.call(x, **{"": 1}) == "missed"
    assert r.entry.plans == []


def test_special_tensors_get_no_plan(rt, adder):
    class Sub(torch.Tensor):
        pass

    x = rt.to_neuron(torch.ones(3, dtype=torch.complex64), 0)
    for t in (x.conj(), x.conj().imag, torch.ones(3).to_sparse(), x.as_subclass(Sub), torch.empty(3, device="meta")):
        assert adder.entry.install((t, t), {}, 0, 0, 0, pointers=[], results=[]) is None
        adder.plan = lambda *a: None
        assert adder.call(t, t) == "missed"
    t = rt.to_neuron(torch.ones(3), 0)
    t.untyped_storage().resize_(0)                  # elements without memory
    assert adder.entry.install((t, t), {}, 0, 0, 0, pointers=[], results=[]) is None
    p = torch.nn.Parameter(rt.to_neuron(torch.ones(3), 0))
    assert adder.entry.install((p, p), {}, 0, 0, 0, pointers=[], results=[]) is not None


def test_a_cpu_scalar_tensor_is_an_ordinary_argument(rt, kernels, ints):
    def plan(x, y):
        out = Output((2,), (1,), torch.int64)
        return dict(kernel=kernels.first_words, r0=0, r1=2, pointers=[Argument(0), Argument(1), out], results=[out])
    r = Recorder(rt, plan)
    assert r.call(ints(3), torch.tensor(4)).tolist() == [3, 4]
    assert r.call(ints(5), torch.tensor(6)).tolist() == [5, 6]
    assert len(r.calls) == 1
    r.call(ints(5), ints(6)[0])                     # a 0-dim neuron tensor is another kind
    assert len(r.calls) == 2


def test_keywords(rt, kernels, ints):
    def plan(x, y, *, alpha=1, out=None):
        result = like(x) if out is None else Argument(3 if alpha != 1 else 2)
        alpha_pointer = Argument(2) if alpha != 1 else constant(1)
        return dict(kernel=kernels.add_times, r0=0, r1=x.numel(), results=[result],
                    pointers=[Argument(0), Argument(1), alpha_pointer, result])
    r = Recorder(rt, plan, operands={"alpha"}, keywords=("alpha", "out"))
    x, y, o = ints(1, 2), ints(10, 20), ints(0, 0)
    for alpha in (2, 3, 4):
        assert r.call(x, y, alpha=alpha).tolist() == [1 + 10 * alpha, 2 + 20 * alpha]
    assert len(r.calls) == 1
    for _ in range(2):
        assert r.call(x, y, out=o) is o and o.tolist() == [11, 22]
        assert r.call(x, y, alpha=5, out=o) is o and o.tolist() == [51, 102]
    assert len(r.calls) == 3
    assert r.call(x, y).tolist() == [11, 22]
    with pytest.raises(ValueError, match="at most 6"):
        Entry(rt, "many", print, keywords="abcdefg")


def test_outputs_scratch_and_tuples(rt, kernels, ints):
    def plan(x):
        scratch, a, b = like(x), like(x), like(x)
        return dict(kernel=kernels.three, r0=0, r1=x.numel(), pointers=[Argument(0), scratch, a, b, Argument(0)],
                    results=[a, b, Argument(0)])
    r, x = Recorder(rt, plan), ints(1, 2)
    for _ in range(3):
        result = None
        before = rt.memory()["allocated"]
        result = r.call(x)
        assert type(result) is tuple and [t.tolist() for t in result] == [[-1, -2], [2, 4], [1, 2]]
        assert result[2] is x and rt.memory()["allocated"] == before + 32       # the scratch is free again
    outputs = [like(x) for _ in range(5)]
    assert r.entry.install((x, 5), {}, 0, 0, 0, pointers=outputs, results=outputs) is None


def test_no_result(rt, kernels, ints):
    x = ints(1, 2)
    e = Entry(rt, "none", print)
    e.install((x,), {}, kernels.negate, 0, 2, pointers=[Argument(0), Argument(0)], results=[])
    assert e.call(x) is None and x.tolist() == [-1, -2]


def test_pointer_offsets(rt, kernels, ints):
    x = ints(1, 2, 3, 4)
    e = Entry(rt, "offset", print)
    out = Output((2,), (1,), torch.int64)
    e.install((x,), {}, kernels.add, 0, 2, pointers=[Argument(0, 16), Argument(0), out], results=[out])
    assert e.call(x).tolist() == [4, 6]


def test_tensor_lists(rt, kernels, ints):
    def plan(tensors, dim=0):
        n = len(tensors)
        out = Output((n,), (1,), torch.int64)
        return dict(kernel=kernels.first_words, r0=0, r1=n, pointers=[*map(Argument, range(n)), out], results=[out])
    r = Recorder(rt, plan)
    for _ in range(2):
        assert r.call([ints(1), ints(2, 0)], 0).tolist() == [1, 2]
        assert r.call([ints(1), ints(2, 0), ints(3)], 0).tolist() == [1, 2, 3]
        assert r.call([ints(1)]).tolist() == [1]
    assert len(r.calls) == 3


def test_disjoint_arguments(rt, kernels, ints):
    e = Entry(rt, "disjoint", lambda *a: "missed")
    x, y = ints(*range(8)), ints(*range(8))
    plan = dict(kernel=kernels.add, r0=0, r1=4, pointers=[Argument(0), Argument(1), Argument(0)], results=[Argument(0)])
    e.install((x[:4], y[:4]), {}, **plan, disjoint=[(0, 1, True)])
    assert e.call(x[:4], y[:4]) != "missed"
    assert e.call(x[:4], x[4:]) != "missed"         # side by side
    assert e.call(x[4:], x[:4]) != "missed"
    assert e.call(x[:4], x[:4]) != "missed"         # the same start is allowed
    assert e.call(x[:4], x[3:7]) == "missed" and e.call(x[1:5], x[:4]) == "missed"
    apart = Entry(rt, "apart", lambda *a: "missed")
    apart.install((x[:4], y[:4]), {}, **plan, disjoint=[(0, 1, False)])
    assert apart.call(x[:4], x[:4]) == "missed" and apart.call(x[:4], x[4:]) != "missed"
    same = apart.install((x[:4], x[:4]), {}, **plan)                # a further plan for what the first refuses
    assert apart.call(x[:4], x[:4]) != "missed" and same.hits == 1


def test_a_fault_of_the_kernel_raises(rt, kernels, ints):
    word = ctypes.c_int64(0)

    def fail():
        index, word.value = word.value, 0
        raise IndexError(f"index {index} is out of range")
    e = Entry(rt, "fault", lambda *a: "missed")
    out = Output((1,), (1,), torch.int64)
    e.install((ints(1),), {}, kernels.faulty, 0, 0, results=[out],
              pointers=[Constant(ctypes.addressof(word)), Argument(0), out], fault=(ctypes.addressof(word), fail))
    before = rt.memory()["allocated"]
    for _ in range(3):
        assert e.call(ints(5)).tolist() == [5]
        with pytest.raises(IndexError, match="index -3 is out of range"):
            e.call(ints(-3))
    assert rt.memory()["allocated"] == before


def test_enabled(adder, rt, ints):
    x = ints(1)
    adder.call(x, x)
    for switch in (adder.entry, rt):
        assert switch.enabled
        switch.enabled = False
        try:
            adder.plan = lambda x, y: None
            assert adder.call(x, x) == "missed"
        finally:
            switch.enabled = True
        assert adder.call(x, x).tolist() == [2]


def test_hits_are_counted_by_plan(rt, ints):
    e = Entry(rt, "hits", print)
    plans = [e.install((ints(*range(n)),), {}, NOTHING, 0, 0, pointers=[], results=[], user=n) for n in range(1, 4)]
    for n in (1, 2, 3):
        for _ in range(n):
            e.call(ints(*range(n)))
    assert [(p.user, p.hits) for p in plans] == [(1, 1), (2, 2), (3, 3)] and e.hits == 6


def test_the_least_used_plans_are_evicted(rt, ints):
    e = Entry(rt, "evict", lambda t: "missed", max_plans=16)
    gone = []
    e.on_evict = gone.append
    tensors = [ints(*range(n)) for n in range(1, 30)]
    for i, t in enumerate(tensors):
        e.install((t,), {}, NOTHING, 0, 0, pointers=[], results=[], user=i)
        for used in tensors[:4]:
            e.call(used)
    assert len(e.plans) <= 16 and len(gone) + len(e.plans) == 29 and not {p.user for p in gone} & {0, 1, 2, 3}
    assert e.call(tensors[0]) is None and e.call(tensors[-1]) is None
    assert all(e.call(tensors[p.user]) == "missed" for p in gone)


def test_foreach(rt, kernels, ints):
    def plan(x, y, alpha=1, **kwargs):
        last = Argument(2)
        return dict(kernel=kernels.add_times, r0=0, r1=x.numel(), results=[Argument(0)],
                    pointers=[Argument(0), Argument(1), last, Argument(0)])
    r = Recorder(rt, plan, operands={2, "alpha"}, keywords=("alpha",))
    f = Foreach(rt, "foreach", r.entry, lists={0, 1}, returns=False, slow=lambda *a, **k: "slow")
    xs, ys = [ints(*range(n)) for n in range(1, 6)], [ints(*range(n)) for n in range(1, 6)]
    for alpha in (2, 3):
        assert f.call(xs, ys, alpha=alpha) is None
    assert [x.tolist() for x in xs] == [[6 * i for i in range(n)] for n in range(1, 6)]
    assert len(r.calls) == 5
    assert f.call(xs, ys[1:], alpha=2) == "slow" and f.call(xs, 3, alpha=1) == "slow" and f.call([], []) is None
    scalars = Foreach(rt, "foreach", r.entry, lists={0, 1, 2}, returns=True, slow=print)
    result = scalars.call(xs[:2], ys[:2], [10, 20])
    assert type(result) is list and result[0] is xs[0] and xs[1].tolist() == [0, 26]


def test_foreach_raises_what_the_miss_raises(rt, ints):
    def miss(x):
        raise KeyError("element")
    f = Foreach(rt, "foreach", Entry(rt, "raises", miss), lists={0}, returns=True, slow=print)
    with pytest.raises(KeyError, match="element"):
        f.call([ints(1), ints(2)])


@pytest.fixture(scope="module", autouse=True)
def _nothing(rt, kernels):
    """NOTHING: a kernel that does nothing, for plans of which only the key matters."""
    global NOTHING
    NOTHING = kernels.add       # with no rows
