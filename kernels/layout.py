"""How a kernel should walk its operands: drop, order and merge dimensions until as few as possible are left."""
from __future__ import annotations

from collections.abc import Sequence

Shape = tuple[int, ...]


def broadcast_strides(shape: Sequence[int], strides: Sequence[int], to: Sequence[int]) -> Shape:
    """Strides that read a tensor of `shape` as one of shape `to`: 0 where it is repeated."""
    lead = len(to) - len(shape)
    return (0,) * lead + tuple(0 if n == 1 and m != 1 else s for n, s, m in zip(shape, strides, to[lead:]))


def coalesce(shape: Sequence[int], strides: Sequence[Sequence[int]], order: bool = True) -> tuple[Shape, list[Shape]]:
    """The same iteration space with fewer dimensions.

    shape: the common shape of all operands. strides: one tuple an operand, in elements, the first being the
    destination's. Dimensions of size 1 go; with `order`, the rest are sorted by the destination's strides, outermost
    first, so that a permuted but dense tensor is walked as memory lies; neighbours merge where every operand steps
    from one to the other evenly. An elementwise op does not care about the order of its elements.
    """
    dims = [(n, tuple(s[d] for s in strides)) for d, n in enumerate(shape) if n != 1]
    if order:
        dims.sort(key=lambda d: [-s for s in d[1]])          # ties of the destination's are broken by the inputs'
    merged: list[tuple[int, Shape]] = []
    for n, steps in dims:
        if merged and all(outer == n * inner for outer, inner in zip(merged[-1][1], steps)):
            merged[-1] = (merged[-1][0] * n, steps)
        else:
            merged.append((n, steps))
    return tuple(n for n, _ in merged), [tuple(s[k] for _, s in merged) for k in range(len(strides))]


def contiguous_strides(shape: Sequence[int]) -> Shape:
    """Row-major strides in elements, as PyTorch gives them to a fresh tensor."""
    out, step = [], 1
    for n in reversed(shape):
        out.append(step)
        step *= max(n, 1)
    return tuple(reversed(out))
