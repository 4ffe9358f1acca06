"""Rows taken or put by index tensors: x[i], x[:, i], x[i, j] and the assignments to them."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import nki
import nki.isa as nisa
import nki.language as nl
import numpy as np
import torch

from ..dispatch.plan import Arg, Call, Decline, Item, KernelCall, Out, Reason, View
from .layout import broadcast_strides, coalesce, contiguous_strides
from .matmul import N
from .placed import INDICES, OUTSIDE
from .rules import FLOATS, NUMBERS, product, replace, unsupported
from .shapes import broadcast_shape
from .tiling import F, P, load, pieces, store, tile, turned, walks

MOST_EQUAL = 1 << 24            # comparisons of rows with indices, where rows are added


@nki.jit
@walks("out", "indices")
def take_rows(out, table, indices, sizes, steps):
    """out[i] = table[sum over k of indices[k][i] * steps[k]]: whole rows.

    Dimensions:
        I: indices. V: rows of the table. D: elements of a row. More dimensions before I are walked one index at a time.
    Args:
        out: HBM [..., I, D], written; any strides. table: HBM [V, D], contiguous, of out's dtype.
        indices: tuple of HBM [..., I, 1], int32 or int64; negative ones count from the end.
        sizes, steps: of each indexed dimension, its length and its stride in rows (compile-time constants).
    Constraints:
        an index outside its dimension is an error of the DMA, reported as IndexError.
    Pseudocode:
        for each 128 indices: position = sum of index * step; indirect DMA of rows
    """
    if out.ndim > 2:
        for i in range(out.shape[0]):
            take_rows(out[i], table, tuple(x[i] for x in indices), sizes, steps)
        return out
    _take(out, table, indices, sizes, steps)
    return out


@nki.jit
@walks("out", "table")
def take_rows_of_each(out, table, indices, sizes, steps):
    """`take_rows` from every matrix of a stack: out HBM [..., I, D], table HBM [..., V, D], indices HBM [I, 1]."""
    if out.ndim > 2:
        for i in range(out.shape[0]):
            take_rows_of_each(out[i], table[i], indices, sizes, steps)
        return out
    _take(out, table, indices, sizes, steps)
    return out


def _take(out, table, indices, sizes, steps):
    width = out.shape[1]
    for r, n in pieces(out.shape[0], P):
        rows = _position([load(x[r:r + n], nl.int64) for x in indices], sizes, steps)
        for c, w in pieces(width, F):
            t = tile(n, w, out.dtype)
            nisa.dma_copy(dst=t, src=table.ap(pattern=[[width, n], [1, w]], offset=c, vector_offset=rows,
                                              indirect_dim=0))
            store(out[r:r + n, c:c + w], t)


@nki.jit
@walks("out", "values")
def put_rows(out, values, indices, sizes, steps, x=None):
    """out = x, but out[sum over k of indices[k][i] * steps[k]] = values[i], in every matrix of a stack.

    Dimensions:
        V, I, D as in `take_rows`. More dimensions before V and I are walked one index at a time.
    Args:
        out: HBM [..., V, D], contiguous, written. values: HBM [..., I, D] of out's dtype; any strides.
        indices, sizes, steps: as in `take_rows`, indices of shape [I, 1].
        x: HBM like `out`, or None: other rows stay as they are.
    Constraints:
        of equal indices the last one counts.
    """
    if out.ndim > 2:
        for i in range(out.shape[0]):
            put_rows(out[i], values[i], indices, sizes, steps, None if x is None else x[i])
        return out
    if x is not None:
        nisa.dma_copy(dst=out, src=x)
    width = out.shape[1]
    for r, n in pieces(values.shape[0], P):
        rows = _position([load(i[r:r + n], nl.int64) for i in indices], sizes, steps)
        for c, w in pieces(width, F):
            nisa.dma_copy(dst=out.ap(pattern=[[width, n], [1, w]], offset=c, vector_offset=rows, indirect_dim=0),
                          src=load(values[r:r + n, c:c + w]))
    return out


@nki.jit
def add_rows(out, found, x, values, indices, sizes, steps):
    """out[v] = x[v] + sum of values[i] over all i whose position is v.

    Dimensions:
        V, I, D as in `take_rows`.
    Args:
        out, x: HBM [V, D], floating point; they may be one view. values: HBM [I, D]. indices: tuple of HBM [I, 1].
        found: HBM [I, 1] int32, written with zeros: where the check of the indices leaves its result.
    Constraints:
        float32 accumulation. Every row is compared with every index. An index outside its dimension is an error of the
        DMA that checks it, reported as IndexError.
    Pseudocode:
        found[i] = a table of one row, at row 0 where position[i] is a row's, else far outside
        for each 128 rows v: equal[i, v] = position[i] == v; out[v] = x[v] + equal.T @ values
    """
    height, width = out.shape
    parts = list(pieces(values.shape[0], P))
    nothing = nl.shared_constant(np.zeros((1, 1), np.int32))
    for r, n in parts:
        outside, zero = tile(n, 1, nl.int32), tile(n, 1, nl.int32)
        position = _position([load(i[r:r + n], nl.int64) for i in indices], sizes, steps)
        nisa.tensor_scalar(dst=outside, data=position, op0=nl.equal, operand0=OUTSIDE, op1=nl.multiply,
                           operand1=OUTSIDE)
        nisa.dma_copy(dst=zero, src=nothing.ap(pattern=[[1, n], [1, 1]], vector_offset=outside, indirect_dim=0))
        store(found[r:r + n], zero)
    across = [i.permute((1, 0)) for i in indices]
    for v, vn in pieces(height, P):
        own = tile(vn, 1, nl.int32)
        nisa.iota(dst=own, pattern=[[1, 1]], offset=v, channel_multiplier=1)
        equals = [_rows_equal(own, [x[:, r:r + n] for x in across], sizes, steps, values.dtype) for r, n in parts]
        for c, w in pieces(width, N):
            acc = nl.ndarray((vn, w), nl.float32, buffer=nl.psum)
            for i, (r, n) in enumerate(parts):
                nisa.nc_matmul(dst=acc, stationary=equals[i], moving=load(values[r:r + n, c:c + w]), accumulate=i > 0)
            o = tile(vn, w, out.dtype)
            nisa.tensor_tensor(dst=o, data1=acc, data2=load(x[v:v + vn, c:c + w]), op=nl.add)
            store(out[v:v + vn, c:c + w], o)
    return out


def _rows_equal(own, indices, sizes, steps, dtype):
    """[n, V] in `dtype`: 1 where the position of index n is the number, own [V, 1], of a row."""
    rows, n = own.shape[0], indices[0].shape[1]
    position = _position([load(i.broadcast(0, rows), nl.int64) for i in indices], sizes, steps)
    wide, wanted, equal, result = (tile(rows, n, nl.int64), tile(rows, 1, nl.int64), tile(rows, n, nl.int64),
                                   tile(rows, n, dtype))
    nisa.tensor_copy(dst=wide, src=position)
    nisa.tensor_copy(dst=wanted, src=own)
    nisa.tensor_scalar(dst=equal, data=wide, op0=nl.equal, operand0=wanted)
    nisa.tensor_copy(dst=result, src=equal)
    return turned(result)


def _position(indices, sizes, steps):
    """An int32 tile: rows, or OUTSIDE where one of the indices (int64) is outside its dimension."""
    n, w = indices[0].shape
    total, inside, result = tile(n, w, nl.int64), tile(n, w, nl.int64), tile(n, w, nl.int32)
    nisa.memset(dst=total, value=-OUTSIDE)
    nisa.memset(dst=inside, value=1)
    for index, size, step in zip(indices, sizes, steps):
        wrapped, part = tile(n, w, nl.int64), tile(n, w, nl.int64)
        nisa.tensor_scalar(dst=part, data=index, op0=nl.less, operand0=0, op1=nl.multiply, operand1=size)
        nisa.tensor_tensor(dst=wrapped, data1=index, data2=part, op=nl.add)
        for comparison, bound in ((nl.greater_equal, 0), (nl.less, size)):
            nisa.tensor_scalar(dst=part, data=wrapped, op0=comparison, operand0=bound)
            nisa.tensor_tensor(dst=inside, data1=inside, data2=part, op=nl.multiply)
        nisa.tensor_scalar(dst=part, data=wrapped, op0=nl.multiply, operand0=step)
        nisa.tensor_tensor(dst=total, data1=total, data2=part, op=nl.add)
    nisa.tensor_tensor(dst=total, data1=total, data2=inside, op=nl.multiply)
    nisa.tensor_scalar(dst=total, data=total, op0=nl.add, operand0=OUTSIDE)
    nisa.tensor_copy(dst=result, src=total)
    return result


# ---- aten ops

@dataclass(frozen=True)
class Place:
    """Neighbouring dimensions first ... last - 1 of a tensor that are indexed, and their indices' common shape."""

    first: int
    last: int
    shape: tuple[int, ...]
    indices: list[Arg]
    sizes: tuple[int, ...]
    steps: tuple[int, ...]

    def strides(self) -> list[tuple[int, ...]]:
        return [broadcast_strides(i.shape, i.strides, self.shape) for i in self.indices]


