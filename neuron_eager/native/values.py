"""Values: what a tile holds, as nodes over the kernel's HBM arguments.

A node stands for `F` columns of every row (partition) of a tile; F is None when all columns of a row are equal. Its
lane kind says in what form one element is computed:

    f  float32             every float dtype of NKI arithmetic
    d  float64             only moved and cast
    i  int32               bool, int8..int32, uint8, uint16
    u  uint32
    l  int64
    b  truth value         result of a comparison; 1 or 0 in every other kind
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator
from typing import Any

from ..nki.dtypes import ALL
from .patterns import Pattern

SIZE: dict[str, int] = {name: d.itemsize for name, d in ALL.items()}
KIND: dict[str, str] = {"float64": "d", "uint32": "u", "int64": "l"}
KIND |= {name: "f" if d.is_float else "i" for name, d in ALL.items() if name not in KIND and d.packed == 1}
REDUCTIONS = frozenset({"add", "multiply", "maximum", "minimum", "bitwise_and", "bitwise_or", "bitwise_xor"})
COMPARISONS = frozenset({"equal", "not_equal", "greater", "greater_equal", "less", "less_equal"})
_ELEMENTWISE = """
    add subtract multiply divide maximum minimum power mod fmod abs square sign negative reciprocal sqrt rsqrt
    exp log sin cos tan arctan tanh sigmoid erf erf_dx gelu gelu_dx gelu_apprx_tanh gelu_apprx_sigmoid
    gelu_apprx_sigmoid_dx silu silu_dx softplus mish ceil floor trunc
    bitwise_and bitwise_or bitwise_xor invert left_shift right_shift and_bool or_bool xor_bool not_bool
    select cvt to bits"""
ELEMENTWISE = frozenset(_ELEMENTWISE.split()) | COMPARISONS
Selection = tuple[int, Pattern] | None  # which columns: (first, pattern); None is all of them


class Bail(Exception):
    """The program, or this part of it, has no form as a value graph; the reason is the message."""


class V:
    """A value. `at` holds its static parameters, `id` its number in the graph."""

    __slots__ = ("op", "args", "at", "F", "kind", "id")
    op: str
    args: tuple[V, ...]
    at: tuple[Any, ...]
    F: int | None
    kind: str
    id: int

    def __repr__(self) -> str:
        inner = ", ".join(f"%{a.id}" for a in self.args)
        return f"%{self.id}:{self.kind}{'' if self.F is None else self.F} = {self.op}{self.at}({inner})"


def literal(v: V) -> float | int:
    """The number a `const` node stands for."""
    return float.fromhex(v.at[0]) if v.kind in "fd" else v.at[0]


def nodes(roots: Iterable[V], cut: Container[int] = (), stop: Callable[[V], bool] | None = None) -> list[V]:
    """Every node under `roots`, arguments before users; none below those in `cut` or where `stop` says so."""
    seen: set[int] = set()
    out: list[V] = []
    open_: list[tuple[V, Iterator[V]]] = []  # no recursion: a graph may be as deep as its program is long

    def enter(v: V) -> None:
        seen.add(v.id)
        ends = v.id in cut or stop is not None and stop(v)
        open_.append((v, iter(() if ends else v.args)))

    for r in roots:
        if r.id in seen:
            continue
        enter(r)
        while open_:
            v, rest = open_[-1]
            a = next((a for a in rest if a.id not in seen), None)
            if a is None:
                out.append(v)
                open_.pop()
            else:
                enter(a)
    return out


def contiguous(pattern: Pattern) -> bool:
    return not pattern or (len(pattern) == 1 and pattern[0][0] == 1)
