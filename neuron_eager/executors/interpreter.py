"""The interpreter as an executor: the kernel's own Python runs at every call, so breakpoints in it stop."""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import NkiValueNeededError
from ..nki import access, machine, memcheck, memory
from ..nki.buffers import shared_hbm
from ..nki.interpreter import Interpreter, check_output
from ..nki.jit import Kernel, checked_outputs, in_order, run, trace
from ..nki.program import TensorSpec
from ..nki.tensor import NkiTensor, Storage
from .base import Executable, Specs, flat


class InterpreterExecutor:
    name = "interpreter"

    def compile(self, kernel: Kernel, specs: Specs, constants: Mapping[str, Any]) -> Executable:
        return Interpreted(kernel, specs, constants, "interpreted: asked for by a setting")


class Interpreted(Executable):
    """A kernel with its specs, run instruction by instruction."""

    def __init__(self, kernel: Kernel, specs: Specs, constants: Mapping[str, Any], note: str) -> None:
        self.kernel, self.constants, self.note = kernel, dict(constants), note
        self.specs: dict[str, Any] = dict(in_order(kernel, specs))
        try:
            self.take_results(trace(kernel, self.specs, constants))
        except NkiValueNeededError:
            pass            # only running it tells what it returns; a kernel that writes its arguments needs no more

    def __call__(self, pointers: Sequence[int]) -> None:
        core = Interpreter(self.kernel.name)
        addresses = iter(pointers)
        tensors = {name: tuple(self._argument(core, f"{name}[{i}]", part, addresses) for i, part in enumerate(spec))
                   if isinstance(spec, tuple) else self._argument(core, name, spec, addresses)
                   for name, spec in self.specs.items()}
        given = {id(storage) for storage in core.storages}
        with machine.use(core):
            try:
                result = run(self.kernel, {**tensors, **self.constants})
            except Exception as error:
                shown = ", ".join(f"{n}={s.dtype}{list(s.shape)}" for n, s in flat(self.specs))
                error.add_note(f"in kernel {self.kernel.name}({shown}) on {core.target}")
                raise
            memcheck.check_storages(core.storages, core.limits, self.kernel.name)
        fresh = [t for t in checked_outputs(self.kernel, result) if id(t.storage) not in given]
        for t, address in zip(fresh, addresses):
            check_output(t)
            values = access.read(t)
            memory.bytes_at(address, values.nbytes)[:] = values.reshape(-1).view("u1")

    @staticmethod
    def _argument(core: Interpreter, name: str, spec: TensorSpec, addresses: Any) -> NkiTensor:
        size = spec.dtype.itemsize
        strides = tuple(s * size for s in spec.strides)
        low, end = memory.span(spec.shape, strides, size)
        first = next(addresses)
        storage = Storage(len(core.storages), name, spec.shape, spec.dtype, shared_hbm, end - low, 0, None,
                          memory.bytes_at(first + low, end - low))
        storage.base_strides = strides
        return core.argument(storage, -low)
