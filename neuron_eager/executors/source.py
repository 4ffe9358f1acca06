"""What a kernel's tile program depends on, as text: the code of everything it calls and reads.

Two kernels with equal text, equal specs and equal constants give the same program, in this process and in a later one.
Code is taken as bytecode, which is what runs; comments and line numbers do not matter. A value that has no text, such
as an open file, makes the kernel one whose program is not remembered.
"""
from __future__ import annotations

import dis
import enum
import functools
import hashlib
import sys
import types
import weakref
from collections.abc import Iterator
from typing import Any

from ..nki.dtypes import DType
from ..nki.jit import Kernel
from ..nki.tokens import Op

LIMIT = 2000        # functions of a kernel

_IMPORTS = dis.opmap["IMPORT_NAME"]
_OURS, _FAMILIES = "neuron_eager", "neuron_eager.kernels"
_LIBRARIES = frozenset(("nki", "numpy", "torch", "ml_dtypes")) | sys.stdlib_module_names
_texts: weakref.WeakKeyDictionary[Any, str | None] = weakref.WeakKeyDictionary()


class NoTextError(Exception):
    """A kernel depends on a value that has no text."""


def text_of(function: Any) -> str:
    """A line for each function and class that `function` reaches. Raises NoTextError."""
    if function not in _texts:
        try:
            _texts[function] = Walk().text(function)
        except NoTextError:
            _texts[function] = None
    text = _texts[function]
    if text is None:
        raise NoTextError(repr(function))
    return text


def describe(value: Any) -> str:
    """A compile-time constant as text. Raises NoTextError."""
    return Walk().text(value)


