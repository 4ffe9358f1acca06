"""The cache: memory, then disk, then a bundle; and a compile that happens once, whoever asks.

    get_or_compile:  memory → another thread's flight → disk → bundle → lock → disk again → compile → store

Whatever goes wrong on the way is a miss with a warning: the result is right and time is lost. A value that is handed
out was verified against its full key.
"""
from __future__ import annotations

import contextlib
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from ..config import config
from ..errors import BundleError
from . import place
from .bundle import Bundle
from .database import Database
from .entry import Entry, Unusable, decode
from .faults import Faults, classify
from .flight import Flight, Flights, replica
from .key import Key, is_digest
from .lock import KeyLock
from .memory import Memory
from .progress import show_progress
from .report import CompileCount, CompileRecord, Counts, Log

T = TypeVar("T")

RETRY_AFTER = 30.0          # seconds until a disk that could not be opened, or written to, is tried again
_FAILURES_KEPT = 1000


class Cache:
    """Compiled artifacts by key. The settings are read at each use; `path` replaces `config.cache_path`."""

    def __init__(self, path: Path | None = None):
        self._path = path
        self.memory = Memory()
        self.counts = Counts()
        self.log = Log()
        self.faults = Faults()
        self.state = ""             # what the disk level does
        self._settings: tuple[object, ...] = ()
        self._database: Database | None = None
        self._retry_at = 0.0            # monotonic time before which the disk is left alone
        self._write_at = 0.0            # the same for writing: reads work while another process holds the database
        self._bundle: Bundle | None = None
        self._bundle_path: Path | None = None
        self._failures: dict[str, Exception] = {}
        self._renew_locks()
        _caches.add(self)

    def _renew_locks(self) -> None:
        """Also in a forked child, where threads that held them are gone."""
        self._guard = threading.RLock()
        self._flights = Flights()
        self._counting = threading.Lock()
        self.memory.lock = threading.Lock()
        self.faults.lock = threading.Lock()

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
        """Close the disk level; the next miss opens it again."""
        with self._guard:
            if self._database is not None:
                self._database.close()
            self._database, self._settings, self._retry_at, self._write_at = None, (), 0.0, 0.0
            self._close_bundle()

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
        database = self.disk()
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
                entry, _ = self._read_disk(key)
            if entry is not None:
                self._count(disk_hits=1)
                self.memory.put(entry)
                return entry.body
            return self._compile(key, compile, op, why, store=True)
        finally:
            lock.release()

    def _acquire(self, lock: KeyLock, key: Key, database: Database) -> Entry | None:
        def look() -> Entry | None:
            return self._read_disk(key)[0]
        try:
            return lock.acquire(config.cache_lock_timeout, look)
        except FileNotFoundError:           # the directory was removed under us
            self.attempt(lambda db: place.prepare(db.root, db.create), None)
            return lock.acquire(config.cache_lock_timeout, look)

    def _compile(self, key: Key, compile: Callable[[], bytes], op: str, why: str, store: bool) -> bytes:
        created, start = time.time(), time.perf_counter()

        def record(stored: bool, error: str | None = None) -> None:
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
        entry, why = self._read_disk(key)
        if entry is not None:
            self._count(disk_hits=1)
        else:
            entry = self._read_bundle(key)
            if entry is None:
                return None, why
            self._count(bundle_hits=1)
        self.memory.put(entry)
        return entry, ""

    def _read_disk(self, key: Key | str) -> tuple[Entry | None, str]:
        database = self.disk()
        if database is None:
            return None, f"not in memory, and the disk is not used ({self.state})"
        digest = key if isinstance(key, str) else key.digest
        data = self.attempt(lambda db: db.get(digest), None)
        if data is None:
            return None, "no entry"
        try:
            return decode(data, key), ""
        except Unusable as error:
            if database.create and error.kind != "collision":
                self.attempt(lambda db: db.delete(digest), None)
            self.faults.report(error.kind, f"entry {digest[:12]}…: {error}", database.root)
            return None, f"unusable entry: {error}"

    def _read_bundle(self, key: Key | str) -> Entry | None:
        try:
            bundle = self._second_level()
            if bundle is None:
                return None
            entry = bundle.entry(key if isinstance(key, str) else key.digest)
        except BundleError as error:
            self.faults.report("bundle", str(error.detail), error.path)
            return None
        return None if entry is None or (isinstance(key, Key) and entry.key.text != key.text) else entry

    def store(self, entry: Entry) -> bool:
        database = self.disk()
        if database is None or not database.create or time.monotonic() < self._write_at:
            return False
        data = entry.encode()
        if len(data) > database.limit // 4:
            self.faults.report("too large", f"an entry of {len(data)} bytes, more than a quarter of the limit of "
                                            f"{database.limit}", database.root)
            return False
        kept, evicted = self.attempt(lambda db: db.set(entry.key.digest, data, entry.op), (False, 0))
        self._count(evictions=evicted, stored=kept)
        return kept

    def attempt(self, step: Callable[[Database], T], otherwise: T) -> T:
        """One step on the disk. A fault is reported; a damaged database is moved aside and the step done again."""
        for again in (True, False):
            database = self.disk()
            if database is None:
                break
            try:
                return step(database)
            except place.NoPlace as error:
                self._give_up(database, error)
            except Exception as error:
                kind = classify(error)
                if kind == "database":
                    self._set_aside(database, error)
                    if again:
                        continue
                else:
                    if database.opening == "read":      # do not run into it again at every kernel
                        self._retry_at = time.monotonic() + RETRY_AFTER
                        self.state = f"memory only for {RETRY_AFTER:.0f} s: {error}"
                    elif database.opening == "write" or kind == "busy":
                        self._write_at = time.monotonic() + RETRY_AFTER
                    self.faults.report(kind, f"{type(error).__name__}: {error}", database.root)
            break
        return otherwise

    def _set_aside(self, database: Database, error: Exception) -> None:
        try:
            target = database.set_aside()
        except Exception as trouble:
            self._give_up(database, trouble)
            return
        if target is not None:
            self.faults.report("database", f"the database could not be read ({error}); it is {target.name} now",
                               database.root)

    def _give_up(self, database: Database, why: Exception) -> None:
        if isinstance(why, place.NoPlace) and why.quiet:
            return
        with self._guard:
            if self._database is database:
                self._database, self.state = None, f"memory only: {why}"
                self._retry_at = float("inf")
        database.close()
        self.faults.report("place", str(why), database.root)

    @property
    def root(self) -> Path:
        return self._path or config.cache_path

    def disk(self) -> Database | None:
        """The database under the present settings; None if there is none to use."""
        wanted = (config.cache, self.root, config.cache_size)
        with self._guard:
            if wanted != self._settings:
                self.close()
                self._settings = wanted
            if self._retry_at > time.monotonic():
                return None
            if self._database is not None:
                self.state = "read and write" if self._database.create else "read only"
                return self._database
            if config.cache == "0":
                self.state = "off"
                return None
            create = config.cache == "rw"
            try:
                root = place.prepare(self.root, create)
            except place.NoPlace as error:
                self.state = f"memory only: {error}"
                if error.quiet:
                    return None
                self._retry_at = float("inf")
                trouble = str(error)
            else:
                self._database = Database(root, config.cache_size, create)
                self.state = "read and write" if create else "read only"
                return self._database
        self.faults.report("place", trouble, self.root)
        return None

    def _second_level(self) -> Bundle | None:
        path = config.cache_bundle
        with self._guard:
            if path != self._bundle_path:
                self._close_bundle()
                self._bundle_path = path
                if path is not None:
                    self._bundle = Bundle(path)
            return self._bundle

    def _close_bundle(self) -> None:
        if self._bundle is not None:
            self._bundle.close()
        self._bundle = self._bundle_path = None

    def bundle_name(self) -> str | None:
        return str(self._bundle_path) if self._bundle is not None else None


_caches: weakref.WeakSet[Cache] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for cache in list(_caches):
        cache._renew_locks()


os.register_at_fork(after_in_child=_after_fork_in_child)
