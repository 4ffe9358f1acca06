"""The CPU fallback: an op runs PyTorch's own CPU kernel on host aliases of its arguments.

For each op a function is generated from the schema at the op's first use; `source(op)` shows it. For mm it is

    def run(self, mat2, **rest):
        try:
            h_self = host(self)
            h_mat2 = host(mat2)
        except OnHost:
            raise refusal(name, (('self', self), ('mat2', mat2))) from None
        result = call(h_self, h_mat2, **rest)
        return neuron(result)

Written arguments are written in place, through the alias. `out=` is resized as PyTorch would. Arguments that share
memory with a written one get aliases on one storage, so that PyTorch's overlap checks see what they see on CPU. A view
is never made here: it would not share storage, version counter and `_base` with its source.
"""
from __future__ import annotations

import functools
import linecache
import textwrap
from collections.abc import Callable
from typing import Any

import torch

from ..device import devices, random
from ..errors import NoKernelError, ViewFallbackError
from . import host as host_module
from . import special
from .schema import OpOverload, Parameter, Signature, signature

# Arguments that PyTorch's accelerators take from the CPU as well (indices) or only from the CPU (lengths).
CPU_ARGUMENTS: dict[str, frozenset[str]] = {
    "aten::index.Tensor": frozenset({"indices"}),
    "aten::index.Tensor_out": frozenset({"indices"}),
    "aten::_unsafe_index.Tensor": frozenset({"indices"}),
    "aten::_index_put_impl_": frozenset({"indices"}),
    "aten::index_put_": frozenset({"indices"}),
    "aten::index_put": frozenset({"indices"}),
    "aten::_unsafe_index_put": frozenset({"indices"}),
    "aten::_pack_padded_sequence": frozenset({"lengths"}),
    "aten::_ctc_loss.Tensor": frozenset({"targets", "input_lengths", "target_lengths"}),
    "aten::_ctc_loss_backward.Tensor": frozenset({"targets", "input_lengths", "target_lengths"}),
    "aten::_ctc_loss_backward": frozenset({"targets"}),
    "aten::_ctc_loss": frozenset({"targets"}),
    "aten::_histogramdd_from_bin_tensors": frozenset({"bins"}),
}

# Ops whose plain torch function means one overload whatever the arguments, beside the ops with one overload only. It
# costs 0.5 to 1 µs less than calling the overload.
_UNAMBIGUOUS = frozenset({
    "aten::add.Tensor", "aten::sub.Tensor", "aten::mul.Tensor", "aten::div.Tensor",
    "aten::eq.Tensor", "aten::ne.Tensor", "aten::lt.Tensor", "aten::le.Tensor", "aten::gt.Tensor", "aten::ge.Tensor",
    "aten::eq.Scalar", "aten::ne.Scalar", "aten::lt.Scalar", "aten::le.Scalar", "aten::gt.Scalar", "aten::ge.Scalar",
    "aten::pow.Tensor_Scalar", "aten::pow.Tensor_Tensor", "aten::sum.dim_IntList", "aten::mean.dim",
    "aten::add_.Tensor", "aten::sub_.Tensor", "aten::mul_.Tensor", "aten::div_.Tensor",
    "aten::masked_fill_.Scalar", "aten::fill_.Scalar", "aten::where.self", "aten::cat", "aten::clamp",
})


# Those of them that take Python numbers for tensors, as the operators do.
_TAKE_NUMBERS = frozenset(f"aten::{op}{form}.Tensor" for op in ("add", "sub", "mul", "div") for form in ("", "_"))


def target(op: OpOverload) -> Callable[..., Any]:
    """The cheapest callable that runs exactly this overload on CPU tensors."""
    if op._name in special.ON_CPU:
        return special.ON_CPU[op._name]
    base = op._schema.name.split("::")[-1]
    packet = op.overloadpacket
    functional = [o for o in packet.overloads() if not o.endswith("out")]
    plain = op.namespace == "aten" and not any(a.is_out for a in op._schema.arguments)
    if plain and (op._name in _UNAMBIGUOUS or functional == [op._overloadname]):
        if op._schema.is_mutable:
            method = getattr(torch._C.TensorBase, base, None)
            if base.endswith("_") and not base.startswith("_") and method is not None:
                return method
        else:
            for home in (torch._C._VariableFunctions, torch._C._nn):
                function = getattr(home, base, None)
                if function is not None:
                    return function
    return op._op


def generate(op: OpOverload) -> Callable[..., Any]:
    """The function that runs `op` on host aliases.

    Raises (when called):
        NoKernelError: PyTorch has no CPU kernel for it.
        ViewFallbackError: the op returns a view.
    """
    sig = signature(op)
    if any(r.kind == "view" for r in sig.results):
        return _raiser(ViewFallbackError(op=sig.name))
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    keys = ("CPU", "CompositeExplicitAutograd", "CompositeImplicitAutograd", "CompositeExplicitAutogradNonFunctional")
    if sig.name not in special.ON_CPU and not any(has(sig.name, key) for key in keys):
        return _raiser(NoKernelError(op=sig.name))
    text, names = _Writer(op, sig).write()
    return compile_source(f"<neuron_eager fallback {sig.name}>", text, names)


