"""Tile program → native code that can be called: `compile_program`.

The result is an address and two numbers to call it with: `address(pointers, r0, r1)` with C calling convention, no
GIL needed, from any thread. Nothing is compiled for a program whose value graphs are known; a table of numbers is all
that is new then.
"""

from __future__ import annotations

import ctypes
import time
from dataclasses import dataclass
from typing import Any

from ..errors import NativeUnsupported, Unavailable
from ..nki.program import Program
from ..nki.tracer import gc_paused
from . import objects
from .arena import arena, place
from .driver import ARENA, CONSTANTS, NUMBER
from .feasible import feasible, same_memory
from .flatten import flatten
from .graph import Graph
from .groups import Group, group
from .instructions import HANDLERS
from .lift import Lift
from .loaded import Compiled, fault, load
from .regions import Regions
from .table import Entry, Table
from .target import Target, current
from .values import Bail, nodes

__all__ = ["Compiled", "compile_program", "fault", "load"]

LIMIT_NODES = 250_000  # of a value graph; beyond, regions bound the time to compile
LIMIT_FUNCTIONS = 12  # distinct functions of a kernel lifted whole
LIMIT_CODE = 600  # nodes of its code


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
    with gc_paused():  # nodes live long and are many: the cycle collector would double the time
        lowered = lower(program)
    lifted = 1e3 * (time.perf_counter() - start)
    try:
        table, times, compiled = assemble(program, lowered, target)
    except (Bail, NotImplementedError) as reason:  # a form that only emitting it shows to have no code
        table, times, compiled = assemble_regions(program, str(reason), target)
    result = load(table, target)
    result.times = {"lift": lifted, **times}
    result.compiled = compiled
    return result


@dataclass
class Lowered:
    """Groups in the order of their calls; wait: those that start after all before them."""

    g: Graph
    groups: list[Group]
    wait: list[bool]
    arena: dict[str, int]
    arena_bytes: int
    how: str


def lower(program: Program) -> Lowered:
    """A program as groups: whole if possible, else in regions. Raises NativeUnsupported."""
    try:
        return lower_whole(program)
    except Bail as reason:
        first = str(reason)
    except RecursionError:
        first = "values that depend on each other in a chain longer than Python's stack"
    try:
        return lower_regions(program, first)
    except Bail as reason:
        raise NativeUnsupported(program.name, f"{first}; in regions: {reason}", program.loc) from None


def lower_whole(program: Program) -> Lowered:
    """The groups of a program that is lifted as a whole. Raises Bail."""
    lift = Lift(program, HANDLERS, LIMIT_NODES)
    lift.run()
    visible = {t.storage.id for t in [*program.inputs, *program.outputs]}
    lift.stores = {k: s for k, s in lift.stores.items() if s[0].sid in visible}
    groups = [f for q in group(lift) for f in flatten(lift.g, q)]
    for q in {q.skeleton: q for q in groups}.values():
        feasible(q.stores)
    if len({q.skeleton for q in groups}) > LIMIT_FUNCTIONS:
        raise Bail("too many different functions")
    if sum(len(nodes(st.v for st in q.stores)) for q in {q.skeleton: q for q in groups}.values()) > LIMIT_CODE:
        raise Bail("too much code")
    return Lowered(lift.g, groups, [False] * len(groups), {}, 0, "whole")


def lower_regions(program: Program, why: str) -> Lowered:
    """The calls of a program cut into regions. Raises Bail."""
    regions = Regions(program)
    regions.run()
    where, size = place(regions)
    return Lowered(
        regions.g, [c.group for c in regions.calls], [c.wait for c in regions.calls], where, size, f"regions: {why}"
    )


def positions(program: Program) -> dict[int, tuple[int, int]]:
    """Storage → (pointer position, byte offset of the tensor's first element)."""
    out: dict[int, tuple[int, int]] = {}
    for t in [*program.inputs, *program.outputs]:
        if t.storage.id not in out:
            out[t.storage.id] = (len(out), t.byte_offset)
    return out


def assemble(program: Program, lowered: Lowered, target: Target) -> tuple[Table, dict[str, float], int]:
    """Objects for the groups, and the table that calls them."""
    where = positions(program)
    constants, data = constant_area(program)
    number: dict[str, int] = {}
    safe = same_memory(lowered.groups, where) if lowered.how == "whole" else []
    checked = any(v.op in ("gather", "scatter") for q in lowered.groups for v in nodes(st.v for st in q.stores))
    table = Table([], [], [], lowered.arena_bytes, data, safe, checked, lowered.how)
    times: dict[str, float] = {}
    compiled = 0

    def base(sid: Any, off: int) -> tuple[int, int]:
        if sid == "int":
            return NUMBER, off
        if sid in where:
            position, first = where[sid]
            return position, off - first
        if sid in constants:
            return CONSTANTS, constants[sid] + off
        if isinstance(sid, int):
            sid = arena(sid)
        return ARENA, lowered.arena[sid] + off

    for q, wait in zip(lowered.groups, lowered.wait):
        if q.skeleton not in number:
            loaded = obtain(lowered.g, q, target)
            number[q.skeleton] = len(table.objects)
            table.objects.append(loaded.key)
            table.scratch.append(scratch_of(loaded))
            compiled += not loaded.hit
            for k, ms in loaded.times.items():
                times[k] = times.get(k, 0.0) + ms
        leaves = [base(sid, off) for sid, off in q.leaves]
        for first, last, work in q.calls():
            table.entries.append(Entry(number[q.skeleton], first, last, work, leaves, int(wait)))
            wait = False
    return table, times, compiled


def assemble_regions(program: Program, why: str, target: Target) -> tuple[Table, dict[str, float], int]:
    """The same, in regions. Raises NativeUnsupported."""
    try:
        return assemble(program, lower_regions(program, why), target)
    except (Bail, NotImplementedError) as reason:
        raise NativeUnsupported(program.name, f"{why}; in regions: {reason}", program.loc) from None


def constant_area(program: Program) -> tuple[dict[int, int], bytes]:
    """Where the program's constants lie in one block, and the block."""
    where: dict[int, int] = {}
    data = b""
    for sid, array in program.constants.items():
        data += b"\0" * (-len(data) % 64)
        where[sid] = len(data)
        data += array.tobytes()
    return where, data


def obtain(g: Graph, q: Group, target: Target) -> objects.Loaded:
    def make() -> object:
        from .blocks import build

        return build(g, q, target)

    return objects.obtain("group", q.skeleton, make, target)


def scratch_of(loaded: objects.Loaded) -> int:
    return ctypes.c_int64.from_address(loaded.symbols["meta"]).value
