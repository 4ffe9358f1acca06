"""Tile program → native code that can be called: `compile_program`.

The result is an address and two numbers to call it with: `address(pointers, r0, r1)` with C calling convention, no GIL needed, from
any thread. Nothing is compiled for a program whose value graphs are known; a table of numbers is all that is new then.
"""

from __future__ import annotations

import ctypes
import time
from dataclasses import dataclass, field

from ..errors import NativeUnsupported, Unavailable
from ..nki.program import Program
from . import driver, objects
from .driver import NUMBER
from .flatten import flatten
from .graph import Bail
from .groups import Group, group
from .instructions import HANDLERS
from .lift import Lift
from .table import Entry, Table, pin, pin_bytes
from .target import Target, current

LIMIT_NODES = 20_000  # of a value graph; beyond, regions bound the time to compile
LIMIT_FUNCTIONS = 12  # distinct functions of a kernel lifted whole


@dataclass
class Compiled:
    """A kernel ready to run: call `address(pointers, r0, r1)`.

    pointers: addresses of element [0, …, 0] of the inputs in parameter order, then of the outputs that are not inputs.
    safe: pairs (input, output) of pointer positions that may be the very same memory; any other overlap of an output with
    an input is for the caller to avoid. times: milliseconds of "lift", "build", "codegen", "load".
    """

    address: int
    r0: int
    r1: int
    table: Table
    safe: frozenset[tuple[int, int]]
    times: dict[str, float] = field(default_factory=dict)
    compiled: int = 0

    def __call__(self, pointers: list[int]) -> None:
        """Run it through ctypes: for tests and for the path without native entries."""
        array = (ctypes.c_void_p * len(pointers))(*pointers)
        ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)(self.address)(array, self.r0, self.r1)


def compile_program(program: Program, target: Target | None = None) -> Compiled:
    """Native code for a program.

    Raises `NativeUnsupported` with the reason for what has no native form, `Unavailable` where no native code can run.
    """
    target = target or current()
    if target.lacking:
        raise Unavailable(reason=target.lacking)
    if not program.liftable:
        raise NativeUnsupported(program.name, program.why, program.loc)
    start = time.perf_counter()
    try:
        lift, groups = lower(program)
    except Bail as reason:
        raise NativeUnsupported(program.name, str(reason), program.loc) from None
    lifted = 1e3 * (time.perf_counter() - start)
    table, times, compiled = assemble(program, lift, groups, target)
    result = load(table, target)
    result.times = {"lift": lifted, **times}
    result.compiled = compiled
    return result


def lower(program: Program) -> tuple[Lift, list[Group]]:
    """The groups of a program that is lifted as a whole. Raises Bail."""
    lift = Lift(program, HANDLERS, LIMIT_NODES)
    lift.run()
    visible = {t.storage.id for t in [*program.inputs, *program.outputs]}
    lift.stores = {k: s for k, s in lift.stores.items() if s[0].sid in visible}
    groups = [f for q in group(lift) for f in flatten(lift.g, q)]
    return lift, groups


def positions(program: Program) -> dict[int, tuple[int, int]]:
    """Storage → (pointer position, byte offset of the tensor's first element)."""
    out: dict[int, tuple[int, int]] = {}
    for t in [*program.inputs, *program.outputs]:
        if t.storage.id not in out:
            out[t.storage.id] = (len(out), t.byte_offset)
    return out


def assemble(program: Program, lift: Lift, groups: list[Group], target: Target) -> tuple[Table, dict[str, float], int]:
    """Objects for the groups, and the table that calls them."""
    where = positions(program)
    number: dict[str, int] = {}
    table = Table([], [], [])
    times: dict[str, float] = {}
    compiled = 0
    for q in groups:
        if q.skeleton not in number:
            loaded = obtain(lift.g, q, target)
            number[q.skeleton] = len(table.objects)
            table.objects.append(loaded.key)
            table.scratch.append(scratch_of(loaded))
            compiled += not loaded.hit
            for k, ms in loaded.times.items():
                times[k] = times.get(k, 0.0) + ms
        leaves = []
        for sid, off in q.leaves:
            if sid == "int":
                leaves.append((NUMBER, off))
            else:
                position, first = where[sid]
                leaves.append((position, off - first))
        table.entries += [Entry(number[q.skeleton], a, b, work, leaves) for a, b, work in q.calls()]
    return table, times, compiled


def obtain(g: object, q: Group, target: Target) -> objects.Loaded:
    def make() -> object:
        from .blocks import build

        return build(g, q, target)

    return objects.obtain("group", q.skeleton, make, target)


def scratch_of(loaded: objects.Loaded) -> int:
    return ctypes.c_int64.from_address(loaded.symbols["meta"]).value


def load(table: Table, target: Target) -> Compiled:
    """A table whose objects are loaded, ready to be called."""
    functions = [found.symbols["k"] for key in table.objects if (found := objects.find(key, target)) is not None]
    address = pin(table.words(functions, pin_bytes(table.constants)))
    return Compiled(driver.address(target), address, 0, table, frozenset(table.safe))
