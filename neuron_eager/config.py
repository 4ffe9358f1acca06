"""Every NEURON_EAGER_* setting: typed, documented, read at each use, overridable in code.

    NEURON_EAGER_FALLBACK=error python train.py          # environment
    neuron_eager.config.fallback = "error"               # code; wins over the environment
    del neuron_eager.config.fallback                     # back to the environment or the default
    with neuron_eager.config.override(fallback="error"): ...

A setting is the value assigned in code, else the environment variable, else the default. A bad value raises a
`SettingError` that names the variable, the value and what is allowed. `check_environment()` reports variables that
no setting reads.
"""
from __future__ import annotations

import contextlib
import difflib
import os
import re
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Generic, TypeVar, overload

from .errors import SettingError

PREFIX = "NEURON_EAGER_"
T = TypeVar("T")

_SIZE_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


class Setting(Generic[T]):
    """A descriptor: one setting, its default, how its text is read, and what it means."""

    def __init__(self, default: T, parse: Callable[[str], T], allowed: str, doc: str):
        self.default, self.parse, self.allowed, self.__doc__ = default, parse, allowed, doc

    def __set_name__(self, owner: type, name: str) -> None:
        self.name, self.variable = name, PREFIX + name.upper()

    @overload
    def __get__(self, obj: None, owner: type) -> Setting[T]: ...
    @overload
    def __get__(self, obj: Config, owner: type) -> T: ...
    def __get__(self, obj: Config | None, owner: type) -> Setting[T] | T:
        if obj is None:
            return self
        assigned = obj.assigned
        if self.name in assigned:
            return assigned[self.name]
        text = os.environ.get(self.variable)
        return self.default if text is None or text == "" else self.read(text)

    def __set__(self, obj: Config, value: T) -> None:
        """Take a value in code. It is read as the text that stands for it, so that what is allowed is the same."""
        obj.assigned[self.name] = value if value is None and self.default is None else self.read(_text(value))
        obj.changed()

    def __delete__(self, obj: Config) -> None:
        obj.assigned.pop(self.name, None)
        obj.changed()

    def read(self, text: str) -> T:
        try:
            return self.parse(text.strip())
        except (ValueError, KeyError):
            raise SettingError(variable=self.variable, value=text, allowed=self.allowed) from None


def _text(value: object) -> str:
    if isinstance(value, bool):
        return str(int(value))
    if isinstance(value, (list, tuple, set, frozenset)):
        return ",".join(map(str, value))
    return str(value)


def _choice(default: str, *values: str, doc: str) -> Setting[str]:
    return Setting(default, {v: v for v in values}.__getitem__, " | ".join(values), doc)


def _flag(default: bool, doc: str) -> Setting[bool]:
    return Setting(default, {"0": False, "1": True}.__getitem__, "0 | 1", doc)


def _int(default: int, low: int, high: int, doc: str) -> Setting[int]:
    def parse(text: str) -> int:
        n = int(text)
        if not low <= n <= high:
            raise ValueError
        return n
    return Setting(default, parse, f"an integer from {low} to {high}", doc)


def _size(default: int, doc: str) -> Setting[int]:
    def parse(text: str) -> int:
        m = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?", text, re.IGNORECASE)
        if m is None:
            raise ValueError
        return int(float(m[1]) * _SIZE_UNITS[m[2].upper()])
    return Setting(default, parse, "a size such as 500MB or 2GiB", doc)


def _names(doc: str) -> Setting[frozenset[str]]:
    return Setting(frozenset(), lambda t: frozenset(filter(None, (p.strip() for p in t.split(",")))),
                   "names separated by commas, such as aten.mm,aten.add.Tensor", doc)


def _cache_home() -> Path:
    base = os.environ.get("XDG_CACHE_HOME")
    return Path(base) if base else Path.home() / ".cache"


