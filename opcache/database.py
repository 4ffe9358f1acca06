"""The disk level: one diskcache database, used so that none of its known traps can bite.

Written through diskcache, read with plain SQLite. diskcache's constructor writes a few dozen settings, so it needs
space and the writer's lock, and takes ten milliseconds with its import. Reading must go on when the disk is full, the
directory read-only or another process stuck in a transaction, and a process that finds all its kernels need not pay for
writing.

- Writing is opened only after a look with SQLite: a database held by somebody else would block the constructor for a
  minute, and rows of the Settings table become attributes.
- No transaction is ever open while code of others runs; no call retries without end.
- A connection is used by one thread at a time, and left alone in a forked child.
- All settings are passed at each open, as diskcache keeps them in the database and the last opener wins.

Raises what SQLite, diskcache and the file system raise; `faults.classify` sorts it out.
"""
from __future__ import annotations

import atexit
import contextlib
import fcntl
import os
import shutil
import threading
import time
import urllib.parse
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import place
from .rows import checked_value

if TYPE_CHECKING:
    import sqlite3

    import diskcache

WRITER_DEADLINE = 5.0       # seconds to wait for another writer; a store takes about a millisecond
_READER_DEADLINE = 1.0      # readers wait only while another process opens or closes the database
_KEPT_ASIDE = 2             # how many damaged databases stay for a look

_SETTINGS = {
    "eviction_policy": "least-recently-stored", "cull_limit": 10, "statistics": 0, "tag_index": 1,
    "sqlite_auto_vacuum": 1, "sqlite_cache_size": 1 << 13, "sqlite_journal_mode": "wal", "sqlite_synchronous": 1,
    "sqlite_mmap_size": 0,              # a mapped file that shrinks kills the process
    "disk_min_file_size": 1 << 31,      # every value inside the database
    "disk_pickle_protocol": 0,
}
_KNOWN_TABLES = {"Settings", "Cache"}