def place_of(call: Call, x: Arg) -> Place | Decline:
    indices: list[Arg | None] = call["indices"]
    dims = [d for d, i in enumerate(indices) if i is not None]
    given = [i for i in indices if i is not None]
    declined = unsupported([x], NUMBERS, call.name) or unsupported(given, INDICES, f"an index of {call.name}")
    if declined:
        return declined
    shape = broadcast_shape([i.shape for i in given])
    if not given or shape is None or dims != list(range(dims[0], dims[0] + len(dims))):
        return Decline(Reason.NO_KERNEL, f"{call.name} by indices of dimensions that are apart")
    if not x.numel or not product(shape) or x.numel >= OUTSIDE:
        return Decline(Reason.SHAPE, f"{call.name} of no elements")
    sizes = tuple(x.shape[d] for d in dims)
    return Place(dims[0], dims[-1] + 1, shape, given, sizes, contiguous_strides(sizes))


class TakeRows:
    """index.Tensor with indices for some neighbouring dimensions."""

    operands = ()

    def lower(self, call: Call) -> KernelCall | Decline:
        x = call["self"]
        place = place_of(call, x)
        if isinstance(place, Decline):
            return place
        out = call.outputs[0]
        a, k = place.first, len(place.shape)
        inner, height = product(x.shape[place.last:]), product(place.sizes)
        constants = {"sizes": place.sizes, "steps": place.steps}
        seen = out.reshape((*x.shape[:a], *place.shape, inner))
        if not x.is_contiguous or seen is None or seen.seen is None:
            return Decline(Reason.SHAPE, f"{call.name} of a tensor that is not contiguous")
        to = seen.seen[1]
        outer, (to_outer,) = coalesce(x.shape[:a], [to[:a]])
        shape, (to_index, *of) = coalesce(place.shape, [to[a:a + k], *place.strides()])
        if not shape:
            shape, to_index, of = (1,), (inner,), [(1,)] * len(of)
        views = tuple(View(i, (*shape, 1), (*s, 1), 0, i.dtype) for i, s in zip(place.indices, of))
        if not outer:
            table = x.view((height, inner))
            return KernelCall(take_rows, {"table": table, "indices": views},
                              [replace(out, seen=((*shape, inner), (*to_index, to[-1])))], constants)
        if len(shape) > 1:
            return Decline(Reason.SHAPE, f"{call.name} by indices that do not lie evenly in memory")
        table = x.view((*outer, height, inner))
        return KernelCall(take_rows_of_each, {"table": table, "indices": views},
                          [replace(out, seen=((*outer, *shape, inner), (*to_outer, *to_index, to[-1])))], constants)


