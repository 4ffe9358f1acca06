"""`nki.simulate(kernel)(...)`: the kernel in the interpreter, whatever the settings say."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .callable_module import make_callable
from .jit import Kernel


def simulate(kernel: Kernel | Callable[..., Any]) -> Kernel:
    """The kernel, executed step by step on NumPy arrays or torch tensors; `simulate(kernel[2])` on two cores."""
    return (kernel if isinstance(kernel, Kernel) else Kernel(kernel))._copy(simulated=True)


make_callable(__name__, simulate)
