"""`nki.collectives` for a world of one rank: every exchange is a copy, every reduction the value itself.

A replica group that names any rank but 0 raises NkiNotImplementedError: several ranks need the real runtime.
"""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..errors import NkiNotImplementedError, NkiShapeError, NkiTypeError
from . import isa
from .language.create import ndarray
from .language.move import put
from .location import here
from .objects import NKIObject
from .registers import VirtualRegister
from .tensor import NkiTensor
from .tokens import Op

Tensors = Sequence[NkiTensor]
_OPS = ("add", "minimum", "maximum")


class ReplicaGroup(NKIObject):
    """Groups of ranks that take part in a collective: a list of lists of rank ids."""

    replica_groups: Any

    def __init__(self, replica_groups: Any) -> None:
        self.replica_groups = replica_groups


def _check(what: str, group: ReplicaGroup | None, srcs: Tensors, dsts: Tensors) -> None:
    if group is not None:
        if not isinstance(group, ReplicaGroup):
            raise NkiTypeError(f"{what}: replica_group is a ReplicaGroup, not {type(group).__name__}", here(3))
        ranks = [rank for ranks in group.replica_groups for rank in ranks]
        if ranks != [0]:
            raise NkiNotImplementedError(f"{what} over ranks {ranks}: this machine has one rank, [[0]]", here(3))
    if len(srcs) != len(dsts):
        raise NkiShapeError(f"{what}: {len(srcs)} sources for {len(dsts)} destinations", here(3))
    for src, dst in zip(srcs, dsts):
        if src.size != dst.size or src.dtype != dst.dtype:
            raise NkiShapeError(f"{what}: {src.describe()} and {dst.describe()} differ in size or dtype", here(3))


def _copy(what: str, group: ReplicaGroup | None, srcs: Tensors, dsts: Tensors) -> None:
    _check(what, group, srcs, dsts)
    for src, dst in zip(srcs, dsts):
        isa.dma_copy(dst=dst, src=src)


def _check_op(what: str, op: Any) -> None:
    if not isinstance(op, Op) or op.name not in _OPS:
        raise NkiTypeError(f"{what}: op is nl.add, nl.minimum or nl.maximum, not {op!r}", here(3))


def all_reduce(srcs: Tensors, dsts: Tensors, replica_group: ReplicaGroup, op: Any, priority: int | None = None,
               name: str | None = None) -> None:
    """dsts = op over the ranks' srcs."""
    _check_op("all_reduce", op)
    _copy("all_reduce", replica_group, srcs, dsts)


def all_gather(srcs: Tensors, dsts: Tensors, replica_group: ReplicaGroup, collective_dim: int,
               priority: int | None = None, name: str | None = None) -> None:
    """dsts = the ranks' srcs, one after the other along collective_dim."""
    _copy("all_gather", replica_group, srcs, dsts)


def reduce_scatter(srcs: Tensors, dsts: Tensors, replica_group: ReplicaGroup, collective_dim: int, op: Any,
                   priority: int | None = None, name: str | None = None) -> None:
    """dsts = this rank's part of op over the ranks' srcs."""
    _check_op("reduce_scatter", op)
    _copy("reduce_scatter", replica_group, srcs, dsts)


def all_to_all(srcs: Tensors, dsts: Tensors, replica_group: ReplicaGroup, collective_dim: int,
               priority: int | None = None, name: str | None = None) -> None:
    """Part i of each rank's srcs goes to rank i."""
    _copy("all_to_all", replica_group, srcs, dsts)


def _copy_counted(what: str, srcs: Tensors, dsts: Tensors, group: ReplicaGroup, metadata: NkiTensor,
                  recv_counts_known: bool, has_rdispls: bool) -> None:
    """Row 0 of the metadata counts, row 1 places the elements to send; row 2 tells what was received."""
    _check(what, group, (), ())
    if has_rdispls:
        raise NkiNotImplementedError(f"{what}: has_rdispls=True", here(3))
    rows = metadata.reshape((3, 1)) if not metadata.storage.buffer.on_chip else metadata.reshape((1, 3))
    count, start = isa.register_alloc(), isa.register_alloc()
    on_chip = metadata.storage.buffer.on_chip
    isa.register_load(count, rows[0:1, 0:1])
    isa.register_load(start, rows[0:1, 1:2] if on_chip else rows[1:2, 0:1])
    from .language.control import fori_loop
    for src, dst in zip(srcs, dsts):
        source, target = src.reshape((src.size, 1)), dst.reshape((dst.size, 1))
        end = src.size

        def one(i: VirtualRegister, source: NkiTensor = source, target: NkiTensor = target, end: int = end) -> None:
            moved = source.ap([[1, 1], [1, 1]], scalar_offset=start)
            isa.dma_copy(dst=target.ap([[1, 1], [1, 1]], scalar_offset=i), src=moved)
            place = ndarray((1, 1), "int32")
            isa.register_store(place, start)
            isa.tensor_scalar(dst=place, data=place, op0=_add(), operand0=1)
            isa.register_load(start, place)

        fori_loop(0, count, one)
    if not recv_counts_known:
        put(rows[0:1, 2:3] if on_chip else rows[2:3, 0:1], rows[0:1, 0:1])


