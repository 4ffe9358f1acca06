"""From a KernelCall to something that runs: compile the kernel, allocate, gather pointers, call.

The function that runs a plan is generated once per form (which pointers come from where) and bound to the plan's own
values, so that a warm call does nothing but its work. For x + y of one shape the generated source is

    def run(self, other, alpha):
        if overlapping(...): return other_way(self, other, alpha)       # only where a plan writes into an argument
        out0 = allocate0()
        kernel(Pointers(self.data_ptr(), other.data_ptr(), out0.data_ptr()), r0, r1)
        return out0
"""
from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from .. import executors
from ..device import memory
from ..errors import KernelResultError
from .plan import Arg, Call, Decline, KernelCall, Number, Operand, Out, Reason, Shape, Strides, View, contiguous
from .schema import Signature
from .tracking import describe

_Pointer = ctypes.c_void_p
_SLOTS: dict[str, Any] = {"float32": ctypes.c_float, "float64": ctypes.c_double, "int64": ctypes.c_int64}
_Function = ctypes.PYFUNCTYPE(None, _Pointer, ctypes.c_int64, ctypes.c_int64)


@dataclass(frozen=True)
class Source:
    """Where one of a kernel's pointers comes from."""

    kind: str               # "tensor" | "number" | "output" | "constant"
    name: str = ""          # of the parameter
    element: int | None = None      # in a list of tensors
    offset: int = 0         # bytes
    slot: str = ""          # a number's kind: "float32" | "float64" | "int64"
    index: int = 0          # of the output
    value: int | float = 0  # of a constant

    @property
    def form(self) -> tuple[Any, ...]:
        """Everything but values: plans of one form share their generated code."""
        return self.kind, self.name, self.element, bool(self.offset), self.slot, self.index


@dataclass
class Plan:
    """One kind of call, ready to run."""

    call: Call
    kernel_call: KernelCall
    executable: Any
    sources: list[Source]
    outputs: list[Out]                          # as allocated or written; the kernel's scratch outputs among them
    results: list[int | None]                   # indices into outputs; None: no tensor
    disjoint: list[tuple[Arg, Arg, bool]]       # (written, other, may be the same view)
    run: Callable[..., Any] = lambda *args: None

    @property
    def native(self) -> bool:
        """Whether a native entry can run it."""
        return (self.executable is not None and bool(self.executable.address) and None not in self.results
                and all(o.into is None or o.into.shape == o.shape for o in self.outputs))


def build(call: Call, kernel_call: KernelCall, executor: Any, other_way: Callable[..., Any]) -> Plan | Decline:
    """Compile and bind. other_way(*args): what runs when arguments overlap in a way the kernel can not take."""
    outputs, results = _outputs(call, kernel_call)
    if isinstance(outputs, Decline):
        return outputs
    items, specs = _items(kernel_call, outputs)
    sources = [_source(item, call) for item in items]
    executable = None
    if not (outputs and all(o.shape and 0 in o.shape for o in outputs)):       # else there is nothing to compute
        token = executors.served.set(call.name)
        try:
            executable = executor.compile(kernel_call.kernel, specs, dict(kernel_call.constants))
        except Exception as error:
            arguments = ", ".join(f"{a.name} {describe([a.dtype], [a.shape])}" for a in call.tensors)
            error.add_note(f"in kernel {_name(kernel_call.kernel)} for {call.name}({arguments})")
            raise
        finally:
            executors.served.reset(token)
        if outputs and executable.outputs:
            raise KernelResultError(
                kernel=_name(kernel_call.kernel), op=call.name,
                detail="it returns new tensors beside the outputs it was given; return those, or declare no outputs")
        if not outputs:
            outputs, results = _returned(call, kernel_call, executable, items)
            sources += [Source("output", index=i) for i, o in enumerate(outputs) if o.into is None]
    plan = Plan(call, kernel_call, executable, sources, outputs, results, _disjoint(call, kernel_call, outputs))
    plan.run = _bind(plan, other_way)
    return plan


