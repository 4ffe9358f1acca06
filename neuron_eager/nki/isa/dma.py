"""DMA engines: copies, transposes and sums between HBM and SBUF."""
from __future__ import annotations

import math
from typing import Any

from .. import limits as chip
from ..buffers import psum
from ..program import Instr
from ..semantics.dma import DEFAULT_AXES
from ..tensor import NkiTensor
from . import checks
from ._issue import begin
from .constants import dge_mode as DgeMode
from .constants import engine as Engine
from .constants import oob_mode as OobMode

_ERROR, _SKIP = OobMode.error, OobMode.skip


def _endpoint(i: Instr, name: str) -> NkiTensor:
    """A tensor in HBM or SBUF. DMA starts at any partition and steps as it likes."""
    t = i.args[name]
    if type(t) is not NkiTensor:
        checks.tensor(i, name)
    if t.storage.buffer is psum:
        refuse_psum(i, name)
    if t.dynamic and t.dynamic[0].kind != "scalar":
        if t.dynamic[0].kind == "indirect":
            checks.refuse(i, name, "cannot use .indirect(); a DMA takes .ap(vector_offset=…) of an HBM tensor")
        if t.storage.buffer.on_chip:
            checks.refuse(i, name, f"is in {t.storage.buffer}; only an HBM tensor takes a vector_offset")
    return t


def refuse_psum(i: Instr, name: str) -> None:
    what = "copy it to SBUF with nisa.tensor_copy first" if name != "dst" else \
        "DMA into an SBUF tile and copy that with nisa.tensor_copy"
    checks.refuse(i, name, f"is in PSUM, which DMA cannot access; {what}")


def _same_count(i: Instr, first: str, second: str) -> None:
    a, b = i.args[first], i.args[second]
    if a.shape != b.shape and math.prod(a.shape) != math.prod(b.shape):
        checks.refuse(i, second, f"has {b.size} elements and {first} has {a.size}; a DMA copies as many as it reads")


def _modes(i: Instr, indirect: bool) -> None:
    args = i.args
    if args["oob_mode"] is not _ERROR:
        checks.member(i, "oob_mode", OobMode)
        if not indirect:
            checks.refuse(i, "oob_mode", "= oob_mode.skip needs a run-time index (vector_offset or scalar_offset)")
    if args.get("priority") is not None:
        checks.int32(i, "priority")
        if not 0 <= args["priority"] <= 3:
            checks.refuse(i, "priority", f"= {args['priority']} must be 0 to 3")
        checks.generation(i, checks.current().limits, 4, "a DMA priority")


def dma_copy(dst: NkiTensor, src: NkiTensor, priority: int | None = None, oob_mode: OobMode = _ERROR,
             dge_mode: DgeMode = DgeMode.unknown, engine: Engine = Engine.unknown, name: str | None = None) -> Instr:
    """dst = src, each in HBM or SBUF, in row-major order; as many elements, whatever the shapes.

    Other dtypes convert through float32 (with dge_mode.hwdge they must be equal). Gather and scatter through
    `.ap(vector_offset=…)` on the HBM side. A run-time index out of bounds is an error, or with oob_mode.skip that
    element is left alone. priority: 0 to 3, trn3. engine: sync or scalar, only with hwdge (trn2 or newer).
    """
    machine, i = begin("dma_copy", ("dst",), ("src",), "dma",
                       {"dst": dst, "src": src, "priority": priority, "oob_mode": oob_mode, "dge_mode": dge_mode,
                        "engine": engine, "name": name})
    if machine.checks:
        _endpoint(i, "dst")
        _endpoint(i, "src")
        _same_count(i, "dst", "src")
        if dst.dtype is not src.dtype:
            checks.not_packed(i, "dst", "src")
        checks.dtype_on_target(i, machine.limits, "dst", "src")
        if oob_mode is not _ERROR or priority is not None:
            _modes(i, bool(dst.dynamic or src.dynamic))
        if dge_mode is not DgeMode.unknown or engine is not Engine.unknown:
            _descriptors(i, dst, src)
    return machine.issue(i)


