"""NKI on any machine: the language, an interpreter to step through, a tracer, and the checks the hardware would make.

Importing this package is cheap; its parts load when they are used. `import nki` finds it where no real one is
installed (see `finder`).
"""
from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import collectives, isa, language, simulate, typing
    from .dtypes import DType as dtype
    from .inspection import inspect
    from .jit import Kernel, jit, trace
    from .linting import lint
    from .program import TensorSpec

_ATTRIBUTES = {"jit": "jit", "Kernel": "jit", "trace": "jit", "TensorSpec": "program", "inspect": "inspection",
               "lint": "linting"}
_MODULES = ("language", "isa", "collectives", "typing", "dtype", "simulate", "simulator", "meta")

_GONE = {
    "benchmark": "time the call, or use neuron-profile on the chip", "profile": "use neuron-profile on the chip",
    "baremetal": "call the kernel with NumPy arrays", "simulate_kernel": "use nki.simulate(kernel)(...)",
    "par_dim": "the first dimension of a tile is the partition dimension",
}

__all__ = ["Kernel", "TensorSpec", "collectives", "dtype", "inspect", "isa", "jit", "language", "lint", "simulate",
           "trace", "typing"]
__version__ = "0.6.0"


def __getattr__(name: str) -> Any:
    where = _ATTRIBUTES.get(name)
    if where is not None:
        value = getattr(importlib.import_module(f".{where}", __name__), name)
    elif name in _MODULES:
        value = importlib.import_module(f".{name}", __name__)
    elif name in _GONE:
        raise AttributeError(f"nki.{name} ended with NKI 0.1; {_GONE[name]}")
    else:
        raise AttributeError(f"module 'nki' has no attribute {name!r}")
    globals()[name] = value
    return value
