"""Copies of pieces: tensors joined, rolled and flipped by DMA, and triangles cut out of matrices."""
from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import nki
import nki.isa as nisa
import nki.language as nl

from ..dispatch.plan import Arg, Call, Decline, KernelCall, Out, Reason, View
from .layout import coalesce
from .rules import NUMBERS, dimensions, replace, unsupported
from .shapes import settled
from .tiling import F, P, load, pieces, store, tile, walks

ONE_BY_ONE = 64         # runs of contiguous elements up to which each is a copy of its own, whose code fits any length


@nki.jit
def copy_pieces(out, ins, places):
    """Each piece to its place in `out`, by DMA.

    Dimensions:
        N: elements of the memory that `out` lies in. Each piece: any rank, as many elements as its place.
    Args:
        out: HBM [N], written.
        ins: tuple of HBM tensors; any strides, also negative ones. A piece of another dtype is cast.
        places: for each piece (offset, ((stride, count), ...)), in elements of out's memory (compile-time constant).
    Constraints:
        places do not overlap each other, and no piece overlaps `out`.
    Pseudocode:
        for each piece: the elements of `out` at its place = the piece
    """
    for x, (offset, pattern) in zip(ins, places):
        for steps, at, piece in _runs(x, pattern, offset):
            nisa.dma_copy(dst=out.ap(pattern=steps, offset=at), src=piece)
    return out


def _runs(x, pattern, offset):
    """(access pattern in out, offset, part of the piece): a few contiguous runs one by one, anything else at once."""
    side_by_side = pattern[-1][0] == 1 and x.strides[-1] == 1
    outer = pattern[:-1] if side_by_side else pattern
    if math.prod(n for _, n in outer) > ONE_BY_ONE:
        yield [list(p) for p in pattern], offset, x
        return
    for index in itertools.product(*(range(n) for _, n in outer)):
        part = x
        for i in index:
            part = part[i:i + 1] if part.ndim == 1 else part[i]
        yield [[1, pattern[-1][1] if side_by_side else 1]], offset + sum(i * s for i, (s, _) in zip(index, outer)), part


@nki.jit
@walks("out", "x")
def triangle(out, x, diagonal, lower):
    """out = x below (or above) a diagonal, 0 elsewhere.

    Dimensions:
        R, C: rows and columns of a matrix. Dimensions before them are walked one index at a time.
    Args:
        out: HBM [..., R, C], written; may be the same view as `x`. x: HBM [..., R, C], of out's dtype.
        diagonal: the last (lower) or first (upper) diagonal that is kept; lower: bool (compile-time constants).
    Pseudocode:
        for each block: keep where row + diagonal - column >= 0, or <= 0
    """
    if out.ndim > 2:
        for i in range(out.shape[0]):
            triangle(out[i], x[i], diagonal, lower)
        return out
    comparison = nl.greater_equal if lower else nl.less_equal
    for r, n in pieces(out.shape[0], P):
        for c, w in pieces(out.shape[1], F):
            t, o = load(x[r:r + n, c:c + w]), tile(n, w, out.dtype)
            nisa.affine_select(dst=o, pattern=[[-1, w]], channel_multiplier=1, on_true_tile=t, on_false_value=0.0,
                               cmp_op=comparison, offset=r + diagonal - c)
            store(out[r:r + n, c:c + w], o)
    return out


# ---- aten ops

@dataclass(frozen=True)
class Piece:
    """A part of an argument, and the element of the result from which on it goes."""

    view: View
    at: int


def pieces_call(out: Out, parts: Sequence[Piece], strides: Sequence[tuple[int, ...]]) -> KernelCall:
    """strides: for each piece, the steps in the result of its dimensions."""
    views, places = [], []
    for part, steps in zip(parts, strides):
        v = part.view
        order = sorted(range(len(steps)), key=lambda d: (-abs(steps[d]), -abs(v.strides[d])))
        v = v.permute(*order)
        shape, (to, of) = coalesce(v.shape, [[steps[d] for d in order], v.strides], order=False)
        if not shape:
            shape, to, of = (1,), (1,), (1,)
        views.append(replace(v, shape=shape, strides=of))
        places.append((part.at, tuple(zip(to, shape))))
    extent = 1 + sum((n - 1) * s for n, s in zip(out.shape, out.strides))
    return KernelCall(copy_pieces, {"ins": tuple(views)}, [replace(out, seen=((extent,), (1,)))],
                      {"places": tuple(places)})


