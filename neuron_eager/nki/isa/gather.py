"""Gathers, shuffles and searches: Vector engine (shuffle, max8, find, replace) and GpSimd (the rest)."""
from __future__ import annotations

import math
from typing import Any

from .. import limits as chip
from ..limits import PARTITIONS_PER_GPSIMD_CORE as CORE
from ..limits import QUADRANT
from ..program import Instr
from ..semantics.gather import KEEP
from ..tensor import NkiTensor
from . import checks
from ._issue import begin, present

_DST = ("dst",)


def nc_stream_shuffle(dst: NkiTensor, src: NkiTensor, shuffle_mask: Any, name: str | None = None) -> Instr:
    """Within each quadrant of 32 partitions, dst[p] = src[shuffle_mask[p]]; a mask of 255 keeps dst[p]. Vector engine.

    Equal dtypes and elements per partition; dst may be src. A src of one quadrant feeds every quadrant of dst. With
    more than 64 partitions both start at partition 0, with more than 32 at 0 or 64.
    """
    machine, i = begin("nc_stream_shuffle", _DST, ("src",), "vector",
                       {"dst": dst, "src": src, "shuffle_mask": shuffle_mask, "name": name})
    if machine.checks:
        checks.tiles(i, "dst", "src")
        checks.same_dtype(i, "src", "dst")
        checks.elements(i, "dst", checks.free(src), ", as src")
        if not isinstance(shuffle_mask, (list, tuple)) or len(shuffle_mask) != QUADRANT:
            checks.refuse(i, "shuffle_mask", f"must be a list of {QUADRANT} partitions")
        for entry in shuffle_mask:
            if entry != KEEP and not (hasattr(entry, "__index__") and 0 <= entry < QUADRANT):
                checks.refuse(i, "shuffle_mask", f"has the entry {entry!r}; entries are 0 to 31, or 255 to keep")
        _quadrants(i, dst, src)
        _sources(i, dst, src)
    if any(entry == KEEP for entry in shuffle_mask):
        i.reads = ("src", "dst")
    return machine.issue(i)