class PutRows:
    """index_put with indices for some neighbouring dimensions of a contiguous tensor."""

    operands = ()

    def lower(self, call: Call) -> KernelCall | Decline:
        x, values = call["self"], call["values"]
        place = place_of(call, x)
        if isinstance(place, Decline):
            return place
        into = x if x.written else None
        out = Out(x.shape, contiguous_strides(x.shape), x.dtype, into)
        if not x.is_contiguous or values.dtype != x.dtype or any(p.out for p in call.signature.parameters):
            return Decline(Reason.SHAPE, f"{call.name} of a tensor that is not contiguous, or of another dtype")
        a, k = place.first, len(place.shape)
        inner, height = product(x.shape[place.last:]), product(place.sizes)
        wanted = (*x.shape[:a], *place.shape, *x.shape[place.last:])
        if broadcast_shape([values.shape, wanted]) != wanted:
            return Decline(Reason.SHAPE, f"{call.name} of values of another shape")
        given = values.broadcast(wanted).strides
        outer, (_, of_outer) = coalesce(x.shape[:a], [out.strides[:a], given[:a]])
        shape, (of_values, *of) = coalesce(place.shape, [given[a:a + k], *place.strides()], order=False)
        across, (_, of_inner) = coalesce(x.shape[place.last:], [out.strides[place.last:], given[a + k:]])
        if len(shape) > 1 or len(across) > 1:
            return Decline(Reason.SHAPE, f"{call.name} of values or indices that do not lie evenly in memory")
        if not shape:
            shape, of_values, of = (1,), (1,), [(1,)] * len(of)
        source = View(values, (*outer, *shape, inner), (*of_outer, *of_values, *(of_inner or (1,))), 0, values.dtype)
        inputs: dict[str, Item | Sequence[Item]] = {
            "values": source,
            "indices": tuple(View(i, (*shape, 1), (*s, 1), 0, i.dtype) for i, s in zip(place.indices, of))}
        constants = {"sizes": place.sizes, "steps": place.steps}
        seen = out.view((*outer, height, inner))
        if call.get("accumulate", False):
            if outer or x.dtype not in FLOATS or height * shape[0] > MOST_EQUAL or inner > 1 and 0 in of_inner:
                return Decline(Reason.SHAPE, f"{call.name} that adds integers, too many rows, one value to many "
                                             "elements, or to other dimensions than the first ones")
            return KernelCall(add_rows, {"x": x.view((height, inner)), **inputs}, [seen, _found(shape[0])], constants,
                              returns=[0], same_view=("self",))
        if into is not None:
            return KernelCall(put_rows, inputs, [seen], {**constants, "x": None})
        return KernelCall(put_rows, {**inputs, "x": x.view((*outer, height, inner))}, [seen], constants)