class Walk:
    """One traversal: values become short texts, and functions and classes numbered names with a line of their own."""

    def __init__(self) -> None:
        self.names: dict[int, str] = {}
        self.kept: list[Any] = []               # so that no id is used twice
        self.lines: list[str] = []
        self.todo: list[tuple[str, Any]] = []

    def text(self, value: Any) -> str:
        try:
            return self._text(value)
        except RecursionError:
            raise NoTextError("a value that contains itself") from None

    def _text(self, value: Any) -> str:
        first = self.value(value)
        while self.todo:
            name, found = self.todo.pop()
            if len(self.names) > LIMIT:
                raise NoTextError(f"more than {LIMIT} functions")
            content = "\n".join(self.parts_of(found))
            self.lines.append(f"{name} {hashlib.sha256(content.encode()).hexdigest()[:32]}")
        return "\n".join([first, *self.lines])

    def value(self, v: Any) -> str:
        """A short text that determines the value, together with the lines of the names in it."""
        if v is None or type(v) in (bool, int, float, complex, str, bytes, DType, type(Ellipsis), range, slice):
            return repr(v)
        if isinstance(v, Op):
            return f"op {v}"
        if isinstance(v, enum.Enum):
            return f"{type(v).__qualname__}.{v.name}"
        if isinstance(v, (tuple, list)):
            return f"{type(v).__name__}({', '.join(map(self.value, v))})"
        if isinstance(v, (set, frozenset)):
            return f"set({', '.join(sorted(map(self.value, v)))})"
        if isinstance(v, dict):
            return "{" + ", ".join(f"{self.value(k)}: {self.value(x)}" for k, x in v.items()) + "}"
        if isinstance(v, Kernel):
            return f"kernel[{v.lnc}] {self.value(v.func)}"
        if isinstance(v, functools.partial):
            return f"partial({self.value(v.func)}, {self.value(v.args)}, {self.value(v.keywords)})"
        if isinstance(v, types.MethodType):
            return f"method({self.value(v.__func__)}, {self.value(v.__self__)})"
        if isinstance(v, types.ModuleType):
            return f"module {v.__name__} {getattr(v, '__version__', '')}"
        return self.named(v)

    def named(self, v: Any) -> str:
        of_type = isinstance(v, (types.FunctionType, type))
        module = getattr(v if of_type or callable(v) else type(v), "__module__", None) or "builtins"
        if is_library(module):
            if of_type or isinstance(v, (types.BuiltinFunctionType, types.BuiltinMethodType)):
                return f"{module}.{v.__qualname__}"
            if module.partition(".")[0] in ("numpy", "torch", "ml_dtypes") and not hasattr(v, "__dict__"):
                return f"{type(v).__qualname__} {v!r}"          # a dtype or a scalar
            if module.startswith(_OURS) and type(v).__module__.startswith(_OURS):
                return f"{type(v).__qualname__} {v}"            # a memory region, a tile size
            raise NoTextError(f"{type(v).__module__}.{type(v).__qualname__}")
        if not (of_type or hasattr(v, "__dict__")):
            raise NoTextError(f"{type(v).__module__}.{type(v).__qualname__}")
        name = self.names.get(id(v))
        if name is None:
            label = f"{module}.{v.__qualname__ if of_type else type(v).__qualname__}"
            name = self.names[id(v)] = f"{label}#{len(self.names)}"
            self.kept.append(v)
            self.todo.append((name, v))
        return name

    def parts_of(self, v: Any) -> Iterator[str]:
        """What a function, a class or an object is made of."""
        if isinstance(v, types.FunctionType):
            yield self.value(v.__defaults__)
            yield self.value(v.__kwdefaults__)
            codes = list(nested(v.__code__))
            for code in codes:
                yield from self.code(code)
            names = sorted({n for code in codes for n in code.co_names})
            yield from self.globals(v.__globals__, names)
            for name, cell in zip(v.__code__.co_freevars, v.__closure__ or ()):
                try:
                    yield f"{name} = {self.value(cell.cell_contents)}"
                except ValueError:
                    yield f"{name} is empty"
        elif isinstance(v, type):
            yield self.value(v.__bases__)
            for name, member in sorted(vars(v).items()):
                if isinstance(member, (types.MemberDescriptorType, types.GetSetDescriptorType)):
                    yield name
                elif isinstance(member, types.FunctionType) or not (name.startswith("__") and name.endswith("__")):
                    yield f"{name} = {self.value(accessors(member))}"
        else:
            yield self.value(type(v))
            yield self.value(vars(v))

    def globals(self, where: dict[str, Any], names: list[str]) -> Iterator[str]:
        """The values of the names that code uses: globals, and attributes of the author's modules among them."""
        spaces, seen = [("", where)], {id(where)}
        for prefix, space in spaces:
            for name in names:
                if name not in space:
                    continue
                value = space[name]
                yield f"{prefix}{name} = {self.value(value)}"
                if isinstance(value, types.ModuleType) and not is_library(value.__name__):
                    inner = vars(value)
                    if id(inner) not in seen:
                        seen.add(id(inner))
                        spaces.append((f"{prefix}{name}.", inner))

    def code(self, code: types.CodeType) -> Iterator[str]:
        if _IMPORTS in code.co_code[::2]:
            raise NoTextError(f"{code.co_qualname} imports a module")
        yield repr((code.co_name, code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags,
                    code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars, code.co_exceptiontable,
                    code.co_code.hex()))
        for constant in code.co_consts:
            yield "code" if isinstance(constant, types.CodeType) else self.value(constant)


def accessors(member: Any) -> Any:
    """The functions inside a descriptor; any other value as it is."""
    if isinstance(member, (staticmethod, classmethod)):
        return member.__func__
    if isinstance(member, property):
        return member.fget, member.fset
    return member.func if isinstance(member, functools.cached_property) else member


def nested(code: types.CodeType) -> Iterator[types.CodeType]:
    """A code object and those of the functions defined in it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from nested(constant)


def is_library(module: str) -> bool:
    """Whether a module's code counts by its version: the standard library, NKI, and what NKI stands on."""
    if module == _FAMILIES or module.startswith(_FAMILIES + "."):
        return False
    root = module.partition(".")[0]
    return root == _OURS or root in _LIBRARIES