def _outputs(call: Call, kernel_call: KernelCall) -> tuple[list[Out] | Decline, list[int | None]]:
    outputs = list(kernel_call.outputs)
    read = {i.arg.position if isinstance(i, View) else i.position: i for i in _each(kernel_call.inputs)
            if isinstance(i, (Arg, View))}
    for o in outputs:
        if o.into is not None and o.into.position in read and not kernel_call.may_be_output(o.into):
            return Decline(Reason.SHAPE, f"the kernel reads {o.into.name}, which it writes"), []
        if o.into is not None and any(n > 1 and s == 0 for n, s in zip(o.into.shape, o.into.strides)):
            return Decline(Reason.SHAPE, f"{o.into.name} is written and repeats elements"), []
    every: Sequence[int | None] = range(len(outputs))
    results = list(every if kernel_call.returns is None else kernel_call.returns)
    return outputs, results


def _items(kernel_call: KernelCall, outputs: list[Out]) -> tuple[list[Any], dict[str, Any]]:
    """The kernel's tensors in parameter order, and their specs by parameter name."""
    names = list(kernel_call.kernel.signature.parameters)
    inputs = kernel_call.inputs
    if not isinstance(inputs, Mapping):
        inputs = dict(zip(names[len(outputs):], inputs))
    by_name: dict[str, Any] = {**{name: (i, o) for i, (name, o) in enumerate(zip(names, outputs))}, **inputs}
    items: list[Any] = []
    specs: dict[str, Any] = {}
    for name in sorted(by_name, key=lambda n: names.index(n) if n in names else len(names)):
        value = by_name[name]
        if value is None:
            continue
        if isinstance(value, (list, tuple)) and not (value and isinstance(value[-1], Out)):
            items += value
            specs[name] = tuple(_spec(v) for v in value)
        else:
            items.append(value)
            specs[name] = _spec(value)
    return items, specs


def _spec(item: Any) -> Any:
    from ..nki.dtypes import as_dtype
    from ..nki.program import TensorSpec
    if isinstance(item, Operand):
        return TensorSpec((1, 1), (1, 1), as_dtype(item.kind))
    if isinstance(item, Arg):
        item = item.view()
    if isinstance(item, View):
        return TensorSpec(item.shape, item.strides, as_dtype(item.dtype))
    _, out = item
    shape, strides = out.layout
    return TensorSpec(shape, strides, as_dtype(out.bits or out.dtype))


def _source(item: Any, call: Call) -> Source:
    if isinstance(item, Operand):
        if isinstance(item.value, Number):
            return Source("number", item.value.name, slot=item.kind)
        return Source("constant", slot=item.kind, value=item.value)
    if isinstance(item, (Arg, View)):
        arg, offset = (item, 0) if isinstance(item, Arg) else (item.arg, item.offset * item.dtype.itemsize)
        return Source("tensor", arg.name, _element(call, arg), offset)
    index, out = item
    if out.into is None:
        return Source("output", index=index)
    return Source("tensor", out.into.name, _element(call, out.into))


def _element(call: Call, arg: Arg) -> int | None:
    value = call[arg.name]
    return next(i for i, a in enumerate(value) if a is arg) if isinstance(value, list) else None


def _returned(call: Call, kernel_call: KernelCall, executable: Any,
              items: list[Any]) -> tuple[list[Out], list[int | None]]:
    """Outputs and results of a kernel that was given no outputs: new tensors, or arguments that the op writes."""
    wanted, returned = call.signature.results, executable.results
    if len(wanted) != len(returned) and all(r.kind != "tensors" for r in wanted):
        raise KernelResultError(kernel=_name(kernel_call.kernel), op=call.name, detail=(
            f"the number of tensors it returns is {len(returned)}, and of results that the op has {len(wanted)}"))
    outputs: list[Out] = []
    where: dict[int, int] = {}
    for i, pointer in enumerate(returned):
        if pointer in where:
            raise KernelResultError(kernel=_name(kernel_call.kernel), op=call.name,
                                    detail="it returns one tensor twice; results are tensors of their own")
        where[pointer] = i
    for pointer, i in sorted(where.items()):        # the new ones in the order of their pointers
        if pointer >= len(items):
            outputs.append(_fresh(call, kernel_call, i, executable.outputs[pointer - len(items)]))
            continue
        item = items[pointer]
        arg = item.arg if isinstance(item, View) else item
        if not (isinstance(arg, Arg) and arg.written):
            raise KernelResultError(kernel=_name(kernel_call.kernel), op=call.name, detail=(
                f"it returns its argument {getattr(arg, 'name', pointer)}, and the op's result is a new tensor: "
                "nl.ndarray(..., buffer=nl.shared_hbm)"))
        outputs.append(Out(arg.shape, arg.strides, arg.dtype, arg))
    order = [where[pointer] for pointer in sorted(where)]
    return outputs, [order.index(i) for i in range(len(order))]