def _descriptors(i: Instr, dst: NkiTensor, src: NkiTensor) -> None:
    checks.member(i, "dge_mode", DgeMode)
    checks.member(i, "engine", Engine, Engine.unknown, Engine.sync, Engine.scalar, Engine.gpsimd)
    if i.args["dge_mode"] is DgeMode.hwdge:
        checks.generation(i, checks.current().limits, 3, "dge_mode.hwdge")
        checks.same_dtype(i, "dst", "src")
    elif i.args["engine"] in (Engine.sync, Engine.scalar) and i.args["dge_mode"] is not DgeMode.unknown:
        checks.refuse(i, "engine", f"= {i.args['engine']} needs dge_mode.hwdge")


def dma_transpose(dst: NkiTensor, src: NkiTensor, axes: tuple[int, ...] | None = None, priority: int | None = None,
                  dge_mode: DgeMode = DgeMode.unknown, oob_mode: OobMode = _ERROR, name: str | None = None) -> Instr:
    """dst = src with its dimensions in the order `axes`: (1, 0), (2, 1, 0) or (3, 1, 2, 0), which is also the default.

    dst: a tile in SBUF of exactly the permuted shape and of src's dtype. src: HBM or SBUF. hwdge: 2-byte dtypes,
    src.shape[-1] <= 128, src.shape[0] 16 (2-D) or one of 1, 2, 4, 8, 16 with src.shape[0] * src.shape[-2] a multiple of
    16. With a vector_offset on src (an HBM tensor of 2-byte elements, trn2 or newer): gathered rows are transposed.
    """
    machine, i = begin("dma_transpose", ("dst",), ("src",), "dma",
                       {"dst": dst, "src": src, "axes": axes, "priority": priority, "dge_mode": dge_mode,
                        "oob_mode": oob_mode, "name": name})
    if machine.checks:
        _endpoint(i, "dst")
        _endpoint(i, "src")
        checks.in_sbuf(i, "dst")
        checks.same_dtype(i, "src", "dst")
        _transposed(i, dst, src)
        indirect = any(d.kind == "vector" for d in src.dynamic)
        checks.member(i, "dge_mode", DgeMode)
        _modes(i, bool(src.dynamic))
        if indirect:
            _gather_transpose(i, src)
        elif dge_mode is DgeMode.hwdge:
            _hardware_transpose(i, src)
        elif dge_mode is not DgeMode.unknown:
            checks.refuse(i, "dge_mode", f"= {dge_mode}: a transpose takes unknown or hwdge")
    return machine.issue(i)


def _transposed(i: Instr, dst: NkiTensor, src: NkiTensor) -> None:
    axes = i.args["axes"]
    wanted = DEFAULT_AXES.get(src.ndim)
    if wanted is None:
        checks.refuse(i, "src", f"has {src.ndim} dimensions; a transpose takes 2 to 4")
    if axes is not None and tuple(axes) != wanted:
        checks.refuse(i, "axes", f"= {tuple(axes)}; for {src.ndim} dimensions only {wanted} is supported")
    shape = tuple(src.shape[a] for a in wanted)
    if tuple(dst.shape) != shape:
        checks.refuse(i, "dst", f"has shape {list(dst.shape)}; the transposed src has {list(shape)}")


def _hardware_transpose(i: Instr, src: NkiTensor) -> None:
    checks.generation(i, checks.current().limits, 3, "dge_mode.hwdge")
    first, last = src.shape[0], src.shape[-1]
    if src.dtype.itemsize != 2:
        checks.refuse(i, "src", f"is {src.dtype}; a hardware transpose takes 2-byte dtypes")
    if src.ndim == 2 and first != 16:
        checks.refuse(i, "src", f"has {first} rows; a 2-D hardware transpose takes 16")
    if src.ndim > 2 and (first not in (1, 2, 4, 8, 16) or first * src.shape[-2] % 16):
        checks.refuse(i, "src", f"has shape {list(src.shape)}: shape[0] must be 1, 2, 4, 8 or 16, and shape[0] * "
                                "shape[-2] a multiple of 16")
    if last > 128:
        checks.refuse(i, "src", f"has {last} elements in its last dimension; the limit is 128")


