"""Compiles that take longer than a second are shown on stderr.

On a terminal: one line that is rewritten and removed at the end. Elsewhere: a line when the second is over and one at
the end. At a debugger prompt: nothing, as a line would land in what is being typed.
"""
from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Iterator
from types import FrameType

from ..config import config

AFTER = 1.0         # seconds
_TICK = 0.25
_LINGER = 2.0       # the watching thread ends when nothing was compiled for this long

# Functions that are on a thread's stack exactly while that thread is at a debugger's prompt or evaluates for one.
_PROMPTS = {
    ("cmd", "cmdloop"), ("pdb", "_cmdloop"), ("pdb", "interaction"), ("IPython.core.debugger", "cmdloop"),
    ("IPython.terminal.debugger", "cmdloop"), ("code", "interact"),
    ("_pydevd_bundle.pydevd_vars", "evaluate_expression"),
    ("_pydevd_bundle.pydevd_comm", "internal_evaluate_expression"),
}


class _Task:
    def __init__(self, what: str):
        self.what, self.start, self.announced = what, time.monotonic(), False


class _Watcher:
    """Looks at the running tasks from a thread of its own, so that a task costs two list operations."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Also in a forked child, where the thread is gone and may have held the lock."""
        self.lock = threading.Lock()
        self.tasks: list[_Task] = []
        self.thread: threading.Thread | None = None
        self.drawn = False

    def begin(self, what: str) -> _Task:
        task = _Task(what)
        with self.lock:
            self.tasks.append(task)
            if self.thread is None:
                thread = threading.Thread(target=self._watch, name="neuron_eager progress", daemon=True)
                with contextlib.suppress(RuntimeError):     # the interpreter ends, or a limit on threads
                    thread.start()
                    self.thread = thread
        return task

    def end(self, task: _Task) -> None:
        with self.lock:
            if task not in self.tasks:          # begun before a fork
                return
            self.tasks.remove(task)
            if self.drawn and not self.tasks:
                self.drawn = False
                _write("\r\x1b[K")
            if task.announced and not _at_prompt():
                _write(f"neuron_eager: compiled {task.what} in {time.monotonic() - task.start:.1f} s\n")

    def _watch(self) -> None:
        idle = 0.0
        while True:
            time.sleep(_TICK)
            with self.lock:
                idle = 0.0 if self.tasks else idle + _TICK
                if idle >= _LINGER:
                    self.thread = None
                    return
                now = time.monotonic()
                long = [t for t in self.tasks if now - t.start >= AFTER]
                if long and not _at_prompt():
                    self._show(long, now)

    def _show(self, long: list[_Task], now: float) -> None:
        if _is_terminal():
            rest = f" and {len(long) - 1} more" if len(long) > 1 else ""
            line = f"neuron_eager: compiling {long[0].what}{rest}, {now - long[0].start:.0f} s"
            _write(f"\r\x1b[K{line[:_columns() - 1]}")
            self.drawn = True
            return
        for task in long:
            if not task.announced:
                task.announced = True
                _write(f"neuron_eager: compiling {task.what}\n")


_watcher = _Watcher()


@contextlib.contextmanager
def show_progress(what: str) -> Iterator[None]:
    """Show `what` on stderr if the block takes longer than a second, unless `config.progress` is off."""
    if not config.progress:
        yield
        return
    task = _watcher.begin(what)
    try:
        yield
    finally:
        _watcher.end(task)


def _at_prompt() -> bool:
    for frame in sys._current_frames().values():
        at: FrameType | None = frame
        while at is not None:
            if (at.f_globals.get("__name__"), at.f_code.co_name) in _PROMPTS:
                return True
            at = at.f_back
    return False


def _is_terminal() -> bool:
    try:
        return sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
    except (AttributeError, ValueError):
        return False


def _columns() -> int:
    try:
        return os.get_terminal_size(sys.stderr.fileno()).columns or 80
    except (OSError, ValueError, AttributeError):
        return 80


def _write(text: str) -> None:
    """stderr may be closed, redirected or absent (pythonw, a daemon); none of this concerns a compile."""
    with contextlib.suppress(Exception):
        sys.stderr.write(text)
        sys.stderr.flush()


os.register_at_fork(after_in_child=_watcher.reset)
