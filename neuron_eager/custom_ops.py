"""NKI kernels as PyTorch operators.

`nki_op` makes an operator of a Python function whose body calls kernels; `wrap_nki` makes a kernel callable inside
`torch.compile`. Shapes for fake tensors come from tracing the kernel, so nothing has to be written twice.
"""
from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from .dispatch import tracking
from .nki.dtypes import as_dtype
from .nki.jit import Kernel, trace
from .nki.program import TensorSpec
from .nki.tracer import walk


def nki_op(name: str, fn: Callable[..., Any] | None = None, *, mutates_args: str | Iterable[str] = ()) -> Any:
    """Register a function that calls NKI kernels as the operator `namespace::name`.

        @nki_op("mylib::scale")
        def scale(x: torch.Tensor, factor: float) -> torch.Tensor:
            return scale_kernel(x, factor)

    The function takes and returns tensors and plain values, annotated as `torch.library.custom_op` wants it. The
    operator works in eager mode, under `torch.compile`, and with fake tensors: there the function runs on them, and the
    kernels it calls are traced for their shapes. Calls on neuron tensors appear in `get_executed_ops()`.

    mutates_args: names of the arguments that it writes.
    Returns the operator, with `register_autograd` and `register_fake`.
    """
    if fn is None:
        return functools.partial(nki_op, name, mutates_args=mutates_args)
    op = torch.library.custom_op(name, _tracked(name, fn), mutates_args=mutates_args)
    op.register_fake(fn)
    return op