def _gather_transpose(i: Instr, src: NkiTensor) -> None:
    checks.generation(i, checks.current().limits, 3, "a transpose with run-time indices")
    if i.args["dge_mode"] not in (DgeMode.unknown, DgeMode.swdge):
        checks.refuse(i, "dge_mode", f"= {i.args['dge_mode']}: a transpose with run-time indices takes unknown "
                                     "or swdge")
    index = src.dynamic[0].index
    problem = ""
    if src.storage.buffer.on_chip:
        problem = f"is in {src.storage.buffer}; with run-time indices it must be in HBM"
    elif src.dtype.itemsize != 2:
        problem = f"is {src.dtype}; with run-time indices it must be a 2-byte dtype"
    elif src.shape[-1] > 128:
        problem = f"has {src.shape[-1]} elements in its last dimension; the limit is 128"
    elif src.shape[0] % 16:
        problem = f"has {src.shape[0]} rows; with run-time indices they are a multiple of 16"
    elif src.ndim == 4 and 1 not in src.shape[1:3]:
        problem = f"has shape {list(src.shape)}; of shape[1] and shape[2] one must be 1"
    elif isinstance(index, NkiTensor):
        problem = _index_problem(index, src.shape[0])
    if problem:
        checks.refuse(i, "src", problem)


def _index_problem(index: NkiTensor, count: int) -> str:
    shown = f"has the index {index.describe()}"
    if index.ndim != 2 or index.dtype != "uint32":
        return f"{shown}; it must be a 2-D uint32 tile"
    if not 16 <= index.shape[0] <= 128 or index.shape[0] % 16:
        return f"{shown}; its partitions must be a multiple of 16, up to 128"
    if index.shape[1] > 1 and index.shape[0] != 128:
        return f"{shown}; with more than one column it must have 128 partitions"
    if index.size < count:
        return f"{shown}; {count} rows need as many indices"
    return ""


def dma_compute(dst: NkiTensor, srcs: list[NkiTensor] | tuple[NkiTensor, ...], reduce_op: Any,
                scales: list[float] | tuple[float, ...] | None = None, unique_indices: bool = True,
                oob_mode: OobMode = _ERROR, name: str | None = None) -> Instr:
    """dst = the sum of srcs, computed in float32 by the DMA engines; tensors in HBM or SBUF of as many elements.

    At most 16 sources; reduce_op is nl.add; scales are None or all 1.0. With a vector_offset it is read-modify-write:
    exactly two sources, one of which is dst (scatter: dst in HBM has the offset; gather: the other source has it).
    """
    machine, i = begin("dma_compute", ("dst",), ("srcs",), "dma",
                       {"dst": dst, "srcs": srcs, "reduce_op": reduce_op, "scales": scales,
                        "unique_indices": unique_indices, "oob_mode": oob_mode, "name": name})
    if machine.checks:
        _endpoint(i, "dst")
        if not isinstance(srcs, (list, tuple)) or not 1 <= len(srcs) <= chip.DMA_COMPUTE_SOURCES:
            checks.refuse(i, "srcs", f"must be a list of 1 to {chip.DMA_COMPUTE_SOURCES} tensors")
        _sources(i, dst, srcs)
        checks.op_in(i, "reduce_op", ("add",), "supported by DMA; it must be nl.add")
        if scales is not None and (len(scales) != len(srcs) or any(s != 1.0 for s in scales)):
            checks.refuse(i, "scales", f"= {scales!r}: one 1.0 for each source, or None")
        _modes(i, bool(dst.dynamic or any(s.dynamic for s in srcs)))
    return machine.issue(i)


def _sources(i: Instr, dst: NkiTensor, srcs: Any) -> None:
    for n, src in enumerate(srcs):
        if type(src) is not NkiTensor:
            checks.refuse(i, "srcs", f"[{n}] is not a tensor")
        if src.storage.buffer is psum:
            checks.refuse(i, "srcs", f"[{n}] is in PSUM, which DMA cannot access; copy it to SBUF first")
        if src.size != dst.size:
            checks.refuse(i, "srcs", f"[{n}] has {src.size} elements and dst has {dst.size}; they must be equal")
    vector = [t for t in (dst, *srcs) if any(d.kind == "vector" for d in t.dynamic)]
    if vector:
        if len(srcs) != 2 or all(s.storage is not dst.storage for s in srcs):
            checks.refuse(i, "srcs", "with a vector_offset must be two tensors, one of them dst")
        if not i.args["unique_indices"]:
            checks.refuse(i, "unique_indices", "= False is not supported")

