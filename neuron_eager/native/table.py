"""A compiled kernel as data: which objects it calls, in which order, with which numbers. Can be stored and loaded
again."""

from __future__ import annotations

import base64
import ctypes
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .driver import ENTRY, HEADER, SPREAD

FORMAT = 1


@dataclass
class Entry:
    """One call: function number `function` of the table for the range first..last; leaves as (base, offset)."""

    function: int
    first: int
    last: int
    work: int
    leaves: list[tuple[int, int]]
    wait: int = 0


@dataclass
class Table:
    """What to run. objects: the key of each function's object; scratch: the bytes each function needs."""

    entries: list[Entry]
    objects: list[str]
    scratch: list[int]
    arena: int = 0
    constants: bytes = b""
    safe: list[tuple[int, int]] = field(default_factory=list)  # (input, output) positions that may be one memory
    checked: bool = False  # it has run-time indices that may be out of bounds
    how: str = "whole"

    @property
    def independent(self) -> bool:
        return not any(e.wait for e in self.entries)

    def words(self, functions: list[int], constants: int) -> np.ndarray:
        """The table as the driver reads it, with the addresses of the functions and of the constants."""
        work = sum((e.last - e.first) * e.work for e in self.entries)
        spread = SPREAD if self.independent and len(self.entries) >= 16 and self.even() else 0
        out = [len(self.entries), work, max(self.scratch, default=0) // 64 * 64 + 64, self.arena, spread, constants]
        assert len(out) == HEADER
        for e in self.entries:
            out += [functions[e.function], e.first, e.last, e.work, e.wait, len(e.leaves)]
            assert ENTRY == 6
            for base, offset in e.leaves:
                out += (base, offset)
        return np.array(out, np.int64)

    def even(self) -> bool:
        """Whether the entries are about equally long, so that threads can take whole ones."""
        lengths = [(e.last - e.first) * e.work for e in self.entries]
        return max(lengths) * 8 <= sum(lengths)

    # ---- storage
    def to_json(self) -> str:
        return json.dumps(
            {
                "format": FORMAT,
                "objects": self.objects,
                "scratch": self.scratch,
                "arena": self.arena,
                "how": self.how,
                "constants": base64.b64encode(self.constants).decode(),
                "safe": self.safe,
                "checked": self.checked,
                "entries": [
                    [e.function, e.first, e.last, e.work, e.wait, [x for leaf in e.leaves for x in leaf]]
                    for e in self.entries
                ],
            },
            separators=(",", ":"),
        )

    @staticmethod
    def from_json(text: str) -> Table:
        """Raises ValueError or KeyError for anything that `to_json` did not write."""
        d: Mapping[str, Any] = json.loads(text)
        if d["format"] != FORMAT:
            raise ValueError(f"table of format {d['format']}")
        entries = [Entry(f, a, b, w, list(zip(x[::2], x[1::2])), wait) for f, a, b, w, wait, x in d["entries"]]
        return Table(
            entries,
            list(d["objects"]),
            list(d["scratch"]),
            d["arena"],
            base64.b64decode(d["constants"]),
            [(i, o) for i, o in d["safe"]],
            d["checked"],
            d["how"],
        )


_immortal: list[Any] = []  # machine code may run at any time: what it reads is never freed


def pin(words: np.ndarray) -> int:
    """Address of a table that stays in memory."""
    _immortal.append(words)
    return int(words.ctypes.data)


def pin_bytes(data: bytes) -> int:
    """Address, a multiple of 64, of bytes that stay in memory; 0 for none."""
    if not data:
        return 0
    buffer = ctypes.create_string_buffer(len(data) + 64)
    address = (ctypes.addressof(buffer) + 63) // 64 * 64
    ctypes.memmove(address, data, len(data))
    _immortal.append(buffer)
    return address
