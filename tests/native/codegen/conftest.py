"""Compile a few lines of IR building and run them on NumPy arrays."""
from __future__ import annotations

import ctypes

import numpy as np
import pytest

from neuron_eager.native import objects
from neuron_eager.native.build import Build, function, new_module
from neuron_eager.native.irtypes import I64, PTR
from neuron_eager.native.target import PRETEND, host

RUNNABLE = [host(), *(t for name, t in PRETEND.items() if name == "x86-64-v3" and host().arch == "x86_64")]


@pytest.fixture(params=RUNNABLE, ids=lambda t: t.cpu)
def target(request):
    """Each CPU that this machine can run code for: itself, and x86-64-v3 (AVX2, 8 lanes)."""
    if request.param.lacking:
        pytest.skip(request.param.lacking)
    return request.param


@pytest.fixture
def run(target):
    """run(body, *arrays, n=..., lanes=...): body(build, pointers, n) is compiled as a function and called once."""
    def run(body, *arrays, n=None, lanes=None):
        module = new_module("test", target)
        f = function(module, "f", PTR, I64)
        build = Build(f, target, lanes)
        pointers = [build.b.load(build.at(f.args[0], 8 * i), typ=PTR, align=8) for i in range(len(arrays))]
        body(build, pointers, f.args[1])
        build.b.ret_void()
        address = objects.load(objects.compile_object(module, target), target)["f"]
        table = (ctypes.c_void_p * len(arrays))(*(a.ctypes.data for a in arrays))
        count = len(arrays[0]) if n is None else n
        ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64)(address)(table, count)
    return run


@pytest.fixture
def apply(run):
    """apply(f, *inputs): f(build, *values) on all elements, the ragged end masked; returns the output array."""
    def apply(f, *inputs, out=np.float32, dtype="float32", to="float32", load=None, lanes=None):
        n = len(inputs[0])
        result = np.zeros(n + 3, out)
        guard = result[n:].tobytes()

        def body(build, pointers, count):
            *sources, to_p = pointers

            def turn(i, _):
                mask = build.below(i, count)
                read = load or (lambda p, m: build.vload(p, dtype, m))
                values = [read(build, build.at(p, (i, a.itemsize)), mask) if load else
                          read(build.at(p, (i, a.itemsize)), mask) for p, a in zip(sources, inputs)]
                build.vstore(f(build, *values), build.at(to_p, (i, result.itemsize)), to, mask)
            build.loop(0, count, build.W, turn)

        run(body, *inputs, result, n=n, lanes=lanes)
        assert result[n:].tobytes() == guard, "wrote past the end"
        return result[:n]
    return apply


@pytest.fixture
def apply_scalar(run):
    """The same without vectors: one element at a time."""
    def apply(f, *inputs):
        result = np.zeros(len(inputs[0]), np.float32)

        def body(build, pointers, count):
            def turn(i, _):
                values = [build.sload(build.at(p, (i, 4)), "float32") for p in pointers[:-1]]
                build.vstore(f(build, *values), build.at(pointers[-1], (i, 4)), "float32")
            build.loop(0, count, 1, turn)

        run(body, *inputs, result)
        return result
    return apply
