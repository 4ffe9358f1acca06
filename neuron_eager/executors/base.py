"""What every executor offers: a kernel and its tensor specs in, something that runs on raw pointers out."""
from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

from ..nki.jit import Kernel
from ..nki.program import Program, TensorSpec

Specs = Mapping[str, Any]           # parameter name -> TensorSpec or tuple of TensorSpec, in parameter order


class Executable:
    """One specialisation of a kernel.

    outputs: the tensors that the kernel returns and that are not arguments; their memory is the caller's to give.
    results: for each tensor returned, the index of the pointer it is found at. returns_tuple: it returned a tuple.
    address, r0, r1: a native function `void(void** pointers, int64 r0, int64 r1)` and its last two arguments, or 0.
    note: why it is not native, if it is not.
    """

    outputs: tuple[TensorSpec, ...] = ()
    results: tuple[int, ...] = ()
    returns_tuple: bool = False
    address: int = 0
    r0: int = 0
    r1: int = 0
    note: str | None = None

    def __call__(self, pointers: Sequence[int]) -> None:
        """Run. pointers: the address of element [0, ...] of each input in parameter order, then of each output."""
        raise NotImplementedError

    def take_results(self, program: Program) -> None:
        """Note what the kernel returns, as its tile program has it."""
        inputs = [id(t.storage) for t in program.inputs]
        fresh = list({id(t.storage): t for t in program.outputs if id(t.storage) not in inputs}.values())
        self.outputs = tuple(TensorSpec(t.shape, t.strides, t.dtype) for t in fresh)
        where = {storage: i for i, storage in enumerate([*inputs, *(id(t.storage) for t in fresh)])}
        self.results = tuple(where[id(t.storage)] for t in program.outputs)
        self.returns_tuple = program.returns_tuple


class Executor(Protocol):
    """Who runs kernels."""

    name: str

    def compile(self, kernel: Kernel, specs: Specs, constants: Mapping[str, Any]) -> Executable:
        """The kernel for these tensors and compile-time constants. Raises what tracing or checking it raises."""
        ...


def flat(specs: Specs) -> Iterator[tuple[str, TensorSpec]]:
    """Every tensor with a name for messages, in the order of the pointers."""
    for name, spec in specs.items():
        if isinstance(spec, tuple):
            for i, part in enumerate(spec):
                yield f"{name}[{i}]", part
        else:
            yield name, spec


def frozen(specs: Specs, constants: Mapping[str, Any]) -> Any:
    """A hashable form of what a specialisation depends on."""
    return tuple(specs.items()), tuple(sorted((k, _hashable(v)) for k, v in constants.items()))


def _hashable(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return tuple(_hashable(v) for v in value)
    return type(value), value

