"""What the cache did: counters, and a record for each compile with the reason it was not a hit."""
from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, fields

from .key import Difference

RECORDS_KEPT = 10_000


@dataclass
class Counts:
    """Events of this process. A look-up is a hit of one level or a miss; a private compile (`unstored`) may follow."""
    memory_hits: int = 0
    disk_hits: int = 0
    bundle_hits: int = 0
    misses: int = 0
    compiles: int = 0
    failures: int = 0
    compile_seconds: float = 0.0
    stored: int = 0
    evictions: int = 0

    def __sub__(self, other: Counts) -> Counts:
        return Counts(**{f.name: getattr(self, f.name) - getattr(other, f.name) for f in fields(Counts)})


@dataclass(frozen=True)
class CacheInfo:
    """The state of the cache. The first nine are events of this process, as in `Counts`; `bytes` and `entries` are what
    is on disk for all processes, `limit` is in bytes; `state` says what the disk level does, and if nothing, why;
    `errors` counts faults by kind."""
    memory_hits: int
    disk_hits: int
    bundle_hits: int
    misses: int
    compiles: int
    failures: int
    compile_seconds: float
    stored: int
    evictions: int
    memory_entries: int
    memory_bytes: int
    entries: int
    bytes: int
    limit: int
    place: str
    state: str
    bundle: str | None
    errors: dict[str, int]

    @property
    def hits(self) -> int:
        return self.memory_hits + self.disk_hits + self.bundle_hits

    def rows(self) -> list[tuple[str, str]]:
        errors = ", ".join(f"{kind}: {n}" for kind, n in sorted(self.errors.items())) or "none"
        return [
            ("place", f"{self.place} ({self.state})"),
            ("on disk", f"{self.entries} entries, {_size(self.bytes)} of at most {_size(self.limit)}"),
            ("in memory", f"{self.memory_entries} entries, {_size(self.memory_bytes)}"),
            *([("bundle", self.bundle)] if self.bundle else []),
            ("hits", f"{self.hits} (memory {self.memory_hits}, disk {self.disk_hits}, bundle {self.bundle_hits})"),
            ("misses", str(self.misses)),
            ("compiles", f"{self.compiles} in {self.compile_seconds:.2f} s, {self.stored} stored"),
            ("failures", str(self.failures)),
            ("evictions", str(self.evictions)),
            ("errors", errors),
        ]

    def __repr__(self) -> str:
        return "\n".join(f"{name:<10} {value}" for name, value in self.rows())

    def _repr_html_(self) -> str:
        return _table((), self.rows())

    def to_json(self) -> str:
        return json.dumps(asdict(self))


@dataclass(frozen=True)
class CompileRecord:
    """One compile. `seconds`: how long; `reason`: why there was no hit; `stored`: whether it reached the disk; `error`:
    of a failed compile; `nearest`: the op of the entry with the closest key, and `differs` the parts it differs in."""
    kind: str
    op: str
    digest: str
    seconds: float
    reason: str
    stored: bool
    created: float = field(default_factory=time.time)
    error: str | None = None
    nearest: str | None = None
    differs: tuple[Difference, ...] = ()

    @property
    def why(self) -> str:
        """The reason in one line, with the parts that differ."""
        if not self.differs:
            return self.reason
        of = f" of {self.nearest}" if self.nearest and self.nearest != self.op else ""
        return f"{self.reason}; the nearest entry{of} differs in {'; '.join(map(str, self.differs))}"


class CompileReport(Sequence[CompileRecord]):
    """The compiles of this process in their order; sums by kind are in `repr`."""

    def __init__(self, records: Iterable[CompileRecord], dropped: int = 0):
        self.records, self.dropped = tuple(records), dropped

    def __getitem__(self, index):
        return self.records[index]

    def __len__(self) -> int:
        return len(self.records)

    @property
    def seconds(self) -> float:
        return sum(r.seconds for r in self.records)

    def rows(self) -> list[tuple[str, ...]]:
        return [(f"{1000 * r.seconds:.1f} ms", r.kind, r.op, r.digest[:12],
                 "failed" if r.error else "yes" if r.stored else "no", r.error or r.why) for r in self.records]

    def __repr__(self) -> str:
        if not self.records:
            return "nothing was compiled"
        head = f"{len(self)} compiles in {self.seconds:.2f} s"
        if self.dropped:
            head += f" (and {self.dropped} earlier ones, no longer recorded)"
        rows = [_COLUMNS, *self.rows()]
        widths = [max(len(row[i]) for row in rows) for i in range(len(_COLUMNS) - 1)]
        lines = ["  ".join([*(cell.ljust(width) for cell, width in zip(row, widths)), row[-1]]) for row in rows]
        return "\n".join([head, *lines])

    def _repr_html_(self) -> str:
        return _table(_COLUMNS, self.rows())

    def to_json(self) -> str:
        return json.dumps({"dropped": self.dropped, "records": [
            {**asdict(r), "differs": [d._asdict() for d in r.differs], "why": r.why} for r in self.records]})


_COLUMNS = ("time", "kind", "op", "key", "stored", "why")


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    import html

    def row(tag: str, cells: Sequence[str]) -> str:
        return "<tr>" + "".join(f"<{tag} style='text-align:left'>{html.escape(c)}</{tag}>" for c in cells) + "</tr>"
    return f"<table>{row('th', head) if head else ''}{''.join(row('td', r) for r in rows)}</table>"


def _size(count: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} GiB"


class Log:
    """The records of this process; the oldest go first."""

    def __init__(self) -> None:
        self.records: deque[CompileRecord] = deque(maxlen=RECORDS_KEPT)
        self.total = 0

    def add(self, record: CompileRecord) -> None:
        self.records.append(record)
        self.total += 1

    def since(self, total: int) -> tuple[CompileRecord, ...]:
        count = min(self.total - total, len(self.records))
        return tuple(self.records)[len(self.records) - count:]


class CompileCount:
    """What happened since the scope began: `compiles`, `memory_hits`, … as in `Counts`, and `records` of the compiles.
    Read inside the block it is live; after it, it stays as it was at the end."""

    def __init__(self, counts: Counts, log: Log):
        self._counts, self._log = counts, log
        self._before, self._total = counts - Counts(), log.total
        self._frozen: tuple[Counts, tuple[CompileRecord, ...]] | None = None

    def freeze(self) -> None:
        self._frozen = self._state()

    def _state(self) -> tuple[Counts, tuple[CompileRecord, ...]]:
        return self._frozen or (self._counts - self._before, self._log.since(self._total))

    @property
    def records(self) -> tuple[CompileRecord, ...]:
        return self._state()[1]

    def __getattr__(self, name: str) -> int | float:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._state()[0], name)

    def __repr__(self) -> str:
        return f"{self._state()[0]}"