class Cat:
    operands = ()
    exact = True

    def lower(self, call: Call) -> KernelCall | Decline:
        out = self.out(call) or call.outputs[0]
        given: list[Arg] = [x for x in call["tensors"] if x.numel]
        declined = unsupported([out, *given], NUMBERS, call.name)
        if declined:
            return declined
        if not given:
            return Decline(Reason.SHAPE, f"{call.name} of no elements")
        dim, start, parts = call.get("dim", 0) % max(len(out.shape), 1), 0, []
        for x in given:
            parts.append(Piece(x.view(), start * out.strides[dim]))
            start += x.shape[dim]
        return pieces_call(out, parts, [out.strides] * len(parts))


    def out(self, call: Call) -> Out | None:
        """The result as PyTorch has it; None if PyTorch should say it."""
        tensors, first = call["tensors"], call["tensors"][0] if call["tensors"] else None
        if first is None or not first.ndim or not -first.ndim <= call.get("dim", 0) < first.ndim:
            return None
        dim = call.get("dim", 0) % first.ndim
        rest = {(x.dtype, *x.shape[:dim], None, *x.shape[dim + 1:]) for x in tensors}
        if len(rest) > 1 or not all(x.is_contiguous for x in tensors):
            return None
        total = sum(x.shape[dim] for x in tensors)
        return settled(call, (*first.shape[:dim], total, *first.shape[dim + 1:]), first.dtype)


class Roll:
    operands = ()
    exact = True

    def lower(self, call: Call) -> KernelCall | Decline:
        x, out = call["self"], call.outputs[0]
        declined = unsupported([x], NUMBERS, call.name)
        if declined:
            return declined
        if not x.numel:
            return Decline(Reason.SHAPE, f"{call.name} of no elements")
        view, steps, shifts, dims = x.view(), out.strides, list(call["shifts"]), list(call.get("dims", []))
        if not dims:
            flat, target = view.reshape((x.numel,)), out.reshape((x.numel,))
            if flat is None or target is None:
                return Decline(Reason.SHAPE, f"{call.name} of all elements of a tensor that is not contiguous")
            view, steps, dims = flat, target.layout[1], [0]
        by = [0] * len(view.shape)
        for d, shift in zip(dims, shifts):
            by[d] = (by[d] + shift) % view.shape[d]
        parts = list(_rolled(view, steps, by))
        return pieces_call(out, parts, [steps] * len(parts))


def _rolled(view: View, steps: Sequence[int], by: Sequence[int]) -> Iterator[Piece]:
    """The pieces of a tensor that stay together when each dimension d is rolled by by[d]."""
    parts = [Piece(view, 0)]
    for d, shift in enumerate(by):
        if shift:
            n = view.shape[d]
            parts = [moved for p in parts for moved in (
                Piece(narrowed(p.view, d, 0, n - shift), p.at + shift * steps[d]),
                Piece(narrowed(p.view, d, n - shift, shift), p.at))]
    yield from parts


def narrowed(view: View, dim: int, start: int, length: int) -> View:
    """`length` indices of a dimension from `start` on."""
    shape = (*view.shape[:dim], length, *view.shape[dim + 1:])
    return replace(view, shape=shape, offset=view.offset + start * view.strides[dim])


class Flip:
    operands = ()
    exact = True

    def lower(self, call: Call) -> KernelCall | Decline:
        x, out = call["self"], call.outputs[0]
        declined = unsupported([x], NUMBERS, call.name)
        if declined:
            return declined
        if not x.numel:
            return Decline(Reason.SHAPE, f"{call.name} of no elements")
        flipped = dimensions(call["dims"], x.ndim) if call["dims"] else []
        steps = tuple(-s if d in flipped else s for d, s in enumerate(out.strides))
        last = sum((x.shape[d] - 1) * out.strides[d] for d in flipped)
        return pieces_call(out, [Piece(x.view(), last)], [steps])


class Triangle:
    operands = ()
    exact = True

    def __init__(self, lower: bool) -> None:
        self.keeps_lower = lower

    def lower(self, call: Call) -> KernelCall | Decline:
        x = call["self"]
        out = x.ndim >= 2 and settled(call, x.shape, x.dtype) or call.outputs[0]
        declined = unsupported([x], NUMBERS, call.name)
        if declined:
            return declined
        if not x.numel or out.dtype != x.dtype:
            return Decline(Reason.SHAPE, f"{call.name} of no elements, or into another dtype")
        outer, (to, of) = coalesce(x.shape[:-2], [out.strides[:-2], x.strides[:-2]])
        matrix = x.shape[-2:]
        seen = replace(out, seen=((*outer, *matrix), (*to, *out.strides[-2:])))
        view = View(x, (*outer, *matrix), (*of, *x.strides[-2:]), 0, x.dtype)
        return KernelCall(triangle, {"x": view}, [seen],
                          {"diagonal": call.get("diagonal", 0), "lower": self.keeps_lower}, same_view=True)


ROUTES = {
    "cat": Cat(),
    "roll": Roll(),
    "flip": Flip(),
    "tril": Triangle(lower=True),
    "triu": Triangle(lower=False),
}
