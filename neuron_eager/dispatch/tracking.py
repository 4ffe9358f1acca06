"""Which ops ran, where and how often. One record per kind of call; a warm op adds one to its record's count.

Times are taken only while a `track_ops()` scope is open: warm calls go through `timed` then.
"""
from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import torch

from ..device import views

if TYPE_CHECKING:
    from .report import OpReport

_TORCH = str(Path(torch.__file__).parent) + os.sep
_PACKAGE = str(Path(__file__).parent.parent) + os.sep
_INTERNAL = (_TORCH, _PACKAGE, "<neuron_eager", "<frozen", "<eval_with_key")

LIMIT = 4096        # records an op keeps; beyond, the half that ran least is folded into one


class Record:
    """Calls of one op with arguments of one kind, and what runs them."""

    __slots__ = ("name", "route", "reason", "detail", "dtypes", "shapes", "calls", "cleared", "timed_calls", "seconds",
                 "nbytes", "place", "run", "plan", "natives")

    def __init__(self, name: str, route: str, run: Callable[..., Any], tensors: Sequence[torch.Tensor] = (),
                 reason: Any = None, detail: str = "", why: str = ""):
        self.name, self.route, self.run, self.reason = name, route, run, reason
        self.detail = detail or why
        self.dtypes = tuple(t.dtype for t in tensors)
        self.shapes = tuple(tuple(t.shape) for t in tensors)
        # what one call reads and writes of its arguments: on a device with memory of its own, a fallback moves it
        self.nbytes = sum(t.numel() * t.element_size() for t in tensors)
        self.calls = self.cleared = self.timed_calls = 0
        self.seconds = 0.0
        self.place = user_place()       # the user's line that first called it
        self.plan: Any = None           # of a kernel: build.Plan
        self.natives: list[Any] = []    # native plans that run calls of this kind, and count them

    @property
    def count(self) -> int:
        """Calls since the start or the last `clear_op_tracking()`."""
        return self.calls + sum(p.hits for p in self.natives) - self.cleared

    @property
    def why(self) -> str:
        """The reason of a fallback, with its detail."""
        return f"{self.reason} ({self.detail})" if self.detail else str(self.reason or "")

    @property
    def arguments(self) -> str:
        return describe(self.dtypes, self.shapes)

    def clear(self) -> None:
        self.cleared += self.count
        self.timed_calls, self.seconds = 0, 0.0


records: list[Record] = []
_folded: dict[tuple[str, str], Record] = {}


def add(table: dict[Any, Record], key: Any, record: Record) -> Record:
    """Enter a record in its op's table and in the list of all."""
    if len(table) >= LIMIT:
        _fold(table)
    table[key] = record
    records.append(record)
    return record


def _fold(table: dict[Any, Record]) -> None:
    ranked = sorted(table.items(), key=lambda item: item[1].count)
    gone = ranked[:LIMIT // 2]
    for key, r in gone:
        table.pop(key, None)
        rest = _folded.get((r.name, r.route))
        if rest is None:
            rest = _folded[r.name, r.route] = Record(r.name, r.route, r.run, reason=r.reason, detail="other shapes")
            records.append(rest)
        rest.calls += r.count
        rest.timed_calls += r.timed_calls
        rest.seconds += r.seconds
    dead = {id(r) for _, r in gone}
    records[:] = [r for r in records if id(r) not in dead]


def user_place() -> str:
    """file:line of the innermost frame outside torch and this package, or "" if there is none."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if not file.startswith(_INTERNAL):
            return f"{file}:{frame.f_lineno}"
        frame = frame.f_back
    return ""


def describe(dtypes: Sequence[torch.dtype], shapes: Iterable[Sequence[int]]) -> str:
    """float32[2,3], int64[]"""
    return ", ".join(f"{str(d).removeprefix('torch.')}[{','.join(map(str, s))}]"
                     for d, s in zip(dtypes, shapes)) or "none"


# ---- TorchNeuron's three functions

def get_fallback_ops() -> list[str]:
    """Names of the ops that ran on the CPU since the start or `clear_op_tracking()`: aten::mm, aten::add.Tensor."""
    return sorted({r.name for r in list(records) if r.route == "fallback" and r.count > 0})


def get_executed_ops() -> list[str]:
    """Names of the ops that ran on neuron since the start or `clear_op_tracking()`, views among them."""
    return sorted({r.name for r in list(records) if r.route != "fallback" and r.count > 0} | view_counts().keys())


def clear_op_tracking() -> None:
    """Forget which ops ran."""
    from . import native
    for r in list(records):
        r.clear()
    for name in views.counts:
        views.counts[name] = 0
    native.clear_view_calls()


def view_counts() -> dict[str, int]:
    """How often each view op ran, by name."""
    from . import native
    counts = {f"aten::{name}": count for name, count in views.counts.items()}
    for name, count in native.view_calls().items():
        counts[name] = counts.get(name, 0) + count
    return {name: count for name, count in counts.items() if count > 0}


# ---- scopes

def timed(record: Record, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Run a call and add its time to its record. The time of an op that calls others contains theirs."""
    start = time.perf_counter()
    result = record.run(*args, **kwargs)
    record.seconds += time.perf_counter() - start
    record.calls += 1
    record.timed_calls += 1
    return result


@contextlib.contextmanager
def track_ops() -> Iterator[OpReport]:
    """Track a scope: the ops that run inside it, with their times.

        with neuron_eager.track_ops() as ops:
            model(x)
        print(ops)

    The report follows the scope while it is open, and stays as it was at its end. Scopes are per process: ops of all
    threads count.
    """
    from . import native
    from .call import watch
    from .report import OpReport
    before = {id(r): (r.count, r.timed_calls, r.seconds) for r in records}
    views_before = view_counts()
    report = OpReport(lambda: _since(before), lambda: {n: c - views_before.get(n, 0) for n, c in view_counts().items()})
    watch.scopes += 1
    watch.refresh()
    native.enable(False)
    try:
        yield report
    finally:
        watch.scopes -= 1
        watch.refresh()
        native.enable(not watch.scopes)
        report.freeze()


def _since(before: dict[int, tuple[int, int, float]]) -> list[tuple[Record, int, int, float]]:
    """(record, calls, timed calls, seconds) since a moment."""
    rows = []
    for r in list(records):
        calls, timed_calls, seconds = before.get(id(r), (0, 0, 0.0))
        rows.append((r, r.count - calls, r.timed_calls - timed_calls, r.seconds - seconds))
    return rows


def op_report() -> OpReport:
    """What ran since the start or `clear_op_tracking()`: per op, dtypes and shapes the calls, route, reason, bytes and
    first user line; times of the calls that ran in a `track_ops()` scope."""
    from .report import OpReport
    report = OpReport(lambda: _since({}), view_counts)
    report.freeze()
    return report
