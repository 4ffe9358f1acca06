"""What a kernel does, before it runs anywhere: its instructions, traffic, memory and a first estimate of its cost."""
from __future__ import annotations

import html
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from . import limits as chip
from .buffers import psum, sbuf
from .dtypes import as_dtype
from .jit import Kernel, trace
from .launch import Array, is_array
from .memcheck import Peak, peak
from .program import Instr, Program, TensorSpec
from .tensor import NkiTensor
from .tracer import walk

# From the performance guide: an instruction keeps its engine for about 64 cycles at least.
MINIMUM_CYCLES = 64
# HBM bandwidth of a device over its cores, in bytes per microsecond, from the architecture guides.
HBM_BYTES_PER_US = {"trn1": 820e3 / 2, "trn2": 3000e3 / 8, "trn3": 4700e3 / 8}


@dataclass(frozen=True)
class Line:
    """One instruction as it is shown: number, op, engine, operands, place, estimated microseconds of its engine."""

    number: int
    op: str
    engine: str
    operands: str
    place: str
    microseconds: float


class Inspection:
    """The result of `inspect`. Attributes:

    program: the tile program. lines: its instructions. engines: instructions by engine. ops: instructions by name.
    hbm_read, hbm_written: bytes between HBM and the chip. sbuf, psum: the peaks of a partition. busy: estimated
    microseconds of each engine; the kernel takes at least the longest and at most their sum. warnings: what is allowed
    and seldom meant.
    """

    def __init__(self, program: Program, limits: Any) -> None:
        self.program, self.limits, self.warnings = program, limits, program.warnings
        self.lines: list[Line] = []
        self.busy: dict[str, float] = {}
        self.hbm_read = self.hbm_written = 0
        for number, (instr, _) in enumerate(walk(program.instrs)):
            cost, engine = self._cost(instr), _engine(instr)
            self.busy[engine] = self.busy.get(engine, 0.0) + cost
            self.lines.append(Line(number, instr.op, engine, _operands(instr), str(instr.loc or ""), cost))
            self.hbm_read += _hbm_bytes(instr, instr.reads)
            self.hbm_written += _hbm_bytes(instr, instr.writes)
        self.engines = Counter(line.engine for line in self.lines)
        self.ops = Counter(line.op for line in self.lines)
        self.sbuf: Peak = peak(program.storages, sbuf, limits)
        self.psum: Peak = peak(program.storages, psum, limits)

    def _cost(self, instr: Instr) -> float:
        """Microseconds that the instruction keeps its engine, by the documented rates."""
        clocks, engine = self.limits.clocks, _engine(instr)
        written = instr.tensors(instr.writes)
        if engine == "dma":
            return sum(t.size * t.dtype.itemsize for t in written) / HBM_BYTES_PER_US[self.limits.target]
        if engine not in clocks:
            return MINIMUM_CYCLES / 1e3
        tensors = written + instr.tensors(instr.reads)
        cycles = max((math.prod(t.shape[1:]) for t in tensors), default=1)
        if instr.op == "nc_matmul":
            moving = instr.args["moving"]
            cycles = math.prod(moving.shape[1:]) * (4 if moving.dtype == "float32" else 1)
        return max(MINIMUM_CYCLES, cycles) / (clocks[engine] * 1e3)

    @property
    def least_microseconds(self) -> float:
        """If the engines overlap perfectly."""
        return max(self.busy.values(), default=0.0)

    @property
    def most_microseconds(self) -> float:
        """If no two engines overlap."""
        return sum(self.busy.values())

    def summary(self) -> list[tuple[str, str]]:
        p, limits = self.program, self.limits
        return [
            ("kernel", f"{p.name} on {limits.target}"),
            ("arguments", ", ".join(t.describe() for t in p.inputs)),
            ("results", ", ".join(t.describe() for t in p.outputs)),
            ("instructions", f"{len(self.lines)}: " + ", ".join(f"{n} {op}" for op, n in self.ops.most_common())),
            ("engines", ", ".join(f"{n} {e}" for e, n in self.engines.most_common())),
            ("HBM traffic", f"{self.hbm_read} bytes read, {self.hbm_written} bytes written"),
            ("SBUF peak", f"{self.sbuf.nbytes} of {limits.sbuf_partition_bytes} bytes of a partition, at instruction "
                          f"{self.sbuf.at}"),
            ("PSUM peak", f"{self.psum.nbytes} of {limits.psum_partition_bytes} bytes of a partition"),
            ("busy", ", ".join(f"{e} {us:.2f} us" for e, us in sorted(self.busy.items(), key=lambda i: -i[1]))),
            ("estimate", f"{self.least_microseconds:.2f} us (engines overlap) to {self.most_microseconds:.2f} us (in "
                         "turn)"),
            ("native", "yes" if p.liftable else f"no: {p.why}"),
        ]

    def __str__(self) -> str:
        head = [f"{name:13} {value}" for name, value in self.summary()]
        body = [f"{line.number:6} {line.engine:7} {line.microseconds:8.3f} us  {line.op}({line.operands})  {line.place}"
                for line in self.lines]
        return "\n".join([*head, "", *body])

    def __repr__(self) -> str:
        shown = str(self).splitlines()
        return "\n".join(shown[:60] + ([f"... {len(shown) - 60} more lines in str()"] if len(shown) > 60 else []))

    def _repr_html_(self) -> str:
        head = "".join(f"<tr><th style='text-align:left'>{html.escape(a)}</th><td style='text-align:left'>"
                       f"{html.escape(b)}</td></tr>" for a, b in self.summary())
        rows = "".join(
            f"<tr><td>{x.number}</td><td>{html.escape(x.engine)}</td><td>{x.microseconds:.3f}</td>"
            f"<td style='text-align:left'><code>{html.escape(x.op)}({html.escape(x.operands)})</code></td>"
            f"<td style='text-align:left'>{html.escape(x.place)}</td></tr>" for x in self.lines)
        return (f"<table>{head}</table><details><summary>{len(self.lines)} instructions</summary><table>"
                f"<tr><th>#</th><th>engine</th><th>us</th><th>instruction</th><th>place</th></tr>{rows}</table></details>")


