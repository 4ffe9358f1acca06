"""Python in a kernel that the NKI compiler would refuse although the interpreter runs it.

The compiler's front end reads a restricted Python: no sets, no generators, no `is`, no `*`-only parameters,
dictionaries with string keys, classes that derive from nl.NKIObject. Kernels written for both must stay inside it.
"""
from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from .debugging import reachable_functions
from .jit import Kernel

NUMBER_BITS = 32


@dataclass(frozen=True)
class Finding:
    """One place: what the compiler would say, and what to write instead."""

    file: str
    line: int
    problem: str
    instead: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.problem}; {self.instead}"


def lint(kernel: Kernel | Callable[..., Any]) -> list[Finding]:
    """Findings in the source of a kernel and of the author's functions it calls, by file and line."""
    function = kernel.func if isinstance(kernel, Kernel) else kernel
    found: set[Finding] = set()
    for part in reachable_functions(inspect.unwrap(function)):
        try:
            lines, first = inspect.getsourcelines(part)
        except (OSError, TypeError):
            continue
        tree = ast.parse(textwrap.dedent("".join(lines)))
        file = part.__code__.co_filename
        for line, problem, instead in _problems(tree):
            found.add(Finding(file, line + first - 1, problem, instead))
    return sorted(found, key=lambda f: (f.file, f.line, f.problem))


Problem = tuple[int, str, str]

_STATEMENTS: dict[type[ast.AST], tuple[str, str]] = {
    ast.Set: ("a set", "use a list or a tuple"),
    ast.SetComp: ("a set comprehension", "use a list and a loop"),
    ast.DictComp: ("a dict comprehension", "fill a dict in a loop"),
    ast.GeneratorExp: ("a generator expression", "use a list and a loop"),
    ast.Yield: ("yield", "return a list"),
    ast.YieldFrom: ("yield from", "return a list"),
    ast.Await: ("await", "kernels are ordinary functions"),
    ast.AsyncFor: ("async for", "kernels are ordinary functions"),
    ast.AsyncWith: ("async with", "kernels are ordinary functions"),
    ast.AsyncFunctionDef: ("async def", "kernels are ordinary functions"),
    ast.Try: ("try", "check with if and assert"),
    ast.Match: ("match", "use if and elif"),
    ast.Global: ("global", "pass the value as an argument; kernels are pure"),
    ast.Nonlocal: ("nonlocal", "pass the value as an argument; kernels are pure"),
    ast.NamedExpr: ("the walrus operator", "assign on a line of its own"),
    ast.Import: ("an import", "import at the top of the module"),
    ast.ImportFrom: ("an import", "import at the top of the module"),
    ast.Delete: ("del", "let the name go out of use"),
    ast.MatMult: ("the operator @", "use nisa.nc_matmul"),
}
_DEPRECATED = {
    "affine_range": "use range", "sequential_range": "use range", "static_range": "use range",
    "dynamic_range": "use nl.fori_loop, which the tracing front end takes too",
}
_FOREIGN = ("np", "numpy", "torch", "jnp")


def _problems(tree: ast.AST) -> Iterator[Problem]:
    for node in ast.walk(tree):
        line = getattr(node, "lineno", 1)
        known = _STATEMENTS.get(type(node))
        if known is not None:
            yield line, f"{known[0]} is not part of the NKI language", known[1]
        elif isinstance(node, ast.Compare):
            if any(isinstance(op, (ast.Is, ast.IsNot)) for op in node.ops):
                yield line, "`is` is not part of the NKI language", "compare with == or !="
        elif isinstance(node, ast.FunctionDef):
            yield from _function(node)
        elif isinstance(node, ast.ClassDef):
            if not any(ast.unparse(base).endswith("NKIObject") or "Enum" in ast.unparse(base) for base in node.bases):
                yield line, f"class {node.name} does not derive from nl.NKIObject", "derive it, or use a dict"
        elif isinstance(node, ast.Dict):
            if any(isinstance(key, ast.Constant) and not isinstance(key.value, str) for key in node.keys):
                yield line, "a dict key that is not a string", "use string keys, or a list"
        elif isinstance(node, ast.Constant):
            if isinstance(node.value, int) and not -(1 << 31) <= node.value < 1 << 32:
                yield line, f"{node.value} does not fit {NUMBER_BITS} bits", "NKI integers have 32 bits"
            elif isinstance(node.value, (bytes, complex)):
                yield line, f"a {type(node.value).__name__} value", "NKI has None, bool, int, float, str and tensors"
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            if node.value.id == "nl" and node.attr in _DEPRECATED:
                yield line, f"nl.{node.attr} is deprecated", _DEPRECATED[node.attr]
            elif node.value.id in _FOREIGN and isinstance(node.ctx, ast.Load):
                yield (line, f"{node.value.id}.{node.attr} inside a kernel",
                       "only nki.* and plain Python values are known")


def _function(node: ast.FunctionDef) -> Iterator[Problem]:
    if node.args.kwonlyargs:
        yield node.lineno, f"keyword-only parameters of {node.name}", "leave out the `*`"
    if node.args.vararg or node.args.kwarg:
        yield node.lineno, f"*args or **kwargs of {node.name}", "name every parameter"
    for default in node.args.defaults:
        if isinstance(default, (ast.List, ast.Dict)):
            yield default.lineno, f"a mutable default of {node.name}", "use None or a tuple"
