"""Machine code as an executor: the kernel is traced once, lowered, compiled, and kept.

A kernel without a native form runs in the interpreter instead, which is slow but right, and says so: in the log, in the
`note` of its executable and so in the op report.
"""
from __future__ import annotations

import functools
import logging
from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import NativeUnsupported, NkiValueNeededError, Unavailable
from ..nki.debugging import stops_in
from ..nki.jit import Kernel, in_order, trace
from .base import Executable, Specs, flat, frozen
from .interpreter import Interpreted

log = logging.getLogger(__name__)


class NativeExecutor:
    name = "native"

    def __init__(self) -> None:
        self.made: dict[Any, Executable] = {}

    def compile(self, kernel: Kernel, specs: Specs, constants: Mapping[str, Any]) -> Executable:
        key = (kernel.func, *frozen(specs, constants), environment())
        found = self.made.get(key)
        if found is None:
            found = self.made[key] = self.make(kernel, dict(in_order(kernel, specs)), constants)
        return found

    def make(self, kernel: Kernel, specs: Specs, constants: Mapping[str, Any]) -> Executable:
        stop = stops_in(kernel)
        if stop is not None:
            return interpreted(kernel, specs, constants, stop)
        if kernel.lnc != 1:
            return interpreted(kernel, specs, constants, "it runs on two cores")
        try:
            return NativeExecutable(kernel, specs, constants)
        except (NativeUnsupported, NkiValueNeededError) as reason:
            return interpreted(kernel, specs, constants, str(reason))
        except Unavailable as reason:
            _announce(str(reason))
            return Interpreted(kernel, specs, constants, f"interpreted: {reason}")


class NativeExecutable(Executable):
    """A native function with the two numbers that tell it what to do."""

    def __init__(self, kernel: Kernel, specs: Specs, constants: Mapping[str, Any]) -> None:
        from ..native.compile import compile_program
        program = trace(kernel, specs, constants)
        self.take_results(program)
        self.compiled = compile_program(program)
        self.address, self.r0, self.r1 = self.compiled.address, self.compiled.r0, self.compiled.r1

    def __call__(self, pointers: Sequence[int]) -> None:
        self.compiled(list(pointers))


def interpreted(kernel: Kernel, specs: Specs, constants: Mapping[str, Any], why: str) -> Executable:
    shown = ", ".join(f"{n}={s.dtype}{list(s.shape)}" for n, s in flat(specs))
    log.warning("kernel %s(%s) runs in the interpreter: %s", kernel.name, shown, why)
    return Interpreted(kernel, specs, constants, f"interpreted: {why}")


@functools.cache
def _announce(reason: str) -> None:
    log.warning("kernels run in the interpreter, which is slow: no native code here (%s)", reason)


def environment() -> Any:
    """What a specialisation depends on beside the kernel and its arguments."""
    from ..config import config
    from ..native.target import current
    from ..nki.limits import current_target
    return current_target(), config.checks, current().key_text
