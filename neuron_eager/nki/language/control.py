"""Loops, the launch grid, ordering, printing."""
from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from ...errors import NkiError, NkiTypeError
from .. import machine
from ..interpreter import value_of
from ..location import here
from ..program import Instr
from ..registers import VirtualRegister
from ..tensor import DynamicSlice, NkiTensor


def ds(start: Any, size: int) -> DynamicSlice:
    """An index: `size` elements from `start`, an int or a register."""
    return DynamicSlice(start, size)


def affine_range(start: int, stop: int | None = None, step: int = 1) -> range:
    """Python's range; loops are unrolled when a kernel is specialised."""
    return range(start) if stop is None else range(start, stop, step)


sequential_range = static_range = affine_range


def dynamic_range(start: Any, stop: Any = None, step: int = 1) -> Iterator[VirtualRegister]:
    """A loop whose bounds may be registers; the loop variable is a register. Deprecated in NKI: use fori_loop.

    Where the trip count is not known while tracing, the body is recorded once, so `break` is an error there.
    """
    lower, upper = (0, start) if stop is None else (start, stop)
    _check_loop("nl.dynamic_range", step)
    running: Any = machine.current()
    bounds = _known(running, lower, upper)
    if bounds is not None:
        for i in range(*bounds, step):
            yield _index(running, i)
        return
    index = _index(running, None)
    with running.loop_body(f"{here()}: nl.dynamic_range with run-time bounds") as body:
        finished = False
        try:
            yield index
            finished = True
        finally:
            if not finished and running.pending is None:
                running.pending = NkiError("a nl.dynamic_range with run-time bounds cannot be left by break or return; "
                                           "use nl.while_loop", here())
    _issue_loop(running, "fori_loop", index, body, lower=lower, upper=upper, step=step)


def fori_loop(lower: Any, upper: Any, body_fun: Callable[[VirtualRegister], Any], step: int = 1) -> None:
    """body_fun(i) for lower ≤ i < upper, every step-th; bounds are ints or registers, `i` is a register."""
    _check_loop("nl.fori_loop", step)
    running: Any = machine.current()
    bounds = _known(running, lower, upper)
    if bounds is not None:
        for i in range(*bounds, step):
            body_fun(_index(running, i))
        return
    index = _index(running, None)
    with running.loop_body(f"{here()}: nl.fori_loop with run-time bounds") as body:
        body_fun(index)
    _issue_loop(running, "fori_loop", index, body, lower=lower, upper=upper, step=step)


def while_loop(init: VirtualRegister, body_fun: Callable[[VirtualRegister], VirtualRegister]) -> None:
    """r = init; while r is not 0: r = body_fun(r). The condition is looked at before each iteration."""
    _check_loop("nl.while_loop", 1)
    running: Any = machine.current()
    if not isinstance(init, VirtualRegister):
        raise NkiTypeError(f"nl.while_loop starts from a register, not {type(init).__name__}", here())
    if not running.tracing:
        value = value_of(init)
        while value:
            register = running.register(value)
            value = value_of(_next(body_fun(register)))
        return
    register = running.register()
    with running.loop_body(f"{here()}: nl.while_loop") as body:
        result = _next(body_fun(register))
    running.issue(Instr("while_loop", {"init": init, "register": register, "result": result, "body": body}, (),
                        ("init",), "sync", here()))


def _next(result: Any) -> VirtualRegister:
    if not isinstance(result, VirtualRegister):
        raise NkiTypeError("the body of nl.while_loop returns the next condition register, not "
                           f"{type(result).__name__}", here())
    return result


def _check_loop(what: str, step: Any) -> None:
    if not isinstance(step, int) or step < 1:
        raise NkiTypeError(f"{what}: the step is a positive int, not {step!r}", here(3))
    if machine.current().no_reorder:
        raise NkiError(f"{what} does not work inside nl.no_reorder(); put the no_reorder block into the loop's body",
                       here(3))


def _known(running: Any, lower: Any, upper: Any) -> tuple[int, int] | None:
    """The bounds as ints, or None where a register's value is not known yet."""
    out = []
    for bound in (lower, upper):
        if isinstance(bound, VirtualRegister):
            bound = bound.known if running.tracing else value_of(bound)
            if bound is None:
                return None
        out.append(int(bound))
    return out[0], out[1]


def _index(running: Any, value: int | None) -> VirtualRegister:
    register = running.register(value)
    register.frozen = True
    return register


def _issue_loop(running: Any, op: str, index: VirtualRegister, body: list[Instr], **args: Any) -> None:
    running.issue(Instr(op, {**args, "index": index, "body": body}, (),
                        tuple(k for k in ("lower", "upper") if isinstance(args[k], VirtualRegister)), "sync", here(3)))


@contextmanager
def no_reorder() -> Iterator[None]:
    """Instructions inside execute in program order. They always do here."""
    running = machine.current()
    running.no_reorder += 1
    try:
        yield
    finally:
        running.no_reorder -= 1


def program_id(axis: int = 0) -> int:
    """The number of this core in the launch: 0 or 1 for kernel[2], else 0."""
    if axis != 0:
        raise NkiTypeError(f"nl.program_id({axis}): a launch has one axis", here())
    return machine.current().core


def num_programs(axes: Any = 0) -> int:
    """How many cores the launch has."""
    return machine.current().cores


def program_ndim() -> int:
    """1 for a launch as kernel[n], else 0."""
    return 1 if machine.current().grid else 0


def device_print(print_prefix: str, tensor: NkiTensor) -> None:
    """Print a tile when the kernel runs."""
    machine.current().issue(Instr("device_print", {"print_prefix": print_prefix, "tensor": tensor}, (), ("tensor",),
                                  "sync", here()))
