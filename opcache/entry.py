"""One stored entry: everything about an artifact in one value, verified whenever it is read.

    magic (8) | format (u32) | metadata bytes (u32) | key bytes (u32) | body bytes (u64) | sha256 (32)
    metadata (JSON) | canonical key text (ASCII) | body

Integers are little-endian. The sha256 covers all that is before and after it. It detects damage, not malice: whoever
can write the entry can also write its digest, which is why the directory belongs to its owner alone.
"""
from __future__ import annotations

import hashlib
import json
import struct
import time
from dataclasses import dataclass, field

from . import key as keys

FORMAT = 1
_MAGIC = b"NEopc\r\n\x1a"      # a transfer as text damages the line end, and the first read shows it
_HEAD = struct.Struct("<8sIIIQ")
_DIGEST_BYTES = 32


class Unusable(Exception):
    """Data that is no entry for the wanted key. `kind`: corrupt, foreign (another format) or collision."""

    def __init__(self, kind: str, detail: str):
        super().__init__(detail)
        self.kind = kind


@dataclass(frozen=True)
class Entry:
    """An artifact, its key, and how it came to be. `seconds`: compile time; `created`: Unix time."""
    key: keys.Key
    body: bytes = field(repr=False)
    op: str = ""
    seconds: float = 0.0
    created: float = field(default_factory=time.time)

    def encode(self) -> bytes:
        meta = json.dumps({"op": self.op, "seconds": self.seconds, "created": self.created}).encode("ascii")
        text = self.key.text.encode("ascii")
        head = _HEAD.pack(_MAGIC, FORMAT, len(meta), len(text), len(self.body))
        return b"".join((head, _checksum(head, meta, text, self.body), meta, text, self.body))


def decode(data: bytes, wanted: keys.Key | str) -> Entry:
    """The entry in `data`, which must be the one for `wanted`: a key, or the digest of one.

    Raises `Unusable` for anything else: another length, digest, format or key.
    """
    start = _HEAD.size + _DIGEST_BYTES
    if len(data) < start or not data.startswith(_MAGIC):
        raise Unusable("corrupt", f"{len(data)} bytes without the header of an entry")
    _, version, meta_bytes, text_bytes, body_bytes = _HEAD.unpack_from(data)
    if version != FORMAT:
        raise Unusable("foreign", f"an entry of format {version}, this version reads {FORMAT}")
    if len(data) != start + meta_bytes + text_bytes + body_bytes:
        raise Unusable("corrupt", f"{len(data)} bytes where the header announces "
                                  f"{start + meta_bytes + text_bytes + body_bytes}")
    view = memoryview(data)
    meta, rest = view[start:start + meta_bytes], view[start + meta_bytes:]
    text, body = rest[:text_bytes], rest[text_bytes:]
    if data[_HEAD.size:start] != _checksum(view[:_HEAD.size], meta, text, body):
        raise Unusable("corrupt", "the sha256 does not match the content")
    try:
        about = json.loads(bytes(meta))
        if isinstance(wanted, keys.Key) and text == wanted.text.encode("ascii"):
            key = wanted
        else:
            key = keys.Key.from_text(str(text, "ascii"))
        entry = Entry(key, bytes(body), str(about["op"]), float(about["seconds"]), float(about["created"]))
    except (ValueError, KeyError, TypeError) as error:
        raise Unusable("corrupt", f"unreadable metadata ({error})") from None
    found = key is wanted if isinstance(wanted, keys.Key) else keys.digest_of(key.text) == wanted
    if not found:
        raise Unusable("collision", f"an entry for another key, {key!r}")
    return entry


def _checksum(*parts: bytes | memoryview) -> bytes:
    total = hashlib.sha256()
    for part in parts:
        total.update(part)
    return total.digest()
