"""Rows written, and elements picked, by an index tensor along one dimension."""
from __future__ import annotations

from collections.abc import Sequence

import nki
import nki.isa as nisa
import nki.language as nl

from ..dispatch.plan import Arg, Call, Decline, KernelCall, Reason, View
from .copy import cast
from .elementwise import repeated
from .layout import coalesce, contiguous_strides
from .rules import FLOATS, NUMBERS, operand, product, replace, torch, unsupported
from .tiling import F, P, load, pieces, store, tile, tile_like, walks

INDICES = frozenset((torch.int32, torch.int64))
OUTSIDE = (1 << 31) - 1         # an index that no tensor has
MOST = 1 << 20                  # elements picked one by one: 128 an instruction
MOST_ADDED = 64                 # elements added to a row one by one


@nki.jit
@walks("out", "source", "x")
def write_rows(out, source, index, x=None):
    """out = x, but out[index[i]] = source[i].

    Dimensions:
        V: rows. I: indices. D: elements of a row. More dimensions before V and I are walked one index at a time.
    Args:
        out: HBM [..., V, D], contiguous, written. source: HBM [..., I, D] of out's dtype; any strides.
        index: HBM [I, 1], int32 or int64, in 0 ... V - 1. x: HBM [..., V, D], or None: other rows stay as they are.
    Constraints:
        of equal indices the last one counts. An index outside is an error of the DMA, reported as IndexError.
    Pseudocode:
        out = x
        for each 128 indices: load their rows; indirect DMA to out
    """
    if out.ndim > 2:
        for i in range(out.shape[0]):
            write_rows(out[i], source[i], index, None if x is None else x[i])
        return out
    height, width = out.shape
    if x is not None:
        nisa.dma_copy(dst=out, src=x)
    for r, n in pieces(index.shape[0], P):
        wanted = load(index[r:r + n], nl.int64)
        rows = _unless_outside(wanted, wanted, height)
        for c, w in pieces(width, F):
            t = load(source[r:r + n, c:c + w])
            nisa.dma_copy(dst=out.ap(pattern=[[width, n], [1, w]], offset=c, vector_offset=rows, indirect_dim=0), src=t)
    return out


@nki.jit
def gather_along(out, table, index, size, step, steps):
    """out[i, j, ...] = table at the element that index[i, j, ...] names along one dimension.

    Dimensions:
        out, index: one shape, any rank.
    Args:
        out: HBM tensor, written; any strides. table: HBM [V, 1], the memory of the tensor gathered from.
        index: HBM tensor, int32 or int64, in 0 ... size - 1.
        size, step: length of the gathered dimension, and its stride in the table.
        steps: stride in the table of each dimension of `index`, 0 for the gathered one (all compile-time constants).
    Constraints:
        an index outside is an error of the DMA, reported as IndexError.
    Pseudocode:
        for each block: position = offset of the other dimensions + index * step
            for each column: indirect DMA of one element a partition
    """
    for (o, i), base in _blocks((out, index), steps, 0):
        t, rows = tile_like(o, out.dtype), _positions(i, base, size, step)
        for c in range(o.shape[1]):
            nisa.dma_copy(dst=t[:, c:c + 1], src=table.ap(
                pattern=[[1, o.shape[0]], [1, 1]], vector_offset=rows[:, c:c + 1], indirect_dim=0))
        nisa.dma_copy(dst=o, src=t)
    return out


@nki.jit
def scatter_along(out, source, index, size, step, steps, x=None):
    """out = x, but the element that index[i, j, ...] names along one dimension is source[i, j, ...].

    Dimensions:
        source, index: one shape, any rank.
    Args:
        out: HBM [V, 1], the memory of the result, written. x: HBM [V, 1], or None: other elements stay as they are.
        source: HBM tensor; any strides, or [1, 1] for all elements alike.
        index, size, step, steps: as in `gather_along`, for the result.
    Constraints:
        of equal places the last one counts.
    Pseudocode:
        out = x
        for each block: position = offset of the other dimensions + index * step
            for each column: indirect DMA of one element a partition
    """
    if x is not None:
        nisa.dma_copy(dst=out, src=x)
    for (given, i), base in _blocks((repeated(source, index.shape), index), steps, 0):
        t, rows = tile_like(i, out.dtype), _positions(i, base, size, step)
        cast(t, load(given))
        for c in range(i.shape[1]):
            nisa.dma_copy(dst=out.ap(pattern=[[1, i.shape[0]], [1, 1]], vector_offset=rows[:, c:c + 1],
                                     indirect_dim=0), src=t[:, c:c + 1])
    return out


