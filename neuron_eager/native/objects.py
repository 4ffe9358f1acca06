"""From IR to machine code in this process: compile, keep by content, load.

A store may sit underneath (`set_store`): objects are found by the hash of what they were made from, in memory, then in
the store, and compiled only if neither has them. llvmlite is imported only to compile.
"""
from __future__ import annotations

import gc
import hashlib
import os
import struct
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ..errors import Unavailable
from .elf import load_object
from .target import Target, current


class Store:
    """Where objects are kept between processes. A store gives `get` and `put`; the rest is up to it."""

    def get(self, key: str) -> bytes | None:
        """What is kept under a key, or None."""
        raise NotImplementedError

    def put(self, key: str, data: bytes) -> None:
        raise NotImplementedError

    def key(self, name: str, text: str, target: Target) -> str:
        """What it calls the object made from `text` for a target."""
        return key_of(text, target)

    def obtain(self, name: str, text: str, target: Target, compile: Callable[[], bytes]) -> bytes:
        """The object, made by `compile()` if there is none."""
        key = self.key(name, text, target)
        data = self.get(key)
        if data is None:
            data = compile()
            self.put(key, data)
        return data


class MemoryStore(Store):
    """Objects of this process only."""

    def __init__(self) -> None:
        self.entries: dict[str, bytes] = {}

    def get(self, key: str) -> bytes | None:
        return self.entries.get(key)

    def put(self, key: str, data: bytes) -> None:
        self.entries[key] = data


@dataclass
class Loaded:
    """An object in memory: the addresses of its functions, where it came from, and what that took.

    hit: it came from the store. times: milliseconds of "build", "parse", "codegen", "load".
    """

    name: str
    key: str
    symbols: dict[str, int]
    data: bytes
    hit: bool
    times: dict[str, float] = field(default_factory=dict)


_store: Store = MemoryStore()
_loaded: dict[str, Loaded] = {}
_machines: dict[Target, Any] = {}
_lock = threading.RLock()


def _after_fork() -> None:
    """Another thread of the parent may have held the lock: the child has no such thread."""
    global _lock
    _lock = threading.RLock()


os.register_at_fork(after_in_child=_after_fork)


def set_store(store: Store) -> None:
    """Keep objects in `store` from here on; what is loaded stays loaded."""
    global _store
    _store = store


def key_of(key_text: str, target: Target) -> str:
    """The name of an object: sha256 over what it is made from and for what machine, in hexadecimal."""
    return hashlib.sha256(f"{target.key_text}\0{key_text}".encode()).hexdigest()


def obtain(name: str, key_text: str, make: Callable[[], Any], target: Target | None = None) -> Loaded:
    """The object that `make` describes, loaded once per process.

    key_text must determine what `make` returns: an llvmlite module or IR text. `name` is only for reports.
    Raises `Unavailable` where native code can not be generated or run.
    """
    target = target or current()
    key = _store.key(name, key_text, target)
    found = _loaded.get(key)
    if found is not None:
        return found
    with _lock:
        found = _loaded.get(key)
        if found is None:
            times: dict[str, float] = {}
            data = _store.obtain(name, key_text, target, lambda: compile_object(make, target, times))
            found = _loaded[key] = _load(name, key, data, target, not times, times)
    return found


def find(key: str, target: Target | None = None, name: str = "") -> Loaded | None:
    """The object of this key if it is loaded or in the store; None if it would have to be compiled."""
    found = _loaded.get(key)
    if found is not None:
        return found
    with _lock:
        found = _loaded.get(key)
        if found is None:
            data = _store.get(key)
            if data is None:
                return None
            found = _loaded[key] = _load(name, key, data, target or current(), True, {})
    return found


def _load(name: str, key: str, data: bytes, target: Target, hit: bool, times: dict[str, float]) -> Loaded:
    start = time.perf_counter()
    symbols = load(data, target)
    times["load"] = 1e3 * (time.perf_counter() - start)
    return Loaded(name, key, symbols, data, hit, times)


def compile_object(source: Any, target: Target, times: dict[str, float] | None = None) -> bytes:
    """Object file bytes of an llvmlite module, of IR text, or of a function that returns one of them."""
    if target.lacking:
        raise Unavailable(reason=target.lacking)
    import llvmlite.binding as llvm
    with _lock:
        machine = _machines.get(target)
        if machine is None:
            machine = _machines[target] = target.machine()
        collecting = gc.isenabled()
        gc.disable()        # IR is many small objects in cycles: collections during building double its time
        try:
            start = time.perf_counter()
            text = str(source() if callable(source) else source)
            built = time.perf_counter()
            module = llvm.parse_assembly(text)
            parsed = time.perf_counter()
            data = machine.emit_object(module)
        finally:
            if collecting:
                gc.enable()
    if times is not None:
        done = time.perf_counter()
        times.update(build=1e3 * (built - start), parse=1e3 * (parsed - built), codegen=1e3 * (done - parsed))
    return bytes(data)


def load(data: bytes, target: Target | None = None) -> dict[str, int]:
    """Put an object into memory; the functions it calls are resolved by `library.resolve`."""
    from . import library
    chosen = target or current()
    imports, exports = elf_symbols(data)
    return load_object(data, lambda name: library.resolve(name, chosen), imports=imports, exports=exports)


def elf_symbols(data: bytes) -> tuple[list[str], list[str]]:
    """Names an ELF-64 object needs and gives."""
    imports: list[str] = []
    exports: list[str] = []
    if data[:4] != b"\x7fELF":
        return imports, exports
    offset, = struct.unpack_from("<Q", data, 0x28)
    size, count = struct.unpack_from("<HH", data, 0x3A)
    sections = [struct.unpack_from("<IIQQQQIIQQ", data, offset + i * size) for i in range(count)]
    for section in sections:
        if section[1] != 2:                                     # SHT_SYMTAB
            continue
        names = sections[section[6]][4]
        for at in range(section[4], section[4] + section[5], 24):
            name, info, _, index = struct.unpack_from("<IBBH", data, at)
            if name and info >> 4:                              # not local
                text = data[names + name:data.index(b"\0", names + name)].decode()
                if text != "_GLOBAL_OFFSET_TABLE_":             # the loader's own
                    (exports if index else imports).append(text)
    return imports, exports
