"""What people ask of a cache: its state, why it missed, a check, a purge, bundles."""
from __future__ import annotations

import shutil
from collections import defaultdict, deque
from collections.abc import Collection
from dataclasses import asdict, replace
from pathlib import Path

from ..errors import BundleError
from . import bundle as bundles
from . import place
from .bundle import Bundle, BundleSummary
from .entry import Entry, Unusable, decode
from .key import Key, nearest
from .lock import remove_stale
from .report import CacheInfo, CompileRecord, CompileReport
from .store import Cache

_ON_DISK = 2000     # how many of the newest entries on disk are read to explain misses
_COMPARED = 100     # with how many entries of its op, and of its kind, a miss is compared


def cache_info(cache: Cache) -> CacheInfo:
    """The state of the cache; opens the disk level."""
    entries, size = cache.disk.attempt(lambda db: db.usage(), (0, 0))
    database = cache.disk.database()
    limit = database.limit if database is not None else 0
    return CacheInfo(
        **asdict(cache.counts), memory_entries=len(cache.memory), memory_bytes=cache.memory.bytes,
        entries=entries, bytes=size, limit=limit, place=str(cache.disk.root), state=cache.disk.state,
        bundle=cache.bundle.name, errors=dict(cache.faults.counts))


def compile_report(cache: Cache) -> CompileReport:
    """The compiles of this process, each with the parts of its key in which the nearest older entry differs.

    The keys are read back from memory and disk when the report is asked for; an entry that has gone from both is
    reported without them.
    """
    records = list(cache.log.records)
    known = {e.key.digest: e for e in _stored(cache, _ON_DISK)} if records else {}
    known.update((e.key.digest, e) for e in cache.memory.entries())
    return CompileReport(_explain(records, known), dropped=cache.log.total - len(records))


def _explain(records: list[CompileRecord], known: dict[str, Entry]) -> list[CompileRecord]:
    """Walk records and entries in the order of time, and compare each record with the entries that were there before:
    the latest ones of the same op first, which so win a tie, then the latest of its kind."""
    of_op: defaultdict[tuple[str, str], deque[Key]] = defaultdict(lambda: deque(maxlen=_COMPARED))
    of_kind: defaultdict[str, deque[Key]] = defaultdict(lambda: deque(maxlen=_COMPARED))
    entries = deque(sorted(known.values(), key=lambda e: e.created))
    explained = {}
    for record in sorted(records, key=lambda r: r.created):
        while entries and entries[0].created < record.created:
            entry = entries.popleft()
            of_op[entry.key.kind, entry.op].appendleft(entry.key)
            of_kind[entry.key.kind].appendleft(entry.key)
        own = known.get(record.digest)
        if own is None or record.reason.startswith("unusable"):
            continue
        found = nearest(own.key, (*of_op[record.kind, record.op], *of_kind[record.kind]))
        if found is None:
            explained[id(record)] = replace(record, reason=f"{record.reason}; the first of kind {record.kind!r}")
        else:
            explained[id(record)] = replace(record, nearest=known[found[0].digest].op, differs=found[1])
    return [explained.get(id(r), r) for r in records]


def _digests(cache: Cache, newest: int | None = None) -> list[str]:
    none: list[str] = []
    return cache.disk.attempt(lambda db: db.digests(newest), none)


def _data(cache: Cache, digest: str) -> bytes | None:
    return cache.disk.attempt(lambda db: db.get(digest), None)


def _delete(cache: Cache, digest: str) -> None:
    cache.disk.attempt(lambda db: db.delete(digest), None)


def _stored(cache: Cache, newest: int | None = None) -> list[Entry]:
    """The usable entries on disk, the newest first."""
    entries = []
    for digest in _digests(cache, newest):
        data = _data(cache, digest)
        if data is not None:
            try:
                entries.append(decode(data, digest))
            except Unusable:
                continue
    return entries


def check(cache: Cache) -> list[str]:
    """Verify every entry, remove what is unusable, and return what was found; an empty list is a healthy cache."""
    none: list[str] = []
    found = cache.disk.attempt(lambda db: db.sweep(), none)
    database = cache.disk.database()
    if database is None:
        return [cache.disk.state] if cache.disk.state.startswith("memory only") else []
    for digest in _digests(cache):
        data = _data(cache, digest)
        if data is None:
            continue
        try:
            decode(data, digest)
        except Unusable as error:
            _delete(cache, digest)
            found.append(f"entry {digest[:12]}…: {error} (removed)")
    stale = remove_stale(place.locks(database.root))
    if stale:
        found.append(f"{stale} lock files of processes that died (removed)")
    found += [f"{p.name}: a damaged database that was moved aside; purge removes it" for p in _aside(database.root)]
    return found


def purge(cache: Cache, op: str | None = None, kind: str | None = None) -> int:
    """Remove the entries of an op and kind, of all if neither is given, from memory and disk; returns how many."""
    cache.forget()
    if kind is None:
        removed = cache.disk.attempt(lambda db: db.clear(op), 0)
    else:
        doomed = [e.key.digest for e in _stored(cache) if e.key.kind == kind and op in (None, e.op)]
        for digest in doomed:
            _delete(cache, digest)
        removed = len(doomed)
    database = cache.disk.database()
    if database is not None and op is None and kind is None:
        for folder in _aside(database.root):
            shutil.rmtree(folder, ignore_errors=True)
    return removed


def _aside(root: Path) -> list[Path]:
    return sorted(root.glob("v*.corrupt-*"))


def export_bundle(cache: Cache, path: str | Path, kinds: Collection[str] | None = None,
                  ops: Collection[str] | None = None) -> BundleSummary:
    """Write the entries on disk and in memory, of the given kinds and ops if given, to one file."""
    entries = {e.key.digest: e for e in [*_stored(cache), *cache.memory.entries()]
               if (kinds is None or e.key.kind in kinds) and (ops is None or e.op in ops)}
    return bundles.write(Path(path), entries.values())


def import_bundle(cache: Cache, path: str | Path) -> BundleSummary:
    """Verify a bundle as a whole, then store what is not there yet. If it raises `BundleError`, nothing was stored."""
    with Bundle(Path(path)) as bundle:
        for digest in bundle.digests():
            bundle.entry(digest)
        database = cache.disk.database()
        if database is None or not database.create:
            raise BundleError(path=path, detail=f"has no place to go: the cache is {cache.disk.state}")
        present = set(_digests(cache))
        kinds: dict[str, int] = {}
        size = skipped = 0
        for digest in bundle.digests():
            entry = bundle.entry(digest)
            if entry is None or digest in present:
                skipped += 1
            elif cache.store(entry):
                size += len(entry.body)
                kinds[entry.key.kind] = kinds.get(entry.key.kind, 0) + 1
    return BundleSummary(str(path), sum(kinds.values()), size, skipped, kinds)
