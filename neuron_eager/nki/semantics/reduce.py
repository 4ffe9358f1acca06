"""Reductions, scans and statistics of the Vector and GpSimd engines."""
from __future__ import annotations

from typing import Any

import numpy as np

from .alu import ALU, Array
from .elementwise import Args, apply_scalar, read_out
from .operands import exact_integers, f32, load, rows, scalar_f32, store, to_f32, write
from .state import State


def _reduction_axes(axis: Any, ndim: int) -> tuple[int, ...]:
    axes = (axis,) if isinstance(axis, int) else tuple(axis)
    return tuple(x % ndim for x in axes)


def tensor_reduce(a: Args, state: State) -> None:
    dst, data, op = a["dst"], a["data"], ALU[a["op"].name]
    kept = data.ndim - len(_reduction_axes(a["axis"], data.ndim))
    values = load(data)
    folded = values.reshape(*data.shape[:kept], -1)
    assert op.reduce is not None
    if op.bits:
        result = op.reduce(folded.view(f"u{folded.dtype.itemsize}"), axis=-1)
        return write(dst, result.astype(f"u{dst.dtype.itemsize}").view(dst.dtype.numpy))
    if exact_integers(dst, data):
        result = op.reduce(folded.astype(np.int64), axis=-1).astype(np.int64, copy=False)
    else:
        result = op.reduce(to_f32(folded, data.dtype) if folded.dtype != np.float32 else folded, axis=-1)
        result = result.astype(np.float32, copy=False)
    return store(dst, np.negative(result) if a["negate"] else result)


def tensor_partition_reduce(a: Args, state: State) -> None:
    dst, data, name = a["dst"], a["data"], a["op"].name
    if name in ("bitwise_or", "bitwise_and"):
        bits = np.ascontiguousarray(rows(data))
        result = ALU[name].reduce(bits.view(f"u{bits.dtype.itemsize}"), axis=0)      # type: ignore[misc]
        return write(dst, result.astype(f"u{dst.dtype.itemsize}").view(dst.dtype.numpy))
    if exact_integers(dst, data) and name != "average":
        return store(dst, ALU[name].reduce(rows(data).astype(np.int64), axis=0))     # type: ignore[misc]
    values = f32(data)
    if name == "average":
        return store(dst, values.sum(axis=0, dtype=np.float32) / np.float32(len(values)))
    return store(dst, ALU[name].reduce(values, axis=0))                              # type: ignore[misc]


def accumulate(register: Array, command: str, op: Any, values: Array, initial: Any = None) -> None:
    """Run a reduce command on the accumulators of the partitions in use: [P, 1] registers, [P, F] values."""
    if command in ("reset", "reset_reduce"):
        register[...] = op.identity
    elif command == "load_reduce":
        register[...] = initial
    if command in ("reduce", "reset_reduce", "load_reduce"):
        register[...] = op(register, op.reduce(values, axis=1)[:, None])


def tensor_scalar_reduce(a: Args, state: State) -> None:
    dst, data, op0 = a["dst"], a["data"], ALU[a["op0"].name]
    operand = None if op0.arity == 1 else scalar_f32(a["operand0"])
    initial = None if a["reduce_init"] is None else scalar_f32(a["reduce_init"])
    values = apply_scalar(op0, f32(data), operand, a["reverse0"])
    accumulate(state.vector[:data.shape[0]], a["reduce_cmd"].name, ALU[a["reduce_op"].name], values, initial)
    store(dst, values)
    read_out(a["reduce_res"], state.vector, a["reduce_res_negate"])


_ASSOCIATIVE = {"add": np.add, "multiply": np.multiply, "maximum": np.maximum, "minimum": np.minimum}


def tensor_scalar_cumulative(a: Args, state: State) -> None:
    dst, src, op0, op1 = a["dst"], a["src"], ALU[a["op0"].name], ALU[a["op1"].name]
    register = state.vector[:src.shape[0]]
    if a["reduce_cmd"].name == "reset_reduce":
        register[...] = op1.identity
    elif a["reduce_cmd"].name == "load_reduce":
        register[...] = scalar_f32(a["imm1"])
    values = apply_scalar(op0, f32(src), None if op0.arity == 1 else scalar_f32(a["imm0"]), False)
    if op1.name in _ASSOCIATIVE:
        result = _ASSOCIATIVE[op1.name].accumulate(np.concatenate([register, values], axis=1), axis=1)[:, 1:]
    else:
        result = np.empty_like(values)
        carry = register[:, 0]
        for i in range(values.shape[1]):
            carry = op1(values[:, i], carry)
            result[:, i] = carry
    register[...] = result[:, -1:]
    store(dst, result)


def tensor_tensor_scan(a: Args, state: State) -> None:
    op0, op1 = ALU[a["op0"].name], ALU[a["op1"].name]
    first, second = np.ascontiguousarray(f32(a["data0"]).T), np.ascontiguousarray(f32(a["data1"]).T)
    initial = scalar_f32(a["initial"])
    carry = np.broadcast_to(np.asarray(initial, np.float32).reshape(-1), first.shape[1:])
    result = np.empty_like(first)
    for i, (x, y) in enumerate(zip(first, second)):
        inner = op0(carry, x) if a["reverse0"] else op0(x, carry)
        carry = result[i] = op1(y, inner) if a["reverse1"] else op1(inner, y)
    store(a["dst"], result.T)


def bn_stats(a: Args, state: State) -> None:
    values = f32(a["data"])
    statistics = []
    for half in (values[:, 0::2], values[:, 1::2]):
        count = half.shape[1]
        mean = half.sum(axis=1) / np.float32(count or 1)
        statistics += [np.full(len(half), count, np.float32), mean, np.square(half - mean[:, None]).sum(axis=1)]
    store(a["dst"], np.stack(statistics, axis=1))


def bn_aggr(a: Args, state: State) -> None:
    triples = f32(a["data"]).reshape(a["data"].shape[0], -1, 3)
    count, mean, spread = triples[..., 0], triples[..., 1], triples[..., 2]
    total = count.sum(axis=1)
    overall = (count * mean).sum(axis=1) / total
    variance = (spread + count * np.square(mean - overall[:, None])).sum(axis=1) / total
    store(a["dst"], np.stack([overall, variance], axis=1))


