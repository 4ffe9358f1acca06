"""Several operands of one shape as matrices whose columns are one dimension: what row-by-row kernels share."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..dispatch.plan import Arg, Out, View
from .layout import coalesce


def as_rows(outs: Sequence[Out], items: Sequence[Arg], dim: int) -> tuple[list[Out], list[View]]:
    """Every operand as [..., rows, columns], with `dim` as the columns and as few row dimensions as strides allow.

    outs, items: of one shape, but an output may have another number of columns, or lack the dimension, which means 1.
    """
    shape = items[0].shape
    if not shape:
        one = ((1, 1), (1, 1))
        return [replace(o, seen=one) for o in outs], [View(x, *one, 0, x.dtype) for x in items]
    dim %= len(shape)
    rest = [d for d in range(len(shape)) if d != dim]
    lacking = [len(o.shape) < len(shape) for o in outs]

    def row_steps(o: Out) -> list[int]:
        return list(o.strides) if len(o.shape) < len(shape) else [o.strides[d] for d in rest]

    rows, steps = coalesce([shape[d] for d in rest],
                           [*(row_steps(o) for o in outs), *([x.strides[d] for d in rest] for x in items)])
    if not rows:
        rows, steps = (1,), [(shape[dim],)] * len(steps)
    seen = [replace(o, seen=((*rows, 1 if less else o.shape[dim]), (*s, 1 if less else o.strides[dim])))
            for o, less, s in zip(outs, lacking, steps)]
    views = [View(x, (*rows, shape[dim]), (*s, x.strides[dim]), 0, x.dtype) for x, s in zip(items, steps[len(outs):])]
    return seen, views
