"""Keys of compiled artifacts: named parts → canonical text → sha256.

The text is kept inside each entry, for two reasons: an entry is used only if its text equals the wanted one, so that no
collision can hand out the wrong code; and a miss can be explained part by part.
"""
from __future__ import annotations

import functools
import hashlib
import importlib.util
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import CacheKeyError

Part = Any      # str | int | float | bool | None, or lists, tuples and dicts (with str keys) of these

_DIGEST = re.compile(r"[0-9a-f]{64}")


def digest_of(text: str) -> str:
    """The sha256 of a canonical key text, as 64 hex digits."""
    return hashlib.sha256(text.encode("ascii")).hexdigest()


def is_digest(text: object) -> bool:
    return isinstance(text, str) and _DIGEST.fullmatch(text) is not None


class Key:
    """What an artifact was made from: a kind and named parts.

        Key("object", skeleton=text, llvm="20.1.8", cpu="znver4", format=1)

    Equal parts give equal text: the order of the parts and of dict keys does not matter, a tuple equals a list, and
    1, 1.0 and True all differ. Raises `CacheKeyError` for a part that has no canonical text.
    """

    __slots__ = ("_digest", "_prints", "_text", "kind", "parts")

    def __init__(self, kind: str, /, **parts: Part):
        self.kind, self.parts = kind, parts
        self._text: str | None = None
        self._digest: str | None = None
        self._prints: dict[str, int] | None = None

    @property
    def text(self) -> str:
        if self._text is None:
            _check_names("", self.parts)
            content = {"kind": self.kind, "parts": self.parts}
            self._text = json.dumps(content, sort_keys=True, separators=(",", ":"), default=_refuse)
        return self._text

    @property
    def digest(self) -> str:
        if self._digest is None:
            self._digest = digest_of(self.text)
        return self._digest

    @property
    def prints(self) -> dict[str, int]:
        """A hash of each part, in this process only."""
        if self._prints is None:
            self._prints = {name: hash(_canonical(value)) for name, value in self.parts.items()}
        return self._prints

    @classmethod
    def from_text(cls, text: str) -> Key:
        """The key that a canonical text describes. Raises ValueError if it describes none."""
        content = json.loads(text)
        if not (isinstance(content, dict) and content.keys() == {"kind", "parts"}
                and isinstance(content["kind"], str) and isinstance(content["parts"], dict)):
            raise ValueError("not a canonical key text")
        key = cls(content["kind"])
        key.parts, key._text = content["parts"], text
        return key

    def __eq__(self, other: object) -> bool:
        return self.text == other.text if isinstance(other, Key) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.text)

    def __repr__(self) -> str:
        return f"Key({self.kind!r}, {', '.join(f'{n}={_short(v)}' for n, v in self.parts.items())})"


def _refuse(value: object) -> object:
    raise CacheKeyError(part="(a nested value)", value=_short(value), type=type(value).__name__)


