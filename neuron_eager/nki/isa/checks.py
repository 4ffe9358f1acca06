"""The checks that instructions share. Each reads as one sentence of the documentation, and passes in well under 1 µs.

They take the instruction and the names of its operands, so that the error can show the whole instruction: where it is
in the kernel, every operand, the limit, and the target.
"""
from __future__ import annotations

import math
from collections.abc import Container
from enum import Enum
from typing import Any, NoReturn

from ...errors import NkiTypeError, NkiValidationError
from .. import dtypes
from ..buffers import psum, sbuf
from ..limits import DIMENSIONS, INT32_MAX, INT32_MIN, PARTITIONS, QUADRANT, Limits, allowed_starts
from ..machine import current
from ..program import Instr
from ..registers import VirtualRegister
from ..semantics.alu import ALU, Alu
from ..tensor import NkiTensor
from ..tokens import Op

ARITHMETIC = frozenset(name for name, op in ALU.items() if not op.bits and name != "bypass")
BINARY = frozenset(name for name in ARITHMETIC if ALU[name].arity == 2)
FLOATS = frozenset(("float32", "tfloat32", "bfloat16", "float16", "float8_e4m3", "float8_e4m3fn", "float8_e5m2"))
INTEGERS = frozenset(("int8", "int16", "int32", "uint8", "uint16", "uint32", "int64", "bool"))
WORDS = (dtypes.int32, dtypes.uint32)
# Operands that may pick columns by .indirect(); the second one is what an index of dst has to line up with.
INDIRECT = {
    "tensor_copy": ("dst", "src"), "tensor_copy_predicated": ("dst", "predicate"), "tensor_tensor": ("dst", "data1"),
    "tensor_scalar": ("dst", "data"), "tensor_reduce": ("dst", "data"), "tensor_scalar_reduce": ("dst", "data"),
    "tensor_scalar_cumulative": ("dst", "src"), "activation": ("dst", "data"), "activation_reduce": ("dst", "data"),
    "activate2": ("dst", "data"), "exponential": ("dst", "src"), "nc_matmul": ("dst", "stationary", "moving"),
    "nc_matmul_mx": ("dst", "stationary", "moving"),
}


# ---- errors

def refuse(i: Instr, operand: str, problem: str) -> NoReturn:
    """Raise the error of this instruction: `operand` and what is wrong with it."""
    raise NkiValidationError(explain(i, operand, problem), i.loc)


def explain(i: Instr, operand: str, problem: str) -> str:
    lines = [f"{i.op} {operand} {problem} [{current().target}]"]
    for name, value in i.args.items():
        if isinstance(value, NkiTensor):
            lines.append(f"    {name} = {value.describe()}")
        elif isinstance(value, (list, tuple)) and any(isinstance(v, NkiTensor) for v in value):
            lines += [f"    {name}[{n}] = {v.describe() if isinstance(v, NkiTensor) else v!r}"
                      for n, v in enumerate(value)]
        elif name == operand:
            lines.append(f"    {name} = {value!r}")
    return "\n".join(lines)


def _names(values: Any) -> str:
    return ", ".join(str(v) for v in values)


# ---- tensors

def tensor(i: Instr, name: str) -> NkiTensor:
    """The operand, which must be a tensor."""
    t = i.args[name]
    if type(t) is not NkiTensor:
        raise NkiTypeError(explain(i, name, f"must be a tensor, not {type(t).__name__}"), i.loc)
    return t


def tile(i: Instr, name: str) -> NkiTensor:
    """An on-chip tensor in partitions that one instruction can reach."""
    t = i.args[name]
    if type(t) is not NkiTensor:
        tensor(i, name)
    storage = t.storage
    if not storage.buffer.on_chip:
        refuse(i, name, f"is in {storage.buffer}; the engines read and write SBUF and PSUM only, so copy it with "
                        "nisa.dma_copy")
    if t.dynamic:
        _run_time_index(i, name, t)
    width = storage.partition_bytes
    if t.byte_offset >= width or storage.address is not None:
        _start_partition(i, name, t)
    strides = t.byte_strides
    if strides[0] != width and t.shape[0] > 1:
        refuse(i, name, f"steps {strides[0] / width:g} partitions at a time; the partitions of an operand "
                        "are consecutive")
    if t.shape[0] > PARTITIONS:
        refuse(i, name, f"partition dimension {t.shape[0]} exceeds maximum {PARTITIONS}")
    if len(strides) > DIMENSIONS:
        refuse(i, name, f"has {len(strides)} dimensions; an access pattern has at most {DIMENSIONS}")
    return t


