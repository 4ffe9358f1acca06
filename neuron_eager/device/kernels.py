"""A library of Python kernels that torch.compile leaves alone."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
import torch._C._dynamo.eval_frame as eval_frame

_SKIP = eval_frame._FrameExecStrategy(eval_frame._FrameAction.SKIP, eval_frame._FrameAction.SKIP)
F = TypeVar("F", bound=Callable[..., Any])


def untraced(function: F) -> F:
    """Keep dynamo out of `function` and of what it calls.

    Between two graphs of a compiled function ops run eagerly, with dynamo watching every Python frame: it would take
    the frames of our kernels for user code and compile them.
    """
    code = getattr(function, "__code__", None)
    if code is not None:
        eval_frame.set_code_exec_strategy(code, _SKIP)
    return function


class KernelLibrary(torch.library.Library):
    """A `torch.library.Library` whose kernels are `untraced`."""

    def impl(self, op_name: str, fn: Callable[..., Any], dispatch_key: str = "", **options: Any) -> None:
        super().impl(op_name, untraced(fn), dispatch_key, **options)
