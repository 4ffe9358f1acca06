"""Native code of our own, written in the word language: compiled once per machine, kept in a file, loaded in 1 ms.

It is needed when the package is imported, so it has a small store of its own: opening the cache of compiled kernels, a
database, would slow `import` down.
"""
from __future__ import annotations

import hashlib
import os
import platform
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from ..config import config
from ..errors import ObjectFileError, Unavailable
from . import elf, words

NOT_COMPILED = "not compiled yet"


def load(name: str, exported: Sequence[Callable[..., Any]], sources: Sequence[ModuleType], resolve: elf.Resolve, *,
         more: str = "", build: bool = True) -> dict[str, int]:
    """Addresses of the exported functions, loaded from the store, or compiled now (0.3 s, imports llvmlite) and stored.

    sources: the modules that define them, which key the store. more: further LLVM IR. build: False raises `Unavailable`
    where it would have to be compiled.
    """
    path = _path(name, (words, *sources))
    body = _read(path) if config.cache != "0" else None
    if body is not None:
        try:
            return elf.load_object(body, resolve)
        except ObjectFileError:
            pass                                    # of another format, with a right digest: compile it again
    if not build:
        raise Unavailable(reason=f"the native {name} code is {NOT_COMPILED}")
    module = words.Module(exported)
    try:
        body = words.compile_object(module.text + more)
        symbols = elf.load_object(body, resolve, imports=module.symbols, exports=module.exported)
    except Unavailable:
        raise
    except (ImportError, OSError, RuntimeError, ObjectFileError) as e:
        raise Unavailable(reason=f"its {name} code can not be compiled or loaded ({e})") from e
    if config.cache == "rw":
        _write(path, body)
    return symbols


def _path(name: str, sources: Sequence[ModuleType]) -> Path:
    digest = hashlib.sha256(platform.machine().encode())
    for module in sources:
        digest.update(Path(str(module.__file__)).read_bytes())
    return config.cache_path / "native" / f"{name}-{digest.hexdigest()[:32]}.o"


def _read(path: Path) -> bytes | None:
    """The file's content after its sha256, if it is intact and nobody else can have written it."""
    try:
        with open(path, "rb") as f:
            status = os.fstat(f.fileno())
            content = f.read()
    except OSError:
        return None
    mine = status.st_uid == os.getuid() and not status.st_mode & 0o022
    return content[32:] if mine and hashlib.sha256(content[32:]).digest() == content[:32] else None


def _write(path: Path, body: bytes) -> None:
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        fd, temporary = tempfile.mkstemp(dir=path.parent)
        with os.fdopen(fd, "wb") as f:
            f.write(hashlib.sha256(body).digest() + body)
        os.replace(temporary, path)
    except OSError:
        pass                                        # it is compiled again next time
