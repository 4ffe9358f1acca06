"""A compiled kernel in memory: all that a process needs which compiles nothing. Imports neither lowering nor LLVM."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, field

from . import driver, objects, threads
from .table import Table, pin, pin_bytes
from .target import Target

_fault = threads.WORDS.setdefault("ne_fault", ctypes.c_int64(0))  # written by gathers, see `fault`
_FUNCTION = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)


@dataclass
class Compiled:
    """A kernel ready to run: call `address(pointers, r0, r1)`.

    pointers: addresses of element [0, …, 0] of the inputs in parameter order, then of the outputs that are not inputs.
    checked: it has run-time indices; ask `fault` after each call.
    safe: pairs (input, output) of pointer positions that may be the very same memory; any other overlap of an output
    with an input is for the caller to avoid. times: milliseconds of "lift", "build", "codegen", "load".
    """

    address: int
    r0: int
    r1: int
    table: Table
    checked: bool
    safe: frozenset[tuple[int, int]]
    times: dict[str, float] = field(default_factory=dict)
    compiled: int = 0

    def __call__(self, pointers: list[int]) -> None:
        """Run it through ctypes: for tests and for the path without native entries."""
        array = (ctypes.c_void_p * len(pointers))(*pointers)
        _FUNCTION(self.address)(array, self.r0, self.r1)


def load(table: Table, target: Target) -> Compiled:
    """A table whose objects are loaded, ready to be called. Raises KeyError for an object that the store lacks."""
    functions = []
    for key in table.objects:
        found = objects.find(key, target)
        if found is None:
            raise KeyError(key)
        functions.append(found.symbols["k"])
    address = pin(table.words(functions, pin_bytes(table.constants)))
    return Compiled(driver.address(target), address, 0, table, table.checked, frozenset(table.safe))


def fault() -> int | None:
    """A run-time index outside its tensor, met by a kernel since the last call; None if there was none.

    To be asked after each call of a kernel whose `checked` is set. One word serves the process: with several threads,
    the index may be that of another thread's call.
    """
    found = _fault.value
    if not found:
        return None
    _fault.value = 0
    return found & ~(1 << 62) if found > 0 else found  # bit 62 marks a fault; a negative index has it set by itself
