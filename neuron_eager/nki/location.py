"""Where in the author's source an instruction, a tensor or an error comes from."""
from __future__ import annotations

import dis
import sys
from pathlib import Path
from types import CodeType, FrameType

_PACKAGE = str(Path(__file__).parent)
_inside: dict[str, bool] = {}
_STORES = ("STORE_FAST", "STORE_NAME", "STORE_GLOBAL", "STORE_DEREF")


class Loc:
    """A place in a kernel's source: `file`, `line`, `function`. The line is worked out only when asked for."""

    __slots__ = ("code", "lasti")

    def __init__(self, code: CodeType, lasti: int) -> None:
        self.code, self.lasti = code, lasti

    @property
    def file(self) -> str:
        return self.code.co_filename

    @property
    def function(self) -> str:
        return self.code.co_qualname

    @property
    def line(self) -> int:
        for start, end, line in self.code.co_lines():
            if start <= self.lasti < end and line is not None:
                return line
        return self.code.co_firstlineno

    @property
    def target(self) -> str:
        """The variable that the value made here is assigned to, or ""."""
        for instruction in dis.get_instructions(self.code):
            if instruction.offset > self.lasti:
                if instruction.opname == "STORE_FAST_LOAD_FAST":        # since 3.13: two in one
                    return str(instruction.argval[0])
                return str(instruction.argval) if instruction.opname in _STORES else ""
        return ""

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"

    def __repr__(self) -> str:
        return f"<{self} in {self.function}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Loc) and (self.file, self.line) == (other.file, other.line)

    def __hash__(self) -> int:
        return hash((self.file, self.line))


def is_internal(filename: str) -> bool:
    """Whether a file is part of the NKI implementation."""
    inside = _inside[filename] = filename.startswith(_PACKAGE)
    return inside


def caller_frame(depth: int = 1) -> FrameType | None:
    """The innermost frame that is not part of the NKI implementation: the author's code."""
    frame: FrameType | None = sys._getframe(depth)
    while frame is not None:
        name = frame.f_code.co_filename
        inside = _inside.get(name)
        if not (is_internal(name) if inside is None else inside):
            return frame
        frame = frame.f_back
    return None


def here(depth: int = 2) -> Loc | None:
    """The author's line that is being executed; None outside any author's code."""
    frame = caller_frame(depth)
    return None if frame is None else Loc(frame.f_code, frame.f_lasti)