def _check_names(path: str, value: Part) -> None:
    """JSON turns the dict key 1 into "1": refuse dict keys that are not str, and name the part that has a bad value."""
    if isinstance(value, Mapping):
        for name, item in value.items():
            if not isinstance(name, str):
                raise CacheKeyError(part=path, value=f"a dict with the key {name!r}", type=type(value).__name__)
            _check_names(f"{path}.{name}" if path else name, item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            _check_names(path, item)
    elif not (value is None or isinstance(value, (str, int, float))):
        raise CacheKeyError(part=path, value=_short(value), type=type(value).__name__)


# ---- why a key missed

class Difference(NamedTuple):
    """One part in which two keys differ. `wanted` and `stored` are short texts, None where a key lacks the part."""
    part: str
    wanted: str | None
    stored: str | None

    def __str__(self) -> str:
        if self.stored is None:
            return f"{self.part}: {self.wanted} is an additional part"
        if self.wanted is None:
            return f"{self.part}: {self.stored} is absent"
        return f"{self.part}: {self.stored} → {self.wanted}"


def differences(wanted: Key, stored: Key) -> tuple[Difference, ...]:
    """The parts in which `wanted` differs from `stored`, in the order of `wanted`."""
    names = list(wanted.parts) + [n for n in stored.parts if n not in wanted.parts]
    return tuple(_difference(n, wanted.parts, stored.parts) for n in names if _differ(n, wanted.parts, stored.parts))


def nearest(wanted: Key, candidates: Iterable[Key]) -> tuple[Key, tuple[Difference, ...]] | None:
    """The candidate of the same kind that differs in the fewest parts; on a tie, the first one."""
    best: Key | None = None
    fewest = 1 << 30
    mine = wanted.prints.items()
    for candidate in candidates:
        if candidate.kind == wanted.kind:
            different = mine ^ candidate.prints.items()
            count = len({name for name, _ in different}) if different else 0
            if 0 < count < fewest:
                best, fewest = candidate, count
    return None if best is None else (best, differences(wanted, best))


def _canonical(value: Part) -> str:
    return json.dumps(value, sort_keys=True)


def _differ(name: str, a: Mapping[str, Part], b: Mapping[str, Part]) -> bool:
    return name not in a or name not in b or _canonical(a[name]) != _canonical(b[name])


def _difference(name: str, wanted: Mapping[str, Part], stored: Mapping[str, Part]) -> Difference:
    if name not in wanted:
        return Difference(name, None, _short(stored[name]))
    if name not in stored:
        return Difference(name, _short(wanted[name]), None)
    path, a, b = name, wanted[name], stored[name]
    while True:                                     # descend to the item that differs
        if isinstance(a, Mapping) and isinstance(b, Mapping):
            step = next((n for n in [*a, *b] if _differ(n, a, b)), None)
            if step is None or step not in a or step not in b:
                break
            path, a, b = f"{path}.{step}", a[step], b[step]
        elif isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)) and len(a) == len(b):
            i = next(i for i, (x, y) in enumerate(zip(a, b)) if _canonical(x) != _canonical(y))
            path, a, b = f"{path}[{i}]", a[i], b[i]
        else:
            break
    if isinstance(a, str) and isinstance(b, str) and ("\n" in a or "\n" in b):
        number, x, y = next(_different_lines(a, b))
        path, a, b = f"{path} line {number}", x, y
    return Difference(path, _short(a), _short(b))


def _different_lines(a: str, b: str) -> Iterator[tuple[int, str, str]]:
    lines_a, lines_b = a.split("\n"), b.split("\n")
    lines = max(len(lines_a), len(lines_b))
    for i in range(lines):
        x = lines_a[i] if i < len(lines_a) else "(end)"
        y = lines_b[i] if i < len(lines_b) else "(end)"
        if x != y:
            yield i + 1, x, y


def _short(value: object, limit: int = 72) -> str:
    text = repr(value)
    return text if len(text) <= limit else f"{text[:limit - 1]}…"


# ---- parts that are sources

@functools.cache
def source_digest(*modules: str) -> str:
    """The sha256 over the Python sources of modules and packages, found without importing them, as 64 hex digits.

    Paths on this machine and line ends do not matter; the name of each file inside its package does. Raises
    ModuleNotFoundError for a name that has no source.
    """
    total = hashlib.sha256()
    for name in modules:
        spec = importlib.util.find_spec(name)
        if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
            raise ModuleNotFoundError(f"no Python source of {name!r}", name=name)
        file = Path(spec.origin)
        folder = file.parent
        files = sorted(folder.rglob("*.py")) if spec.submodule_search_locations else [file]
        for path in files:
            source = path.read_bytes().replace(b"\r\n", b"\n")
            label = f"{name}/{path.relative_to(folder).as_posix()}"
            total.update(f"{len(label)} {label} {len(source)} ".encode() + source)
    return total.hexdigest()