def _tracked(name: str, fn: Callable[..., Any]) -> Callable[..., Any]:
    """The function, with its calls on neuron tensors counted under the operator's name."""
    table: dict[Any, tracking.Record] = {}

    @functools.wraps(fn)
    def run(*args: Any, **kwargs: Any) -> Any:
        tensors = [x for x in pytree.tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
        if any(t.device.type == "neuron" for t in tensors):
            key = tuple((t.dtype, t.shape) for t in tensors)
            record = table.get(key)
            if record is None:
                record = table[key] = tracking.add(table, key, tracking.Record(name, "kernel", fn, tensors))
            record.calls += 1
        return fn(*args, **kwargs)

    return run


class WrappedKernel:
    """A kernel that `torch.compile` keeps as one node of its graph. `wrapped[2]` runs on two cores."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.names = tuple(kernel.signature.parameters)
        self.number = len(_wrapped)
        _wrapped.append(self)
        self.run = _tracked(f"nki::{kernel.name}", kernel)

    def __getitem__(self, lnc: int) -> WrappedKernel:
        return WrappedKernel(self.kernel[lnc])

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The kernel's results for these tensors, tuples of tensors, and compile-time constants."""
        if not torch.compiler.is_compiling():
            return self.run(*args, **kwargs)
        tensors: list[Tensor] = []
        described = []
        for name, value in [*zip(self.names, args), *kwargs.items()]:
            parts = value if isinstance(value, (tuple, list)) else (value,)
            if len(parts) > 0 and all(isinstance(part, Tensor) for part in parts):
                tensors.extend(parts)
                specs = tuple((tuple(p.shape), tuple(p.stride()), str(p.dtype)) for p in parts)
                described.append((name, "tensor" if parts is not value else "tensors", specs))
            else:
                described.append((name, "constant", value))
        key, writes, returned, as_tuple, outputs = _plan(self.number, tuple(described))
        if writes:      # functionalization takes operators that write arguments only if they return nothing
            fresh = [torch.empty(shape, dtype=getattr(torch, dtype), device=tensors[0].device)
                     for shape, dtype in outputs]
            torch.ops.neuron_eager.nki_kernel_(tensors, fresh, key)
        else:
            fresh = torch.ops.neuron_eager.nki_kernel(tensors, key)
        results = [tensors[i] if i >= 0 else fresh[-1 - i] for i in returned]
        if as_tuple:
            return tuple(results)
        return results[0] if results else None


_wrapped: list[WrappedKernel] = []


def wrap_nki(kernel: Kernel | Callable[..., Any]) -> WrappedKernel:
    """Make a kernel usable inside `torch.compile`: `wrap_nki(kernel)(x, y, 3)`.

    Which arguments it writes, which it returns, and the shapes of its new results come from tracing it.
    """
    return WrappedKernel(kernel if isinstance(kernel, Kernel) else Kernel(kernel))


class _Call(NamedTuple):
    """One specialisation of a wrapped kernel inside a graph."""

    kernel: Kernel
    described: tuple[Any, ...]
    outputs: tuple[TensorSpec, ...]     # new results

    def arguments(self, tensors: Sequence[Tensor]) -> dict[str, Any]:
        """The kernel's arguments, with these tensors in their places."""
        rest = iter(tensors)
        return {name: value if kind == "constant" else next(rest) if kind == "tensor" else
                tuple(next(rest) for _ in value) for name, kind, value in self.described}


_calls: dict[str, _Call] = {}
_Plan = tuple[str, bool, tuple[int, ...], bool, tuple[tuple[tuple[int, ...], str], ...]]
_plans: dict[Any, _Plan] = {}


@torch.compiler.assume_constant_result
def _plan(number: int, described: tuple[Any, ...]) -> _Plan:
    """How to call a wrapped kernel: (key in `_calls`, whether it writes arguments, where each result comes from,
    whether it returns a tuple, shape and dtype of each new result). A result is argument i, or -1 - j for the new
    result j."""
    known = _plans.get((number, described))
    if known is None:
        kernel = _wrapped[number].kernel
        specs, constants = {}, {}
        for name, kind, value in described:
            if kind == "constant":
                constants[name] = value
            else:
                parts = tuple(TensorSpec(shape, strides, as_dtype(dtype)) for shape, strides, dtype in value)
                specs[name] = parts[0] if kind == "tensor" else parts
        program = trace(kernel, specs, constants)
        inputs = {id(t.storage): i for i, t in enumerate(program.inputs)}
        fresh = [t for t in program.outputs if id(t.storage) not in inputs]
        returned = tuple(inputs[id(t.storage)] if id(t.storage) in inputs else -1 - fresh.index(t)
                         for t in program.outputs)
        writes = any(id(t.storage) in inputs for instr, _ in walk(program.instrs) for t in instr.tensors(instr.writes))
        key = f"{kernel.name}#{len(_calls)}"
        _calls[key] = _Call(kernel, described, tuple(TensorSpec.contiguous(t.shape, t.dtype) for t in fresh))
        known = _plans[number, described] = (key, writes, returned, program.returns_tuple,
                                             tuple((t.shape, str(t.dtype)) for t in fresh))
    return known


def _run(tensors: Sequence[Tensor], key: str) -> list[Tensor]:
    """The new results of a planned call."""
    call = _calls[key]
    result = call.kernel(**call.arguments(tensors))
    results = result if isinstance(result, tuple) else () if result is None else (result,)
    return [r for r in results if not any(r is t for t in tensors)]


def _fake(tensors: Sequence[Tensor], key: str) -> list[Tensor]:
    return [torch.empty(s.shape, dtype=getattr(torch, str(s.dtype)), device=tensors[0].device)
            for s in _calls[key].outputs]


@torch.library.custom_op("neuron_eager::nki_kernel", mutates_args=())
def nki_kernel(tensors: list[Tensor], key: str) -> list[Tensor]:
    """The node of a wrapped kernel that writes only new tensors."""
    return _run(tensors, key)


nki_kernel.register_fake(_fake)


@torch.library.custom_op("neuron_eager::nki_kernel_", mutates_args=("tensors", "results"))
def nki_kernel_(tensors: list[Tensor], results: list[Tensor], key: str) -> None:
    """The node of a wrapped kernel that writes its arguments; new results go into `results`."""
    for given, made in zip(results, _run(tensors, key)):
        given.copy_(made)


@nki_kernel_.register_fake
def _(tensors: list[Tensor], results: list[Tensor], key: str) -> None:
    return None
