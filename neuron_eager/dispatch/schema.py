"""What an op's schema says about its arguments and results, in the form that code generation needs."""
from __future__ import annotations

import functools
import keyword
import re
from dataclasses import dataclass, field
from typing import Any

import torch
from torch._ops import OpOverload

_ALIAS = re.compile(r"Tensor\((\w+)(!?)[^)]*\)(?:\[[^\]]*\])?\?? (\w+)")
_ALIAS_RETURN = re.compile(r"Tensor(?:\((\w+)(!?)[^)]*\))?(\[\])?")


@dataclass(frozen=True)
class Parameter:
    """One argument of an op. `name` is its name in generated code, `keyword` its name in the schema."""

    name: str
    keyword: str
    type: str               # as in the schema: "Tensor", "Optional[Tensor]", "List[Tensor]", "number", "List[int]", ...
    keyword_only: bool
    written: bool           # "Tensor(a!)"
    out: bool
    has_default: bool
    default: Any = field(hash=False)        # may be a list

    @property
    def tensor(self) -> bool:
        return self.type in ("Tensor", "Optional[Tensor]")

    @property
    def tensors(self) -> bool:
        """A list of tensors, some of which may be None."""
        return self.type in ("List[Tensor]", "List[Optional[Tensor]]", "Optional[List[Tensor]]")

    @property
    def optional(self) -> bool:
        return self.type.startswith("Optional[")


@dataclass(frozen=True)
class Result:
    """One result of an op: a fresh tensor, tensors, an argument that was written, a view of one, or a plain value."""

    kind: str                       # "tensor" | "tensors" | "argument" | "view" | "value"
    argument: str | None = None     # the argument's name in generated code, for "argument" and "view"


@dataclass(frozen=True)
class Signature:
    name: str                       # "aten::add.Tensor", "aten::mm"
    parameters: tuple[Parameter, ...]
    results: tuple[Result, ...]
    single: bool                    # one result, returned as it is, not in a tuple

    @property
    def positional(self) -> tuple[Parameter, ...]:
        return tuple(p for p in self.parameters if not p.keyword_only)

    @property
    def keywords(self) -> tuple[Parameter, ...]:
        return tuple(p for p in self.parameters if p.keyword_only)


def op_name(op: OpOverload) -> str:
    """The op's name as PyTorch's C++ prints it: aten::mm for a default overload, else aten::add.Tensor."""
    return op._name


@functools.cache
def signature(op: OpOverload) -> Signature:
    schema = op._schema
    parameters = tuple(
        Parameter(
            name=a.name + "_" if keyword.iskeyword(a.name) else a.name, keyword=a.name, type=str(a.type),
            keyword_only=a.kwarg_only, written=a.is_write, out=a.is_out, has_default=a.has_default_value(),
            default=a.default_value)
        for a in schema.arguments)
    text_arguments, _, text_returns = str(schema).partition("(")[2].rpartition(" -> ")
    owner = {m[1]: m[3] for m in _ALIAS.finditer(text_arguments)}
    names = {p.keyword: p.name for p in parameters}
    returns = [str(r.type) for r in schema.returns]
    aliases = list(_ALIAS_RETURN.finditer(text_returns))
    results = []
    for position, kind in enumerate(returns):
        if "Tensor" not in kind:
            results.append(Result("value"))
            continue
        alias = aliases[sum("Tensor" in k for k in returns[:position])]
        if alias[1] in owner:
            results.append(Result("argument" if alias[2] else "view", names[owner[alias[1]]]))
        else:
            results.append(Result("tensors" if kind.startswith("List") else "tensor"))
    return Signature(op_name(op), parameters, tuple(results), single=len(results) == 1)


def by_name(name: str) -> OpOverload:
    """The overload that "aten::add.Tensor" or "aten::mm" names. AttributeError if there is none."""
    namespace, _, rest = name.partition("::")
    packet, _, overload = rest.partition(".")
    return getattr(getattr(getattr(torch.ops, namespace), packet), overload or "default")
