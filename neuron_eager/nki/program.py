"""The tile program: what one run of a kernel on symbolic tensors records."""
from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from .dtypes import DType, as_dtype
from .location import Loc
from .tensor import NkiTensor, Storage


@dataclass(frozen=True)
class TensorSpec:
    """An argument tensor without data. Strides in elements (0 broadcasts, negative allowed); offset in bytes."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: DType
    offset_bytes: int = 0

    @staticmethod
    def contiguous(shape: Sequence[int], dtype: Any) -> TensorSpec:
        strides, size = [], 1
        for n in reversed(shape):
            strides.append(size)
            size *= n
        return TensorSpec(tuple(shape), tuple(reversed(strides)), as_dtype(dtype))


class Instr:
    """One nisa instruction. `args` are its keyword arguments with defaults filled in; `writes` and `reads` name those
    that are tensors (or registers) written and read."""

    __slots__ = ("op", "args", "writes", "reads", "engine", "loc", "producers")

    def __init__(self, op: str, args: dict[str, Any], writes: tuple[str, ...], reads: tuple[str, ...], engine: str,
                 loc: Loc | None) -> None:
        self.op, self.args, self.writes, self.reads, self.engine, self.loc = op, args, writes, reads, engine, loc
        self.producers: tuple[Instr, ...] = ()

    def depends_on(self, *producers: Instr) -> Instr:
        """Order this instruction after the given ones. Programs here run in order, so it only records the edge."""
        self.producers += producers
        return self

    def tensors(self, names: tuple[str, ...]) -> list[NkiTensor]:
        """The tensors among the named arguments, with those inside lists."""
        found = []
        for name in names:
            value = self.args[name]
            if type(value) is NkiTensor:
                found.append(value)
            elif isinstance(value, (list, tuple)):
                found += [v for v in value if type(v) is NkiTensor]
        return found

    def __repr__(self) -> str:
        shown = ", ".join(f"{k}={v.describe() if type(v) is NkiTensor else v}" for k, v in self.args.items()
                          if v is not None)
        return f"{self.op}({shown})"


@dataclass
class Program:
    """Instructions in program order, the storages they touch, and the HBM tensors at its boundary.

    inputs: argument tensors in parameter order. outputs: the tensors returned (an output may be an input: aliasing).
    liftable: False, with the reason in `why`, when a construct depends on values known only at run time; such a
    program runs in the interpreter.
    """

    name: str
    instrs: list[Instr] = field(default_factory=list)
    storages: list[Storage] = field(default_factory=list)
    inputs: list[NkiTensor] = field(default_factory=list)
    outputs: list[NkiTensor] = field(default_factory=list)
    loc: Loc | None = None
    liftable: bool = True
    why: str = ""
    returns_tuple: bool = False
    constants: dict[int, Any] = field(default_factory=dict)     # storage id -> NumPy data of nl.shared_constant
    target: str = ""
    warnings: list[str] = field(default_factory=list)
    lock: Any = field(default_factory=threading.RLock, repr=False)

    def not_liftable(self, why: str) -> None:
        if self.liftable:
            self.liftable, self.why = False, why

    def dump(self) -> str:
        """The program as text, one instruction a line."""
        return "\n".join(f"{i:5d}  {instr!r}  # {instr.loc}" for i, instr in enumerate(self.instrs))
