"""`import nki` on a machine without it: a meta-path finder that gives the embedded implementation its name.

An installed nki is never shadowed. PyPI's placeholder, which raises ImportError("WRONG PACKAGE ..."), counts as absent.
The setting `nki` forces one or the other.
"""
from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

EMBEDDED = __name__.rpartition(".")[0]      # neuron_eager.nki
PLACEHOLDER = "WRONG PACKAGE"


class _Alias(importlib.abc.Loader):
    """Loads `nki.x` as the module neuron_eager.nki.x itself, so that both names are one module."""

    def __init__(self, target: str) -> None:
        self.target = target

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        module = importlib.import_module(self.target)
        self.own_spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self.own_spec


class _Installed(importlib.abc.Loader):
    """Loads an installed nki; if that turns out to be the placeholder, the embedded one takes its place."""

    def __init__(self, real: Any) -> None:
        self.real = real

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self.real.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        try:
            self.real.exec_module(module)
        except ImportError as error:
            if PLACEHOLDER not in str(error).upper():
                raise
            sys.modules["nki"] = importlib.import_module(EMBEDDED)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)


class NkiFinder(importlib.abc.MetaPathFinder):
    """Answers for `nki` and its submodules only."""

    def find_spec(self, fullname: str, path: Sequence[str] | None = None,
                  target: ModuleType | None = None) -> importlib.machinery.ModuleSpec | None:
        if fullname == "nki":
            return self._top()
        if not fullname.startswith("nki."):
            return None
        if sys.modules.get("nki") is not sys.modules.get(EMBEDDED):
            return None
        name = EMBEDDED + fullname[3:]
        if importlib.util.find_spec(name) is None:
            return None
        return importlib.machinery.ModuleSpec(fullname, _Alias(name))

    def _top(self) -> importlib.machinery.ModuleSpec | None:
        from ..config import config
        choice = config.nki
        if choice == "embedded":
            return importlib.machinery.ModuleSpec("nki", _Alias(EMBEDDED), is_package=True)
        real = _installed()
        if real is not None and real.loader is not None:
            if choice != "installed":
                real.loader = _Installed(real.loader)
            return real
        if choice == "installed":
            return None
        return importlib.machinery.ModuleSpec("nki", _Alias(EMBEDDED), is_package=True)


def _installed() -> importlib.machinery.ModuleSpec | None:
    """The spec that `import nki` would find without this finder."""
    for finder in sys.meta_path:
        if isinstance(finder, NkiFinder):
            continue
        find = getattr(finder, "find_spec", None)
        spec = find("nki", None) if find is not None else None
        if spec is not None:
            return spec
    return None


def install() -> None:
    """Put the finder first on sys.meta_path, once."""
    if not any(isinstance(f, NkiFinder) for f in sys.meta_path):
        sys.meta_path.insert(0, NkiFinder())