def _run_time_index(i: Instr, name: str, t: NkiTensor) -> None:
    """On-chip operands take a run-time start, and on trn3 some of them columns by `.indirect()`."""
    kind, index = t.dynamic[0].kind, t.dynamic[0].index
    if kind == "vector":
        refuse(i, name, f"is in {t.storage.buffer}; a vector_offset is for HBM tensors of a DMA")
    if kind != "indirect":
        return
    allowed = INDIRECT.get(i.op, ())
    if name not in allowed:
        refuse(i, name, "cannot use .indirect()" + (f"; of this instruction {_names(allowed)} can" if allowed else ""))
    generation(i, current().limits, 4, ".indirect()")
    assert isinstance(index, NkiTensor)
    first = start_partition(index)
    if first % QUADRANT:
        refuse(i, name, f"has an index that starts at partition {first}; it must start at a multiple of {QUADRANT}")
    other, what = (t, name) if name != "dst" else (i.args[allowed[1]], allowed[1])
    if other.storage.buffer is sbuf and start_partition(other) != first:
        refuse(i, name, f"has an index that starts at partition {first}, and {what} starts at "
                        f"{start_partition(other)}; they must start at the same partition")


def start_partition(t: NkiTensor) -> int:
    """The partition where an operand starts; 0 for a storage whose place is not fixed."""
    storage = t.storage
    first = t.byte_offset // storage.partition_bytes if storage.partition_bytes else 0
    return first + (storage.address[0] if storage.address is not None else 0)


def _start_partition(i: Instr, name: str, t: NkiTensor) -> None:
    first, count = start_partition(t), t.shape[0]
    allowed = allowed_starts(count)
    if first not in allowed:
        refuse(i, name, f"starts at partition {first}; an operand of {count} partitions starts at "
                        f"{_names(allowed)}" + ("" if len(allowed) == 1 else " only"))


def tiles(i: Instr, *names: str) -> None:
    for name in names:
        tile(i, name)


def free(t: NkiTensor) -> int:
    """Elements per partition."""
    shape = t.shape
    return shape[1] if len(shape) == 2 else math.prod(shape[1:])


def same_size(i: Instr, first: str, second: str) -> None:
    """Two operands have as many partitions, and as many elements in each."""
    a, b = i.args[first].shape, i.args[second].shape
    if a != b and (a[0] != b[0] or math.prod(a) != math.prod(b)):
        what = "partitions" if a[0] != b[0] else "elements per partition"
        x, y = (a[0], b[0]) if a[0] != b[0] else (math.prod(a[1:]), math.prod(b[1:]))
        refuse(i, second, f"has {y} {what} and {first} has {x}; they must be equal")


def same_partitions(i: Instr, first: str, second: str) -> None:
    a, b = i.args[first].shape[0], i.args[second].shape[0]
    if a != b:
        refuse(i, second, f"has {b} partitions and {first} has {a}; they must be equal")


def elements(i: Instr, name: str, count: int, why: str = "") -> None:
    """The operand has exactly so many elements per partition."""
    found = free(i.args[name])
    if found != count:
        refuse(i, name, f"has {found} elements per partition; it must have {count}{why}")


def elements_between(i: Instr, name: str, low: int, high: int) -> None:
    found = free(i.args[name])
    if not low <= found <= high:
        refuse(i, name, f"has {found} elements per partition; the limit is {low} to {high}")


def column(i: Instr, name: str, like: NkiTensor, dtype: Any = None) -> None:
    """A number, or a tile [P, 1] with as many partitions as `like`, of one of the dtypes given."""
    value = i.args[name]
    if type(value) is NkiTensor:
        tile(i, name)
        shape = value.shape
        if shape[0] != like.shape[0] or (shape[1] if len(shape) == 2 else math.prod(shape[1:])) != 1:
            refuse(i, name, f"must be a number or a tile of shape ({like.shape[0]}, 1), not {list(shape)}")
        if dtype is not None and value.dtype not in dtype:
            refuse(i, name, f"is {value.dtype}; a vector operand must be {_names(dtype)}")
    elif type(value) is not float and type(value) is not int:
        number(i, name)


def number(i: Instr, name: str) -> None:
    value = i.args[name]
    if isinstance(value, VirtualRegister) or not hasattr(value, "__float__") or isinstance(value, NkiTensor):
        raise NkiTypeError(explain(i, name, f"must be a number, not {type(value).__name__}"), i.loc)


