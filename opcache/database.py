"""The disk level: one diskcache database, used so that none of its known traps can bite.

- It is opened at the first miss in memory, not at import, and only after a look with plain SQLite: a database held by
  somebody else would block diskcache's constructor for a minute, and rows of its Settings table become attributes.
- No transaction is ever open while code of others runs; no call retries without end.
- A connection is used by one thread at a time, closed after each step off the main thread, and left alone in a forked
  child.
- All settings are passed at each open, as diskcache keeps them in the database and the last opener wins.

Raises what SQLite, diskcache and the file system raise; `faults.classify` sorts it out.
"""
from __future__ import annotations

import atexit
import contextlib
import fcntl
import itertools
import os
import shutil
import threading
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import place

if TYPE_CHECKING:
    import diskcache

OPEN_DEADLINE = 2.0         # seconds to wait for a writer when opening
_KEPT_ASIDE = 2             # how many damaged databases stay for a look

_SETTINGS = {
    "eviction_policy": "least-recently-stored", "cull_limit": 10, "statistics": 0, "tag_index": 1,
    "sqlite_auto_vacuum": 1, "sqlite_cache_size": 1 << 13, "sqlite_journal_mode": "wal", "sqlite_synchronous": 1,
    "sqlite_mmap_size": 0,              # a mapped file that shrinks kills the process
    "disk_min_file_size": 1 << 31,      # every value inside the database
    "disk_pickle_protocol": 0,
}
_KNOWN_SETTINGS = {*_SETTINGS, "size_limit", "count", "size", "hits", "misses"}
_KNOWN_TABLES = {"Settings", "Cache"}


class Database:
    """Entries by digest. `root`: the checked cache directory; `limit`: bytes; `create`: may be made and written."""

    def __init__(self, root: Path, limit: int, create: bool):
        self.root, self.limit, self.create = root, limit, create
        self.lock = threading.RLock()
        self._cache: diskcache.Cache | None = None
        self._inode = 0
        self.opened = False         # whether the last step got as far as an open database
        _databases.add(self)

    @property
    def file(self) -> Path:
        return place.entries(self.root) / "cache.db"

    # ---- steps

    def get(self, digest: str) -> bytes | None:
        with self._open() as cache:
            return cache.get(digest)

    def set(self, digest: str, data: bytes, tag: str) -> tuple[bool, int]:
        """Store, then make room. Returns whether the entry is there now, and how many others had to go."""
        with self._open() as cache:
            before = len(cache) + (digest not in cache)
            cache.set(digest, data, tag=tag)
            if cache.volume() > self.limit:
                cache.cull()
            return digest in cache, max(0, before - len(cache))

    def delete(self, digest: str) -> None:
        with self._open() as cache:
            cache.delete(digest)

    def clear(self, tag: str | None = None) -> int:
        with self._open() as cache:
            return cache.clear() if tag is None else cache.evict(tag)

    def digests(self, newest: int | None = None) -> list[str]:
        """The digests of the stored entries, the newest first; rows of a foreign form are left out."""
        with self._open() as cache:
            return [d for d in itertools.islice(reversed(cache), newest) if d is not None]

    def usage(self) -> tuple[int, int]:
        """(entries, bytes)."""
        with self._open() as cache:
            return len(cache), cache.volume()

    def sweep(self) -> list[str]:
        """Check the database's structure and delete rows that are not ours. Returns what was found."""
        import sqlite3
        with self._open():
            connection = sqlite3.connect(self.file, timeout=OPEN_DEADLINE, isolation_level=None)
            with contextlib.closing(connection):
                found = [f"database: {line}" for (line,) in connection.execute("PRAGMA quick_check") if line != "ok"]
                foreign = connection.execute(
                    "DELETE FROM Cache WHERE raw IS NOT 1 OR mode IS NOT 1 OR filename IS NOT NULL "
                    "OR typeof(value) IS NOT 'blob' OR typeof(key) IS NOT 'text'").rowcount
        return found + ([f"{foreign} rows of a foreign form (removed)"] if foreign > 0 else [])

    # ---- the handle

    @contextlib.contextmanager
    def _open(self) -> Iterator[Any]:
        with self.lock:
            try:
                self.opened = False
                cache = self._current()
                self.opened = True
                yield cache
            except BaseException:
                self.close()        # whatever the connection was in the middle of is rolled back
                raise
            finally:
                if threading.current_thread() is not threading.main_thread() and self._cache is not None:
                    self._cache.close()

    def _current(self) -> diskcache.Cache:
        if self._cache is not None:
            with contextlib.suppress(OSError):
                if os.stat(self.file).st_ino == self._inode:
                    return self._cache
            self.close()            # the directory was removed or replaced under us
        self._cache = self._connect()
        self._inode = os.stat(self.file).st_ino
        return self._cache

    def _connect(self) -> diskcache.Cache:
        place.prepare(self.root, self.create)
        with contextlib.suppress(FileNotFoundError):
            self._inode = os.stat(self.file).st_ino
        _vet(self.file)
        import diskcache

        from .disk import RawDisk
        return diskcache.Cache(_verbatim(place.entries(self.root)), timeout=1, disk=RawDisk, size_limit=self.limit,
                               **_SETTINGS)

    def close(self) -> None:
        with self.lock:
            cache, self._cache = self._cache, None
            if cache is not None:
                with contextlib.suppress(Exception):
                    cache.close()

    def set_aside(self) -> Path | None:
        """Move a database that cannot be read out of the way; None if another process has done it already."""
        self.close()
        with _deadline_lock(self.root / "aside.lock"):
            try:
                if os.stat(self.file).st_ino != self._inode:
                    return None
            except FileNotFoundError:
                return None
            folder = place.entries(self.root)
            target = folder.with_name(f"{folder.name}.corrupt-{time.strftime('%Y%m%dT%H%M%S')}-{os.getpid()}")
            folder.rename(target)
            place.prepare(self.root, self.create)
        for old in sorted(self.root.glob("*.corrupt-*"))[:-_KEPT_ASIDE]:
            shutil.rmtree(old, ignore_errors=True)
        return target


