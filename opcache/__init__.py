"""Compiled artifacts, kept across processes. Keys are named parts and bodies bytes: no tensors, no kernels.

    key = opcache.Key("object", skeleton=text, llvm="20.1.8", cpu="znver4")
    body = opcache.get_or_compile(key, compile, op="aten::add.Tensor")

Importing this module opens no file and does not import diskcache; the first miss in memory does.
"""
from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

from .key import Difference, Key, source_digest
from .progress import show_progress
from .report import CacheInfo, CompileCount, CompileRecord, CompileReport
from .store import Cache

if TYPE_CHECKING:
    from .bundle import BundleSummary

__all__ = [
    "Cache", "CacheInfo", "CompileCount", "CompileRecord", "CompileReport", "Difference", "Key",
    "cache", "cache_info", "check", "close", "compile_report", "count_compiles", "export_bundle", "forget", "get",
    "get_or_compile", "import_bundle", "purge", "put", "show_progress", "source_digest",
]

_cache = Cache()


def cache() -> Cache:
    """The cache of this process."""
    return _cache


def get(key: Key | str) -> bytes | None:
    """The body for a key or for the digest of one: from memory, disk or the bundle. None if there is none."""
    return _cache.get(key)


def put(key: Key, body: bytes, op: str = "", seconds: float = 0.0) -> bool:
    """Keep a body in memory and on disk; whether it reached the disk."""
    return _cache.put(key, body, op, seconds)


def get_or_compile(key: Key, compile: Callable[[], bytes], op: str = "") -> bytes:
    """The body for a key, made by `compile()` if there is none, by one thread of one process."""
    return _cache.get_or_compile(key, compile, op)


def count_compiles() -> AbstractContextManager[CompileCount]:
    """Count what happens in a block: `with count_compiles() as n: …; assert n.compiles == 0`."""
    return _cache.count_compiles()


def forget() -> None:
    """Drop the memory level and the remembered failures."""
    _cache.forget()


def close() -> None:
    """Close the disk level; the next miss opens it again."""
    _cache.close()


def cache_info() -> CacheInfo:
    """Hits, misses, sizes, place and faults."""
    from . import admin
    return admin.cache_info(_cache)


def compile_report() -> CompileReport:
    """What was compiled in this process, why it was not there, and how long it took."""
    from . import admin
    return admin.compile_report(_cache)


def check() -> list[str]:
    """Verify all entries, remove what is damaged, and return what was found."""
    from . import admin
    return admin.check(_cache)


def purge(op: str | None = None, kind: str | None = None) -> int:
    """Remove the entries of an op or kind, or all; returns how many were on disk."""
    from . import admin
    return admin.purge(_cache, op, kind)


def export_bundle(path: str | Path, kinds: Collection[str] | None = None,
                  ops: Collection[str] | None = None) -> BundleSummary:
    """Write entries to one file, which `config.cache_bundle` reads in place and `import_bundle` copies from."""
    from . import admin
    return admin.export_bundle(_cache, path, kinds, ops)


def import_bundle(path: str | Path) -> BundleSummary:
    """Verify a bundle and store its entries. It is code: import it only from people you trust. Raises `BundleError`."""
    from . import admin
    return admin.import_bundle(_cache, path)
