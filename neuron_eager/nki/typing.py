"""`nki.typing`: annotations of kernel parameters. They document; nothing is checked against them."""
from __future__ import annotations

from typing import Any


class _Annotation:
    """`nt.tensor[128, 512]` and `nt.tensor`."""

    def __init__(self, name: str, shape: tuple[Any, ...] = ()) -> None:
        self.name, self.shape = name, shape

    def __getitem__(self, shape: Any) -> _Annotation:
        return _Annotation(self.name, shape if isinstance(shape, tuple) else (shape,))

    def __call__(self, *args: Any, **kwargs: Any) -> _Annotation:
        return self

    def __or__(self, other: Any) -> _Annotation:
        return self

    __ror__ = __or__

    def __repr__(self) -> str:
        return f"nki.typing.{self.name}{list(self.shape) if self.shape else ''}"


tensor = _Annotation("tensor")
mutable_tensor = _Annotation("mutable_tensor")
