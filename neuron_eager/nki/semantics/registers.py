"""Registers: 32-bit signed values moved between constants, other registers and memory."""
from __future__ import annotations

import numpy as np

from ..dtypes import int32 as INT
from .elementwise import Args
from .operands import cast, convert, load, register_value, write
from .state import State


def _word(value: int) -> int:
    """The 32-bit register that holds this value, read as signed."""
    return (value + (1 << 31)) % (1 << 32) - (1 << 31)


def register_alloc(a: Args, state: State) -> None:
    a["dst"].value = None if a["x"] is None else _word(int(a["x"]))


def register_move(a: Args, state: State) -> None:
    a["dst"].value = _word(register_value(a["src"]))


def register_load(a: Args, state: State) -> None:
    src = a["src"]
    element = load(src).reshape(-1)[:1]
    a["dst"].value = _word(int(element[0]) if src.dtype.kind != "f" else int(cast(element.astype(np.float32), INT)[0]))


def register_store(a: Args, state: State) -> None:
    dst = a["dst"]
    write(dst, convert(np.array([register_value(a["src"])], np.int32), INT, dst.dtype))
