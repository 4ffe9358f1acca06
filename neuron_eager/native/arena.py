"""Memory of one call: where the tiles between regions lie, and which calls must wait for others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .access import Access
from .hazards import overlap

if TYPE_CHECKING:
    from .regions import Regions


def arena(sid: int) -> str:
    """The storage in the arena that stands for a storage of the program."""
    return f"arena{sid}"


class Order:
    """Which calls must wait for those before them, when threads share the rows of every call."""

    def __init__(self) -> None:
        self.reads: dict[Any, list[Access]] = {}
        self.writes: dict[Any, list[Access]] = {}

    def waits(self, reads: list[Access], writes: list[Access], fixed: set[int]) -> bool:
        reads = [a for a in reads if a.sid not in fixed]
        wait = any(overlap(a, b, False) for a in reads for b in self.writes.get(a.sid, ())) or any(
            overlap(a, b, False) for a in writes for kind in (self.reads, self.writes) for b in kind.get(a.sid, ())
        )
        if wait:
            self.reads, self.writes = {}, {}
        for kind, found in ((self.reads, reads), (self.writes, writes)):
            for a in found:
                kind.setdefault(a.sid, []).append(a)
        return wait


def place(regions: Regions) -> tuple[dict[str, int], int]:
    """Offsets of the arena's storages, and its size: memory is used again when the last call that needs it is done.

    A call that starts without waiting runs together with those before it, so memory is given back at the next wait.
    """

    def area(sid: Any) -> str | None:
        name = arena(sid) if sid in regions.internal else sid
        return name if name in regions.sizes else None

    last: dict[str, int] = {}
    for k, call in enumerate(regions.calls):
        for sid, _ in call.group.leaves:
            if (name := area(sid)) is not None:
                last[name] = k
    where: dict[str, int] = {}
    free: dict[int, list[int]] = {}
    ending: list[tuple[int, int, int]] = []
    top = 0
    for k, call in enumerate(regions.calls):
        if call.wait:
            for end, size, off in [x for x in ending if x[0] < k]:
                free.setdefault(size, []).append(off)
                ending.remove((end, size, off))
        for sid, _ in call.group.leaves:
            name = area(sid)
            if name is not None and name not in where:
                size = (regions.sizes[name] + 63) // 64 * 64
                if free.get(size):
                    where[name] = free[size].pop()
                else:
                    where[name], top = top, top + size
                ending.append((last[name], size, where[name]))
    return where, top
