"""The first level: bodies of this process by digest, least recently used first out."""
from __future__ import annotations

import threading
from collections import OrderedDict

from .entry import Entry
from .key import Key


class Memory:
    def __init__(self, limit: int = 256 << 20):
        self.limit, self.bytes, self.evictions = limit, 0, 0
        self._entries: OrderedDict[str, Entry] = OrderedDict()
        self.lock = threading.Lock()

    def get(self, wanted: Key | str) -> Entry | None:
        digest = wanted if isinstance(wanted, str) else wanted.digest
        with self.lock:
            entry = self._entries.get(digest)
            if entry is None or (isinstance(wanted, Key) and entry.key.text != wanted.text):
                return None
            self._entries.move_to_end(digest)
            return entry

    def put(self, entry: Entry) -> None:
        with self.lock:
            old = self._entries.pop(entry.key.digest, None)
            self.bytes += _size(entry) - (_size(old) if old else 0)
            self._entries[entry.key.digest] = entry
            while self.bytes > self.limit and len(self._entries) > 1:
                _, out = self._entries.popitem(last=False)
                self.bytes -= _size(out)
                self.evictions += 1

    def clear(self) -> None:
        with self.lock:
            self._entries.clear()
            self.bytes = 0

    def entries(self) -> list[Entry]:
        with self.lock:
            return list(self._entries.values())

    def __len__(self) -> int:
        return len(self._entries)


def _size(entry: Entry) -> int:
    return len(entry.body) + len(entry.key.text)
