"""Registered Python functions as kernels: what they return is checked, and their faults are loud."""
from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from ..device import devices
from ..errors import KernelResultError, KernelTypeError
from .schema import Signature
from .tracking import describe


def checked(sig: Signature, function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, with errors for what it may not do.

    Raises (when called):
        KernelResultError: it returned something else than the op's results, on neuron.
        KernelTypeError: a TypeError came out of it.
    """
    kinds = [r.kind for r in sig.results]

    def run(*args: Any, **kwargs: Any) -> Any:
        try:
            result = function(*args, **kwargs)
        except TypeError as error:
            given = dict(zip((p.name for p in sig.positional), args)) | kwargs
            raise type_error(sig.name, given, error) from error
        if kinds and not _fits(kinds, [result] if sig.single else result):
            wanted = "one result" if len(kinds) == 1 else f"{len(kinds)} results"
            raise KernelResultError(kernel=getattr(function, "__qualname__", repr(function)), op=sig.name,
                                    detail=f"it returned {_shown(result)}; the op has {wanted} on neuron")
        return result
    return run


def type_error(op: str, arguments: Mapping[str, Any], error: TypeError) -> KernelTypeError:
    """A TypeError out of a kernel or rule in another guise: Python's operators take one for "unsupported operand"."""
    shown = ", ".join(f"{name}={_shown(value)}" for name, value in arguments.items())
    return KernelTypeError(op=op, arguments=shown, detail=str(error))


def _fits(kinds: list[str], values: Any) -> bool:
    return isinstance(values, (list, tuple)) and len(values) == len(kinds) and all(map(_is, kinds, values))


def _is(kind: str, value: Any) -> bool:
    """Whether a value can be a result of this kind (`schema.Result.kind`)."""
    if kind == "value":
        return True
    if kind == "tensors":
        return isinstance(value, (list, tuple)) and all(_is("tensor", v) for v in value)
    return isinstance(value, torch.Tensor) and value.device.type in (devices.NAME, "meta")


def _shown(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"{describe([value.dtype], [value.shape])} on {value.device}"
    if isinstance(value, (list, tuple)):
        return f"{type(value).__name__}({', '.join(map(_shown, value))})"
    return repr(value)
