"""Which ops ran, where and how often. One record per (op, dtypes, shapes); a warm op adds one to its record's count.

Times are taken only while a `track_ops()` scope is open: then every call goes through `attended` (call.py).
"""
from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import torch

from ..device import views

_TORCH = str(Path(torch.__file__).parent) + os.sep
_PACKAGE = str(Path(__file__).parent.parent) + os.sep


class Record:
    """Calls of one op with arguments of one kind, and what running it takes."""

    __slots__ = ("name", "route", "reason", "detail", "dtypes", "shapes", "calls", "timed_calls", "seconds", "nbytes",
                 "place", "run")

    def __init__(self, name: str, route: str, run: Callable[..., Any], dtypes: tuple[torch.dtype, ...] = (),
                 shapes: tuple[tuple[int, ...], ...] = (), reason: str = "", detail: str = "", nbytes: int = 0):
        self.name, self.route, self.run = name, route, run
        self.dtypes, self.shapes, self.reason, self.detail = dtypes, shapes, reason, detail
        self.nbytes = nbytes        # of the arguments and results of one call: what a discrete device would transfer
        self.calls = self.timed_calls = 0
        self.seconds = 0.0
        self.place = ""             # the user's line that first called it


records: list[Record] = []


def user_place() -> str:
    """file:line of the innermost frame outside torch and this package, or "" if there is none."""
    frame = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if not file.startswith((_TORCH, _PACKAGE, "<neuron_eager", "<frozen", "<string")):
            return f"{file}:{frame.f_lineno}"
        frame = frame.f_back        # type: ignore[assignment]
    return ""


def describe(dtypes: Sequence[torch.dtype], shapes: Iterable[Sequence[int]]) -> str:
    """float32[2,3], int64[]"""
    return ", ".join(f"{str(d).removeprefix('torch.')}[{','.join(map(str, s))}]" for d, s in zip(dtypes, shapes)) or "none"


def get_fallback_ops() -> list[str]:
    """Names of the ops that ran on the CPU since the start or `clear_op_tracking()`: aten::mm, aten::add.Tensor."""
    return sorted({r.name for r in records if r.calls and r.route == "fallback"})


def get_executed_ops() -> list[str]:
    """Names of the ops that ran on neuron since the start or `clear_op_tracking()`, views among them."""
    kernels = {r.name for r in records if r.calls and r.route != "fallback"}
    return sorted(kernels | {f"aten::{name}" for name, count in views.counts.items() if count})


def clear_op_tracking() -> None:
    """Forget which ops ran."""
    for r in records:
        r.calls = r.timed_calls = 0
        r.seconds = 0.0
    for name in views.counts:
        views.counts[name] = 0
