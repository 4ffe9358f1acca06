"""Who runs kernels: machine code, the interpreter, or the real tool chain. One interface, chosen by a setting."""
from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from ..config import config
from ..errors import ExecutorError

if TYPE_CHECKING:
    from ..nki.jit import Kernel
    from ..nki.launch import Array
    from .base import Executor

__all__ = ["current", "run_kernel", "served"]

# The op whose kernel is being compiled, for the compile report: `served.set("aten::add.Tensor")`.
served: ContextVar[str] = ContextVar("served", default="")


def current() -> Executor:
    """The executor that `config.executor` names.

    Raises:
        ExecutorError: it names one that is not here.
    """
    return _executor(config.executor)


@functools.cache
def _executor(name: str) -> Executor:
    if name == "interpreter":
        from .interpreter import InterpreterExecutor
        return InterpreterExecutor()
    if name in ("auto", "native"):
        from .native import NativeExecutor
        return NativeExecutor()
    raise ExecutorError(name=name)


def run_kernel(kernel: Kernel, arguments: Mapping[str, Any], arrays: Sequence[Array]) -> Any:
    """Launch a kernel on arrays (`neuron_eager.nki.launch`) through the current executor."""
    from ..nki import launch
    from .interpreter import Interpreted
    tensors = {n: v for n, v in arguments.items() if isinstance(v, launch.Array) or
               isinstance(v, tuple) and v and all(isinstance(part, launch.Array) for part in v)}
    constants = {n: v for n, v in arguments.items() if n not in tensors}
    specs = {n: launch.replace(v, lambda a: a.spec) for n, v in tensors.items()}
    executable = current().compile(kernel, specs, constants)
    if isinstance(executable, Interpreted):
        return launch.interpret(kernel, arguments, arrays)
    device = arrays[0].device if arrays else None
    fresh = [launch.new_array(spec, device) for spec in executable.outputs]
    executable([*(a.address for a in arrays), *(f.address for f in fresh)])
    values = [([*arrays, *fresh])[i].value for i in executable.results]
    if executable.returns_tuple:
        return tuple(values)
    return values[0] if values else None
