"""The interpreter: each instruction is executed at once, on real tiles."""
from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from ..config import config
from ..errors import NkiError, NkiTypeError, NkiUninitializedError
from . import access, machine, memory
from .base import BaseMachine
from .buffers import MemoryRegion, shared_hbm
from .dtypes import DType, as_dtype, in_float32
from .location import here
from .program import Instr, Program
from .registers import VirtualRegister
from .semantics import State, execute
from .tensor import NkiTensor, Storage, whole

if TYPE_CHECKING:
    from .cores import Cores


class Interpreter(BaseMachine):
    """One core that executes. Uninitialised memory holds NaN (floats) or 4 (integers).

    follow_writes: remember which bytes were written, and raise NkiUninitializedError where others are read.
    """

    def __init__(self, name: str, target: str = "", core: int = 0, cores: int = 1, grid: bool = False,
                 shared: Cores | None = None, follow_writes: bool | None = None) -> None:
        super().__init__(name, target, core, cores, grid)
        self.state = State()
        self.shared = shared
        self.precise = os.environ.get("NKI_PRECISE_FP", "1") != "0"     # else bfloat16 and fp8 are kept in float32
        self.follow_writes = config.check_uninitialized if follow_writes is None else follow_writes
        self.special: dict[str, Callable[[dict[str, Any], Instr], None]] = {
            "fori_loop": self._fori_loop, "while_loop": self._while_loop, "device_print": _device_print,
            "core_barrier": self._core_barrier, "sendrecv": self._sendrecv}

    # ---- memory

    def allocate(self, shape: tuple[int, ...], dtype: DType, buffer: MemoryRegion, name: str = "",
                 address: tuple[int, int] | None = None) -> NkiTensor:
        if buffer is shared_hbm and self.shared is not None:
            return whole(self.shared.shared_storage(self, lambda: self._fresh(shape, dtype, buffer, name)))
        storage = self._fresh(shape, dtype, buffer, name)
        storage.address = address
        return whole(storage)

    def _fresh(self, shape: tuple[int, ...], dtype: DType, buffer: MemoryRegion, name: str) -> Storage:
        storage = self.storage(shape, dtype if self.precise else in_float32(dtype), buffer, name)
        storage.data = memory.poisoned(storage)
        if self.follow_writes or not buffer.on_chip:
            storage.written = np.zeros(storage.nbytes, bool)
        return storage

    def constant(self, values: Any, name: str = "") -> NkiTensor:
        array = np.ascontiguousarray(values)
        storage = self.storage(array.shape, as_dtype(array.dtype), shared_hbm, name or "constant")
        storage.data = array.reshape(-1).view(np.uint8).copy()
        return whole(storage)

    def argument(self, storage: Storage, byte_offset: int) -> NkiTensor:
        """The tensor of an argument whose bytes are in `storage`."""
        storage.is_argument = True
        self.storages.append(storage)
        return NkiTensor(storage, byte_offset, storage.shape, storage.base_strides, storage.dtype)

    def register(self, value: int | None = None) -> VirtualRegister:
        reg = super().register()
        reg.value = value
        return reg

    # ---- instructions

    def execute(self, instr: Instr) -> None:
        if self.follow_writes:
            self._check_reads(instr)
        special = self.special.get(instr.op)
        try:
            if special is not None:
                special(instr.args, instr)
            else:
                execute(instr, self.state)
        except NkiError:
            raise
        except Exception as error:
            error.add_note(f"{instr.loc}: in {instr!r}")
            raise
        for t in instr.tensors(instr.writes):
            if t.storage.written is not None:
                memory.mark_written(t)

    def _check_reads(self, instr: Instr) -> None:
        names = instr.reads
        if instr.op in ("nc_matmul", "nc_matmul_mx") and instr.args["accumulate"]:
            names = (*names, "dst")
        for name in names:
            value = instr.args[name]
            for t in [value] if isinstance(value, NkiTensor) else value if isinstance(value, (list, tuple)) else ():
                if isinstance(t, NkiTensor):
                    memory.check_written(t, f"{instr.op}: {name}", instr.loc)

    # ---- loops of a recorded program

    def _fori_loop(self, args: dict[str, Any], instr: Instr) -> None:
        for i in range(value_of(args["lower"]), value_of(args["upper"]), args["step"]):
            args["index"].value = i
            for inner in args["body"]:
                self.execute(inner)

    def _while_loop(self, args: dict[str, Any], instr: Instr) -> None:
        register = args["register"]
        register.value = value_of(args["init"])
        while register.value:
            for inner in args["body"]:
                self.execute(inner)
            register.value = value_of(args["result"])

    # ---- two cores

    def _core_barrier(self, args: dict[str, Any], instr: Instr) -> None:
        if self.shared is not None:
            self.shared.barrier(self.core, instr)

    def _sendrecv(self, args: dict[str, Any], instr: Instr) -> None:
        if self.shared is None:
            raise NkiError("sendrecv needs two cores: launch the kernel as kernel[2](...)", instr.loc)
        received = self.shared.exchange(self.core, args, np.array(access.read(args["src"])), instr)
        access.write(args["dst"], received)

    # ---- recorded programs

    @classmethod
    def replay(cls, program: Program, arrays: Sequence[np.ndarray], *, poison: bool = True) -> list[np.ndarray]:
        """Run a recorded program on NumPy arrays (one per input, in order; shapes and strides as traced) and return its
        outputs as arrays. An output that is an input is written in place and returned as that array."""
        self = cls(program.name, program.target, follow_writes=False)
        with _bound(program, arrays, poison), machine.use(self):
            for instr in program.instrs:
                self.execute(instr)
            results = []
            for t in program.outputs:
                same = [a for a, i in zip(arrays, program.inputs) if i.storage is t.storage and i.shape == t.shape
                        and i.byte_offset == t.byte_offset]
                results.append(same[0] if same else access.read(t).copy())
            return results


