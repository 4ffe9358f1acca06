"""Element-wise instructions: tensor_tensor, tensor_scalar, scalar_tensor_tensor, copies, selections, patterns."""
from __future__ import annotations

from typing import Any

import numpy as np

from .. import dtypes, limits
from ..tensor import NkiTensor
from .alu import ALU, Alu, Array
from .operands import (
    convert,
    exact_integers,
    f32,
    integers,
    load,
    register_value,
    rows,
    scalar_f32,
    store,
    write,
)
from .state import State

Args = dict[str, Any]
_ADDRESS = (dtypes.int32, dtypes.uint32)
I64 = np.dtype(np.int64)


def memset(a: Args, state: State) -> None:
    dst, value = a["dst"], a["value"]
    number = np.array(value, np.float32 if dst.dtype.kind == "f" else I64).reshape((1,) * dst.ndim)
    if dst.dtype.packed > 1:
        write(dst, np.zeros(dst.shape, dst.dtype.numpy))
    else:
        store(dst, np.broadcast_to(convert(number, dtypes.int64, dst.dtype) if dst.dtype.kind != "f" else number,
                                   dst.shape))


def tensor_copy(a: Args, state: State) -> None:
    dst, src = a["dst"], a["src"]
    values = load(src)
    write(dst, values if src.dtype is dst.dtype else convert(values, src.dtype, dst.dtype))


def tensor_tensor(a: Args, state: State) -> None:
    dst, x, y, op = a["dst"], a["data1"], a["data2"], ALU[a["op"].name]
    if op.bits:
        return store_bits(dst, op, rows(x), rows(y))
    if op.integral and exact_integers(dst, x, y):
        return store(dst, op.apply(integers(x, I64), integers(y, I64)))
    if op.integral and a["engine"].name == "gpsimd" and _native_integers(dst, x, y):
        wide = x.dtype.numpy
        return store(dst, op.apply(rows(x), integers(y, wide)))
    return store(dst, op.apply(f32(x), f32(y)))


def _native_integers(*tensors: NkiTensor) -> bool:
    return all(t.dtype in _ADDRESS for t in tensors)


def store_bits(dst: NkiTensor, op: Alu, *operands: Array) -> None:
    """Bit operators: the patterns of the operands, zero-extended to the widest of them, cut to the destination."""
    arrays = [np.ascontiguousarray(x).view(f"u{x.dtype.itemsize}") for x in operands]
    wide = max((x.dtype for x in arrays), key=lambda d: d.itemsize)
    result = op.apply(*(x.astype(wide, copy=False) for x in arrays))
    size = dst.dtype.itemsize
    write(dst, result.astype(f"u{size}", copy=False).view(dst.dtype.numpy))


def _bit_operand(operand: Any, like: Array) -> Array:
    if type(operand) is NkiTensor:
        return rows(operand)
    return np.array([[operand & ((1 << 8 * like.dtype.itemsize) - 1)]], f"u{like.dtype.itemsize}")


def apply_scalar(op: Alu, data: Any, operand: Any, reverse: bool) -> Any:
    """`data op operand`, or the other way round; a unary operator takes the data alone."""
    if op.arity == 1:
        return op(data)
    return op(operand, data) if reverse else op(data, operand)


def tensor_scalar(a: Args, state: State) -> None:
    dst, data = a["dst"], a["data"]
    stages = [(ALU[a["op0"].name], a["operand0"], a["reverse0"])]
    if a["op1"] is not None:
        stages.append((ALU[a["op1"].name], a["operand1"], a["reverse1"]))
    operands = [o for op, o, _ in stages if op.arity == 2]
    if stages[0][0].bits:
        return _bit_stages(dst, rows(data), stages)
    wide = integer_arithmetic(dst, data, stages, operands)
    if wide is not None:
        return store(dst, _stages(integers(data, wide), stages, lambda o: integers(o, wide)))
    return store(dst, _stages(f32(data), stages, scalar_f32))


def integer_arithmetic(dst: NkiTensor, data: NkiTensor, stages: Any, operands: list[Any]) -> np.dtype[Any] | None:
    """The dtype in which tensor_scalar is exact, or None where it works in float32.

    int64 by the rule of that extension; 32 bits where tiles are int32 or uint32 and operands are such tiles or ints,
    which is the form that computes addresses.
    """
    if not all(op.integral for op, _, _ in stages) or any(type(o) is float for o in operands):
        return None
    if exact_integers(dst, data, *operands):
        return I64
    tiles = [o for o in operands if type(o) is NkiTensor]
    return data.dtype.numpy if _native_integers(dst, data, *tiles) else None


def _stages(value: Any, stages: Any, operand: Any) -> Any:
    for op, o, reverse in stages:
        value = op.apply(value) if op.arity == 1 else (
            op.apply(operand(o), value) if reverse else op.apply(value, operand(o)))
        if op.truth:
            value = value.astype(np.float32 if operand is scalar_f32 else np.int64)
    return value


def _bit_stages(dst: NkiTensor, value: Array, stages: Any) -> None:
    value = np.ascontiguousarray(value).view(f"u{value.dtype.itemsize}")
    for op, o, reverse in stages:
        if op.arity == 1:
            value = op.apply(value)
        else:
            other = _bit_operand(o, value)
            other = np.ascontiguousarray(other).view(f"u{other.dtype.itemsize}").astype(value.dtype, copy=False)
            value = op.apply(other, value) if reverse else op.apply(value, other)
    store_bits(dst, ALU["bypass"], value)


