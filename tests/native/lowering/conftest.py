"""What the tests of lowering share: kernels, a maker of random programs, and how to run a program both ways."""
from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import torch

import neuron_eager  # noqa: F401  (makes `import nki` work)
from neuron_eager.native.compile import compile_program
from neuron_eager.native.target import current
from neuron_eager.nki.interpreter import Interpreter
from neuron_eager.nki.jit import trace
from neuron_eager.nki.program import TensorSpec

TORCH = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def _module(name):
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(name + ".py"))
        sys.modules[name] = module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return sys.modules[name]


def pytest_collection_modifyitems(items):
    if current().lacking:
        for item in items:
            if Path(__file__).parent in item.path.parents:
                item.add_marker(pytest.mark.skip(reason=current().lacking))


@pytest.fixture(scope="session")
def kernels():
    return _module("lowering_kernels")


@pytest.fixture(scope="session")
def programs():
    return _module("lowering_programs")


def numpy_of(t):
    """A torch tensor as a NumPy array on the same memory."""
    return t.view(torch.int16).numpy().view(ml_dtypes.bfloat16) if t.dtype == torch.bfloat16 else t.numpy()


def copied(t):
    """A copy with the same strides; the tensor itself where its elements overlap or leave gaps."""
    c = t.clone(memory_format=torch.preserve_format)
    return c if c.stride() == t.stride() else t


class Both:
    """One kernel for given torch inputs: traced, compiled, run natively and in the interpreter."""

    def __init__(self, kernel, inputs, **constants):
        self.inputs = inputs
        specs = [TensorSpec(tuple(t.shape), tuple(t.stride()), dtype_of(t)) for t in inputs]
        self.program = trace(kernel, specs, constants)
        self.compiled = compile_program(self.program)

    def native(self, inputs=None):
        """The first output, or the input that it is, from copies of the inputs."""
        inputs = [copied(t) for t in (inputs or self.inputs)]
        outputs, fresh = [], []
        for t in self.program.outputs:
            same = [x for x, i in zip(inputs, self.program.inputs) if i.storage is t.storage]
            outputs.append(same[0] if same else torch.full(t.shape, 77, dtype=getattr(torch, str(t.dtype))))
            fresh += [] if same else [outputs[-1]]
        self.compiled([t.data_ptr() for t in inputs + fresh])
        return outputs[0]

    def interpreted(self):
        arrays = [numpy_of(copied(t)) for t in self.inputs]
        return torch.from_numpy(np.ascontiguousarray(Interpreter.replay(self.program, arrays)[0]).astype(np.float64))


def dtype_of(t):
    from neuron_eager.nki.dtypes import as_dtype
    return as_dtype(t.dtype)


@pytest.fixture(scope="session")
def both():
    return Both
