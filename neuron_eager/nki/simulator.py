"""`nki.simulator.simulate_kernel`, the form of `nki.simulate` that frameworks call."""
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .jit import Kernel


def simulate_kernel(func: Kernel | Callable[..., Any], args: Sequence[Any] = (),
                    kwargs: Mapping[str, Any] | None = None, _lnc: int = 1) -> Any:
    """func(*args, **kwargs) in the interpreter, on `_lnc` cores."""
    kernel = func if isinstance(func, Kernel) else Kernel(func)
    return kernel._copy(simulated=True, lnc=_lnc)(*args, **(kwargs or {}))
