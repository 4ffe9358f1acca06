"""How diskcache stores our entries: str keys, bytes values, nothing else.

diskcache's own `Disk` classes, also `JSONDisk`, unpickle where a row's mode says so (CVE-2025-69872), and join the
row's file name to the directory unchecked. This one knows a single form of row, a sha256 key with an inline blob, and
refuses the rest. As no row has a file, a store is one SQLite transaction: at no moment is half an entry visible.

Imports diskcache; import this module only when the disk is needed.
"""
from __future__ import annotations

import sqlite3
from typing import Any

import diskcache

from .key import is_digest
from .rows import MODE_RAW, Refused, checked_value


class RawDisk(diskcache.Disk):
    """Keys are 64 hex digits, values bytes kept inside the database."""

    def put(self, key: object) -> tuple[str, bool]:
        if not is_digest(key):
            raise TypeError(f"keys are sha256 hex digests, not {key!r:.80}")
        assert isinstance(key, str)
        return key, True

    def get(self, key: object, raw: object) -> str | None:
        """The key of a row while iterating; None for a row of another form, whose key is not decoded."""
        if raw not in (1, True) or not is_digest(key):
            return None
        assert isinstance(key, str)
        return key

    def store(self, value: object, read: bool, key: object = None) -> tuple[int, int, None, Any]:
        if read or type(value) is not bytes:
            raise TypeError(f"values are bytes, not {type(value).__name__}")
        return 0, MODE_RAW, None, sqlite3.Binary(value)

    def fetch(self, mode: object, filename: object, value: object, read: bool) -> bytes:
        return checked_value(mode, filename, value)

    def filename(self, key: object = None, value: object = None) -> tuple[str, str]:
        raise Refused("entries have no files")

    def remove(self, file_path: object) -> None:
        """Called for a row with a file name, which none of ours has: leave whatever it points to alone."""
