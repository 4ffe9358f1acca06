"""NKIObject: the base of classes that kernels may use for their configuration."""
from __future__ import annotations

import dataclasses
import functools
import inspect
import types
from collections.abc import Callable
from typing import Any

_MISSING = object()


class _Fields(type):
    """Builds instances the way the NKI compiler does: every class attribute that is data is a field, annotated or not,
    with or without @dataclass; a field without a value is None; then __post_init__ runs. A class that defines its own
    __init__ is built by it."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        if _own_init(cls):
            return super().__call__(*args, **kwargs)
        self: Any = object.__new__(cls)     # type: ignore[arg-type]
        defaults = _fields(cls)
        if len(args) > len(defaults):
            raise TypeError(f"{cls.__name__} has {len(defaults)} fields, not {len(args)}")
        given = dict(zip(defaults, args))
        for name, value in kwargs.items():
            if name not in defaults or name in given:
                raise TypeError(f"{cls.__name__} got {'a second value for' if name in given else 'an unknown field'} "
                                f"{name!r}; its fields are {', '.join(defaults)}")
            given[name] = value
        for name, default in defaults.items():
            value = given.get(name, _MISSING)
            object.__setattr__(self, name, default() if value is _MISSING else value)
        after = getattr(self, "__post_init__", None)
        if after is not None:
            after()
        return self


def _own_init(cls: type) -> bool:
    """Whether the author wrote an __init__ (and not @dataclass, or nobody)."""
    for base in cls.__mro__:
        if base is NKIObject:
            return False
        init = base.__dict__.get("__init__")
        if init is not None:
            return not (dataclasses.is_dataclass(base) and "__create_fn__" in getattr(init, "__qualname__", "")
                        or getattr(init, "__qualname__", "") == f"{base.__qualname__}.__init__"
                        and dataclasses.is_dataclass(base) and base.__dataclass_params__.init     # type: ignore
                        and _generated(init))
    return False


def _generated(function: Any) -> bool:
    code = getattr(function, "__code__", None)
    return code is not None and code.co_filename == "<string>"


def _fields(cls: type) -> dict[str, Callable[[], Any]]:
    """Field names in order, each with a function that makes its default."""
    out: dict[str, Callable[[], Any]] = {}
    for base in reversed(cls.__mro__):
        if base in (object, NKIObject):
            continue
        annotated = inspect.get_annotations(base)
        made = getattr(base, "__dataclass_fields__", {})
        names = [n for n, kind in annotated.items() if "ClassVar" not in str(kind)]
        names += [n for n, v in vars(base).items() if n not in annotated and _is_data(n, v)]
        for name in names:
            field = made.get(name)
            if field is not None and field.default_factory is not dataclasses.MISSING:
                out[name] = field.default_factory
            else:
                value = getattr(cls, name, None)
                if isinstance(value, dataclasses.Field):
                    factory, value = value.default_factory, value.default
                    if factory is not dataclasses.MISSING:
                        out[name] = factory
                        continue
                    value = None if value is dataclasses.MISSING else value
                elif isinstance(value, types.MemberDescriptorType):
                    value = None
                out[name] = functools.partial(_same, value)
    return out


def _same(value: Any) -> Any:
    return value


def _is_data(name: str, value: Any) -> bool:
    return not name.startswith("_") and not callable(value) and \
        not isinstance(value, (staticmethod, classmethod, property, types.MemberDescriptorType))


class NKIObject(metaclass=_Fields):
    """Base class of configuration objects in kernels."""

    def __post_init__(self) -> None:
        """Runs after the fields are set."""