class AddRows:
    """index_add along the first dimension of a contiguous tensor."""

    operands = ()

    def lower(self, call: Call) -> KernelCall | Decline:
        x, index, source = call["self"], call["index"], call["source"]
        declined = unsupported([x, source], FLOATS, call.name) or \
            unsupported([index], INDICES, f"an index of {call.name}")
        if declined:
            return declined
        if call.get("alpha", 1) != 1 or any(p.out for p in call.signature.parameters):
            return Decline(Reason.NO_KERNEL, f"{call.name} with a factor, or into out=")
        out = Out(x.shape, contiguous_strides(x.shape), x.dtype, x if x.written else None)
        height, inner = x.shape[0] if x.ndim else 0, product(x.shape[1:])
        values = source.view() if source.shape == (index.numel, *x.shape[1:]) else None
        rows = values and values.reshape((index.numel, inner))
        plain = x.numel and x.is_contiguous and x.dtype == source.dtype and index.numel and index.ndim <= 1
        if call["dim"] % max(x.ndim, 1) or not plain or not rows or height * index.numel > MOST_EQUAL:
            return Decline(Reason.SHAPE, f"{call.name} other than of many rows to the rows of a contiguous tensor")
        where = index.view((index.numel, 1), ((index.strides or (1,))[0], 1))
        return KernelCall(add_rows, {"x": x.view((height, inner)), "values": rows, "indices": (where,)},
                          [out.view((height, inner)), _found(index.numel)], {"sizes": (height,), "steps": (1,)},
                          returns=[0], same_view=("self",))


def _found(count: int) -> Out:
    return Out((count, 1), (1, 1), torch.int32)


ROUTES = {
    "_index_put_impl_": PutRows(),
    "index_put": PutRows(),
    "index_add": AddRows(),
}
