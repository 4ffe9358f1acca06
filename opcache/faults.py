"""Faults of the cache cost time, never results: each one is counted, the first of its kind is warned of."""
from __future__ import annotations

import errno
import threading
import warnings
from collections import Counter

from ..config import config
from ..errors import CacheFault, CacheWarning

CONSEQUENCES = {
    "corrupt": "The damaged entry is dropped and made again",
    "foreign": "The entry is dropped and made again",
    "collision": "The entry is not used; this key is made again and takes its place",
    "refused": "The row is dropped and made again. If others can write to this directory, that is why",
    "database": "The database was moved aside and a fresh one started",
    "place": "Compiled kernels are kept in memory only; NEURON_EAGER_CACHE_DIR names another directory",
    "busy": "Another process holds the database; this step goes on without it",
    "full": "Entries that do not fit are kept in memory only; free some space or set NEURON_EAGER_CACHE_DIR",
    "io": "This step goes on without the disk",
    "lock": "Compiling without storing",
    "too large": "It is kept in memory only; NEURON_EAGER_CACHE_SIZE raises the limit",
    "bundle": "The bundle is ignored",
}

_NO_SPACE = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


class Faults:
    """Counts by kind. With `config.cache_strict` a fault raises `CacheFault` instead of a warning."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.lock = threading.Lock()

    def report(self, kind: str, detail: str, place: object) -> None:
        with self.lock:
            self.counts[kind] += 1
            first = self.counts[kind] == 1
        if config.cache_strict:
            raise CacheFault(kind=kind, place=place, detail=detail, consequence=CONSEQUENCES[kind])
        if first:
            warnings.warn(f"compile cache at {place}: {detail}. {CONSEQUENCES[kind]} (further faults of the kind "
                          f"{kind!r} are only counted: neuron_eager.opcache.cache_info())", CacheWarning, stacklevel=2)


def classify(error: Exception) -> str:
    """The kind of fault that an exception of SQLite, diskcache or the file system stands for."""
    import sqlite3
    text = str(error)
    if type(error).__name__ == "Timeout" or "locked" in text or "busy" in text:
        return "busy"
    if type(error).__name__ == "Refused":
        return "refused"
    if "full" in text or (isinstance(error, OSError) and error.errno in _NO_SPACE):
        return "full"
    if isinstance(error, sqlite3.OperationalError):
        return "database" if text.startswith(("no such", "malformed")) else "io"
    if isinstance(error, (OSError, MemoryError, UnicodeError, sqlite3.ProgrammingError, sqlite3.DataError)):
        return "io"
    return "database"       # not a database, a malformed image, or content of another shape than diskcache's
