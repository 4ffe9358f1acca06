"""The runtime library: functions that every kernel shares, each an object of its own, made on first use.

They are generic in shapes and strides, so a machine compiles each once. Names say what a function is for:
    mm_*, gv_*  matrix multiplication, few rows (matmul.py, gemv.py)      tr_*  transposition (transpose.py)
    ne_*        threads (threads.py)
Kernels name them as external symbols; the object loader asks `resolve`.
"""
from __future__ import annotations

import ctypes
import functools
from typing import Any

from ..errors import Unavailable
from . import objects, threads
from .target import Target, current

_addresses: dict[tuple[Target, str], int] = {}


def make(name: str, target: Target) -> Any:
    """The IR of the object that holds a library function."""
    if name.startswith("ne_"):
        return threads.module_text(target)
    from . import gemv, matmul, transpose
    kind = name.split("_", 1)[0]
    return {"mm": matmul, "gv": gemv, "tr": transpose}[kind].module(name, target)


def address(name: str, target: Target | None = None) -> int:
    """Address of a library function for a target, compiled or taken from the store on first use."""
    target = target or current()
    found = _addresses.get((target, name))
    if found is None:
        key = "ne_threads" if name.startswith("ne_") else name
        loaded = objects.obtain(key, f"library {key}", lambda: make(name, target), target)
        found = _addresses[target, name] = loaded.symbols[name]
    return found


def resolve(name: str, target: Target) -> int:
    """Address of a symbol that generated code refers to: library functions, words of ours, OpenMP, libm and libc.

    Raises `Unavailable` for any other name.
    """
    if name == "ne_pool_size":
        size = threads.pool_size()
        return address("ne_one", target) if size is None else ctypes.cast(size, ctypes.c_void_p).value or 0
    if name[:3] in ("mm_", "gv_", "tr_", "ne_"):
        word = threads.WORDS.get(name)
        return ctypes.addressof(word) if word is not None else address(name, target)
    if name.startswith(("omp_", "GOMP_")):
        openmp = threads.openmp()
        if openmp is None:
            return address("ne_one", target)
        return _symbol(openmp, name)
    for lib in _system():
        try:
            return _symbol(lib, name)
        except AttributeError:
            continue
    raise Unavailable(reason=f"generated code refers to {name}, which neither libm nor libc has")


def _symbol(lib: ctypes.CDLL, name: str) -> int:
    found = ctypes.cast(getattr(lib, name), ctypes.c_void_p).value
    if not found:
        raise AttributeError(name)
    return found


@functools.cache
def _system() -> tuple[ctypes.CDLL, ...]:
    libs = [ctypes.CDLL(None)]
    try:
        libs.insert(0, ctypes.CDLL("libm.so.6"))
    except OSError:
        pass
    return tuple(libs)
