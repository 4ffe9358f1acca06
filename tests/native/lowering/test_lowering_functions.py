"""Every activation and float operator that lowering accepts has code that computes what the interpreter does."""

from __future__ import annotations

import nki.isa as nisa
import nki.language as nl
import numpy as np
import pytest

from neuron_eager.native import compile as native
from neuron_eager.native.computing import ACTIVATIONS
from neuron_eager.nki.interpreter import Interpreter
from neuron_eager.nki.jit import trace
from neuron_eager.nki.program import TensorSpec
from neuron_eager.nki.tokens import token

POSITIVE = {"log", "sqrt", "rsqrt"}
BINARY = [
    "add",
    "subtract",
    "multiply",
    "divide",
    "maximum",
    "minimum",
    "abs_max",
    "abs_min",
    "power",
    "mod",
    "fmod",
    "equal",
    "not_equal",
    "greater",
    "greater_equal",
    "less",
    "less_equal",
    "logical_and",
    "logical_or",
    "logical_xor",
]


def close(kernel, *inputs, tolerance=2e-6):
    program = trace(kernel, [TensorSpec.contiguous(x.shape, "float32") for x in inputs])
    want = Interpreter.replay(program, [x.copy() for x in inputs])[0]
    got = np.zeros_like(want)
    native.compile_program(program)([x.ctypes.data for x in (*inputs, got)])
    np.testing.assert_allclose(got, want, rtol=tolerance * 4, atol=tolerance * max(1.0, float(np.nanmax(np.abs(want)))))


@pytest.mark.parametrize("name", sorted(ACTIVATIONS | {"copy"}))
def test_activation(name):
    def kernel(x):
        out, a, b = (
            nl.ndarray(x.shape, x.dtype, nl.shared_hbm),
            nl.ndarray(x.shape, x.dtype),
            nl.ndarray(x.shape, x.dtype),
        )
        nisa.dma_copy(a, x)
        nisa.activation(b, token(name), a, scale=0.5)
        nisa.dma_copy(out, b)
        return out

    x = np.random.default_rng(0).normal(size=(64, 37)).astype(np.float32) * 3
    close(kernel, np.abs(x) + 0.01 if name in POSITIVE else np.clip(x, -1.5, 1.5) if name in ("tan", "arctan") else x)


@pytest.mark.parametrize("name", BINARY)
def test_operator(name):
    def kernel(x, y):
        out, a, b = (
            nl.ndarray(x.shape, x.dtype, nl.shared_hbm),
            nl.ndarray(x.shape, x.dtype),
            nl.ndarray(x.shape, x.dtype),
        )
        nisa.dma_copy(a, x)
        nisa.dma_copy(b, y)
        nisa.tensor_tensor(a, a, b, token(name))
        nisa.dma_copy(out, a)
        return out

    rng = np.random.default_rng(0)
    x, y = (rng.integers(-3, 4, (64, 37)).astype(np.float32) for _ in range(2))
    close(
        kernel, np.abs(x) + 1 if name == "power" else x, y if name not in ("divide", "mod", "fmod") else np.abs(y) + 1
    )