def _quadrants(i: Instr, dst: NkiTensor, src: NkiTensor) -> None:
    active = -(-max(dst.shape[0], src.shape[0]) // QUADRANT) * QUADRANT
    allowed = chip.allowed_starts(active)
    for name, t in (("src", src), ("dst", dst)):
        first = checks.start_partition(t)
        if first not in allowed:
            checks.refuse(i, name, f"starts at partition {first}; a shuffle of {active} partitions starts at "
                                   f"{' or '.join(map(str, allowed))}")


def _sources(i: Instr, dst: NkiTensor, src: NkiTensor) -> None:
    """Every partition that the mask names is one that src has."""
    mask, available = i.args["shuffle_mask"], src.shape[0]
    for p in range(dst.shape[0]):
        entry = mask[p % QUADRANT]
        base = p - p % QUADRANT if available > QUADRANT else 0
        if entry != KEEP and base + entry >= available:
            checks.refuse(i, "shuffle_mask", f"moves partition {base + entry} to {p}, and src has {available}")


def local_gather(dst: NkiTensor, src_buffer: NkiTensor, index: NkiTensor, num_elem_per_idx: int = 1,
                 num_valid_indices: int | None = None, name: str | None = None) -> Instr:
    """Gather in each group of 16 partitions with the indices of that group, on GpSimd.

    index [P, n] uint16, read partition first: index[0, 0], index[1, 0], …, index[15, 0], index[0, 1], … are element
    offsets into each partition of src_buffer [P, …]; num_elem_per_idx consecutive elements are taken at each. dst: the
    dtype of src_buffer, num_valid_indices * num_elem_per_idx elements per partition. P a multiple of 16; at most 4096
    indices per group; num_elem_per_idx one of 1, 2, 4, 8, 16, 32.
    """
    args = {"dst": dst, "src_buffer": src_buffer, "index": index, "num_elem_per_idx": num_elem_per_idx,
            "num_valid_indices": num_valid_indices, "name": name}
    machine, i = begin("local_gather", _DST, ("src_buffer", "index"), "gpsimd", args)
    available = CORE * checks.free(index)
    if num_valid_indices is None:
        num_valid_indices = args["num_valid_indices"] = available
    if machine.checks:
        checks.tiles(i, "dst", "src_buffer", "index")
        checks.in_sbuf(i, "dst", "src_buffer", "index")
        checks.same_dtype(i, "src_buffer", "dst")
        checks.dtype_in(i, "index", ("uint16",))
        checks.same_partitions(i, "src_buffer", "index")
        checks.same_partitions(i, "src_buffer", "dst")
        if src_buffer.shape[0] % CORE:
            checks.refuse(i, "src_buffer", f"has {src_buffer.shape[0]} partitions; they must be a multiple of {CORE}")
        if num_elem_per_idx not in chip.LOCAL_GATHER_ELEMENTS:
            checks.refuse(i, "num_elem_per_idx", "must be one of " + ", ".join(map(str, chip.LOCAL_GATHER_ELEMENTS)))
        if not 1 <= num_valid_indices <= min(available, chip.LOCAL_GATHER_INDICES):
            checks.refuse(i, "num_valid_indices", f"is {num_valid_indices}; index has {available} per group of 16 "
                                                  f"partitions, and the limit is {chip.LOCAL_GATHER_INDICES}")
        checks.elements(i, "dst", num_valid_indices * num_elem_per_idx,
                        f", num_valid_indices × num_elem_per_idx = {num_valid_indices} × {num_elem_per_idx}")
    return machine.issue(i)


def nc_n_gather(dst: NkiTensor, data: NkiTensor, indices: NkiTensor, name: str | None = None) -> Instr:
    """dst[p, j] = data[p, indices[p, j]], free dimensions flattened, on GpSimd; all in SBUF.

    indices: uint32, as many per partition as dst has elements. dst has the dtype of data.
    """
    machine, i = begin("nc_n_gather", _DST, ("data", "indices"), "gpsimd",
                       {"dst": dst, "data": data, "indices": indices, "name": name})
    if machine.checks:
        checks.tiles(i, "dst", "data", "indices")
        checks.in_sbuf(i, "dst", "data", "indices")
        checks.same_dtype(i, "data", "dst")
        checks.dtype_in(i, "indices", ("uint32",))
        checks.same_partitions(i, "data", "indices")
        checks.same_size(i, "indices", "dst")
    return machine.issue(i)


def _eight(i: Instr, name: str, data: str) -> None:
    """A tile of 8 elements per partition, and a searched tile of a size that the engine scans."""
    checks.elements(i, name, 8)
    checks.same_partitions(i, data, name)
    checks.elements_between(i, data, *chip.VECTOR8_ELEMENTS)


def _at_most_3d(i: Instr, *names: str) -> None:
    for name in names:
        if i.args[name].ndim > 3:
            checks.refuse(i, name, f"has {i.args[name].ndim} dimensions; the limit is 3")


def max8(dst: NkiTensor, src: NkiTensor, name: str | None = None) -> Instr:
    """dst [P, 8] = the 8 largest values of each partition in descending order, in float32. 8 to 16384 elements."""
    machine, i = begin("max8", _DST, ("src",), "vector", {"dst": dst, "src": src, "name": name})
    if machine.checks:
        checks.tiles(i, "dst", "src")
        checks.not_packed(i, "dst", "src")
        _eight(i, "dst", "src")
        _at_most_3d(i, "src")
    return machine.issue(i)


def nc_find_index8(dst: NkiTensor, data: NkiTensor, vals: NkiTensor, name: str | None = None) -> Instr:
    """dst [P, 8] = where in data each of the 8 vals occurs first; equal vals take later occurrences in turn.

    dst: uint16 or uint32; all ones for a value that does not occur. data: 8 to 16384 elements per partition.
    """
    machine, i = begin("nc_find_index8", _DST, ("data", "vals"), "vector",
                       {"dst": dst, "data": data, "vals": vals, "name": name})
    if machine.checks:
        checks.tiles(i, "dst", "data", "vals")
        checks.dtype_in(i, "dst", ("uint16", "uint32"))
        _eight(i, "vals", "data")
        _eight(i, "dst", "data")
        _at_most_3d(i, "data", "vals")
    return machine.issue(i)


def nc_match_replace8(dst: NkiTensor, data: NkiTensor, vals: NkiTensor, imm: float, dst_idx: NkiTensor | None = None,
                      name: str | None = None) -> Instr:
    """dst = data with the first occurrence of each of the 8 vals replaced by imm; dst_idx [P, 8] = where they were.

    vals are taken from the last to the first, each finding the first occurrence that is left. dst_idx: uint16 or
    uint32; all ones for a value that does not occur.
    """
    args = {"dst": dst, "data": data, "vals": vals, "imm": imm, "dst_idx": dst_idx, "name": name}
    machine, i = begin("nc_match_replace8", present(args, "dst", "dst_idx"), ("data", "vals"), "vector", args)
    if machine.checks:
        checks.tiles(i, "dst", "data", "vals")
        checks.same_size(i, "data", "dst")
        _eight(i, "vals", "data")
        checks.number(i, "imm")
        if dst_idx is not None:
            checks.tile(i, "dst_idx")
            checks.dtype_in(i, "dst_idx", ("uint16", "uint32"))
            _eight(i, "dst_idx", "data")
    return machine.issue(i)


def nonzero_with_count(dst: NkiTensor, src: NkiTensor, index_offset: int = 0, padding_val: int = -1,
                       name: str | None = None) -> Instr:
    """The positions of non-zero elements + index_offset, then padding_val, then their count; on GpSimd, trn2 or newer.

    Only partitions 0, 16, …, 112 are read and written. src: float32 or int32 in SBUF. dst: int32 in SBUF, one element
    more per partition.
    """
    machine, i = begin("nonzero_with_count", _DST, ("src",), "gpsimd",
                       {"dst": dst, "src": src, "index_offset": index_offset, "padding_val": padding_val, "name": name})
    if machine.checks:
        checks.generation(i, machine.limits, 3)
        checks.tiles(i, "dst", "src")
        checks.in_sbuf(i, "dst", "src")
        checks.dtype_in(i, "src", ("float32", "int32"))
        checks.dtype_in(i, "dst", ("int32",))
        checks.same_partitions(i, "src", "dst")
        checks.elements(i, "dst", checks.free(src) + 1, ", one more than src")
        checks.int32(i, "index_offset")
        checks.int32(i, "padding_val")
    return machine.issue(i)


def topk(val_dst: NkiTensor, idx_dst: NkiTensor, src: NkiTensor, n: int, name: str | None = None) -> Instr:
    """The k largest of n values in ascending order, with their indices, on GpSimd.

    Each group of 16 partitions of src [P, x] is one sequence, down its partitions and then across: element e is at
    partition e % 16, column e // 16. val_dst [P, k] bfloat16, idx_dst [P, k] uint32, src bfloat16, all in SBUF;
    8 <= n < 65536, k <= n, k < 32768; P a multiple of 16.
    """
    machine, i = begin("topk", ("val_dst", "idx_dst"), ("src",), "gpsimd",
                       {"val_dst": val_dst, "idx_dst": idx_dst, "src": src, "n": n, "name": name})
    if machine.checks:
        checks.tiles(i, "val_dst", "idx_dst", "src")
        checks.in_sbuf(i, "val_dst", "idx_dst", "src")
        checks.dtype_in(i, "src", ("bfloat16",))
        checks.dtype_in(i, "val_dst", ("bfloat16",))
        checks.dtype_in(i, "idx_dst", ("uint32",))
        checks.same_partitions(i, "src", "val_dst")
        checks.same_size(i, "val_dst", "idx_dst")
        if src.shape[0] % CORE:
            checks.refuse(i, "src", f"has {src.shape[0]} partitions; they must be a multiple of {CORE}")
        low, high = chip.TOPK_ELEMENTS
        if not low <= n <= high or checks.free(src) < math.ceil(n / CORE):
            checks.refuse(i, "n", f"= {n} must be {low} to {high}, and src holds {CORE * checks.free(src)}")
        k = checks.free(val_dst)
        if k > min(n, chip.TOPK_RESULTS):
            checks.refuse(i, "val_dst", f"has {k} elements per partition; the limit is min(n, {chip.TOPK_RESULTS})")
    return machine.issue(i)


def sequence_bounds(dst: NkiTensor, segment_ids: NkiTensor, name: str | None = None) -> Instr:
    """dst [1, 2, n] = for each of the n elements, where its run of equal ids starts and where it ends, on GpSimd.

    segment_ids [1, n]: non-negative; id 0 is padding and gives (n, -1). Both float32 or both int32.
    """
    machine, i = begin("sequence_bounds", _DST, ("segment_ids",), "gpsimd",
                       {"dst": dst, "segment_ids": segment_ids, "name": name})
    if machine.checks:
        checks.tiles(i, "dst", "segment_ids")
        checks.gpsimd_reach(i, "dst", "segment_ids")
        checks.dtype_in(i, "segment_ids", ("float32", "int32"))
        checks.dtype_in(i, "dst", ("float32", "int32"))
        if segment_ids.shape[0] != 1:
            checks.refuse(i, "segment_ids", f"has {segment_ids.shape[0]} partitions; it must have 1")
        n = checks.free(segment_ids)
        if tuple(dst.shape) != (1, 2, n):
            checks.refuse(i, "dst", f"has shape {list(dst.shape)}; it must be [1, 2, {n}]")
    return machine.issue(i)