def generate_for_numbers(op: OpOverload) -> Callable[..., Any]:
    """As `generate`, for calls that have a Python number in a tensor's place, as PyTorch passes them to Python.

    The packet finds the overload for it (mul.Tensor(x, 2.0) is mul(x, 2.0)); where there is none, the number becomes a
    tensor without dimensions.
    """
    tensors = [i for i, p in enumerate(signature(op).positional) if p.type == "Tensor"]
    cheap = target(op)
    packet = op.overloadpacket if cheap is op._op or op._name in special.ON_CPU else cheap

    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return packet(*args, **kwargs)
        except (RuntimeError, TypeError) as error:      # of the packet; of a torch function
            if not any(said in str(error) for said in ("failed to match any schema", "must be Tensor, not",
                                                       "invalid combination of arguments")):
                raise
        return op(*(torch.scalar_tensor(a, dtype=_number_dtype(a)) if i in tensors and isinstance(a, host_module.Number)
                    else a for i, a in enumerate(args)), **kwargs)

    sig = signature(op)
    text, names = _Writer(op, sig).write()
    names["call"] = cheap if sig.name in _TAKE_NUMBERS else call
    return compile_source(f"<neuron_eager fallback {sig.name}, numbers>", text, names)


def source(op: OpOverload) -> str:
    """The generated Python source of an op's fallback."""
    return _Writer(op, signature(op)).write()[0]


def _number_dtype(value: Any) -> torch.dtype:
    if isinstance(value, bool):
        return torch.bool
    if isinstance(value, int):
        return torch.int64
    return torch.get_default_dtype() if isinstance(value, float) else torch.complex64


def _raiser(error: Exception) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        raise error
    return run


def compile_source(filename: str, text: str, names: dict[str, Any]) -> Callable[..., Any]:
    linecache.cache[filename] = (len(text), None, text.splitlines(True), filename)      # tracebacks show the source
    exec(compile(text, filename, "exec"), names)
    return names["run"]


def head(sig: Signature, names: dict[str, Any], name: str = "run", explicit: bool = False) -> str:
    """`def run(self, other=default, *, out, **rest):` for an op. Defaults that have no literal go to `names`.

    Unless `explicit`, keyword arguments that need no conversion travel in `rest`: PyTorch leaves out those that have
    their default value, and passing a default on would cost more than the whole tracking of an op.
    """
    def declare(p: Parameter) -> str:
        if not p.has_default:
            return p.name
        if p.default is None or isinstance(p.default, (bool, int, str)):
            return f"{p.name}={p.default!r}"
        names[f"default_{p.name}"] = p.default
        return f"{p.name}=default_{p.name}"

    named = [declare(p) for p in sig.keywords if explicit or converted(p)]
    rest = [] if explicit or all(map(converted, sig.keywords)) else ["**rest"]
    parts = [*map(declare, sig.positional), *(["*", *named] if named else []), *rest]
    return f"def {name}({', '.join(parts)}):"


def converted(p: Parameter) -> bool:
    return p.tensor or p.tensors or "Generator" in p.type or "Device" in p.type or p.keyword == "pin_memory"