@nki.jit
def add_along(out, x, source, index, table):
    """out = x, and source[r, k] is added to out[r, index[r, k]].

    Dimensions:
        R: rows. C: columns. K: elements added to a row. More dimensions before R are walked one index at a time.
    Args:
        out: HBM [..., R, C], written. x: HBM [..., R, C], floating point; may be the same view as `out`.
        source: HBM [..., R, K]; index: HBM [..., R, K], int32 or int64, in 0 ... C - 1. table: HBM [T, 1] integer.
    Constraints:
        float32 accumulation. An index outside is reported as IndexError, through a read of `table` outside of it.
    Pseudocode:
        for each tile of 128 rows: total = x; K times: total += source[:, k] where column == index[:, k]
    """
    if out.ndim > 2:
        for i in range(out.shape[0]):
            add_along(out[i], x[i], source[i], index[i], table)
        return out
    (rows, columns), count = out.shape, index.shape[1]
    for r, n in pieces(rows, P):
        given = load(index[r:r + n], nl.int64)
        wanted, values = tile(n, count, nl.float32), load(source[r:r + n], nl.float32)
        nothing = tile(n, count, nl.int64)
        nisa.memset(dst=nothing, value=0)
        checked = _unless_outside(nothing, given, columns)
        for k in range(count):
            nisa.tensor_copy(dst=wanted[:, k:k + 1], src=_confirmed(given[:, k:k + 1], checked[:, k:k + 1], table))
        for c, w in pieces(columns, F):
            total, column = load(x[r:r + n, c:c + w], nl.float32), tile(n, w, nl.float32)
            nisa.iota(dst=column, pattern=[[1, w]], offset=c, channel_multiplier=0)
            for k in range(count):
                here, term = tile(n, w, nl.uint8), tile(n, w, nl.float32)
                nisa.tensor_scalar(dst=here, data=column, op0=nl.equal, operand0=wanted[:, k:k + 1])
                nisa.memset(dst=term, value=0.0)
                nisa.tensor_copy_predicated(dst=term, src=values[:, k:k + 1].broadcast(1, w), predicate=here)
                added = tile(n, w, nl.float32)
                nisa.tensor_tensor(dst=added, data1=total, data2=term, op=nl.add)
                total = added
            o = tile(n, w, out.dtype)
            nisa.tensor_copy(dst=o, src=total)
            store(out[r:r + n, c:c + w], o)
    return out


def _confirmed(index, place, table):
    """The index [n, 1], int64, after a read of the table at `place`, which is outside where the index is."""
    n = index.shape[0]
    read, wide, result = tile(n, 1, table.dtype), tile(n, 1, nl.int64), tile(n, 1, nl.int64)
    nisa.dma_copy(dst=read, src=table.ap(pattern=[[1, n], [1, 1]], vector_offset=place, indirect_dim=0))
    nisa.tensor_copy(dst=wide, src=read)
    nisa.tensor_tensor(dst=wide, data1=wide, data2=index, op=nl.maximum)
    nisa.tensor_tensor(dst=result, data1=wide, data2=index, op=nl.minimum)
    return result


def _blocks(tensors, steps, base):
    """(views of at most 128 x 128 elements of tensors of one shape, of rank 2 or more; (offset, steps) of each)."""
    if len(steps) > 2:
        for i in range(tensors[0].shape[0]):
            yield from _blocks(tuple(t[i] for t in tensors), steps[1:], base + i * steps[0])
        return
    for r, n in pieces(tensors[0].shape[0], P):
        for c, w in pieces(tensors[0].shape[1], P):
            yield tuple(t[r:r + n, c:c + w] for t in tensors), (base + r * steps[0] + c * steps[1], steps)


