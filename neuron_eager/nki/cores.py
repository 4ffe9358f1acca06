"""Two cores of one logical core: a kernel launched as kernel[2], interpreted by two threads that take turns.

A core runs until it waits for the other (core_barrier, sendrecv) or ends; so every run of a kernel interleaves its
cores in the same way. Tensors in shared_hbm are one storage for both: the n-th that each core allocates.
"""
from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import NkiError, NkiShapeError
from .interpreter import Interpreter
from .location import here
from .program import Instr
from .tensor import Storage

if TYPE_CHECKING:
    from .jit import Kernel

CORES = 2


class _Stopped(BaseException):
    """Ends a core whose partner has failed."""


class Cores:
    """What the cores share: whose turn it is, who waits where, and the shared storages."""

    def __init__(self) -> None:
        self.condition = threading.Condition()
        self.turn = 0
        self.waiting: dict[int, tuple[str, Instr]] = {}
        self.finished: set[int] = set()
        self.failure: BaseException | None = None
        self.storages: list[Storage] = []
        self.allocated = [0] * CORES
        self.sent: dict[tuple[int, Any], np.ndarray] = {}

    # ---- shared memory

    def shared_storage(self, core: Interpreter, make: Callable[[], Storage]) -> Storage:
        """The next shared_hbm storage of this core: the partner's of the same number, or a fresh one."""
        number = self.allocated[core.core]
        self.allocated[core.core] += 1
        if number == len(self.storages):
            self.storages.append(make())
            return self.storages[number]
        found, own = self.storages[number], make()
        if (found.shape, found.dtype) != (own.shape, own.dtype):
            raise NkiShapeError(f"the cores allocate different shared_hbm tensors: {found!r} at {found.loc} and {own!r}"
                                "; both must follow the same control flow", here(4))
        core.storages[-1] = found
        return found

    # ---- turns

    def start(self, core: int) -> None:
        with self.condition:
            self.condition.wait_for(lambda: self.turn == core or self.failure is not None)
            if self.failure is not None:
                raise _Stopped

    def end(self, core: int, error: BaseException | None) -> None:
        with self.condition:
            self.finished.add(core)
            if error is not None and not isinstance(error, _Stopped) and self.failure is None:
                self.failure = error
            self.turn = 1 - core
            self.condition.notify_all()

    def barrier(self, core: int, instr: Instr, what: str = "core_barrier") -> None:
        """Wait until the partner is at a barrier of the same kind."""
        with self.condition:
            other = 1 - core
            if other in self.finished:
                raise NkiError(f"core {core} waits in {what}, but core {other} has ended without it", instr.loc)
            waiting = self.waiting.pop(other, None)
            if waiting is not None:
                if waiting[0] != what:
                    raise NkiError(f"core {core} is in {what} while core {other} is in {waiting[0]} at "
                                   f"{waiting[1].loc}", instr.loc)
                return
            self.waiting[core] = (what, instr)
            self.turn = other
            self.condition.notify_all()
            self.condition.wait_for(lambda: self.failure is not None or self.turn == core)
            if self.failure is not None:
                raise _Stopped
            if core in self.waiting:
                raise NkiError(f"core {core} waits in {what}, but core {other} has ended without it", instr.loc)

    def exchange(self, core: int, args: Mapping[str, Any], values: np.ndarray, instr: Instr) -> np.ndarray:
        """Send values to a core and return what the given core sends."""
        pipe = args.get("pipe_id", 0)
        self.sent[core, pipe] = values
        self.barrier(core, instr, f"sendrecv on pipe {pipe}")
        sender = args["recv_from_rank"]
        if (sender, pipe) not in self.sent:
            raise NkiError(f"sendrecv: core {sender} sends nothing on pipe {pipe}", instr.loc)
        received = self.sent[sender, pipe]
        self.barrier(core, instr, f"the end of sendrecv on pipe {pipe}")
        return received


def run_on_cores(kernel: Kernel, arguments: Mapping[str, Any]) -> tuple[Any, Interpreter]:
    """Run a kernel on two cores; (what core 0 returned, core 0). The error of the core that failed is raised."""
    from .launch import run_core
    shared = Cores()
    machines = [Interpreter(kernel.name, core=i, cores=CORES, grid=True, shared=shared) for i in range(CORES)]
    results: list[Any] = [None] * CORES

    def work(core: int) -> None:
        error: BaseException | None = None
        try:
            shared.start(core)
            results[core] = run_core(kernel, machines[core], arguments)
        except BaseException as caught:
            error = caught
        finally:
            shared.end(core, error)

    partner = threading.Thread(target=work, args=(1,), name=f"{kernel.name} core 1", daemon=True)
    partner.start()
    work(0)
    partner.join()
    if shared.failure is not None:
        raise shared.failure
    return results[0], machines[0]


