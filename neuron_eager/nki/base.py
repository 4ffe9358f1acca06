"""What the two machines share: allocation, numbering, registers, the accumulate rule of PSUM, dynamic regions."""
from __future__ import annotations

import warnings
from typing import Any

from ..config import config
from ..errors import NkiShapeError, NkiTypeError, NkiWarning
from . import limits, psum
from .buffers import MemoryRegion
from .buffers import psum as PSUM
from .dtypes import DType
from .isa.constants import engine
from .location import Loc, here
from .program import Instr
from .registers import VirtualRegister
from .tensor import NkiTensor, Storage, allocate_storage, whole

_MATMULS = frozenset(("nc_matmul", "nc_matmul_mx"))


class BaseMachine:
    """Counts instructions, remembers every storage, and resolves what depends on earlier instructions."""

    tracing = False

    def __init__(self, name: str, target: str = "", core: int = 0, cores: int = 1, grid: bool = False) -> None:
        self.name = name
        self.limits = limits.for_target(target or limits.current_target())
        self.target = self.limits.target
        self.checks = config.checks
        self.core, self.cores, self.grid = core, cores, grid
        self.storages: list[Storage] = []
        self.count = 0                  # instructions so far
        self.registers = 0
        self.warnings: list[str] = []
        self.no_reorder = 0             # nesting of nl.no_reorder blocks
        self.depth = 0                  # nesting of inlined kernels

    # ---- allocation

    def storage(self, shape: tuple[int, ...], dtype: DType, buffer: MemoryRegion, name: str) -> Storage:
        storage = allocate_storage(len(self.storages), name, shape, dtype, buffer, here(3))
        self.storages.append(storage)
        return storage

    def allocate(self, shape: tuple[int, ...], dtype: DType, buffer: MemoryRegion, name: str = "",
                 address: tuple[int, int] | None = None) -> NkiTensor:
        storage = self.storage(shape, dtype, buffer, name)
        storage.address = address
        return whole(storage)

    # ---- registers

    def register(self, value: int | None = None) -> VirtualRegister:
        self.registers += 1
        return VirtualRegister(self.registers - 1)

    # ---- instructions

    def issue(self, instr: Instr) -> Instr:
        if instr.op in _MATMULS:
            self._accumulate(instr)
        self._touch(instr)
        self.execute(instr)
        return instr

    def execute(self, instr: Instr) -> None:
        raise NotImplementedError

    def _touch(self, instr: Instr) -> None:
        """Number the instruction and note which storages it uses, for the account of live memory."""
        number = self.count
        self.count = number + 1
        args = instr.args
        matmul = instr.op in _MATMULS
        for name in instr.writes + instr.reads:
            value = args[name]
            if type(value) is NkiTensor:
                use(value, number)
                if value.storage.psum_state is not None and not matmul:
                    value.storage.psum_state.unread.clear()
            elif type(value) in (list, tuple):
                for part in value:
                    if type(part) is NkiTensor:
                        use(part, number)
            elif type(value) is VirtualRegister and value.frozen and name in instr.writes:
                raise NkiTypeError(f"{instr.op}: a loop variable cannot be written", instr.loc)

    def warn(self, message: str, loc: Loc | None) -> None:
        """Warn of something at the author's line, and keep the message for `inspect`."""
        text = f"{loc}: {message}"
        if text not in self.warnings:
            self.warnings.append(text)
            if loc is not None:
                warnings.warn_explicit(message, NkiWarning, loc.file, loc.line)

    def _accumulate(self, instr: Instr) -> None:
        dst = instr.args["dst"]
        if dst.storage.buffer is not PSUM or dst.dynamic:
            return
        lost = psum.overwritten(dst, instr.args["accumulate"], instr.loc)
        if lost is not None:
            self.warn(f"{instr.op} overwrites dst {dst.describe()}, which the matmul at {lost} has written and nothing "
                      "has read since; accumulate=None or (k > 0) adds", instr.loc)
        found = psum.resolve(dst, instr.args["accumulate"])
        if found is True or found is False:
            instr.args["accumulate"] = found
            return
        boxes = psum.unwritten_boxes(found)
        if len(boxes) > 64:
            raise NkiShapeError(f"{instr.op}: dst {dst.describe()} overlaps what earlier matmuls wrote in {len(boxes)} "
                                "pieces; pass accumulate=True or False", instr.loc)
        for box in boxes:
            zero = Instr("memset", {"dst": dst[box], "value": 0.0, "engine": engine.vector, "name": None}, ("dst",), (),
                         "vector", instr.loc)
            self.issue(zero)
        instr.args["accumulate"] = True


def use(t: NkiTensor, number: int) -> None:
    storage = t.storage
    if storage.first_use < 0:
        storage.first_use = number
    storage.last_use = number
    if t.dynamic:
        index = t.dynamic[0].index
        if type(index) is NkiTensor:
            use(index, number)


def flatten_tensors(value: Any) -> list[NkiTensor]:
    """The tensors of a kernel's return value, in order."""
    if isinstance(value, NkiTensor):
        return [value]
    if isinstance(value, (tuple, list)):
        return [t for part in value for t in flatten_tensors(part)]
    return []