def _add() -> Op:
    from .tokens import token
    return token("add")


def all_gather_v(srcs: Tensors, dsts: Tensors, replica_group: ReplicaGroup, metadata_tensor: NkiTensor,
                 recv_counts_known: bool = False, has_rdispls: bool = False, priority: int | None = None,
                 name: str | None = None) -> None:
    """all_gather of element counts known only at run time."""
    _copy_counted("all_gather_v", srcs, dsts, replica_group, metadata_tensor, recv_counts_known, has_rdispls)


def all_to_all_v(srcs: Tensors, dsts: Tensors, replica_group: ReplicaGroup, metadata_tensor: NkiTensor,
                 recv_counts_known: bool = False, has_rdispls: bool = False, priority: int | None = None,
                 name: str | None = None) -> None:
    """all_to_all of element counts known only at run time."""
    _copy_counted("all_to_all_v", srcs, dsts, replica_group, metadata_tensor, recv_counts_known, has_rdispls)


def collective_permute(srcs: Tensors, dsts: Tensors, source_target_pairs: Sequence[tuple[int, int]],
                       priority: int | None = None, name: str | None = None) -> None:
    """Each source sends to its target."""
    if [tuple(pair) for pair in source_target_pairs] != [(0, 0)]:
        raise NkiNotImplementedError(f"collective_permute over {list(source_target_pairs)}: this machine has one rank",
                                     here())
    _copy("collective_permute", None, srcs, dsts)


def collective_permute_implicit(srcs_by_channel: Sequence[Tensors], dsts_by_channel: Sequence[Tensors],
                                replica_group: ReplicaGroup, channel_ids: Sequence[int] = (0,),
                                priority: int | None = None, name: str | None = None) -> None:
    """Each rank of the ring sends to the next."""
    for srcs, dsts in zip(srcs_by_channel, dsts_by_channel):
        _copy("collective_permute_implicit", replica_group, srcs, dsts)


def collective_permute_implicit_reduce(srcs0_by_channel: Sequence[Tensors], srcs1_by_channel: Sequence[Tensors],
                                       dsts_by_channel: Sequence[Tensors], replica_group: ReplicaGroup, op: Any,
                                       channel_ids: Sequence[int] = (0,), priority: int | None = None,
                                       name: str | None = None) -> None:
    """Each rank of the ring sends op(srcs0, srcs1) to the next. Sources pass through SBUF, 128 rows at a time."""
    _check_op("collective_permute_implicit_reduce", op)
    for firsts, seconds, dsts in zip(srcs0_by_channel, srcs1_by_channel, dsts_by_channel):
        _check("collective_permute_implicit_reduce", replica_group, firsts, dsts)
        _check("collective_permute_implicit_reduce", replica_group, seconds, dsts)
        for x, y, dst in zip(firsts, seconds, dsts):
            for row in range(0, x.shape[0], 128):
                part = slice(row, min(row + 128, x.shape[0]))
                a, b = ndarray(x[part].shape, x.dtype), ndarray(x[part].shape, x.dtype)
                isa.dma_copy(dst=a, src=x[part])
                isa.dma_copy(dst=b, src=y[part])
                isa.tensor_tensor(dst=a, data1=a, data2=b, op=op)
                isa.dma_copy(dst=dst[part], src=a)


def collective_permute_implicit_current_processing_rank_id(
        iteration_id: int, replica_group: ReplicaGroup, channel_id: int = 0,
        name: str | None = None) -> VirtualRegister:
    """A register with the rank whose data an iteration of a ring works on: 0."""
    return isa.register_alloc(0)


def rank_id(name: str | None = None) -> VirtualRegister:
    """A register with this rank's id: 0."""
    return isa.register_alloc(0)
