"""What an elementwise op returns: shape, strides and dtype by PyTorch's rules, without asking PyTorch.

PyTorch's own answer, a run on meta tensors, goes through its Python references for these ops: up to 0.4 ms a call, and
two seconds for the first one, which imports torch._dynamo and SymPy. The rules here are those of TensorIterator
(aten/src/ATen/TensorIterator.cpp). They cover what is valid; anything else gets None, and PyTorch is asked.
"""
from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from ..dispatch.plan import Arg, Call, Out
from .layout import broadcast_strides, contiguous_strides

Shape = tuple[int, ...]


def broadcast_shape(shapes: Sequence[Shape]) -> Shape | None:
    """The common shape of operands, or None if they have none."""
    rank = max(map(len, shapes), default=0)
    result = [1] * rank
    for shape in shapes:
        for d, n in enumerate(shape, rank - len(shape)):
            if n != 1:
                if result[d] not in (1, n):
                    return None
                result[d] = n
    return tuple(result)


def fresh_strides(shape: Shape, inputs: Sequence[tuple[Shape, Shape]]) -> Shape:
    """Strides of a fresh result, which follows the operands' order in memory. inputs: their shapes and strides."""
    if all(s == shape for s, _ in inputs):
        first = inputs[0][1]
        if all(_contiguous(shape, strides) for _, strides in inputs):
            return contiguous_strides(shape)
        if len(shape) == 4:
            n, c, h, w = shape
            last = (h * w * c, 1, w * c, c)
            if all(_steps(shape, strides, last) for _, strides in inputs):
                return last
        if all(strides == first for _, strides in inputs) and _dense(shape, first):
            return first
    steps = [broadcast_strides(s, strides, shape) for s, strides in inputs]
    order = _fastest_first(shape, steps)
    if order == list(range(len(shape)))[::-1]:
        return contiguous_strides(shape)
    strides, step = [0] * len(shape), 1
    for d in order:
        strides[d] = step
        step *= shape[d]
    return tuple(strides)


def _fastest_first(shape: Shape, steps: Sequence[Shape]) -> list[int]:
    """TensorIterator's order of dimensions: an insertion sort by strides that leaves undecided pairs alone."""
    order = list(range(len(shape)))[::-1]

    def compare(a: int, b: int) -> int:
        for s in steps:
            if s[a] == 0 or s[b] == 0:
                continue
            if s[a] != s[b]:
                return -1 if s[a] < s[b] else 1
            if shape[a] > shape[b]:
                return 1
        return 0

    for i in range(1, len(order)):
        at = i
        for before in range(i - 1, -1, -1):
            found = compare(order[before], order[at])
            if found > 0:
                order[before], order[at] = order[at], order[before]
                at = before
            elif found < 0:
                break
    return order


def _contiguous(shape: Shape, strides: Shape) -> bool:
    return 0 in shape or _steps(shape, strides, contiguous_strides(shape))


def _steps(shape: Shape, strides: Shape, wanted: Shape) -> bool:
    """Whether a tensor lies in memory as `wanted` says; the stride of one element does not matter."""
    return all(n == 1 or s == w for n, s, w in zip(shape, strides, wanted))


def _dense(shape: Shape, strides: Shape) -> bool:
    """Whether the elements fill their range of memory, each in a place of its own."""
    step = 1
    for n, s in sorted(((n, s) for n, s in zip(shape, strides) if n != 1), key=lambda d: d[1]):
        if s != step:
            return False
        step *= n
    return True


def elementwise_out(call: Call, names: Sequence[str], dtype: torch.dtype) -> Out | None:
    """The result of an elementwise op on the operands `names`, computed in `dtype`; None if PyTorch should say it."""
    tensors = [a for a in (call.get(name) for name in names) if isinstance(a, Arg)]
    shape = broadcast_shape([a.shape for a in tensors])
    if shape is None:
        return None
    return settled(call, shape, dtype, lambda: fresh_strides(shape, [(a.shape, a.strides) for a in tensors]))


def settled(call: Call, shape: Shape, dtype: torch.dtype, strides: Callable[[], Shape] | None = None) -> Out | None:
    """A single result of this shape and dtype: fresh (contiguous, unless `strides` says otherwise), or the argument
    that the op writes, which an empty `out=` grows to. None where that has another shape or can not take the dtype."""
    written = next((p for p in call.signature.parameters if p.written), None)
    into = None if written is None else call[written.name]
    if into is None:
        return Out(shape, contiguous_strides(shape) if strides is None else strides(), dtype)
    if not torch.can_cast(dtype, into.dtype):
        return None
    if into.shape == shape:
        return Out(shape, into.strides, into.dtype, into)
    if written is not None and written.out and into.shape == (0,):
        return Out(shape, contiguous_strides(shape) if strides is None else strides(), into.dtype, into)
    return None
