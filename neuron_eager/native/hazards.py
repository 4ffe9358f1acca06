"""Which parts of HBM a program has written: so that stores may run in any order and reads see what they should."""

from __future__ import annotations

import numpy as np

from .access import Access
from .patterns import elements, normal, span
from .values import SIZE, V

EXACT_ELEMENTS = 1 << 21


class Written:
    """The stores to one HBM storage."""

    def __init__(self) -> None:
        self.values: dict[tuple[object, ...], V] = {}
        self.areas: dict[
            tuple[int, int, int], list[list[int]]
        ] = {}  # (pitch, first byte, last byte) -> intervals of lines
        self.accesses: list[Access] = []
        self.exact_tests = 0

    def forward(self, a: Access) -> V | None:
        """The value stored by exactly this access."""
        return self.values.get(a.key())

    def touches(self, a: Access) -> bool:
        """Whether `a` overlaps anything stored so far. May say yes for huge interleaved accesses that do not."""
        pitch, first, last, c0, c1 = _area(a)
        clear = True
        for (m, low, high), lines in self.areas.items():
            if m != pitch or low < c1 and c0 < high and any(x < last and first < y for x, y in lines):
                clear = False
        return not clear and any(self._overlap(a, b) for b in self.accesses)

    def add(self, a: Access, v: V) -> None:
        pitch, first, last, c0, c1 = _area(a)
        lines = self.areas.setdefault((pitch, c0, c1), [])
        if lines and lines[-1][1] == first:
            lines[-1][1] = last
        else:
            lines.append([first, last])
        self.values[a.key()] = v
        self.accesses.append(a)

    def _overlap(self, a: Access, b: Access) -> bool:
        if not near(a, b):
            return False
        self.exact_tests += 1
        return self.exact_tests > 256 or overlap(a, b)


def near(a: Access, b: Access) -> bool:
    """Whether the extents of two accesses of one storage meet."""
    (alow, ahigh), (blow, bhigh) = extent(a), extent(b)
    return alow < bhigh and blow < ahigh


def overlap(a: Access, b: Access, exact: bool = True) -> bool:
    """Whether two accesses of one storage share a byte; yes for what is too large to compare, or not to be compared
    exactly."""
    if not near(a, b):
        return False
    if (a.off, a.rs, a.cols) == (b.off, b.rs, b.cols):
        return True
    band, other = _area(a), _area(b)
    if band[0] == other[0]:
        (_, x, y, c0, c1), (_, p, q, d0, d1) = band, other
        if c1 <= d0 or d1 <= c0 or y <= p or q <= x:
            return False
    if not exact or a.size != b.size or a.P * a.F + b.P * b.F > EXACT_ELEMENTS:
        return True
    low = min(extent(a)[0], extent(b)[0])
    cells = (max(extent(a)[1], extent(b)[1]) - low) // a.size + 1
    if cells > 8 * EXACT_ELEMENTS or (a.off - b.off) % a.size:
        return True
    seen = np.zeros(cells, bool)
    seen[(_bytes(a) - low) // a.size] = True
    return bool(seen[(_bytes(b) - low) // a.size].any())


def extent(a: Access) -> tuple[int, int]:
    """First byte and end of an access."""
    low, high = span(normal(((a.rs or 0, a.P), *a.cols)))
    return a.off + low, a.off + high + SIZE[a.dt]


def _bytes(a: Access) -> np.ndarray:
    return a.off + elements(((a.rs or 0, a.P), *a.cols))


def _area(a: Access) -> tuple[int, int, int, int, int]:
    """The access as a band: (pitch, first line, last line, first byte in the line, last byte), widened to whole lines
    if it leaves them."""
    pairs = [(a.rs or 0, a.P), *a.cols]
    low = a.off + sum(s * (n - 1) for s, n in pairs if s < 0)
    pairs = [(abs(s), n) for s, n in pairs]
    pitch, count = max(pairs)
    if pitch == 0:
        pitch = SIZE[a.dt]
        count = 1
    else:
        pairs.remove((pitch, count))
    line, c = divmod(low, pitch)
    end = c + sum(s * (n - 1) for s, n in pairs) + SIZE[a.dt]
    if end <= pitch:
        return pitch, line, line + count, c, end
    return pitch, line, line + count + (end - 1) // pitch, 0, pitch