def inspect(kernel: Kernel, *args: Any, target: str | None = None, **kwargs: Any) -> Inspection:
    """Trace a kernel and account for what it does.

    args, kwargs: the kernel's arguments; tensors as TensorSpec, (shape, dtype) pairs, NumPy arrays or torch tensors
    (also on the meta device), the rest compile-time constants. target: trn1, trn2 or trn3; default the one in force.
    """
    kernel = kernel if isinstance(kernel, Kernel) else Kernel(kernel)
    given = {name: _spec(value) for name, value in kernel.bind(args, kwargs).items()}
    program = trace(kernel, given, target=target or "")
    return Inspection(program, chip.for_target(program.target))


def _spec(value: Any) -> Any:
    if is_array(value):
        if not hasattr(value, "ctypes") and value.is_meta:
            return TensorSpec(tuple(value.shape), tuple(value.stride()), as_dtype(value.dtype))
        return Array("", value).spec
    if isinstance(value, Sequence) and len(value) == 2 and isinstance(value[0], (tuple, list)) and \
            all(isinstance(n, int) for n in value[0]) and not isinstance(value[1], (tuple, list, Mapping)):
        return TensorSpec.contiguous(value[0], value[1])
    if isinstance(value, (tuple, list)) and any(is_array(v) or isinstance(v, TensorSpec) for v in value):
        return tuple(_spec(v) for v in value)
    return value


def _engine(instr: Instr) -> str:
    return str(getattr(instr.engine, "name", instr.engine))


def _hbm_bytes(instr: Instr, names: tuple[str, ...]) -> int:
    return sum(t.size * t.dtype.itemsize for t in instr.tensors(names) if not t.storage.buffer.on_chip)


def _operands(instr: Instr) -> str:
    shown = []
    for name, value in instr.args.items():
        if isinstance(value, NkiTensor):
            shown.append(f"{name}={value.storage.label}:{value.dtype}{list(value.shape)}")
        elif name not in ("body", "name", "engine") and value is not None and value is not False:
            shown.append(f"{name}={getattr(value, 'name', value)}")
    return ", ".join(shown)
