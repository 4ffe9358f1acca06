"""The current machine: who receives the instructions that a kernel issues."""
from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Protocol

from ..errors import NkiError
from .buffers import MemoryRegion
from .dtypes import DType
from .location import here

if TYPE_CHECKING:
    from .limits import Limits
    from .program import Instr
    from .registers import VirtualRegister
    from .tensor import NkiTensor


class Machine(Protocol):
    """What a kernel runs on: the interpreter (at once, on values) or the tracer (records)."""

    checks: bool            # whether instructions check the limits of the target
    tracing: bool           # True: no values
    target: str             # "trn1", "trn2" or "trn3"
    limits: Limits          # of the target
    core: int               # which core of the logical core this is
    cores: int
    grid: bool              # whether the launch named its number of cores
    no_reorder: int         # nesting of nl.no_reorder blocks
    depth: int              # nesting of inlined kernels

    def allocate(self, shape: tuple[int, ...], dtype: DType, buffer: MemoryRegion, name: str = "",
                 address: tuple[int, int] | None = None) -> NkiTensor:
        """An uninitialised tensor."""
        ...

    def issue(self, instr: Instr) -> Instr:
        """Execute or record one instruction, and return it."""
        ...

    def register(self, value: int | None = None) -> VirtualRegister:
        """A new register, with a value or without."""
        ...

    def constant(self, values: Any, name: str = "") -> NkiTensor:
        """A shared_hbm tensor with these NumPy values."""
        ...


class _Active(threading.local):
    machine: Machine | None = None


active = _Active()


def current() -> Machine:
    """The machine of the kernel that this thread runs. Raises NkiError outside a kernel."""
    machine = active.machine
    if machine is None:
        raise NkiError("this works only inside a kernel: a function with @nki.jit that is being called", here())
    return machine


class use:
    """Make a machine current for a block; the one before comes back after it."""

    __slots__ = ("machine", "before")

    def __init__(self, machine: Machine) -> None:
        self.machine = machine

    def __enter__(self) -> Machine:
        self.before, active.machine = active.machine, self.machine
        return self.machine

    def __exit__(self, *exc: object) -> None:
        active.machine = self.before