@contextmanager
def _bound(program: Program, arrays: Sequence[np.ndarray], poison: bool) -> Any:
    """Give a program's storages memory for one run. Runs of one program exclude each other."""
    if len(arrays) != len(program.inputs):
        raise NkiTypeError(f"{program.name} has {len(program.inputs)} tensor inputs, not {len(arrays)}", program.loc)
    with program.lock:
        try:
            for t, array in zip(program.inputs, arrays):
                if array.shape != t.shape or array.dtype != t.dtype.numpy or \
                        any(n > 1 and a != b for n, a, b in zip(t.shape, array.strides, t.byte_strides)):
                    raise NkiTypeError(
                        f"{program.name}: input {t.describe()} with byte strides {t.byte_strides} does not fit an "
                        f"array {array.dtype}{list(array.shape)} with byte strides {array.strides}", program.loc)
                t.storage.data = memory.bytes_from(array, t.byte_offset)
            inputs = {id(t.storage) for t in program.inputs}
            for storage in program.storages:
                if id(storage) not in inputs:
                    values = program.constants.get(storage.id)
                    storage.data = values.reshape(-1).view(np.uint8) if values is not None else \
                        memory.poisoned(storage) if poison else np.zeros(storage.nbytes, np.uint8)
            yield
        finally:
            for storage in program.storages:
                storage.data = None


def value_of(value: Any) -> int:
    """The run-time value of an int or a register."""
    if isinstance(value, VirtualRegister):
        if value.value is None:
            raise NkiTypeError(f"register {value.id} is used before it has a value", here())
        return value.value
    return int(value)


def _device_print(args: dict[str, Any], instr: Instr) -> None:
    print(f"{args['print_prefix']} {args['tensor']!r}")


def check_output(t: NkiTensor) -> None:
    """An error when an output has elements that nothing wrote."""
    if t.storage.written is None:
        return
    missing = memory.first_unwritten(t)
    if missing is not None:
        index, count = missing
        raise NkiUninitializedError(
            f"output {t.describe()}: {count} of {t.size} elements were never written, the first at index "
            f"{list(index)}; write every element before returning it", t.storage.loc)
