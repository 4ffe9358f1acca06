"""Faults that only the data shows: native code notes them in words, and whoever called it raises.

Code that runs on several threads without the GIL can not raise. An index outside its table is written here, the access
is held inside the table, and the caller looks afterwards. A later fault overwrites an earlier one: one of them is told.
"""
from __future__ import annotations

import ctypes
from typing import Any

# [0]: how many rows the table has, or 0: no fault; [1]: the index. Never freed.
OUTSIDE = (ctypes.c_int64 * 2)()
SYMBOL = "ne_outside"


def emit_outside(build: Any, index: Any, limit: Any) -> None:
    """Code that notes an index which is not in 0 ... limit - 1."""
    from llvmlite import ir

    from .irtypes import I64
    words = build.module.globals.get(SYMBOL)
    if words is None:
        words = ir.GlobalVariable(build.module, ir.ArrayType(I64, 2), SYMBOL)
        words.linkage = "external"
        words.type = ir.PointerType()

    def note() -> None:
        build.b.store(limit, words)
        build.b.store(index, build.at(words, 8))
    build.when(build.b.icmp_unsigned(">=", index, limit), note)


def take_outside() -> tuple[int, int] | None:
    """(index, rows of the table) of a fault since the last call, which is then forgotten; or None."""
    rows, index = OUTSIDE
    if not rows:
        return None
    OUTSIDE[0] = 0
    return index, rows