class _Writer:
    """Writes the fallback of one op."""

    def __init__(self, op: OpOverload, sig: Signature):
        self.op, self.sig = op, sig
        self.names: dict[str, Any] = {
            "call": target(op), "name": sig.name, "default_generator": random.default_generator,
            "device_index": devices.index_of,
            **{n: getattr(host_module, n) for n in (
                "OnHost", "host", "host_written", "host_or_cpu", "host_out", "fresh_out", "cannot_resize",
                "settle_out", "neuron", "overlaps", "on_one_storage", "index_of", "refusal")}}
        self.tensors = [p for p in sig.parameters if p.tensor]
        self.outs = [p for p in sig.parameters if p.out and p.tensor]
        self.device = next((p for p in sig.parameters if "Device" in p.type), None)
        self.uses_index = devices.count() > 1 or self.device is not None or any(
            "Generator" in p.type for p in sig.parameters)

    def write(self) -> tuple[str, dict[str, Any]]:
        lines = [head(self.sig, self.names)]
        lines += _indent(self.convert())
        lines += _indent(self.run())
        lines += _indent(self.give_back())
        return "\n".join(lines) + "\n", self.names

    # ---- arguments

    def convert(self) -> list[str]:
        holders = [p for p in self.sig.parameters if p.tensor or p.tensors]
        lines = []
        if self.uses_index:
            found = f"index_of({', '.join(p.name for p in holders)})"
            if self.device is not None:
                d = self.device.name
                found = f"device_index({d})" + (f" if {d} is not None else {found}" if holders else "")
            lines.append(f"index = {found}")
        # written arguments first: another argument that is the same tensor gets the same alias
        ordered = sorted(holders, key=lambda p: not p.written)
        lines += [self.convert_one(p) for p in ordered]
        lines += self.share_storage()
        if not lines:
            return []
        pairs = "".join(f"({p.keyword!r}, {p.name}), " for p in holders)
        return ["try:", *_indent(lines), "except OnHost:", f"    raise refusal(name, ({pairs})) from None"]

    def convert_one(self, p: Parameter) -> str:
        cpu = p.keyword in CPU_ARGUMENTS.get(self.sig.name, ())
        function = "host_or_cpu" if cpu else "host"
        if p.tensors:
            if p.written:
                function = "host_written"
            one = f"{function}(t)"
            for written in self.written():
                one = f"h_{written.name} if t is {written.name} else {one}"
            if "Optional[Tensor]" in p.type:
                one = f"None if t is None else {one}"
            value = f"[{one} for t in {p.name}]"
            return f"h_{p.name} = {value}" + (f" if {p.name} is not None else None" if p.optional else "")
        if p.written:
            function = "host_out" if p.out else "host_written"
            return f"h_{p.name} = {function}({p.name})"
        value = f"{function}({p.name})"
        for written in self.written():
            value = f"h_{written.name} if {p.name} is {written.name} else {value}"
        if p.optional:
            value = f"None if {p.name} is None else {value}"
        return f"h_{p.name} = {value}"

    def written(self) -> list[Parameter]:
        return [p for p in self.tensors if p.written]

    def share_storage(self, resizable: bool = False) -> list[str]:
        """What gives arguments on the storage of the written one aliases on one storage; nothing where none can be."""
        written = self.written()
        read = [p for p in self.sig.parameters if (p.tensor or p.tensors) and not p.written]
        if len(written) != 1 or not read or any(p.keyword in CPU_ARGUMENTS.get(self.sig.name, ()) for p in read):
            return []
        w, others = written[0].name, ", ".join(p.name for p in read)
        same = ", same=True" if resizable else ""
        test = " or ".join(f"overlaps({w}, {p.name}{same})" for p in read)
        return [f"if {test}:", f"    h_{w}, {', '.join('h_' + p.name for p in read)}"
                f" = on_one_storage({w}, {others}{', resizable=True' if resizable else ''})"]

    # ---- the call

    def call(self) -> str:
        parts = [self.passed(p) for p in self.sig.positional]
        parts += [f"{p.keyword}={self.passed(p)}" for p in self.sig.keywords if converted(p)]
        if any(not converted(p) for p in self.sig.keywords):
            parts.append("**rest")
        return f"call({', '.join(parts)})"

    def passed(self, p: Parameter) -> str:
        if p.tensor or p.tensors:
            return f"h_{p.name}"
        if "Generator" in p.type:
            return f"default_generator(index) if {p.name} is None else {p.name}"
        if "Device" in p.type:
            return "'cpu'"
        return "None" if p.keyword == "pin_memory" else p.name

    def run(self) -> list[str]:
        call = self.call()
        if not self.outs:
            return [("" if self.returns_argument() else "result = ") + call]
        retry = [f"h_{p.name} = fresh_out({p.name})" for p in self.outs]
        shared = self.share_storage(resizable=True)
        if shared:
            retry = [*shared, "else:", *_indent(retry)]
        return ["try:", f"    {call}", "except RuntimeError as error:", "    if not cannot_resize(error):",
                "        raise", *_indent(retry), *_indent([call]),
                *(f"settle_out({p.name}, h_{p.name})" for p in self.outs)]

    # ---- results

    def returns_argument(self) -> bool:
        return all(r.kind == "argument" for r in self.sig.results)

    def give_back(self) -> list[str]:
        results = self.sig.results
        if not results:
            return []
        index = ", index" if self.uses_index else ""

        def give(kind: str, value: str, argument: str | None) -> str:
            if kind == "argument":
                return str(argument)
            if kind == "tensor":
                return f"neuron({value}{index})"
            if kind == "tensors":
                return f"[neuron(t{index}) for t in {value}]"
            return value

        if self.sig.single:
            return [f"return {give(results[0].kind, 'result', results[0].argument)}"]
        if self.returns_argument():
            return [f"return {', '.join(str(r.argument) for r in results)}"]
        values = [f"r{i}" for i in range(len(results))]
        return [f"{', '.join(values)} = result",
                f"return {', '.join(give(r.kind, v, r.argument) for r, v in zip(results, values))}"]


def _indent(lines: list[str], by: int = 1) -> list[str]:
    return textwrap.indent("\n".join(lines), "    " * by).split("\n") if lines else []


@functools.cache
def runner(op: OpOverload, numbers: bool = False) -> Callable[..., Any]:
    """The generated fallback of an op, made once. `numbers`: for calls with Python numbers in tensors' places."""
    return generate_for_numbers(op) if numbers else generate(op)


__all__ = ["compile_source", "converted", "generate", "head", "runner", "source", "target"]
