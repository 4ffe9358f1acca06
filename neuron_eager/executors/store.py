"""Machine code kept on disk: the object store of `neuron_eager.native.objects` on `neuron_eager.opcache`."""
from __future__ import annotations

from collections.abc import Callable

from .. import opcache
from ..native import objects
from ..native.target import Target
from . import served


class DiskStore(objects.Store):
    """Objects under the digest of their opcache key, whose parts say in the compile report why one was made."""

    def __init__(self) -> None:
        self.keys: dict[tuple[str, str, str], opcache.Key] = {}

    def named(self, name: str, text: str, target: Target) -> opcache.Key:
        found = self.keys.get((name, text, target.key_text))
        if found is None:
            if len(self.keys) > 4096:
                self.keys.clear()
            found = self.keys[name, text, target.key_text] = opcache.Key(
                "object", name=name, program=text, **parts_of(target))
        return found

    def key(self, name: str, text: str, target: Target) -> str:
        return self.named(name, text, target).digest

    def get(self, key: str) -> bytes | None:
        return opcache.get(key)

    def obtain(self, name: str, text: str, target: Target, compile: Callable[[], bytes]) -> bytes:
        op = served.get() if name == "group" else ""        # the runtime library belongs to no op
        return opcache.get_or_compile(self.named(name, text, target), compile, op=op or name)


def parts_of(target: Target) -> dict[str, str]:
    """What objects for a target depend on, as named parts of a key."""
    return {name: value for name, _, value in (line.partition(" ") for line in target.key_text.splitlines())}