class Database:
    """Entries by digest. `root`: the checked cache directory; `limit`: bytes; `create`: may be made and written."""

    def __init__(self, root: Path, limit: int, create: bool):
        self.root, self.limit, self.create = root, limit, create
        self.lock = threading.RLock()
        self._reader: sqlite3.Connection | None = None
        self._writer: diskcache.Cache | None = None
        self._inode = 0
        self.opening = ""           # "read" or "write" while opening for it; stays so if that failed
        _databases.add(self)

    @property
    def file(self) -> Path:
        return place.entries(self.root) / "cache.db"

    # ---- reading

    def get(self, digest: str) -> bytes | None:
        """The value of an entry. Raises `Refused` for a row that is not ours."""
        rows = self._select("SELECT mode, filename, value FROM Cache WHERE key = ? AND raw = 1", digest)
        return checked_value(*rows[0]) if rows else None

    def digests(self, newest: int | None = None) -> list[str]:
        """The digests of the stored entries, the newest first; rows of a foreign form are left out."""
        rows = self._select("SELECT key FROM Cache WHERE raw = 1 AND mode = 1 AND typeof(key) = 'text' "
                            "ORDER BY rowid DESC LIMIT ?", -1 if newest is None else newest)
        return [digest for (digest,) in rows]

    def usage(self) -> tuple[int, int]:
        """(entries, bytes)."""
        rows = self._select("SELECT (SELECT count(*) FROM Cache), page_count * page_size "
                            "FROM pragma_page_count, pragma_page_size")
        return rows[0] if rows else (0, 0)

    def _select(self, statement: str, *arguments: object) -> list[Any]:
        """Rows; none if there is no database yet, or another process is just making it."""
        import sqlite3
        with self.lock:
            try:
                self._check_inode()
                if self._reader is None:
                    self._reader = self._open_reader()
                if self._reader is None:
                    return []
                return self._reader.execute(statement, arguments).fetchall()
            except sqlite3.OperationalError as error:
                self.close()
                if str(error).startswith("no such table"):
                    return []
                raise
            except BaseException:
                self.close()
                raise

    def _open_reader(self) -> sqlite3.Connection | None:
        import sqlite3
        self.opening = "read"
        place.prepare(self.root, self.create)
        try:
            info = os.stat(self.file)
        except FileNotFoundError:
            info = None
        if info is None or info.st_size == 0:
            self.opening = ""
            return None
        self._inode = info.st_ino
        uri = f"file:{urllib.parse.quote(str(self.file))}?mode=ro"
        connection = _connect(uri)
        try:
            connection.execute("SELECT count(*) FROM sqlite_master").fetchall()
        except sqlite3.OperationalError as error:
            connection.close()
            wal = self.file.with_name("cache.db-wal")
            if "locked" in str(error) or (wal.exists() and wal.stat().st_size):
                raise
            # No room, or no permission, for the shared memory of the log; without a log it is not needed.
            connection = _connect(f"{uri}&immutable=1")
        except BaseException:
            connection.close()
            raise
        self.opening = ""
        return connection

    # ---- writing

    def set(self, digest: str, data: bytes, tag: str) -> tuple[bool, int]:
        """Store, then make room. Returns whether the entry is there now, and how many others had to go."""
        with self._writing() as cache:
            before = len(cache) + (digest not in cache)
            cache.set(digest, data, tag=tag)
            if cache.volume() > self.limit:
                cache.cull()
            return digest in cache, max(0, before - len(cache))

    def delete(self, digest: str) -> None:
        with self._writing() as cache:
            cache.delete(digest)

    def clear(self, tag: str | None = None) -> int:
        """Remove the entries with a tag, or all; returns how many."""
        with self._writing() as cache:
            return cache.clear() if tag is None else cache.evict(tag)

    def sweep(self) -> list[str]:
        """Check the database's structure and delete rows that are not ours. Returns what was found."""
        import sqlite3
        with self._writing():
            connection = sqlite3.connect(self.file, timeout=WRITER_DEADLINE, isolation_level=None)
            with contextlib.closing(connection):
                found = [f"database: {line}" for (line,) in connection.execute("PRAGMA quick_check") if line != "ok"]
                foreign = connection.execute(
                    "DELETE FROM Cache WHERE raw IS NOT 1 OR mode IS NOT 1 OR filename IS NOT NULL "
                    "OR typeof(value) IS NOT 'blob' OR typeof(key) IS NOT 'text'").rowcount
        return found + ([f"{foreign} rows of a foreign form (removed)"] if foreign > 0 else [])

    @contextlib.contextmanager
    def _writing(self) -> Iterator[Any]:
        with self.lock:
            try:
                self._check_inode()
                if self._writer is None:
                    self._writer = self._open_writer()
                yield self._writer
            except BaseException:
                self.close()        # whatever the connection was in the middle of is rolled back
                raise
            finally:
                # diskcache has a connection per thread, which nobody would close when the thread ends.
                if threading.current_thread() is not threading.main_thread() and self._writer is not None:
                    self._writer.close()

    def _open_writer(self) -> diskcache.Cache:
        self.opening = "write"
        place.prepare(self.root, self.create)
        before = self._inode
        with contextlib.suppress(FileNotFoundError):
            self._inode = os.stat(self.file).st_ino
        _vet(self.file)
        import diskcache

        from .disk import RawDisk
        writer = diskcache.Cache.__new__(diskcache.Cache)
        try:
            writer.__init__(_verbatim(place.entries(self.root)), timeout=WRITER_DEADLINE, disk=RawDisk,
                            size_limit=self.limit, **_SETTINGS)
        except BaseException:
            with contextlib.suppress(Exception):
                writer.close()          # a constructor that fails leaves its connection open
            raise
        self._inode = os.stat(self.file).st_ino
        if self._reader is not None and self._inode != before:
            self._reader.close()
            self._reader = None
        self.opening = ""
        return writer

    # ---- both

    def _check_inode(self) -> None:
        """Let go of a database that was removed or replaced under us."""
        if self._reader is None and self._writer is None:
            return
        with contextlib.suppress(OSError):
            if os.stat(self.file).st_ino == self._inode:
                return
        self.close()

    def close(self) -> None:
        with self.lock:
            for handle in (self._reader, self._writer):
                if handle is not None:
                    with contextlib.suppress(Exception):
                        handle.close()
            self._reader = self._writer = None

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


def _connect(uri: str) -> sqlite3.Connection:
    import sqlite3
    return sqlite3.connect(uri, uri=True, timeout=_READER_DEADLINE, isolation_level=None, check_same_thread=False)


def _vet(file: Path) -> None:
    """Look at a database before diskcache opens it. Raises DatabaseError for one that is not a cache of ours, and
    OperationalError ("database is locked") if a writer keeps it for longer than the deadline."""
    if not file.exists() or file.stat().st_size == 0:
        return
    import sqlite3
    with contextlib.closing(sqlite3.connect(file, timeout=WRITER_DEADLINE, isolation_level=None)) as connection:
        tables = {n for (n,) in connection.execute("SELECT name FROM sqlite_master WHERE type IN ('table', 'view')")}
        if not {t for t in tables if not t.startswith("sqlite_")} <= _KNOWN_TABLES:
            raise sqlite3.DatabaseError(f"a database with other tables: {sorted(tables - _KNOWN_TABLES)}")
        if "Settings" in tables:
            for (name,) in connection.execute("SELECT key FROM Settings"):
                if not _is_setting(name):
                    raise sqlite3.DatabaseError(f"a database with the setting {name!r:.80}")
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("ROLLBACK")


def _is_setting(name: object) -> bool:
    """diskcache makes each setting an attribute of its cache, and each "sqlite_" one a pragma."""
    import diskcache
    if not isinstance(name, str) or not name.isidentifier() or name.startswith("_"):
        return False
    if name.startswith("sqlite_"):
        return name in diskcache.DEFAULT_SETTINGS
    return not hasattr(diskcache.Cache, name)


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
        _left_alone.extend((database._reader, database._writer))
        database._reader = database._writer = None


def _at_exit() -> None:
    for database in list(_databases):
        database.close()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)
atexit.register(_at_exit)
