"""The cache: memory, then disk, then a bundle; and a compile that happens once, whoever asks.

    get_or_compile:  memory → another thread's flight → disk → bundle → lock → disk again → compile → store

Whatever goes wrong on the way is a miss with a warning: the result is right and time is lost. A value that is handed
out was verified against its full key.
"""
from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path

from ..config import config
from . import place
from .database import Database
from .entry import Entry
from .faults import Faults
from .flight import Flight, Flights, replica
from .key import Key, is_digest
from .level import BundleLevel, DiskLevel
from .lock import KeyLock
from .memory import Memory
from .progress import show_progress
from .report import CompileCount, CompileRecord, Counts, Log

log = logging.getLogger(__name__)

_FAILURES_KEPT = 1000


class Cache:
    """Compiled artifacts by key. The settings are read at each use; `path` replaces `config.cache_path`."""

    def __init__(self, path: Path | None = None):
        self.memory = Memory()
        self.counts = Counts()
        self.log = Log()
        self.faults = Faults()
        self.disk = DiskLevel(path, self.faults)
        self.bundle = BundleLevel(self.faults)
        self._failures: dict[str, Exception] = {}
        self._renew_locks()
        _caches.add(self)

    def _renew_locks(self) -> None:
        """Also in a forked child, where threads that held them are gone."""
        self._flights = Flights()
        self._counting = threading.Lock()
        self.disk.lock = threading.RLock()
        for part in (self.memory, self.faults, self.bundle):
            part.lock = threading.Lock()

    def _count(self, **events: float) -> None:
        with self._counting:
            for name, n in events.items():
                setattr(self.counts, name, getattr(self.counts, name) + n)

    # ---- the five operations

    def get(self, key: Key | str) -> bytes | None:
        """The body stored for a key, or for the digest of one; None if there is none."""
        if isinstance(key, str) and not is_digest(key):
            raise ValueError(f"neither a Key nor the digest of one: {key!r:.80}")
        entry = self.memory.get(key)
        if entry is not None:
            self._count(memory_hits=1)
            return entry.body
        entry, _ = self._fetch(key)
        if entry is None:
            self._count(misses=1)
            return None
        return entry.body

    def put(self, key: Key, body: bytes, op: str = "", seconds: float = 0.0) -> bool:
        """Keep a body, and say whether it reached the disk. `op` and `seconds` (compile time) are for the reports."""
        if type(body) is not bytes:
            raise TypeError(f"a cached body is bytes, not {type(body).__name__}")
        entry = Entry(key, body, str(op), seconds)
        self.memory.put(entry)
        return self.store(entry)

    def get_or_compile(self, key: Key, compile: Callable[[], bytes], op: str = "") -> bytes:
        """The body for a key, made by `compile()` if there is none, once among all threads and processes.

        What `compile` raises goes to the caller, to the threads that wait for it, and to later callers in this process
        (except MemoryError, OSError and interrupts, which say nothing about the key).
        """
        entry = self.memory.get(key)
        if entry is not None:
            self._count(memory_hits=1)
            return entry.body
        op = str(op)
        while True:
            flight, mine = self._flights.join(key.text)
            if mine:
                return self._fly(flight, key, compile, op)
            if flight.owner == threading.get_ident():
                return self._compile(key, compile, op, "asked for inside its own compile", store=False)
            if not flight.done.wait(config.cache_lock_timeout):
                return self._compile(key, compile, op, f"another thread has been compiling it for more than "
                                                       f"{config.cache_lock_timeout} s", store=False)
            body = flight.result()
            if body is not None:
                self._count(memory_hits=1)
                return body

    def forget(self) -> None:
        """Drop what this process keeps in memory: bodies and remembered failures."""
        self.memory.clear()
        self._failures.clear()

    def close(self) -> None:
        """Close the files; the next miss opens them again."""
        self.disk.close()
        self.bundle.close()

    @contextlib.contextmanager
    def count_compiles(self) -> Iterator[CompileCount]:
        """Count what happens in a block, in all threads: `with count_compiles() as n: …; assert n.compiles == 0`."""
        count = CompileCount(self.counts, self.log)
        try:
            yield count
        finally:
            count.freeze()

    # ---- compiling once

    def _fly(self, flight: Flight, key: Key, compile: Callable[[], bytes], op: str) -> bytes:
        body = error = None
        try:
            body = self._find_or_compile(key, compile, op)
            return body
        except Exception as exception:
            error = exception
            raise
        finally:                            # after an interrupt neither is set: a waiter takes over
            self._flights.finish(key.text, flight, body, error)

    def _find_or_compile(self, key: Key, compile: Callable[[], bytes], op: str) -> bytes:
        entry = self.memory.get(key)        # a flight that ended between our look and our own
        if entry is not None:
            self._count(memory_hits=1)
            return entry.body
        failure = self._failures.get(key.text)
        if failure is not None:
            twin = replica(failure)
            twin.add_note("This compile failed earlier in this process and was not tried again; "
                          "neuron_eager.opcache.forget() makes the next call try.")
            raise twin
        entry, why = self._fetch(key)
        if entry is not None:
            return entry.body
        database = self.disk.database()
        if database is None or not database.create:
            return self._compile(key, compile, op, why, store=False)
        lock = KeyLock(place.locks(database.root), key.digest, op or key.kind)
        try:
            entry = self._acquire(lock, key, database)
        except OSError as error:
            self.faults.report("lock", f"{lock.path}: {error}", database.root)
            return self._compile(key, compile, op, why, store=False)
        if entry is None and not lock.held:
            self.faults.report("lock", lock.why, database.root)
            return self._compile(key, compile, op, f"{why}; {lock.why}", store=False)
        try:
            if entry is None:               # its last holder may have stored the entry since we looked
                entry, _ = self.disk.read(key)
            if entry is not None:
                self._count(disk_hits=1)
                self.memory.put(entry)
                return entry.body
            return self._compile(key, compile, op, why, store=True)
        finally:
            lock.release()

    def _acquire(self, lock: KeyLock, key: Key, database: Database) -> Entry | None:
        def look() -> Entry | None:
            return self.disk.read(key)[0]
        try:
            return lock.acquire(config.cache_lock_timeout, look)
        except FileNotFoundError:           # the directory was removed under us
            self.disk.attempt(lambda db: place.prepare(db.root, db.create), None)
            return lock.acquire(config.cache_lock_timeout, look)

    def _compile(self, key: Key, compile: Callable[[], bytes], op: str, why: str, store: bool) -> bytes:
        created, start = time.time(), time.perf_counter()

        def record(stored: bool, error: str | None = None) -> None:
            log.debug("%s %s %s in %.1f ms: %s", "failed to compile" if error else "compiled", key.kind, op,
                      1000 * seconds, error or why)
            self.log.add(CompileRecord(key.kind, op, key.digest, seconds, why, stored, created, error))

        self._count(misses=1)
        try:
            with show_progress(f"{op} ({key.kind})" if op else key.kind):
                body = compile()
            seconds = time.perf_counter() - start
            if type(body) is not bytes:
                raise TypeError(f"compile() of {key!r} must return bytes, not {type(body).__name__}")
        except Exception as error:
            seconds = time.perf_counter() - start
            self._count(failures=1)
            record(False, f"{type(error).__name__}: {error}")
            if not isinstance(error, (MemoryError, OSError)):
                self._remember(key, error)
            raise
        self._count(compiles=1, compile_seconds=seconds)
        entry = Entry(key, body, op, seconds)
        self.memory.put(entry)
        stored = False
        try:
            stored = store and self.store(entry)
        finally:                            # also when a strict cache raises
            record(stored)
        return body

    def _remember(self, key: Key, error: Exception) -> None:
        while len(self._failures) >= _FAILURES_KEPT:
            self._failures.pop(next(iter(self._failures)), None)
        self._failures[key.text] = replica(error)

    # ---- levels

    def _fetch(self, key: Key | str) -> tuple[Entry | None, str]:
        """From disk or bundle into memory; else why there is nothing."""
        entry, why = self.disk.read(key)
        if entry is not None:
            self._count(disk_hits=1)
        else:
            entry = self.bundle.read(key)
            if entry is None:
                return None, why
            self._count(bundle_hits=1)
        self.memory.put(entry)
        return entry, ""

    def store(self, entry: Entry) -> bool:
        """Write an entry to the disk, and say whether it is there."""
        stored, evicted = self.disk.write(entry)
        self._count(stored=stored, evictions=evicted)
        return stored


_caches: weakref.WeakSet[Cache] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for cache in list(_caches):
        cache._renew_locks()


os.register_at_fork(after_in_child=_after_fork_in_child)
