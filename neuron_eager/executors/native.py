"""Machine code as an executor: the kernel is traced once, lowered, compiled, and kept.

A kernel without a native form runs in the interpreter instead, which is slow but right, and says so: in the log, in the
`note` of its executable and so in the op report.
"""
from __future__ import annotations

import functools
import itertools
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..config import config
from ..errors import NativeUnsupported, NkiOutOfBoundsError, NkiValueNeededError, Unavailable
from ..native import objects
from ..native.loaded import Compiled, fault, load
from ..native.table import Entry
from ..native.target import Target, current
from ..nki.debugging import stops_in
from ..nki.jit import Kernel, in_order, trace
from ..nki.limits import current_target
from ..nki.program import TensorSpec
from . import memo, served
from .base import Executable, Specs, flat, frozen
from .store import DiskStore

log = logging.getLogger(__name__)


class NativeExecutor:
    name = "native"

    def __init__(self) -> None:
        self.made: dict[Any, Executable] = {}
        objects.set_store(DiskStore())

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
            return _in_steps(kernel, specs, constants, f"interpreted: {reason}")


class NativeExecutable(Executable):
    """A native function with the two numbers that tell it what to do."""

    def __init__(self, kernel: Kernel, specs: Specs, constants: Mapping[str, Any]) -> None:
        one, walk = walked(kernel, specs)
        made = lowered(kernel, one, constants, current())
        self.outputs, self.results, self.returns_tuple = made.outputs, made.results, made.returns_tuple
        self.compiled = made.compiled if walk is None else walk(made.compiled)
        self.loc, self.name = kernel.loc, kernel.name
        # A kernel that gathers may meet an index outside its table. Only a call from Python looks for that, so such a
        # kernel shows no address to call it by.
        if not self.compiled.checked:
            self.address, self.r0, self.r1 = self.compiled.address, self.compiled.r0, self.compiled.r1

    def __call__(self, pointers: Sequence[int]) -> None:
        self.compiled(list(pointers))
        if self.compiled.checked and (index := fault()) is not None:
            raise NkiOutOfBoundsError(f"kernel {self.name}: index {index} is out of range; under "
                                      "neuron_eager.interpret() the error names the instruction", self.loc)


def lowered(kernel: Kernel, specs: Specs, constants: Mapping[str, Any], target: Target) -> memo.Memo:
    """A kernel's native form: remembered from an earlier process, or traced and compiled.

    Raises NativeUnsupported, Unavailable, and what tracing raises.
    """
    key = memo.key_of(kernel, specs, constants, target)
    found = None if key is None or target.lacking else memo.find(key, target)
    if found is not None:
        return found
    from ..native.compile import compile_program
    program = trace(kernel, specs, constants)
    returned = Executable()
    returned.take_results(program)
    token = served.set(f"{served.get()} {kernel.name}".strip())
    try:
        compiled = compile_program(program, target)
    finally:
        served.reset(token)
    made = memo.Memo(compiled, returned.outputs, returned.results, returned.returns_tuple)
    if key is not None:
        memo.remember(key, made, served.get() or kernel.name)
    return made


def walked(kernel: Kernel, specs: Specs) -> tuple[Specs, Callable[[Compiled], Compiled] | None]:
    """A kernel that walks leading dimensions one index at a time, traced for one index only.

    The specs without the leading dimensions, and what makes the code for one index walk them all: its calls, repeated
    with other addresses. Tracing 768 heads of an attention would take seconds and give the same code for each.
    """
    leading: tuple[str, ...] = getattr(kernel.func, "leading", ())
    count = len(specs[leading[0]].shape) - 2 if leading and leading[0] in specs else 0
    shape = specs[leading[0]].shape[:count] if count > 0 else ()
    if not shape:
        return specs, None
    one: dict[str, Any] = {}
    steps: list[tuple[int, ...]] = []               # of each pointer, bytes along each leading dimension

    def cut(name: str, spec: TensorSpec) -> TensorSpec:
        if name not in leading or len(spec.shape) <= count or spec.shape[:count] != shape:
            steps.append((0,) * count)
            return spec
        steps.append(tuple(s * spec.dtype.itemsize for s in spec.strides[:count]))
        return TensorSpec(spec.shape[count:], spec.strides[count:], spec.dtype, spec.offset_bytes)

    for name, spec in specs.items():
        one[name] = tuple(cut(name, s) for s in spec) if isinstance(spec, tuple) else cut(name, spec)
    return one, functools.partial(repeat, shape=shape, steps=steps)


def repeat(compiled: Compiled, shape: tuple[int, ...], steps: list[tuple[int, ...]]) -> Compiled:
    """The calls of `compiled` for every index of `shape`, pointer p being moved by sum(index * steps[p])."""
    table = compiled.table
    entries: list[Entry] = []
    for index in itertools.product(*map(range, shape)):
        moved = [sum(i * s for i, s in zip(index, step)) for step in steps]
        for n, e in enumerate(table.entries):
            leaves = [(base, offset + moved[base] if base >= 0 else offset) for base, offset in e.leaves]
            wait = e.wait or int(n == 0 and len(entries) > 0 and not table.independent)
            entries.append(replace(e, leaves=leaves, wait=wait))
    return load(replace(table, entries=entries), current())


def interpreted(kernel: Kernel, specs: Specs, constants: Mapping[str, Any], why: str) -> Executable:
    shown = ", ".join(f"{n}={s.dtype}{list(s.shape)}" for n, s in flat(specs))
    log.warning("kernel %s(%s) runs in the interpreter: %s", kernel.name, shown, why)
    return _in_steps(kernel, specs, constants, f"interpreted: {why}")


def _in_steps(kernel: Kernel, specs: Specs, constants: Mapping[str, Any], note: str) -> Executable:
    from .interpreter import Interpreted
    return Interpreted(kernel, specs, constants, note)


@functools.cache
def _announce(reason: str) -> None:
    log.warning("kernels run in the interpreter, which is slow: no native code here (%s)", reason)


def environment() -> Any:
    """What a specialisation depends on beside the kernel and its arguments."""
    return current_target(), config.checks, current().key_text