def _fresh(call: Call, kernel_call: KernelCall, i: int, spec: Any) -> Out:
    dtype = torch_dtype(spec.dtype)
    shape: Shape = tuple(spec.shape)
    strides: Strides = contiguous(shape)
    expected = call.outputs[i] if i < len(call.outputs) else None
    if expected is not None and (expected.shape != shape or expected.dtype != dtype):
        raise KernelResultError(
            kernel=_name(kernel_call.kernel), op=call.name,
            detail=f"result {i} is {dtype}{list(shape)}, and PyTorch's op gives {expected.dtype}{list(expected.shape)}")
    return Out(shape, strides, dtype)


def torch_dtype(dtype: Any) -> torch.dtype:
    """The torch dtype of an NKI dtype."""
    name = str(dtype)
    return getattr(torch, {"float8_e4m3": "float8_e4m3fn"}.get(name, name))


def _name(kernel: Any) -> str:
    return str(getattr(kernel, "name", None) or getattr(kernel, "__name__", repr(kernel)))


def _disjoint(call: Call, kernel_call: KernelCall, outputs: list[Out]) -> list[tuple[Arg, Arg, bool]]:
    """Pairs of arguments whose memory must not overlap, for plans that write into arguments."""
    views: dict[int, View] = {}
    for item in _each(kernel_call.inputs):
        if isinstance(item, (Arg, View)):
            view = item.view() if isinstance(item, Arg) else item
            views[view.arg.position] = view
    pairs = []
    written = [o for o in outputs if o.into is not None]
    for n, o in enumerate(written):
        assert o.into is not None
        shape, strides = o.layout
        for position, view in views.items():
            if position != o.into.position:
                same = (kernel_call.may_be_output(view.arg) and view.offset == 0 and view.dtype == (o.bits or o.dtype)
                        and (view.shape, view.strides) == (shape, strides))
                pairs.append((o.into, view.arg, same))
        pairs += [(o.into, other.into, False) for other in written[n + 1:] if other.into is not None]
    return pairs


def _each(inputs: Any) -> list[Any]:
    values = inputs.values() if isinstance(inputs, dict) else inputs
    return [v for value in values for v in (value if isinstance(value, (list, tuple)) else (value,))]


# ---- binding

def _bind(plan: Plan, other_way: Callable[..., Any]) -> Callable[..., Any]:
    sig = plan.call.signature
    index = next((a.device_index for a in plan.call.tensors if a.device_index is not None), 0)
    constants = [_slot(s.slot, s.value) for s in plan.sources if s.kind == "constant"]
    resized = [o for o in plan.outputs if o.into is not None and o.into.shape != o.shape]
    form = (sig, tuple(s.form for s in plan.sources), tuple(_target(plan, o) for o in plan.outputs),
            tuple(plan.results), tuple((a.name, _element(plan.call, a), b.name, _element(plan.call, b), same)
                                       for a, b, same in plan.disjoint),
            tuple(_target(plan, o) for o in resized), plan.executable is None)
    factory = _factory(form)
    run = factory(
        call_kernel(plan.executable, len(plan.sources)),
        [functools.partial(memory.empty_strided, o.shape, o.strides, o.dtype, index) for o in plan.outputs],
        [s.offset for s in plan.sources], [ctypes.addressof(c) for c in constants], resized,
        [(_extent(a), _extent(b)) for a, b, _ in plan.disjoint], other_way)
    run.keep = constants            # type: ignore[attr-defined]    # the generated code holds their addresses only
    return run


