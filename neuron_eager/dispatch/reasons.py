"""Why a call takes the CPU fallback."""
from __future__ import annotations

import enum
from typing import NamedTuple


class Reason(enum.Enum):
    """The closed list of reasons."""

    NO_KERNEL = "no kernel"
    DTYPE = "dtype"
    SHAPE = "shape or layout"
    FORCED = "forced"
    POLICY = "dtype policy"

    def __str__(self) -> str:
        return self.value


class Decline(NamedTuple):
    """A rule's "not this call": `detail` ends up in the log and the report."""

    reason: Reason
    detail: str = ""
