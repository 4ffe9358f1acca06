"""The one form of row that an entry has in diskcache's table: a sha256 key, mode "raw", an inline blob, no file."""
from __future__ import annotations

MODE_RAW = 1


class Refused(Exception):
    """A row that this package cannot have written."""


def checked_value(mode: object, filename: object, value: object) -> bytes:
    """The value of a row. Raises `Refused` for any other form; nothing of such a row is decoded or opened."""
    if mode != MODE_RAW or filename is not None or type(value) is not bytes:
        raise Refused(f"a row of mode {mode!r:.20}, file name {filename!r:.80}, value {type(value).__name__}")
    return value
