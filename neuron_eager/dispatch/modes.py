"""`with neuron_eager.fallback("error")`: what a CPU fallback does, for a block."""
from __future__ import annotations

import contextlib
from collections.abc import Iterator

from ..config import config


@contextlib.contextmanager
def fallback(mode: str) -> Iterator[None]:
    """Set what a CPU fallback does in this process for the duration of a block: "warn", "silent" or "error".

    Raises:
        SettingError: another mode.
    """
    with config.override(fallback=mode):
        yield
