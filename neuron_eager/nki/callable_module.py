"""Modules that are also functions: `nki.jit` and `nki.simulate` name both, and either may be imported first."""
from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any


def make_callable(name: str, function: Callable[..., Any]) -> None:
    """Let the module `name` be called as `function`."""
    class CallableModule(ModuleType):
        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            return function(*args, **kwargs)

    CallableModule.__call__.__doc__ = function.__doc__
    sys.modules[name].__class__ = CallableModule
