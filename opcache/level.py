"""The two levels below memory, under the settings of the moment: the disk, and a bundle. Their faults end here."""
from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from ..config import config
from ..errors import BundleError
from . import place
from .database import Database
from .entry import Entry, Unusable, decode
from .faults import Faults, classify
from .key import Key

if TYPE_CHECKING:
    from .bundle import Bundle

log = logging.getLogger(__name__)

T = TypeVar("T")

RETRY_AFTER = 30.0          # seconds until a disk that could not be opened, or written to, is tried again


class DiskLevel:
    """The database under `path`, or `config.cache_path`. `state` says what it does at present, and if nothing, why."""

    def __init__(self, path: Path | None, faults: Faults):
        self._path, self.faults = path, faults
        self.state = ""
        self.lock = threading.RLock()
        self._settings: tuple[object, ...] = ()
        self._database: Database | None = None
        self._retry_at = 0.0            # monotonic time before which the disk is left alone
        self._write_at = 0.0            # the same for writing: reads work while another process holds the database

    @property
    def root(self) -> Path:
        return self._path or config.cache_path

    def read(self, key: Key | str) -> tuple[Entry | None, str]:
        """The entry for a key or digest; else why there is none. What is unusable is removed."""
        database = self.database()
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

    def write(self, entry: Entry) -> tuple[bool, int]:
        """Whether the entry is on disk now, and how many others had to go."""
        database = self.database()
        if database is None or not database.create or time.monotonic() < self._write_at:
            return False, 0
        data = entry.encode()
        if len(data) > database.limit // 4:
            self.faults.report("too large", f"an entry of {len(data)} bytes, more than a quarter of the limit of "
                                            f"{database.limit}", database.root)
            return False, 0
        kept, evicted = self.attempt(lambda db: db.set(entry.key.digest, data, entry.op), (False, 0))
        if evicted:
            log.info("%d entries had to go, as the cache has reached its limit of %d bytes", evicted, database.limit)
        return kept, evicted

    def attempt(self, step: Callable[[Database], T], otherwise: T) -> T:
        """One step on the disk. A fault is reported; a damaged database is moved aside and the step done again."""
        for again in (True, False):
            database = self.database()
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
        if not database.create:
            self._give_up(database, error)
            return
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
        with self.lock:
            if self._database is database:
                self._database, self.state = None, f"memory only: {why}"
                self._retry_at = float("inf")
        database.close()
        self.faults.report("place", str(why), database.root)

    def database(self) -> Database | None:
        """The database under the present settings; None if there is none to use."""
        wanted = (config.cache, self.root, config.cache_size)
        with self.lock:
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

    def close(self) -> None:
        """Let go of the database; the next step opens it again."""
        with self.lock:
            if self._database is not None:
                self._database.close()
            self._database, self._settings, self._retry_at, self._write_at = None, (), 0.0, 0.0


class BundleLevel:
    """The bundle that `config.cache_bundle` names, if any."""

    def __init__(self, faults: Faults):
        self.faults = faults
        self.lock = threading.Lock()
        self._path: Path | None = None
        self._bundle: Bundle | None = None

    @property
    def name(self) -> str | None:
        return str(self._path) if self._bundle is not None else None

    def read(self, key: Key | str) -> Entry | None:
        try:
            bundle = self._open()
            entry = None if bundle is None else bundle.entry(key if isinstance(key, str) else key.digest)
        except BundleError as error:
            self.faults.report("bundle", str(error.detail), error.path)
            return None
        return None if entry is None or (isinstance(key, Key) and entry.key.text != key.text) else entry

    def _open(self) -> Bundle | None:
        path = config.cache_bundle
        if path == self._path:
            return self._bundle
        with self.lock:
            self._close()
            self._path = path
            if path is not None:
                from .bundle import Bundle
                self._bundle = Bundle(path)
            return self._bundle

    def close(self) -> None:
        with self.lock:
            self._close()

    def _close(self) -> None:
        if self._bundle is not None:
            self._bundle.close()
        self._bundle = self._path = None
