"""Op tokens: `nl.add` is both a value for `op=` and a function on tiles."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Op:
    """One operation of the language. `str(nl.add) == "add"`; equal only to itself; usable as a dict key.

    Calling it runs the tile function of the same name, where the language has one.
    """

    def __init__(self, name: str, doc: str) -> None:
        self.name = name
        self.function: Callable[..., Any] | None = None
        self.__doc__ = doc

    @property
    def __name__(self) -> str:
        return self.name

    @property
    def __wrapped__(self) -> Callable[..., Any]:
        if self.function is None:
            raise AttributeError("__wrapped__")
        return self.function

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.function is None:
            raise TypeError(f"nl.{self.name} is only a value for op=; it is not a function on tiles")
        return self.function(*args, **kwargs)

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        return f"nl.{self.name}"

    def __reduce__(self) -> Any:
        return token, (self.name,)

    def __deepcopy__(self, memo: dict[int, Any]) -> Op:
        return self


_BINARY = "add subtract multiply divide maximum minimum power abs_max abs_min mod fmod"
_COMPARE = "equal not_equal greater greater_equal less less_equal"
_LOGICAL = "logical_and logical_or logical_xor"
_BITS = "bitwise_and bitwise_or bitwise_xor left_shift right_shift"
_UNARY = ("abs square relu rsqrt reciprocal sqrt exp log sin cos tan arctan tanh sigmoid gelu gelu_dx "
          "gelu_apprx_tanh gelu_apprx_sigmoid gelu_apprx_sigmoid_dx silu silu_dx softplus mish erf erf_dx sign "
          "negative ceil floor trunc invert logical_not copy")
_ONLY_TOKENS = "average bypass prelu"

TOKENS: dict[str, Op] = {}
for _names, _doc in ((_BINARY, "x {0} y"), (_COMPARE, "1 where x {0} y, else 0"), (_LOGICAL, "{0} of truth values"),
                     (_BITS, "{0} on the bit patterns of integers"), (_UNARY, "{0}(x)"),
                     (_ONLY_TOKENS, "{0}, only as op=")):
    for _name in _names.split():
        TOKENS[_name] = Op(_name, _doc.format(_name) + ", element by element")


def token(name: str) -> Op:
    """The token of this name. Raises KeyError if there is none."""
    return TOKENS[name]