def _vet(file: Path) -> None:
    """Look at a database before diskcache opens it. Raises DatabaseError for one that is not a cache of ours, and
    OperationalError ("database is locked") if a writer keeps it for longer than the deadline."""
    if not file.exists() or file.stat().st_size == 0:
        return
    import sqlite3
    with contextlib.closing(sqlite3.connect(file, timeout=OPEN_DEADLINE, isolation_level=None)) as connection:
        tables = {n for (n,) in connection.execute("SELECT name FROM sqlite_master WHERE type IN ('table', 'view')")}
        if not {t for t in tables if not t.startswith("sqlite_")} <= _KNOWN_TABLES:
            raise sqlite3.DatabaseError(f"a database with other tables: {sorted(tables - _KNOWN_TABLES)}")
        if "Settings" in tables:
            settings = {k for (k,) in connection.execute("SELECT key FROM Settings")}
            if not settings <= _KNOWN_SETTINGS:
                others = sorted(map(str, settings - _KNOWN_SETTINGS))
                raise sqlite3.DatabaseError(f"a database with other settings: {others}")
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("ROLLBACK")


def _verbatim(folder: Path) -> str:
    """diskcache expands "~" and "$NAME" in a directory: refuse one where that would lead elsewhere."""
    path = str(folder)
    if os.path.expandvars(os.path.expanduser(path)) != path:
        raise place.NoPlace(f"its path has a part that looks like a variable: {path}")
    return path


@contextlib.contextmanager
def _deadline_lock(path: Path, seconds: float = 5.0) -> Iterator[None]:
    """An flock; after `seconds` go on without it, as what it guards is safe to do twice."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                time.sleep(0.01)
        yield
    finally:
        os.close(fd)


# ---- fork and exit

_databases: weakref.WeakSet[Database] = weakref.WeakSet()
_left_alone: list[Any] = []     # handles of the parent: closing their connections in a child could harm its files


def _before_fork() -> None:
    for database in list(_databases):
        database.lock.acquire(timeout=5)        # no step is under way at the moment of the fork


def _after_fork_in_parent() -> None:
    for database in list(_databases):
        with contextlib.suppress(RuntimeError):
            database.lock.release()


def _after_fork_in_child() -> None:
    for database in list(_databases):
        database.lock = threading.RLock()
        _left_alone.append(database._cache)
        database._cache = None


def _at_exit() -> None:
    for database in list(_databases):
        database.close()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)
atexit.register(_at_exit)