def _positions(index, base, size, step):
    """An int32 tile: places in memory; one that no tensor has where an index is outside."""
    offset, (down, across) = base
    n, w = index.shape
    given, place = load(index, nl.int64), tile(n, w, nl.int32)
    wide, moved = tile(n, w, nl.int64), tile(n, w, nl.int64)
    nisa.iota(dst=place, pattern=[[across, w]], offset=offset, channel_multiplier=down)
    nisa.tensor_copy(dst=wide, src=place)
    nisa.tensor_scalar(dst=moved, data=given, op0=nl.multiply, operand0=step)
    nisa.tensor_tensor(dst=moved, data1=moved, data2=wide, op=nl.add)
    return _unless_outside(moved, given, size)


def _unless_outside(place, index, size):
    """place as int32, but OUTSIDE where an index (int64) is not in 0 ... size - 1."""
    n, w = index.shape
    inside, part, result = tile(n, w, nl.int64), tile(n, w, nl.int64), tile(n, w, nl.int32)
    nisa.tensor_scalar(dst=inside, data=index, op0=nl.greater_equal, operand0=0)
    nisa.tensor_scalar(dst=part, data=index, op0=nl.less, operand0=size)
    nisa.tensor_tensor(dst=inside, data1=inside, data2=part, op=nl.multiply)
    nisa.tensor_scalar(dst=part, data=place, op0=nl.subtract, operand0=OUTSIDE)
    nisa.tensor_tensor(dst=part, data1=part, data2=inside, op=nl.multiply)
    nisa.tensor_scalar(dst=part, data=part, op0=nl.add, operand0=OUTSIDE)
    nisa.tensor_copy(dst=result, src=part)
    return result


# ---- aten ops

def _refused(call: Call, tensors: list[Arg], index: Arg) -> Decline | None:
    return unsupported(tensors, NUMBERS, call.name) or unsupported([index], INDICES, f"an index of {call.name}")


def memory_of(shape: Sequence[int], strides: Sequence[int]) -> int:
    """Elements from the first to the last."""
    return 1 + sum((n - 1) * s for n, s in zip(shape, strides))


class IndexCopy:
    """index_copy along any dimension of a contiguous tensor; in place, only the rows named are touched."""

    operands = ()

    def lower(self, call: Call) -> KernelCall | Decline:
        x, index, source, out = call["self"], call["index"], call["source"], call.outputs[0]
        declined = _refused(call, [x, source], index)
        if declined:
            return declined
        if not x.shape or not source.numel or source.dtype != out.dtype or index.ndim > 1 or \
                out.strides != contiguous_strides(out.shape):
            return Decline(Reason.SHAPE, f"{call.name} into a tensor that is not contiguous, or of no elements")
        dim = call["dim"] % x.ndim
        inner = product(x.shape[dim + 1:])
        height = x.shape[dim]
        outer, (_, steps) = coalesce(x.shape[:dim], [out.strides[:dim], source.strides[:dim]])
        across, (_, along) = coalesce(source.shape[dim + 1:], [out.strides[dim + 1:], source.strides[dim + 1:]])
        if len(across) > 1:
            return Decline(Reason.SHAPE, f"{call.name} of a source whose rows do not lie evenly in memory")
        seen = out.reshape((*outer, height, inner))
        assert seen is not None
        inputs = {"source": View(source, (*outer, index.numel, inner), (*steps, source.strides[dim], *(along or (1,))),
                                 0, source.dtype),
                  "index": index.view((index.numel, 1), ((index.strides or (1,))[0], 1))}
        if out.into is not None and out.into is x:
            return KernelCall(write_rows, inputs, [seen], {"x": None})
        given = x.view().reshape((*outer, height, inner))
        if given is None:
            return Decline(Reason.SHAPE, f"{call.name} of a tensor that is not contiguous")
        return KernelCall(write_rows, {**inputs, "x": given}, [seen])


class Gather:
    operands = ()

    def lower(self, call: Call) -> KernelCall | Decline:
        x, index, out = call["self"], call["index"], call.outputs[0]
        declined = _refused(call, [x], index)
        if declined:
            return declined
        if not index.numel or not x.shape or index.numel > MOST or x.numel >= OUTSIDE:
            return Decline(Reason.SHAPE, f"{call.name} of no elements, of a number, or of more than {MOST}")
        dim = call["dim"] % x.ndim
        steps = tuple(0 if d == dim else s for d, s in enumerate(x.strides))
        shape, (to, of, steps) = coalesce(index.shape, [out.strides, index.strides, steps])
        lead = (1,) * (2 - len(shape))
        shape, to, of, steps = (*lead, *shape), (*lead, *to), (*lead, *of), (*lead, *steps)
        memory = memory_of(x.shape, x.strides)
        return KernelCall(gather_along, {"table": View(x, (memory, 1), (1, 1), 0, x.dtype),
                                         "index": View(index, shape, of, 0, index.dtype)},
                          [replace(out, seen=(shape, to))],
                          {"size": x.shape[dim], "step": x.strides[dim], "steps": steps})