def int32(i: Instr, name: str) -> None:
    """A compile-time 32-bit integer, or a register."""
    value = i.args[name]
    if isinstance(value, VirtualRegister):
        return
    if not hasattr(value, "__index__") or isinstance(value, NkiTensor):
        raise NkiTypeError(explain(i, name, f"must be an int, not {type(value).__name__}"), i.loc)
    if not INT32_MIN <= value <= INT32_MAX:
        refuse(i, name, f"{value} does not fit into 32 bits")


# ---- buffers

def in_sbuf(i: Instr, *names: str) -> None:
    for name in names:
        found = i.args[name].storage.buffer
        if found is not sbuf:
            refuse(i, name, f"is in {found}; it must be in SBUF")


def in_psum(i: Instr, name: str) -> None:
    found = i.args[name].storage.buffer
    if found is not psum:
        refuse(i, name, f"is in {found}; the Tensor engine writes to PSUM")


def not_both_psum(i: Instr, first: str, second: str) -> None:
    a, b = i.args[first], i.args[second]
    if a.storage.buffer is psum and type(b) is NkiTensor and b.storage.buffer is psum:
        refuse(i, second, f"is in PSUM, and so is {first}; at most one input of this instruction may be in PSUM")


def any_psum(*tensors: Any) -> bool:
    return any(type(t) is NkiTensor and t.storage.buffer is psum for t in tensors)


def gpsimd_reach(i: Instr, *names: str) -> None:
    """GpSimd has no access to PSUM."""
    for name in names:
        if any_psum(i.args[name]):
            refuse(i, name, "is in PSUM, which the GpSimd engine cannot access")


# ---- dtypes and ops

def dtype_in(i: Instr, name: str, allowed: Container[Any]) -> None:
    found = i.args[name].dtype
    if found not in allowed:
        listed = allowed if isinstance(allowed, (tuple, list)) else sorted(allowed)       # type: ignore[call-overload]
        refuse(i, name, f"is {found}; it must be {_names(listed)}")


def dtype_on_target(i: Instr, limits: Limits, *names: str) -> None:
    for name in names:
        found = i.args[name].dtype
        if found not in limits.dtypes:
            refuse(i, name, f"is {found}, which {limits.target} does not have")


def same_dtype(i: Instr, first: str, second: str) -> None:
    a, b = i.args[first].dtype, i.args[second].dtype
    if a is not b:
        refuse(i, second, f"is {b} and {first} is {a}; this instruction does not convert")


def not_packed(i: Instr, *names: str) -> None:
    for name in names:
        value = i.args[name]
        if type(value) is NkiTensor and value.dtype.packed > 1:
            refuse(i, name, f"is {value.dtype}; packed values go to nc_matmul_mx, copies and memset(0) only")


def op_in(i: Instr, name: str, allowed: Container[str], what: str) -> str:
    """The name of an op token, which must be one of those allowed."""
    op = i.args[name]
    if type(op) is not Op:
        raise NkiTypeError(explain(i, name, f"must be an op of nki.language such as nl.add, not {op!r}"), i.loc)
    if op.name not in allowed:
        refuse(i, name, f"= nl.{op.name} is not {what}")
    return op.name


def alu_op(i: Instr, name: str) -> Alu:
    """An ALU operator."""
    op = i.args[name]
    if type(op) is not Op:
        op_in(i, name, ALU, "")
    found = ALU.get(op.name)
    if found is None or found.name == "bypass":
        refuse(i, name, f"= nl.{op.name} is not an operator of the ALU")
    return found


def integers(i: Instr, op: str, *names: str) -> None:
    for name in names:
        value = i.args[name]
        if (value.dtype.kind == "f") if type(value) is NkiTensor else (type(value) is not int):
            shown = value.dtype if type(value) is NkiTensor else type(value).__name__
            refuse(i, name, f"is {shown}; nl.{op} works on the bits of integers")


# ---- enumerations and targets

def member(i: Instr, name: str, kind: type[Enum], *allowed: Enum) -> None:
    """An enumeration value, one of those allowed (all, if none are named)."""
    value = i.args[name]
    if type(value) is not kind:
        raise NkiTypeError(explain(i, name, f"must be a member of nisa.{kind.__name__}, not {value!r}"), i.loc)
    if allowed and value not in allowed:
        refuse(i, name, f"= {value} is not supported here; allowed: {_names(allowed)}")


def generation(i: Instr, limits: Limits, least: int, what: str = "it") -> None:
    if limits.generation < least:
        raise NkiValidationError(explain(
            i, "", f"needs NeuronCore-v{least} (trn{least - 1}) or newer: {what} is not on {limits.target}").replace(
                "  needs", " needs"), i.loc)
