"""Entries in one file, for other machines.

A bundle is an uncompressed zip archive: `manifest.json` (for each key digest: size, sha256, kind, op) and one member
`entries/<digest>` per entry, in the format of `entry.py`. It is read with positioned reads, so that threads and forked
children can share it, on any file system. Digests show damage; they do not make a bundle from a stranger safe, as its
content is run as machine code.
"""
from __future__ import annotations

import hashlib
import json
import os
import stat
import struct
import tempfile
import zipfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from ..errors import BundleError
from .entry import Entry, Unusable, decode
from .key import is_digest

BUNDLE_FORMAT = 1
_MANIFEST = "manifest.json"
_MANIFEST_LIMIT = 64 << 20
_LOCAL_HEADER = struct.Struct("<4s22xHH")
_WHEN = (1980, 1, 1, 0, 0, 0)       # the same entries give the same bytes


@dataclass(frozen=True)
class BundleSummary:
    """What an export or import moved. `skipped`: entries that were there already."""
    path: str
    entries: int
    bytes: int
    skipped: int
    kinds: dict[str, int]

    def __repr__(self) -> str:
        kinds = ", ".join(f"{n} {kind}" for kind, n in sorted(self.kinds.items())) or "nothing"
        return f"{self.path}: {kinds} ({self.bytes} bytes{f', {self.skipped} already there' if self.skipped else ''})"


class _Member(NamedTuple):
    offset: int         # of the local header
    size: int
    sha256: str
    kind: str
    op: str


def write(path: Path, entries: Iterable[Entry]) -> BundleSummary:
    """Write a bundle; it appears under its name only when it is complete."""
    manifest: dict[str, dict[str, object]] = {}
    kinds: dict[str, int] = {}
    handle, draft = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
                for entry in sorted(entries, key=lambda e: e.key.digest):
                    data = entry.encode()
                    archive.writestr(zipfile.ZipInfo(f"entries/{entry.key.digest}", _WHEN), data)
                    manifest[entry.key.digest] = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest(),
                                                  "kind": entry.key.kind, "op": entry.op}
                    kinds[entry.key.kind] = kinds.get(entry.key.kind, 0) + 1
                content = json.dumps({"format": BUNDLE_FORMAT, "entries": manifest}, indent=1)
                archive.writestr(zipfile.ZipInfo(_MANIFEST, _WHEN), content)
            file.flush()
            os.fsync(file.fileno())
            os.fchmod(file.fileno(), 0o644)
        os.replace(draft, path)
    except BaseException:
        os.unlink(draft)
        raise
    return BundleSummary(str(path), len(manifest), path.stat().st_size, 0, kinds)


class Bundle:
    """A bundle open for reading. Raises `BundleError` for a file that is none, or that others can write."""

    def __init__(self, path: Path):
        self.path = path
        try:
            self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise BundleError(path=path, detail=f"cannot be read ({error.strerror})") from None
        try:
            if os.fstat(self._fd).st_mode & stat.S_IWOTH:
                raise BundleError(path=path, detail="can be written by everyone on this machine")
            self._members = self._index()
        except BaseException:
            os.close(self._fd)
            self._fd = -1
            raise

    def _index(self) -> dict[str, _Member]:
        try:
            with open(self.path, "rb") as file, zipfile.ZipFile(file) as archive:
                infos = {i.filename: i for i in archive.infolist()}
                if infos[_MANIFEST].file_size > _MANIFEST_LIMIT:
                    raise ValueError("an oversized manifest")
                manifest = json.loads(archive.read(_MANIFEST))
                if manifest["format"] != BUNDLE_FORMAT:
                    raise BundleError(path=self.path, detail=f"has format {manifest['format']}, this version reads "
                                                             f"{BUNDLE_FORMAT}")
                members = {}
                for digest, about in manifest["entries"].items():
                    info = infos[f"entries/{digest}"]
                    if not is_digest(digest) or not is_digest(about["sha256"]):
                        raise ValueError(f"the name {digest!r:.80}")
                    if info.compress_type != zipfile.ZIP_STORED or info.file_size != about["bytes"]:
                        raise ValueError(f"a member {digest} of another size than the manifest says")
                    members[digest] = _Member(info.header_offset, info.file_size, about["sha256"], str(about["kind"]),
                                              str(about["op"]))
                return members
        except (zipfile.BadZipFile, OSError, ValueError, KeyError, TypeError, AttributeError, EOFError,
                NotImplementedError) as error:
            detail = f"is damaged or no bundle ({type(error).__name__}: {error})"
            raise BundleError(path=self.path, detail=detail) from None

    def __len__(self) -> int:
        return len(self._members)

    def digests(self) -> list[str]:
        return list(self._members)

    def get(self, digest: str) -> bytes | None:
        """The data of an entry, verified against the manifest. Raises `BundleError` if it is damaged."""
        member = self._members.get(digest)
        if member is None:
            return None
        try:
            head = os.pread(self._fd, 30, member.offset)
            magic, name, extra = _LOCAL_HEADER.unpack(head)
            data = os.pread(self._fd, member.size, member.offset + 30 + name + extra)
        except (OSError, struct.error) as error:
            raise BundleError(path=self.path, detail=f"cannot be read ({error})") from None
        if magic != b"PK\x03\x04" or hashlib.sha256(data).hexdigest() != member.sha256:
            raise BundleError(path=self.path, detail=f"has a damaged entry {digest}")
        return data

    def entry(self, digest: str) -> Entry | None:
        """The same, decoded."""
        data = self.get(digest)
        if data is None:
            return None
        try:
            return decode(data, digest)
        except Unusable as error:
            raise BundleError(path=self.path, detail=f"has an unusable entry {digest}: {error}") from None

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> Bundle:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