class Config:
    """The settings of this process; use the instance `neuron_eager.config`."""

    fallback = _choice(
        "warn", "warn", "silent", "error",
        doc="what a CPU fallback does: one log line per (op, reason); nothing; raise. It is recorded in every case")
    force_cpu = _names("ops that take the CPU fallback even where a kernel exists, to bisect a wrong result")
    float64 = _choice(
        "float32", "float32", "cpu", "error",
        doc="float64 arithmetic: in float32, the result kept float64 (one warning per op); as a CPU fallback; an error")
    device_count = _int(1, 1, 64, doc="how many neuron devices there are; read when the package is imported")
    executor = _choice(
        "auto", "auto", "native", "interpreter", "neuron",
        doc="who runs kernels: machine code, the step-by-step interpreter, or the real tool chain; auto takes the best")
    nki = _choice("auto", "auto", "embedded", "installed",
                  doc="which implementation `import nki` finds; auto: an installed one, else the embedded one")
    checks = _flag(True, doc="check the limits of the chip while a kernel is traced or interpreted")
    check_uninitialized = _flag(
        False, doc="in the interpreter, reading an element that was never written is an error")
    hot_path = _flag(True, doc="run warm ops through native entries; 0 keeps the pure Python path")
    native_guard = _flag(
        True, doc="answer PyTorch's device guard questions natively where the PyTorch version is known")
    cpu = _choice("auto", "auto", "x86-64-v4", "x86-64-v3", "x86-64",
                  doc="what native code may use: all this CPU has, or no more than AVX-512, AVX2, or (x86-64) nothing: "
                      "kernels are interpreted")
    cache = _choice("rw", "0", "ro", "rw", doc="the cache of compiled kernels on disk: off, read only, read and write")
    cache_dir: Setting[Path | None] = Setting(
        None, Path, "a directory", "where compiled kernels are kept; default $XDG_CACHE_HOME/neuron_eager")
    cache_size = _size(2 << 30, "limit of the cache on disk; the least recently stored entries go first")
    cache_strict = _flag(False, doc="a fault of the cache raises, where otherwise it is a warning and a recompile")
    cache_lock_timeout = _int(
        60, 0, 86400,
        doc="seconds to wait for another process that compiles the same kernel, before compiling privately")
    cache_bundle: Setting[Path | None] = Setting(
        None, Path, "a file",
        "an exported bundle of compiled kernels, read after the cache directory and never written")
    progress = _flag(True, doc="show compiles that take longer than a second")
    logs = Setting("", str, "names such as +dispatch,fallback (+ is debug, - is errors only)",
                   "log levels by module, in the grammar of TORCH_LOGS")
    autoload = _flag(False, doc="let `import torch` load this package")

    def __init__(self) -> None:
        self.__dict__["assigned"] = {}
        self.__dict__["listeners"] = []

    assigned: dict[str, Any]
    listeners: list[Callable[[], None]]

    def __repr__(self) -> str:
        """Every setting with its value and where that comes from."""
        return "\n".join(f"{name:<20} {getattr(self, name)!s:<12} ({self.origin(name)})" for name in self.settings())

    def __setattr__(self, name: str, value: object) -> None:
        if not isinstance(getattr(type(self), name, None), Setting):
            raise AttributeError(f"no setting {name!r}{_nearest(name, self.settings())}")
        super().__setattr__(name, value)

    def changed(self) -> None:
        for listener in self.listeners:
            listener()

    @classmethod
    def settings(cls) -> dict[str, Setting[Any]]:
        return {n: s for n, s in vars(cls).items() if isinstance(s, Setting)}

    @property
    def cache_path(self) -> Path:
        return self.cache_dir or _cache_home() / "neuron_eager"

    def origin(self, name: str) -> str:
        """Where the effective value comes from: code, environment or default."""
        if name in self.assigned:
            return "code"
        return "environment" if os.environ.get(self.settings()[name].variable) else "default"

    @contextlib.contextmanager
    def override(self, **values: Any) -> Iterator[None]:
        """Assign settings for the duration of a block. Process-wide, like the assignments it stands for."""
        before = dict(self.assigned)
        try:
            for name, value in values.items():
                setattr(self, name, value)
            yield
        finally:
            self.assigned.clear()
            self.assigned.update(before)
            self.changed()

    def check_environment(self) -> None:
        """Warn of NEURON_EAGER_* variables that no setting reads; raise on a bad value now, not in mid-run."""
        known = {s.variable: s for s in self.settings().values()}
        for variable in os.environ:
            if variable.startswith(PREFIX) and variable not in known:
                warnings.warn(f"{variable} is not a setting of neuron_eager{_nearest(variable, known)}", stacklevel=3)
        for name in self.settings():
            getattr(self, name)


def _nearest(name: str, known: Any) -> str:
    close = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {close[0]}?" if close else ""


config = Config()