def scalar_tensor_tensor(a: Args, state: State) -> None:
    dst, data, other = a["dst"], a["data"], a["operand1"]
    op0, op1 = ALU[a["op0"].name], ALU[a["op1"].name]
    integral = op0.integral and op1.integral and type(a["operand0"]) is not float
    if integral and exact_integers(dst, data, a["operand0"], other):
        value = apply_scalar(op0, integers(data, I64), integers(a["operand0"], I64), a["reverse0"])
        value, second = value.astype(I64), integers(other, I64)
    else:
        value = apply_scalar(op0, f32(data), None if op0.arity == 1 else scalar_f32(a["operand0"]), a["reverse0"])
        second = f32(other)
    store(dst, op1.apply(second, value) if a["reverse1"] else op1.apply(value, second))


def reciprocal(a: Args, state: State) -> None:
    store(a["dst"], np.reciprocal(f32(a["data"])))


def _truth(predicate: NkiTensor, reverse: bool) -> Array:
    nonzero = rows(predicate) != 0
    return ~nonzero if reverse else nonzero


def tensor_copy_predicated(a: Args, state: State) -> None:
    dst, src = a["dst"], a["src"]
    if type(src) is NkiTensor:
        values = rows(src)
    else:
        values = convert(np.array([[src]], np.float32), dtypes.float32, dst.dtype)
    write(dst, np.where(_truth(a["predicate"], a["reverse_pred"]), values, rows(dst)))


def affine(pattern: Any, partitions: int, offset: Any, channel_multiplier: int) -> Array:
    """offset + p * channel_multiplier + sum of steps, [partitions, elements], in 32-bit integers that wrap."""
    free: Array = np.zeros(1, np.int64)
    for step, count in pattern:
        free = np.add.outer(free, np.arange(count, dtype=np.int64) * step).reshape(-1)
    channel = np.arange(partitions, dtype=np.int64).reshape(-1, 1) * channel_multiplier
    return (register_value(offset) + channel + free).astype(np.int32)


def iota(a: Args, state: State) -> None:
    dst = a["dst"]
    values = affine(a["pattern"], dst.shape[0], a["offset"], a["channel_multiplier"])
    if dst.dtype in _ADDRESS or dst.dtype is dtypes.int64:
        store(dst, values)
    else:
        store(dst, values.astype(np.float32))


def affine_select(a: Args, state: State) -> None:
    dst, on_true = a["dst"], a["on_true_tile"]
    value = affine(a["pattern"], dst.shape[0], a["offset"], a["channel_multiplier"])
    keep = ALU[a["cmp_op"].name].apply(value, np.int32(0))
    select(dst, keep, on_true, a["on_false_value"])


def select(dst: NkiTensor, keep: Array, on_true: NkiTensor, on_false: Any) -> None:
    """Elements of `on_true` keep their bits where the dtypes agree; everything else passes through float32."""
    if type(on_false) is NkiTensor:
        fill = convert(rows(on_false), on_false.dtype, dst.dtype)
    elif dst.dtype.kind != "f" and type(on_false) is int:
        fill = convert(np.array(on_false, I64).reshape(1, 1), dtypes.int64, dst.dtype)
    else:
        fill = convert(np.array([[on_false]], np.float32), dtypes.float32, dst.dtype)
    write(dst, np.where(keep, convert(rows(on_true), on_true.dtype, dst.dtype), fill))


def select_reduce(a: Args, state: State) -> None:
    dst = a["dst"]
    keep = _truth(a["predicate"], a["reverse_pred"])
    result = np.where(keep, f32(a["on_true"]), scalar_f32(a["on_false"]))
    partitions = dst.shape[0]
    command = a["reduce_cmd"].name
    if command != "idle":
        register = state.vector[:partitions]
        if command == "reset_reduce":
            register[...] = -np.inf
        np.maximum(register, result.max(axis=1, keepdims=True), out=register)
    read_out(a["reduce_res"], state.vector)
    select(dst, keep, a["on_true"], a["on_false"])


def read_out(reduce_res: NkiTensor | None, register: Array, negate: bool = False) -> None:
    """Copy the accumulators into a result tile, if one was given."""
    if reduce_res is not None:
        value = register[:reduce_res.shape[0]]
        store(reduce_res, -value if negate else value.copy())


def range_select(a: Args, state: State) -> None:
    dst, on_true = a["dst"], a["on_true_tile"]
    value = f32(on_true)
    index = (a["range_start"] + np.arange(value.shape[1])).astype(np.float32)
    keep = (ALU[a["comp_op0"].name].apply(index, f32(a["bound0"])) &
            ALU[a["comp_op1"].name].apply(index, f32(a["bound1"])))
    result = np.where(keep, value, np.float32(limits.FP32_MIN))
    partitions = dst.shape[0]
    register = state.vector[:partitions]
    if a["reduce_cmd"].name in ("reset_reduce", "reset"):
        register[...] = -np.inf
    if a["reduce_cmd"].name in ("reset_reduce", "reduce"):
        np.maximum(register, result.max(axis=1, keepdims=True), out=register)
    read_out(a["reduce_res"], state.vector)
    store(dst, result)


def dropout(a: Args, state: State) -> None:
    dst, data = a["dst"], a["data"]
    values = rows(data)
    drop = state.random["vector"].uniform(*values.shape) < scalar_f32(a["prob"])
    write(dst, np.where(drop, np.zeros((), values.dtype), values))
