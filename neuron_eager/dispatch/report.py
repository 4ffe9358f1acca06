"""The op report: what ran where, as a table, as HTML, as JSON."""
from __future__ import annotations

import html
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from .tracking import Record

COLUMNS = ("op", "arguments", "calls", "route", "ms", "MB", "reason", "first at")


@dataclass(frozen=True)
class Row:
    """Calls of one op with arguments of one kind."""

    op: str
    route: str                      # "kernel" | "fallback" | "view"
    calls: int
    dtypes: tuple[str, ...] = ()
    shapes: tuple[tuple[int, ...], ...] = ()
    seconds: float | None = None    # of the calls that were timed; None if none was
    nbytes: int = 0                 # of all calls' tensor arguments
    reason: str = ""                # of a fallback; of a kernel that is interpreted, why
    place: str = ""                 # file:line of the user's code that first called it

    @property
    def arguments(self) -> str:
        return ", ".join(f"{d}[{','.join(map(str, s))}]" for d, s in zip(self.dtypes, self.shapes))


class OpReport:
    """Rows, slowest (or most frequent) first. `len()`, iteration, `.rows`, `.by_op()`, `.summary()`, `.to_json()`."""

    def __init__(self, records: Callable[[], list[tuple[Record, int, int, float]]],
                 views: Callable[[], dict[str, int]]):
        self._records, self._views = records, views
        self._rows: list[Row] | None = None

    def freeze(self) -> None:
        self._rows = self._read()

    @property
    def rows(self) -> list[Row]:
        return self._read() if self._rows is None else self._rows

    def _read(self) -> list[Row]:
        rows = [
            Row(r.name, r.route, calls, tuple(str(d).removeprefix("torch.") for d in r.dtypes), r.shapes,
                seconds if timed_calls else None, calls * r.nbytes, _reason(r), r.place)
            for r, calls, timed_calls, seconds in self._records() if calls > 0]
        rows += [Row(name, "view", calls) for name, calls in self._views().items() if calls > 0]
        return sorted(rows, key=lambda r: (-(r.seconds or 0.0), -r.calls, r.op))

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Any:
        return iter(self.rows)

    def by_op(self) -> list[Row]:
        """One row per (op, route, reason), shapes added up."""
        groups: dict[tuple[str, str, str], list[Row]] = {}
        for r in self.rows:
            groups.setdefault((r.op, r.route, r.reason), []).append(r)
        merged = []
        for (op, route, reason), rows in groups.items():
            times = [r.seconds for r in rows if r.seconds is not None]
            alike = len(rows) == 1
            merged.append(Row(op, route, sum(r.calls for r in rows), rows[0].dtypes if alike else (),
                              rows[0].shapes if alike else (), sum(times) if times else None,
                              sum(r.nbytes for r in rows), reason, rows[0].place))
        return sorted(merged, key=lambda r: (-(r.seconds or 0.0), -r.calls, r.op))

    def summary(self) -> str:
        """One line: calls and time on neuron and on the CPU."""
        rows = self.rows
        calls = {route: sum(r.calls for r in rows if r.route == route) for route in ("kernel", "view", "fallback")}
        total = sum(calls.values())
        if not total:
            return "no op ran on neuron"
        text = (f"{total} ops: {calls['kernel']} kernels, {calls['view']} views, {calls['fallback']} CPU fallbacks "
                f"({100 * calls['fallback'] / total:.1f}% of the calls")
        seconds = sum(r.seconds or 0.0 for r in rows)
        if seconds:
            on_cpu = sum(r.seconds or 0.0 for r in rows if r.route == "fallback")
            text += f", {100 * on_cpu / seconds:.1f}% of {1e3 * seconds:.1f} ms"
        return text + ")"

    # ---- forms

    def _cells(self, rows: Sequence[Row]) -> list[list[str]]:
        return [[r.op, r.arguments or ("" if r.route == "view" else "various"), str(r.calls), r.route,
                 "" if r.seconds is None else f"{1e3 * r.seconds:.2f}", f"{r.nbytes / 1e6:.2f}" if r.nbytes else "",
                 r.reason, _short(r.place)] for r in rows]

    def __repr__(self) -> str:
        shown = self.by_op()
        cells = [list(COLUMNS), *self._cells(shown[:40])]
        cells = [[_cut(c, 44 if i in (1, 6) else 48) for i, c in enumerate(line)] for line in cells]
        widths = [max(len(line[i]) for line in cells) for i in range(len(COLUMNS))]
        right = {2, 4, 5}
        lines = []
        for line in cells:
            padded = (c.rjust(w) if i in right else c.ljust(w) for i, (c, w) in enumerate(zip(line, widths)))
            lines.append("  ".join(padded).rstrip())
        more = [f"… and {len(shown) - 40} more; .rows has all"] if len(shown) > 40 else []
        return "\n".join([self.summary(), *lines, *more])

    def _repr_html_(self) -> str:
        head = "".join(f"<th>{html.escape(c)}</th>" for c in COLUMNS)
        body = "".join("<tr>" + "".join(f"<td>{html.escape(c)}</td>" for c in line) + "</tr>"
                       for line in self._cells(self.by_op()))
        return (f"<p>{html.escape(self.summary())}</p>"
                f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>")

    def to_json(self, indent: int | None = 2) -> str:
        """{"summary": {...}, "rows": [...]}; rows have the fields of `Row`."""
        rows = self.rows
        summary = {f"{route}_calls": sum(r.calls for r in rows if r.route == route)
                   for route in ("kernel", "view", "fallback")}
        return json.dumps({"summary": summary, "rows": [asdict(r) for r in rows]}, indent=indent)

    def __rich__(self) -> Any:
        from rich.table import Table
        table = Table(title=self.summary(), title_justify="left")
        for i, name in enumerate(COLUMNS):
            table.add_column(name, justify="right" if i in (2, 4, 5) else "left", overflow="fold")
        colour = {"kernel": "green", "fallback": "yellow", "view": "dim"}
        for row, line in zip(self.by_op(), self._cells(self.by_op())):
            table.add_row(*line, style=colour[row.route])
        return table


def _reason(record: Record) -> str:
    if record.route == "fallback":
        return record.why
    executable = None if record.plan is None else record.plan.executable
    return "" if executable is None else executable.note or ""


def _short(place: str) -> str:
    """The last two parts of a path."""
    return "/".join(place.split("/")[-2:])


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[:width - 1] + "…"