def _target(plan: Plan, out: Out) -> str | None:
    """What is written, as source: an argument; or None for a fresh tensor."""
    if out.into is None:
        return None
    element = _element(plan.call, out.into)
    return out.into.name if element is None else f"{out.into.name}[{element}]"


def call_kernel(executable: Any, count: int) -> Callable[..., None]:
    """A function of the pointers."""
    if executable is None:
        return lambda *pointers: None
    if not executable.address:
        return lambda *pointers: executable(pointers)
    array, function, r0, r1 = _Pointer * count, _Function(executable.address), executable.r0, executable.r1

    def call(*pointers: int) -> None:
        function(array(*pointers), r0, r1)
    call.keep = executable          # type: ignore[attr-defined]
    return call


def _slot(kind: str, value: Any) -> Any:
    return _SLOTS[kind](value)


def _extent(a: Arg) -> int:
    """Bytes from the first element to the end of the last."""
    return (1 + sum((n - 1) * s for n, s in zip(a.shape, a.strides))) * a.dtype.itemsize if a.numel else 0


def overlapping(a: int, a_bytes: int, b: int, b_bytes: int, same: bool) -> bool:
    """Whether two ranges of memory overlap, other than by being one and the same where that is allowed."""
    return a < b + b_bytes and b < a + a_bytes and not (same and a == b)


@functools.cache
def _factory(form: tuple[Any, ...]) -> Callable[..., Callable[..., Any]]:
    sig: Signature
    sig, sources, into, results, disjoint, resized, nothing = form
    given = [p.name for p in sig.positional]
    parameters = ", ".join([*given, *(["*"] if sig.keywords else []), *(p.keyword for p in sig.keywords)])
    passed = ", ".join([*given, *(f"{p.keyword}={p.keyword}" for p in sig.keywords)])
    lines = [f"def run({parameters}):"]
    for k, (a, ea, b, eb, same) in enumerate(disjoint):
        ranges = f"{_pointer(a, ea)}, extents[{k}][0], {_pointer(b, eb)}, extents[{k}][1]"
        lines.append(f"    if overlapping({ranges}, {same}):")
        lines.append(f"        return other_way({passed})")
    for k, name in enumerate(resized):
        lines += [f"    {name}.resize_(resized[{k}].shape)",
                  f"    {name}.as_strided_(resized[{k}].shape, resized[{k}].strides)"]
    lines += [f"    out{k} = allocate{k}()" for k, name in enumerate(into) if name is None]
    pointers, constant = [], 0
    for k, (kind, name, element, offset, slot, index) in enumerate(sources):
        if kind == "tensor":
            pointers.append(_pointer(name, element) + (f" + offsets[{k}]" if offset else ""))
        elif kind == "number":
            lines.append(f"    slot{k} = {slot}({name})")
            pointers.append(f"addressof(slot{k})")
        elif kind == "output":
            pointers.append(f"out{index}.data_ptr()")
        else:
            pointers.append(f"constants[{constant}]")
            constant += 1
    if not nothing:
        lines.append(f"    kernel({', '.join(pointers)})")
    back = ["None" if r is None else into[r] or f"out{r}" for r in results]
    if sig.single and sig.results[0].kind == "tensors":
        lines.append(f"    return [{', '.join(back)}]")
    elif sig.results:
        lines.append(f"    return {', '.join(back)}")
    allocates = "".join(f"    allocate{k} = allocators[{k}]\n" for k, name in enumerate(into) if name is None)
    text = ("def make(kernel, allocators, offsets, constants, resized, extents, other_way):\n" + allocates
            + "".join(f"    {line}\n" for line in lines) + "    return run\n")
    names: dict[str, Any] = {"overlapping": overlapping, "addressof": ctypes.addressof, **_SLOTS}
    exec(compile(text, f"<neuron_eager plan {sig.name}>", "exec"), names)
    return names["make"]


def _pointer(name: str, element: int | None) -> str:
    return f"{name}.data_ptr()" if element is None else f"{name}[{element}].data_ptr()"
