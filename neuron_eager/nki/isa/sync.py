"""What two cores of one logical core do together: core_barrier, sendrecv. Also the version of the target."""
from __future__ import annotations

from typing import Any

from .. import limits as chip
from ..machine import active
from ..program import Instr
from ..tensor import NkiTensor
from . import checks
from ._issue import begin
from .constants import dma_engine as DmaEngine
from .constants import engine as Engine
from .constants import nc_version

_GPSIMD_DMA_BYTES = {4: 1024, 2: 512, 1: 256}       # by element size: most bytes per partition
_VERSIONS = {v.value: v for v in nc_version}


def get_nc_version() -> nc_version:
    """The NeuronCore generation of the target: nc_version.gen2, gen3 or gen4."""
    machine = active.machine
    return _VERSIONS[chip.for_target(machine.target if machine is not None else chip.current_target()).generation]


def get_nc_sub_version() -> int:
    """The silicon revision within the generation: 0, the first."""
    return 0


def core_barrier(data: NkiTensor, cores: tuple[int, ...] | list[int], engine: Engine = Engine.gpsimd,
                 name: str | None = None) -> Instr:
    """Wait until both cores of a logical core are here, so that each sees what the other wrote to `data` in shared HBM.

    cores is (0, 1). trn2 or newer.
    """
    machine, i = begin("core_barrier", (), ("data",), engine.name if isinstance(engine, Engine) else "gpsimd",
                       {"data": data, "cores": cores, "engine": engine, "name": name})
    if machine.checks:
        checks.generation(i, machine.limits, 3)
        checks.tensor(i, "data")
        checks.member(i, "engine", Engine)
        if data.storage.buffer.on_chip:
            checks.refuse(i, "data", f"is in {data.storage.buffer}; cores share HBM only")
        if tuple(cores) != (0, 1):
            checks.refuse(i, "cores", f"= {cores!r} must be (0, 1)")
    return machine.issue(i)


def sendrecv(src: NkiTensor, dst: NkiTensor, send_to_rank: int, recv_from_rank: int, pipe_id: Any,
             dma_engine: DmaEngine = DmaEngine.dma, name: str | None = None) -> Instr:
    """Send src to the dst of core send_to_rank while dst receives from core recv_from_rank. trn2 or newer, two cores.

    src, dst: SBUF tiles of equal shape and dtype. Ranks are 0 or 1. With dma_engine.gpsimd_dma at most 1024, 512 or 256
    bytes per partition for 4-, 2- and 1-byte dtypes.
    """
    machine, i = begin("sendrecv", ("dst",), ("src",), "dma",
                       {"src": src, "dst": dst, "send_to_rank": send_to_rank, "recv_from_rank": recv_from_rank,
                        "pipe_id": pipe_id, "dma_engine": dma_engine, "name": name})
    if machine.checks:
        checks.generation(i, machine.limits, 3)
        checks.tensor(i, "src")
        checks.tensor(i, "dst")
        checks.in_sbuf(i, "src", "dst")
        checks.same_dtype(i, "src", "dst")
        if tuple(src.shape) != tuple(dst.shape):
            checks.refuse(i, "dst", f"has shape {list(dst.shape)} and src has {list(src.shape)}; they must be equal")
        for rank in ("send_to_rank", "recv_from_rank"):
            if i.args[rank] not in (0, 1):
                checks.refuse(i, rank, f"= {i.args[rank]!r} must be 0 or 1")
        checks.member(i, "dma_engine", DmaEngine)
        if dma_engine is DmaEngine.gpsimd_dma:
            size, most = checks.free(src) * src.dtype.itemsize, _GPSIMD_DMA_BYTES.get(src.dtype.itemsize, 256)
            if size > most:
                checks.refuse(i, "src", f"has {size} bytes per partition; dma_engine.gpsimd_dma moves at most {most}")
    return machine.issue(i)