class Scatter:
    """scatter of a tensor or of a number. The result has memory of its own, or is the contiguous `self`."""

    operands = ("value",)

    def lower(self, call: Call) -> KernelCall | Decline:
        x, index, source, out = call["self"], call["index"], call.get("src"), call.outputs[0]
        declined = _refused(call, [x, *([source] if isinstance(source, Arg) else [])], index)
        if declined:
            return declined
        if not index.numel or not x.shape or index.numel > MOST or x.numel >= OUTSIDE or index.ndim != x.ndim or \
                out.strides != contiguous_strides(out.shape) or not x.is_contiguous:
            return Decline(Reason.SHAPE, f"{call.name} of no elements, of a tensor that is not contiguous, or of more "
                                         f"than {MOST}")
        dim = call["dim"] % x.ndim
        steps = tuple(0 if d == dim else s for d, s in enumerate(out.strides))
        given = source.strides if source is not None else (0,) * index.ndim
        shape, (steps, of, given) = coalesce(index.shape, [steps, index.strides, given], order=False)
        lead = (1,) * (2 - len(shape))
        shape, steps, of, given = (*lead, *shape), (*lead, *steps), (*lead, *of), (*lead, *given)
        seen = out.reshape((x.numel, 1))
        assert seen is not None
        inputs = {"source": operand(call["value"], x.dtype) if source is None
                  else View(source, shape, given, 0, source.dtype),
                  "index": View(index, shape, of, 0, index.dtype)}
        constants = {"size": x.shape[dim], "step": out.strides[dim], "steps": steps}
        if out.into is not None and out.into is x:
            return KernelCall(scatter_along, inputs, [seen], {**constants, "x": None})
        return KernelCall(scatter_along, {**inputs, "x": x.view((x.numel, 1))}, [seen], constants)


class ScatterAdd:
    """scatter_add of few elements to each row: index and result differ in one dimension only."""

    operands = ()

    def lower(self, call: Call) -> KernelCall | Decline:
        x, index, source, out = call["self"], call["index"], call["src"], call.outputs[0]
        declined = unsupported([x, source], FLOATS, call.name) or \
            unsupported([index], INDICES, f"an index of {call.name}")
        if declined:
            return declined
        dim = call["dim"] % max(x.ndim, 1)
        rest = [d for d in range(x.ndim) if d != dim]
        if not x.ndim or not x.numel or not index.numel or x.dtype != source.dtype or out.dtype != x.dtype or \
                any(index.shape[d] != x.shape[d] for d in rest) or index.shape[dim] > MOST_ADDED or \
                x.shape[dim] >= 1 << 24:
            return Decline(Reason.SHAPE, f"{call.name} of more than {MOST_ADDED} elements to a row, or not to all rows")
        rows, (to, of, given, by) = coalesce(
            [x.shape[d] for d in rest], [[t.strides[d] for d in rest] for t in (out, x, source, index)])
        if not rows:
            rows, to, of, given, by = (1,), (1,), (1,), (1,), (1,)
        added = index.shape[dim]
        inputs = {
            "x": View(x, (*rows, x.shape[dim]), (*of, x.strides[dim]), 0, x.dtype),
            "source": View(source, (*rows, added), (*given, source.strides[dim]), 0, source.dtype),
            "index": View(index, (*rows, added), (*by, index.strides[dim]), 0, index.dtype),
            "table": View(index, (memory_of(index.shape, index.strides), 1), (1, 1), 0, index.dtype)}
        return KernelCall(add_along, inputs, [replace(out, seen=((*rows, x.shape[dim]), (*to, out.strides[dim])))],
                          same_view=("self",))


ROUTES = {
    "index_copy": IndexCopy(),
    "gather": Gather(),
    "scatter.src": Scatter(),
    "scatter.value": Scatter(),
    "scatter_add": ScatterAdd(),
}
