"""The tracer: a kernel is run once on tensors without values, and its instructions are recorded as a Program."""
from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from ..errors import NkiTypeError, NkiUninitializedError
from . import memory
from .base import BaseMachine
from .buffers import private_hbm, shared_hbm
from .dtypes import as_dtype
from .program import Instr, Program, TensorSpec
from .registers import VirtualRegister
from .tensor import NkiTensor, Storage, whole


class Tracer(BaseMachine):
    """Records. Registers whose value follows from constants are known; addresses by them are static."""

    tracing = True

    def __init__(self, name: str, target: str = "") -> None:
        super().__init__(name, target)
        self.program = Program(name, storages=self.storages, target=self.target, warnings=self.warnings)
        self.into = self.program.instrs         # where instructions go: the program, or the body of a dynamic loop
        self.in_loop = 0
        self.before_loop = 0                    # storages allocated before the outermost loop
        self.known: list[VirtualRegister] = []
        self.pending: Exception | None = None   # a fault found where no exception can be raised

    def argument(self, name: str, spec: TensorSpec) -> NkiTensor:
        """An HBM tensor for one argument."""
        item = spec.dtype.itemsize
        strides = tuple(s * item for s in spec.strides)
        low, end = memory.span(spec.shape, strides, item)
        storage = Storage(len(self.storages), name, spec.shape, spec.dtype, private_hbm, spec.offset_bytes + end, 0,
                          None)
        if spec.offset_bytes + low < 0:
            raise ValueError(f"argument {name}: offset_bytes {spec.offset_bytes} does not cover strides {spec.strides}")
        storage.base_strides = strides
        storage.is_argument = True
        self.storages.append(storage)
        t = NkiTensor(storage, spec.offset_bytes, spec.shape, strides, spec.dtype)
        self.program.inputs.append(t)
        return t

    def constant(self, values: Any, name: str = "") -> NkiTensor:
        array = np.ascontiguousarray(values)
        storage = self.storage(array.shape, as_dtype(array.dtype), shared_hbm, name or "constant")
        self.program.constants[storage.id] = array
        return whole(storage)

    def register(self, value: int | None = None) -> VirtualRegister:
        reg = super().register()
        self.set_known(reg, value)
        return reg

    def set_known(self, reg: VirtualRegister, value: int | None) -> None:
        """What is known of a register; inside a loop of unknown length nothing is."""
        reg.known = None if self.in_loop else value
        if reg.known is not None:
            self.known.append(reg)

    def execute(self, instr: Instr) -> None:
        if self.pending is not None:
            raise self.pending
        op = instr.op
        if op.startswith("register_"):
            self._register(instr)
        self.into.append(instr)
        if op == "device_print":
            self.program.not_liftable(f"{instr.loc}: nl.device_print")

    def _accumulate(self, instr: Instr) -> None:
        """In a loop of unknown length, whether a matmul is the first to write depends on the iteration."""
        open_question = self.in_loop and instr.args["accumulate"] is None
        super()._accumulate(instr)
        dst = instr.args["dst"]
        if open_question and not instr.args["accumulate"] and dst.storage.id < self.before_loop:
            raise NkiTypeError(f"{instr.op}: whether this is the first write of dst {dst.describe()} depends on the "
                               "iteration of a loop with run-time bounds; pass accumulate=True (after a memset) or "
                               "False", instr.loc)

    def _register(self, instr: Instr) -> None:
        args = instr.args
        if instr.op == "register_alloc":
            value = args.get("x")
            self.set_known(args["dst"], value if isinstance(value, int) else None)
        elif instr.op == "register_move":
            source = args["src"]
            self.set_known(args["dst"], source.known if isinstance(source, VirtualRegister) else int(source))
        elif instr.op == "register_load":
            args["dst"].known = None

    @contextmanager
    def loop_body(self, why: str) -> Iterator[list[Instr]]:
        """Record into the body of a loop whose trip count is not known. Registers of before may change in it, so none
        of them is known from here on."""
        self.program.not_liftable(why)
        for reg in self.known:
            reg.known = None
        self.known.clear()
        before, body = self.into, []            # type: tuple[list[Instr], list[Instr]]
        self.into = body
        if not self.in_loop:
            self.before_loop = len(self.storages)
        self.in_loop += 1
        try:
            yield body
        finally:
            self.in_loop -= 1
            self.into = before

    def finish(self, outputs: Sequence[NkiTensor]) -> Program:
        if self.pending is not None:
            raise self.pending
        self.program.outputs = list(outputs)
        check_outputs(self.program)
        return self.program


def check_outputs(program: Program) -> None:
    """An error for an output of which too few elements are written: fewer than it has, counting each write in full."""
    given = {i.storage.id for i in program.inputs} | set(program.constants)
    wanted = {t.storage.id: t.storage for t in program.outputs if t.storage.id not in given}
    if not wanted:
        return
    written = dict.fromkeys(wanted, 0)
    exempt = set()
    for instr, repeated in walk(program.instrs):
        for t in instr.tensors(instr.writes):
            if t.storage.id in written:
                written[t.storage.id] += t.size * t.dtype.itemsize
                if repeated or t.dynamic:
                    exempt.add(t.storage.id)
    for key, storage in wanted.items():
        if written[key] < storage.nbytes and key not in exempt:
            missing = (storage.nbytes - written[key]) // storage.dtype.itemsize
            raise NkiUninitializedError(
                f"output {whole(storage).describe()}: {missing} of {storage.nbytes // storage.dtype.itemsize} elements "
                "were never written; write every element before returning it", storage.loc)


def walk(instrs: Sequence[Instr], repeated: bool = False) -> Iterator[tuple[Instr, bool]]:
    """All instructions with those inside loops; the flag says whether it is inside one."""
    for instr in instrs:
        yield instr, repeated
        body = instr.args.get("body")
        if body is not None:
            yield from walk(body, True)


@contextmanager
def gc_paused() -> Iterator[None]:
    """Tracing makes many long-lived objects; the cycle collector would double its time."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


Specs = Mapping[str, Any] | Sequence[Any]
