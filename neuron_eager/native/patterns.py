"""Column patterns: which elements of a row a value takes, as nested (step, count) pairs, outermost first.

A pattern lists `product(counts)` integers in row-major order. The same form serves as byte strides of a memory access
and as column numbers inside a value. Patterns are kept normal: no pair of count 1, pairs that continue each other are
joined.
"""

from __future__ import annotations

from functools import cache
from math import prod

import numpy as np

Pattern = tuple[tuple[int, int], ...]


@cache
def normal(pairs: Pattern) -> Pattern:
    """The shortest pattern with the same elements in the same order."""
    out: list[tuple[int, int]] = []
    for step, count in pairs:
        if count == 1:
            continue
        if out and out[-1][0] == step * count:
            out[-1] = (step, out[-1][1] * count)
        else:
            out.append((step, count))
    return tuple(out)


def width(pattern: Pattern) -> int:
    return prod(count for _, count in pattern)


@cache
def elements(pattern: Pattern) -> np.ndarray:
    """Every integer of the pattern, int64, in order."""
    out = np.zeros(1, np.int64)
    for step, count in pattern:
        out = (out[:, None] + np.arange(count, dtype=np.int64) * step).reshape(-1)
    return out


def fit(values: np.ndarray) -> tuple[int, Pattern] | None:
    """The first value and the pattern that lists `values` relative to it; None when they are not affine."""
    pairs: list[tuple[int, int]] = []
    first = int(values[0])
    while len(values) > 1:
        steps = np.diff(values)
        other = np.flatnonzero(steps != steps[0])
        run = int(other[0]) + 1 if len(other) else len(values)
        if len(values) % run:
            return None
        table = values.reshape(-1, run)
        if not (np.diff(table, axis=1) == steps[0]).all():
            return None
        pairs.append((int(steps[0]), run))
        values = table[:, 0]
    return first, normal(tuple(reversed(pairs)))


@cache
def compose(outer: Pattern, start: int, inner: Pattern) -> tuple[int, Pattern] | None:
    """The elements number `start + inner` of `outer`, as (first, pattern); None when they are not affine."""
    if len(outer) == 1 and outer[0][1] > start:
        step = outer[0][0]
        return start * step, normal(tuple((step * s, n) for s, n in inner))
    if not inner:
        return int(elements(outer)[start]), ()
    total = width(outer)
    if start == 0 and inner == ((1, total),):
        return 0, outer
    return fit(elements(outer)[start + elements(inner)])


def split(pattern: Pattern, rows: int) -> tuple[int, Pattern] | None:
    """A pattern of rows * F elements as (row step, column pattern); None when rows are not equally spaced."""
    total = width(pattern)
    if rows == 1:
        return 0, pattern
    columns = compose(pattern, 0, ((1, total // rows),) if total > rows else ())
    starts = compose(pattern, 0, ((total // rows, rows),))
    if columns is None or starts is None or len(starts[1]) > 1:
        return None
    step = starts[1][0][0] if starts[1] else 0
    want = normal(((step, rows), *columns[1]))
    return (step, columns[1]) if want == normal(pattern) else None


def refine(patterns: list[Pattern], total: int) -> tuple[int, ...] | None:
    """Loop counts, outermost first, over which every pattern of `total` elements is affine; None when they cross."""
    sizes = {1, total}
    for pattern in patterns:
        size = 1
        for _, count in reversed(pattern):
            size *= count
            sizes.add(size)
    order = sorted(sizes)
    if any(b % a for a, b in zip(order, order[1:])):
        return None
    return tuple(b // a for a, b in reversed(list(zip(order, order[1:])))) or (1,)


def steps(pattern: Pattern, counts: tuple[int, ...]) -> list[int]:
    """The step of a pattern along each loop of a refinement made by `refine`."""
    out: list[int] = []
    pairs = list(pattern)
    for count in reversed(counts):
        if not pairs:
            out.append(0)
            continue
        step, left = pairs.pop()
        out.append(step)
        if left != count:
            pairs.append((step * count, left // count))
    return out[::-1]


@cache
def span(pattern: Pattern) -> tuple[int, int]:
    """Lowest and highest element."""
    low = sum(step * (count - 1) for step, count in pattern if step < 0)
    return low, sum(step * (count - 1) for step, count in pattern if step > 0)
