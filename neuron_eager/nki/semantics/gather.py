"""Gathers, shuffles and searches of the Vector and GpSimd engines."""
from __future__ import annotations

import numpy as np

from ..limits import PARTITIONS_PER_GPSIMD_CORE as CORE
from ..limits import QUADRANT
from .alu import Array
from .elementwise import Args
from .operands import f32, load, rows, store, write
from .state import State

KEEP = 255      # in a shuffle mask: leave the destination partition as it is


def nc_stream_shuffle(a: Args, state: State) -> None:
    dst, src, mask = a["dst"], a["src"], np.asarray(a["shuffle_mask"])
    source, result = rows(src), rows(dst).copy()
    partition = np.arange(len(result))
    chosen = mask[partition % QUADRANT]
    moved = chosen != KEEP
    # A source of at most one quadrant feeds every quadrant of the destination.
    quadrant = partition - partition % QUADRANT if len(source) > QUADRANT else np.zeros_like(partition)
    result[moved] = source[(quadrant + chosen)[moved]]
    write(dst, result)


def local_gather(a: Args, state: State) -> None:
    dst, src, index = a["dst"], rows(a["src_buffer"]), rows(a["index"])
    width, count = a["num_elem_per_idx"], a["num_valid_indices"]
    flat = index.reshape(-1, CORE, index.shape[1]).transpose(0, 2, 1).reshape(len(index) // CORE, -1)[:, :count]
    columns = flat[:, :, None].astype(np.int64) + np.arange(width)
    columns = np.repeat(columns.reshape(len(flat), -1), CORE, axis=0)
    write(dst, np.take_along_axis(src, columns, axis=1))


def nc_n_gather(a: Args, state: State) -> None:
    write(a["dst"], np.take_along_axis(rows(a["data"]), rows(a["indices"]).astype(np.int64), axis=1))


def max8(a: Args, state: State) -> None:
    values = f32(a["src"])
    store(a["dst"], -np.sort(-values, axis=1)[:, :8])


def nc_find_index8(a: Args, state: State) -> None:
    """Equal values take successive occurrences in ascending order; a value that is not there gives all ones."""
    dst, data, vals = a["dst"], f32(a["data"]), f32(a["vals"])
    hits = data[:, None, :] == vals[:, :, None]                        # [P, 8, F]
    earlier = np.tril(vals[:, :, None] == vals[:, None, :], -1).sum(axis=2)
    occurrence = np.cumsum(hits, axis=2, dtype=np.int32)
    wanted = hits & (occurrence == (earlier + 1)[:, :, None])
    missing = np.iinfo(dst.dtype.numpy).max
    write(dst, np.where(wanted.any(axis=2), wanted.argmax(axis=2), missing).astype(dst.dtype.numpy))


def nc_match_replace8(a: Args, state: State) -> None:
    """vals[7] first: each value replaces its first occurrence that is left."""
    dst, data, vals, positions = a["dst"], a["data"], f32(a["vals"]), a["dst_idx"]
    remaining = f32(data).copy()
    replaced = np.zeros(remaining.shape, bool)
    lanes = np.arange(len(remaining))
    found_at = np.zeros((len(remaining), 8), np.int64)
    for i in range(7, -1, -1):
        hits = (remaining == vals[:, i:i + 1]) & ~replaced
        found, first = hits.any(axis=1), hits.argmax(axis=1)
        replaced[lanes[found], first[found]] = True
        found_at[:, i] = np.where(found, first, -1)
    store(dst, np.where(replaced, np.float32(a["imm"]), remaining))
    if positions is not None:
        write(positions, found_at.astype(positions.dtype.numpy))


def nonzero_with_count(a: Args, state: State) -> None:
    dst, src = a["dst"], rows(a["src"])
    result = rows(dst).copy()
    for p in range(0, len(src), CORE):
        found = np.flatnonzero(src[p])
        result[p] = a["padding_val"]
        result[p, :len(found)] = found + a["index_offset"]
        result[p, -1] = len(found)
    write(dst, result)


def topk(a: Args, state: State) -> None:
    """Each group of 16 partitions is one sequence, column by column; all its partitions get the same answer."""
    val_dst, idx_dst, src, n = a["val_dst"], a["idx_dst"], rows(a["src"]), a["n"]
    k = val_dst.size // val_dst.shape[0]
    groups = src.reshape(-1, CORE, src.shape[1]).transpose(0, 2, 1).reshape(len(src) // CORE, -1)[:, :n]
    order = np.argsort(groups.astype(np.float32), axis=1, kind="stable")[:, n - k:]
    write(val_dst, np.repeat(np.take_along_axis(groups, order, axis=1), CORE, axis=0))
    write(idx_dst, np.repeat(order.astype(np.uint32), CORE, axis=0))


def sequence_bounds(a: Args, state: State) -> None:
    ids = load(a["segment_ids"]).reshape(-1)
    n = len(ids)
    starts = np.flatnonzero(np.concatenate(([True], ids[1:] != ids[:-1])))
    ends = np.append(starts[1:], n)
    segment = np.repeat(np.arange(len(starts)), ends - starts)
    padding = ids == 0
    bounds: Array = np.stack([np.where(padding, n, starts[segment]), np.where(padding, -1, ends[segment])])
    write(a["dst"], bounds.astype(a["dst"].dtype.numpy))
