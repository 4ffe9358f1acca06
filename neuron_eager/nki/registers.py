"""Registers: 32-bit values that exist at run time."""
from __future__ import annotations

from typing import Any

from ..errors import NkiTypeError
from .location import here


class VirtualRegister:
    """A register of an engine. Made by nisa.register_alloc and by loops; used as an offset and as a loop bound.

    value: its content in the interpreter. known: its content while tracing, where that follows from constants alone,
    else None. A frozen register (a loop variable) cannot be written.
    """

    __slots__ = ("id", "value", "known", "frozen")

    def __init__(self, id: int, value: int | None = None, known: int | None = None, frozen: bool = False) -> None:
        self.id, self.value, self.known, self.frozen = id, value, known, frozen

    def __repr__(self) -> str:
        shown = self.value if self.value is not None else self.known
        return f"<register {self.id}{'' if shown is None else f' = {shown}'}>"

    def _refuse(self, use: str, instead: str) -> NkiTypeError:
        return NkiTypeError(f"register {self.id} has its value only at run time and cannot be {use}; {instead}",
                            here(3))

    def __bool__(self) -> bool:
        raise self._refuse("a condition of Python's if or while", "use nl.while_loop(register, body)")

    def __index__(self) -> int:
        raise self._refuse("turned into a Python int", "use nl.fori_loop for loops, .ap(scalar_offset=register) or "
                                                       "nl.ds(register, size) for addresses")

    __int__ = __float__ = __index__

    def __eq__(self, other: object) -> bool:
        if other is None or self is other:
            return self is other
        raise self._refuse("compared in Python", "compare on the device")

    __hash__ = object.__hash__


def _operator(symbol: str) -> Any:
    def refuse(self: VirtualRegister, *other: Any) -> Any:
        raise self._refuse(f"an operand of Python's `{symbol}`",
                           "store it to a tile, compute with instructions, load it back")
    return refuse


for _symbol, _methods in (("+", "__add__ __radd__"), ("-", "__sub__ __rsub__ __neg__"), ("*", "__mul__ __rmul__"),
                          ("//", "__floordiv__ __rfloordiv__"), ("%", "__mod__ __rmod__"), ("<", "__lt__"),
                          ("<=", "__le__"), (">", "__gt__"), (">=", "__ge__")):
    for _method in _methods.split():
        setattr(VirtualRegister, _method, _operator(_symbol))
