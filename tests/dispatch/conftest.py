"""What dispatch tests share: a clean tracking state, quiet logs, and an executor whose kernels are NumPy functions."""
from __future__ import annotations

import contextlib
import ctypes
import inspect
import logging

import numpy as np
import pytest
import torch

import neuron_eager
from neuron_eager.config import config
from neuron_eager.dispatch import call, routes, tracking
from neuron_eager.executors.base import Executable


@pytest.fixture(autouse=True)
def clean(monkeypatch, tmp_path):
    """Each test starts without fallbacks said, counts, settings, or kernels of its own, and leaves none behind."""
    monkeypatch.setenv("NEURON_EAGER_CACHE_DIR", str(tmp_path))
    logging.getLogger("neuron_eager").setLevel(logging.NOTSET)
    routes.load_kernels()       # the package's own are to stay, and they load once only
    assigned, kernels, loaders = dict(config.assigned), dict(routes._kernels), dict(routes._loaders)
    call._said.clear()
    tracking.clear_op_tracking()
    yield
    for op in set(routes._kernels) | set(kernels):
        if routes._kernels.get(op) != kernels.get(op):
            routes._kernels.pop(op, None)
            if op in kernels:
                routes._set(op, kernels[op])
            else:
                routes._notify(op)
    routes._replaced.clear()
    routes._loaders.clear()
    routes._loaders.update(loaders)
    config.assigned.clear()
    config.assigned.update(assigned)
    config.changed()


@contextlib.contextmanager
def _fallback_only():
    routes.registered()
    kernels = dict(routes._kernels)
    for op in kernels:
        neuron_eager.unregister_kernel(op)
    yield
    for op, route in kernels.items():
        routes._set(op, route)


@pytest.fixture
def without_kernels():
    """Every op takes the fallback, also those for which the package has kernels."""
    with _fallback_only():
        yield


@pytest.fixture(scope="module")
def without_kernels_in_module():
    with _fallback_only():
        yield


def _array(pointer, spec):
    """The memory at a pointer as an array of a spec's shape and strides."""
    size = spec.dtype.itemsize
    span = sum((n - 1) * s for n, s in zip(spec.shape, spec.strides)) + 1 if all(spec.shape) else 0
    raw = (ctypes.c_byte * (span * size)).from_address(pointer)
    flat = np.frombuffer(raw, spec.dtype.numpy) if span else np.empty(0, spec.dtype.numpy)
    return np.lib.stride_tricks.as_strided(flat, spec.shape, [s * size for s in spec.strides])


class NumpyKernel:
    """A kernel for tests: a function of arrays, which writes its first parameters."""

    def __init__(self, func):
        self.func, self.name, self.signature = func, func.__name__, inspect.signature(func)


class NumpyExecutor:
    """Runs NumpyKernels. `native`: through a C function pointer, as compiled kernels have one."""

    name = "numpy"

    def __init__(self, native=False):
        self.native, self.compiled = native, []

    def compile(self, kernel, specs, constants):
        self.compiled.append((kernel.name, specs, constants))
        flat = [s for spec in specs.values() for s in (spec if isinstance(spec, tuple) else (spec,))]

        def run(pointers):
            arrays = iter([_array(p, s) for p, s in zip(pointers, flat)])
            given = {n: tuple(next(arrays) for _ in s) if isinstance(s, tuple) else next(arrays)
                     for n, s in specs.items()}
            kernel.func(**given, **constants)

        executable = Executable()
        if self.native:
            types = ctypes.PYFUNCTYPE(None, ctypes.POINTER(ctypes.c_void_p), ctypes.c_int64, ctypes.c_int64)
            executable.function = types(lambda p, r0, r1: run([p[i] for i in range(len(flat))]))
            executable.address = ctypes.cast(executable.function, ctypes.c_void_p).value
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(executable))
        else:
            type(executable).__call__ = Executable.__call__
            executable = _Callable(run)
        return executable


class _Callable(Executable):
    def __init__(self, run):
        self.run = run

    def __call__(self, pointers):
        self.run(pointers)


@pytest.fixture(params=["python", "native"])
def numpy_executor(request, monkeypatch):
    """The executor of a test, on the pure Python path and on the native one."""
    executor = NumpyExecutor(native=request.param == "native")
    monkeypatch.setattr(call, "_executor", lambda: executor)
    config.hot_path = request.param == "native"
    return executor


@pytest.fixture
def kernel():
    """Makes a kernel of a NumPy function."""
    return NumpyKernel


@pytest.fixture
def both():
    """Runs a function of a device on cpu and on neuron, with the same seed, and asserts equal tensors."""
    def run(function, exact=True):
        results = []
        for device in ("cpu", "neuron"):
            torch.manual_seed(0)
            results.append(function(device))
        compare(*results, exact)
        return results[1]
    return run


def compare(a, b, exact=True):
    if isinstance(a, torch.Tensor):
        assert b.device.type == "neuron", "the result is not on neuron"
        assert (a.shape, a.stride(), a.dtype) == (b.shape, b.stride(), b.dtype)
        torch.testing.assert_close(b.cpu(), a, rtol=0 if exact else None, atol=0 if exact else None, equal_nan=True)
    elif isinstance(a, (list, tuple)):
        assert len(a) == len(b)
        for x, y in zip(a, b):
            compare(x, y, exact)
    else:
        assert a == b or a != a and b != b
