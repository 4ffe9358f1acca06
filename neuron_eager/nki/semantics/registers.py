"""Registers: 32-bit signed values moved between constants, other registers and memory."""
from __future__ import annotations

from typing import Any

import numpy as np

from ...errors import NkiTypeError
from ..dtypes import int32 as INT
from ..location import here
from ..registers import VirtualRegister
from .elementwise import Args
from .operands import cast, convert, load, write
from .state import State


def _value(source: Any) -> int:
    if not isinstance(source, VirtualRegister):
        return int(source)
    if source.value is None:
        raise NkiTypeError(f"register {source.id} is read before it has a value", here())
    return source.value


def _word(value: int) -> int:
    """The 32-bit register that holds this value, read as signed."""
    return (value + (1 << 31)) % (1 << 32) - (1 << 31)


def register_alloc(a: Args, state: State) -> None:
    a["dst"].value = None if a["x"] is None else _word(int(a["x"]))


def register_move(a: Args, state: State) -> None:
    a["dst"].value = _word(_value(a["src"]))


def register_load(a: Args, state: State) -> None:
    src = a["src"]
    element = load(src).reshape(-1)[:1]
    a["dst"].value = _word(int(element[0]) if src.dtype.kind != "f" else int(cast(element.astype(np.float32), INT)[0]))


def register_store(a: Args, state: State) -> None:
    dst = a["dst"]
    write(dst, convert(np.array([_value(a["src"])], np.int32), INT, dst.dtype))
