"""Calling a kernel with real arrays: which executor runs it, and how arguments and results cross over."""
from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..config import config
from ..errors import NkiNotImplementedError, NkiTypeError, NkiWarning
from . import machine, memcheck, memory
from .buffers import private_hbm, shared_hbm
from .debugging import stops_in
from .dtypes import DType, as_dtype, in_float32
from .interpreter import Interpreter, check_output
from .jit import Kernel, checked_outputs, run, trace
from .program import TensorSpec
from .tensor import NkiTensor, Storage


class Array:
    """One array argument: a NumPy array or a torch tensor, as address, shape, byte strides and dtype."""

    def __init__(self, name: str, value: Any) -> None:
        self.name, self.value = name, value
        self.copy: np.ndarray | None = None     # float32 values that the interpreter works on instead
        try:
            self.dtype = as_dtype(value.dtype)
        except TypeError as error:
            raise NkiTypeError(f"argument {name}: {error}") from None
        if isinstance(value, np.ndarray):
            self.shape, self.byte_strides = value.shape, value.strides
            self.address = value.ctypes.data
            self.device: Any = None
        else:
            if value.layout is not sys.modules["torch"].strided:
                raise NkiTypeError(f"argument {name}: a kernel needs a strided tensor, not {value.layout}; call "
                                   ".to_dense()")
            if value.is_conj() or value.is_neg():
                raise NkiTypeError(f"argument {name} is conjugated or negated lazily; call "
                                   ".resolve_conj().resolve_neg()")
            self.shape = tuple(value.shape)
            self.byte_strides = tuple(s * self.dtype.itemsize for s in value.stride())
            self.address = value.data_ptr()
            self.device = value.device

    @property
    def spec(self) -> TensorSpec:
        low, _ = memory.span(self.shape, self.byte_strides, self.dtype.itemsize)
        return TensorSpec(self.shape, tuple(s // self.dtype.itemsize for s in self.byte_strides), self.dtype, -low)

    def values(self) -> np.ndarray:
        """The elements, as an array that aliases the argument's memory."""
        low, end = memory.span(self.shape, self.byte_strides, self.dtype.itemsize)
        return np.ndarray(self.shape, self.dtype.numpy, memory.bytes_at(self.address + low, end - low), -low,
                          self.byte_strides)

    @property
    def pointer(self) -> int:
        """The lowest address of the tensor: what an executable takes."""
        return self.address + memory.span(self.shape, self.byte_strides, self.dtype.itemsize)[0]

    def tensor(self, machine: Interpreter, shared: bool) -> NkiTensor:
        """The argument on a machine: the caller's own memory, or a float32 copy of low precision (NKI_PRECISE_FP=0)."""
        wide = self.dtype if machine.precise else in_float32(self.dtype)
        if wide is not self.dtype:
            if machine.cores > 1:
                raise NkiNotImplementedError(f"NKI_PRECISE_FP=0 with an argument of {self.dtype} on two cores")
            self.copy = np.array(self.values(), np.float32)
            storage = Storage(len(machine.storages), self.name, self.shape, wide, private_hbm, self.copy.nbytes, 0,
                              None, self.copy.reshape(-1).view(np.uint8))
            storage.owner = self.value
            return machine.argument(storage, 0)
        low, end = memory.span(self.shape, self.byte_strides, self.dtype.itemsize)
        storage = Storage(len(machine.storages), self.name, self.shape, self.dtype,
                          shared_hbm if shared else private_hbm, end - low, 0, None,
                          memory.bytes_at(self.address + low, end - low))
        storage.base_strides = self.byte_strides
        storage.owner = self.value
        return machine.argument(storage, -low)


def is_array(value: Any) -> bool:
    if isinstance(value, np.ndarray):
        return value.dtype.kind != "O"
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def collect(arguments: Mapping[str, Any]) -> tuple[dict[str, Any], list[Array]]:
    """Arguments with each array wrapped as an `Array` (lists become tuples), and those in order."""
    arrays: list[Array] = []

    def wrap(name: str, value: Any) -> Any:
        if is_array(value):
            arrays.append(Array(name, value))
            return arrays[-1]
        if isinstance(value, (tuple, list)) and not hasattr(value, "_fields"):
            return tuple(wrap(f"{name}[{i}]", part) for i, part in enumerate(value))
        return value

    return {name: wrap(name, value) for name, value in arguments.items()}, arrays


def replace(arguments: Any, convert: Any) -> Any:
    """The same structure with each `Array` converted."""
    if isinstance(arguments, Array):
        return convert(arguments)
    if type(arguments) is tuple:
        return tuple(replace(part, convert) for part in arguments)
    return arguments


def launch(kernel: Kernel, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Run a kernel on arrays. Results are of the kind that came in; a returned argument is that argument itself.

    On fake or meta tensors nothing runs: the kernel is traced, and the results have its shapes and dtypes.
    """
    bound = kernel.bind(args, kwargs)
    if _without_data(bound):
        return abstract(kernel, bound)
    arguments, arrays = collect(bound)
    _warn_of_gradients(kernel, arrays)
    _check_devices(kernel, arrays)
    if runs_in_interpreter(kernel):
        return interpret(kernel, arguments, arrays)
    from ..executors import run_kernel
    return run_kernel(kernel, arguments, arrays)


def _without_data(arguments: Mapping[str, Any]) -> bool:
    """Whether a tensor among the arguments, or in a tuple of them, is a fake or meta tensor."""
    torch = sys.modules.get("torch")
    if torch is None:
        return False
    flat = [part for v in arguments.values() for part in (v if isinstance(v, (tuple, list)) else (v,))]
    fake = getattr(sys.modules.get("torch._subclasses.fake_tensor"), "FakeTensor", ())
    return any(isinstance(v, torch.Tensor) and (v.is_meta or isinstance(v, fake)) for v in flat)


def abstract(kernel: Kernel, arguments: Mapping[str, Any]) -> Any:
    """What a kernel returns for tensors without data, by tracing it; an argument that it returns is that argument."""
    import torch
    tensors: list[Any] = []

    def spec(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            tensors.append(value)
            return TensorSpec(tuple(int(n) for n in value.shape), tuple(int(n) for n in value.stride()),
                              as_dtype(value.dtype))
        if isinstance(value, (tuple, list)) and not hasattr(value, "_fields"):
            return tuple(spec(part) for part in value)
        return value

    given = {name: spec(value) for name, value in arguments.items()}
    program = trace(Kernel(kernel.func), given)
    results = []
    for t in program.outputs:
        same = [x for x, i in zip(tensors, program.inputs) if i.storage is t.storage]
        kind = getattr(torch, "float32" if t.dtype == "tfloat32" else str(t.dtype))
        results.append(same[0] if same else torch.empty(t.shape, dtype=kind, device=tensors[0].device))
    if program.returns_tuple:
        return tuple(results)
    return results[0] if results else None


def runs_in_interpreter(kernel: Kernel) -> bool:
    """Whether a launch executes step by step: asked for, needed, or because nothing else is there."""
    if kernel.simulated or kernel.lnc != 1 or config.executor == "interpreter" or \
            os.environ.get("NKI_SIMULATOR", "0") not in ("", "0") or stops_in(kernel) is not None:
        return True
    from .. import executors
    return not hasattr(executors, "run_kernel")


_warned: set[str] = set()


def _warn_of_gradients(kernel: Kernel, arrays: Sequence[Array]) -> None:
    """Warn once per kernel when autograd would follow a tensor through it, and cannot."""
    if kernel.name in _warned or not any(a.device is not None and a.value.requires_grad for a in arrays):
        return
    import torch
    followed = not torch._C._dispatch_tls_is_dispatch_key_excluded(torch._C.DispatchKey.AutogradCPU)
    if followed and torch.is_grad_enabled():
        _warned.add(kernel.name)
        warnings.warn(f"kernel {kernel.name} got a tensor that requires a gradient, and its results are not connected "
                      "to it; make an operator of it with neuron_eager.nki_op and register_autograd, or call it under "
                      "torch.no_grad()", NkiWarning, stacklevel=4)


def _check_devices(kernel: Kernel, arrays: Sequence[Array]) -> None:
    devices = {str(a.device or "numpy") for a in arrays}
    if len(devices) > 1:
        raise NkiTypeError(f"kernel {kernel.name} got arrays on {', '.join(sorted(devices))}; all must be NumPy arrays "
                           "or tensors of one device", kernel.loc)


def interpret(kernel: Kernel, arguments: Mapping[str, Any], arrays: Sequence[Array]) -> Any:
    """Run in the interpreter; on two cores when the kernel asks for them."""
    if kernel.lnc == 2:
        from .cores import run_on_cores
        result, core = run_on_cores(kernel, arguments)
    else:
        core = Interpreter(kernel.name, grid=kernel.grid)
        result = run_core(kernel, core, arguments)
    outputs = checked_outputs(kernel, result)
    for t in outputs:
        check_output(t)
    for a in arrays:
        if a.copy is not None:
            a.values()[...] = a.copy.astype(a.dtype.numpy)
    results = [_leave(t, arrays) for t in outputs]
    if result is None:
        return None
    return tuple(results) if isinstance(result, (tuple, list)) else results[0]


def run_core(kernel: Kernel, core: Interpreter, arguments: Mapping[str, Any]) -> Any:
    """The kernel's function on one core, with the account of its memory checked at the end."""
    tensors = {name: replace(value, lambda a: a.tensor(core, core.cores > 1)) for name, value in arguments.items()}
    with machine.use(core):
        try:
            result = run(kernel, tensors)
        except Exception as error:
            error.add_note(f"in kernel {kernel.name}({describe(arguments)}) on {core.target}")
            raise
        memcheck.check_storages(core.storages, core.limits, kernel.name)
    return result


def describe(arguments: Mapping[str, Any]) -> str:
    """Arguments with shapes and dtypes, for messages."""
    def text(value: Any) -> str:
        if isinstance(value, Array):
            return f"{value.dtype}{list(value.shape)}"
        if type(value) is tuple:
            return "(" + ", ".join(text(v) for v in value) + ")"
        shown = repr(value)
        return shown if len(shown) < 60 else shown[:57] + "..."
    return ", ".join(f"{name}={text(value)}" for name, value in arguments.items())


def _leave(t: NkiTensor, arrays: Sequence[Array]) -> Any:
    """A returned tensor as what the caller gets: the argument itself, or a new array of the callers' kind."""
    for a in arrays:
        if t.storage.owner is a.value and t.shape == a.shape and (t.byte_strides == a.byte_strides or
                                                                  a.copy is not None):
            return a.value
    from . import access
    values = np.ascontiguousarray(access.read(t))
    return to_device(values, as_dtype(values.dtype), arrays[0].device if arrays else None)


def new_array(spec: TensorSpec, device: Any) -> Array:
    """An uninitialised contiguous result of the callers' kind."""
    return Array("result", to_device(np.empty(spec.shape, spec.dtype.numpy), spec.dtype, device))


def to_device(values: np.ndarray, dtype: DType, device: Any) -> Any:
    """A fresh NumPy array (device None) or torch tensor with these values."""
    if device is None:
        return values
    import torch
    kind = getattr(torch, "float32" if dtype == "tfloat32" else str(dtype), None)
    if kind is None:
        raise NkiTypeError(f"torch has no dtype for a result of {dtype}; return it as .view(nl.uint8)")
    out = torch.empty(values.shape, dtype=kind, device=device)
    memory.bytes_at(out.data_ptr(), values.nbytes)[:] = values.reshape(-1).view(np.uint8)
    return out
