"""Running kernels step by step on purpose: `interpret()`, and the signs that someone wants to stop inside a kernel."""
from __future__ import annotations

import inspect
import os
import sys
import sysconfig
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import CodeType, FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

from ..config import config
from .location import is_internal

if TYPE_CHECKING:
    from .jit import Kernel

_STOPS = frozenset(("breakpoint", "set_trace", "post_mortem"))
_LIBRARIES = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})
_found: dict[CodeType, tuple[bool, frozenset[str]]] = {}


@contextmanager
def interpret(*, check_uninitialized: bool | None = None) -> Iterator[None]:
    """Run every kernel in this block in the interpreter, instruction by instruction, on real tile values.

    breakpoint(), print, assert, pdb and IDE breakpoints work inside kernels. check_uninitialized: also make it an error
    to read an element that nothing has written.
    """
    values: dict[str, Any] = {"executor": "interpreter"}
    if check_uninitialized is not None:
        values["check_uninitialized"] = check_uninitialized
    with config.override(**values):
        yield


def stops_in(kernel: Kernel) -> str | None:
    """Why a kernel should be interpreted although nobody asked: its source calls breakpoint(), or a debugger has a
    breakpoint in one of its files. None if neither."""
    function = inspect.unwrap(kernel.func)
    code = getattr(function, "__code__", None)
    if code is None:
        return None
    found = _found.get(code)
    if found is None:
        codes = [c for f in reachable_functions(function) for c in _nested(f.__code__)]
        found = _found[code] = (any(not _STOPS.isdisjoint(c.co_names) for c in codes),
                                frozenset(c.co_filename for c in codes))
    calls, files = found
    if calls:
        return "it calls breakpoint()"
    stopped = _debugger_files()
    if stopped and not stopped.isdisjoint(os.path.realpath(f) for f in files):
        return "a debugger has a breakpoint in its source"
    return None


def reachable_functions(function: FunctionType) -> list[FunctionType]:
    """A function and the author's functions that it names, directly or through others; not those of libraries."""
    todo = [function]
    found: list[FunctionType] = []
    while todo:
        current = todo.pop()
        if any(current.__code__ is f.__code__ for f in found):
            continue
        found.append(current)
        names = {name for code in _nested(current.__code__) for name in code.co_names}
        values = [current.__globals__[n] for n in names if n in current.__globals__]
        values += inspect.getclosurevars(current).nonlocals.values()
        for value in list(values):
            if isinstance(value, ModuleType) and not _library(getattr(value, "__file__", None)):
                values += [vars(value)[n] for n in names if n in vars(value)]
        for value in values:
            target = inspect.unwrap(value) if hasattr(value, "__wrapped__") else value
            if isinstance(target, FunctionType) and not _library(target.__code__.co_filename):
                todo.append(target)
    return found


def _nested(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _nested(constant)


def _library(filename: str | None) -> bool:
    return filename is None or is_internal(filename) or filename.startswith(_LIBRARIES)


def _debugger_files() -> set[str]:
    """Files in which a debugger has breakpoints: pdb and what is built on bdb, and pydevd (VS Code, PyCharm)."""
    files: set[str] = set()
    bdb = sys.modules.get("bdb")
    if bdb is not None:
        files.update(os.path.realpath(file) for (file, _), points in bdb.Breakpoint.bplist.items()
                     if any(p.enabled for p in points))
    pydevd = sys.modules.get("_pydevd_bundle.pydevd_api") and sys.modules.get("pydevd")
    if pydevd is not None:
        debugger = getattr(pydevd, "get_global_debugger", lambda: None)()
        files.update(os.path.realpath(f) for f, lines in getattr(debugger, "breakpoints", {}).items() if lines)
    return files


@contextmanager
def no_stops() -> Iterator[None]:
    """breakpoint(), the set_trace() of pdb and IPython, and a debugger's breakpoints do nothing in this block: for runs
    of a kernel on tensors without values, which nobody wants to watch."""
    tracing = sys.gettrace()
    debugged = _is_debugger(tracing)
    _silence.enter()
    if debugged:
        sys.settrace(None)
    try:
        yield
    finally:
        if debugged:
            sys.settrace(tracing)
        _silence.leave()


class _Silence:
    """The process-wide part of `no_stops`: the first thread to enter takes the hooks away, the last to leave puts them
    back."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.inside = 0
        self.hooks: list[tuple[Any, str, Any]] = []

    def enter(self) -> None:
        with self.lock:
            self.inside += 1
            if self.inside == 1:
                debugger = getattr(sys.modules.get("bdb"), "Bdb", None)
                places = [(sys, "breakpointhook")]
                if debugger is not None:
                    places += [(debugger, name) for name in ("set_trace", "break_here", "stop_here")]
                self.hooks = [(owner, name, getattr(owner, name)) for owner, name in places]
                for owner, name in places:
                    setattr(owner, name, _go_on)

    def leave(self) -> None:
        with self.lock:
            self.inside -= 1
            if self.inside == 0:
                for owner, name, value in self.hooks:
                    setattr(owner, name, value)


_silence = _Silence()


def _go_on(*args: Any, **kwargs: Any) -> None:
    """Instead of stopping."""


def _is_debugger(tracing: Any) -> bool:
    """Whether a trace function is a debugger's; coverage tools have one too."""
    bdb = sys.modules.get("bdb")
    owner = getattr(tracing, "__self__", None)
    return bdb is not None and isinstance(owner, bdb.Bdb) or "pydevd" in (getattr(tracing, "__module__", None) or "")
