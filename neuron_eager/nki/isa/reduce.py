"""Reductions, scans and statistics, on the Vector engine (tensor_partition_reduce: GpSimd)."""
from __future__ import annotations

import math
from typing import Any

from .. import dtypes, limits
from ..program import Instr
from ..tensor import NkiTensor
from . import checks
from ._issue import begin, present
from .constants import reduce_cmd as ReduceCmd
from .elementwise import _TRN3_OP0

_DST = ("dst",)
F32 = (dtypes.float32,)
_REDUCTIONS = frozenset(("add", "subtract", "multiply", "maximum", "minimum", "logical_and", "logical_or",
                         "logical_xor", "bitwise_and", "bitwise_or", "bitwise_xor"))
_FREE_REDUCTIONS = ("add", "multiply", "maximum", "minimum")
_CUMULATIVE = ("add", "subtract", "multiply", "maximum", "minimum")
_PARTITION_REDUCTIONS = ("add", "average", "maximum", "bitwise_or", "bitwise_and")
_SMALL = frozenset(("bfloat16", "float16", "float32", "float8_e4m3", "float8_e4m3fn", "float8_e5m2", "uint8", "uint16",
                    "int8", "int16"))


def tensor_reduce(dst: NkiTensor, op: Any, data: NkiTensor, axis: int | tuple[int, ...] | list[int],
                  negate: bool = False, keepdims: bool = False, name: str | None = None) -> Instr:
    """dst = reduction of data over its last free dimensions, in float32; bit operators on integers as they are.

    axis: an int, or ints: the last dimensions of data without a gap, never 0. dst: as many elements per partition as
    remain (its rank is free). negate: times -1, for arithmetic operators. op: add, subtract, multiply, maximum,
    minimum, logical_and/or/xor, bitwise_and/or/xor.
    """
    machine, i = begin("tensor_reduce", _DST, ("data",), "vector",
                       {"dst": dst, "op": op, "data": data, "axis": axis, "negate": negate, "keepdims": keepdims,
                        "name": name})
    if machine.checks:
        checks.tile(i, "dst")
        checks.tile(i, "data")
        checks.dtype_on_target(i, machine.limits, "dst", "data")
        checks.op_in(i, "op", _REDUCTIONS, "a reduction")
        if checks.ALU[op.name].bits:
            checks.integers(i, op.name, "dst", "data")
            if negate:
                checks.refuse(i, "negate", f"needs an arithmetic operator, not nl.{op.name}")
        else:
            checks.not_packed(i, "dst", "data")
        checks.same_partitions(i, "data", "dst")
        _reduced(i, dst, data)
    return machine.issue(i)


def _reduced(i: Instr, dst: NkiTensor, data: NkiTensor) -> None:
    """Which dimensions go, and what is left for dst."""
    axis, ndim = i.args["axis"], data.ndim
    try:
        axes = (int(axis),) if not isinstance(axis, (tuple, list)) else tuple(int(a) for a in axis)
    except (TypeError, ValueError):
        checks.refuse(i, "axis", f"must be an int or ints, not {axis!r}")
    wanted = tuple(range(ndim - len(axes), ndim))
    if not axes or tuple(sorted(a % ndim if -ndim <= a < ndim else ndim for a in axes)) != wanted or 0 in wanted:
        checks.refuse(i, "axis", f"= {axis!r} must be the last free dimensions of data, such as {ndim - 1}" +
                      (f" or ({ndim - 2}, {ndim - 1})" if ndim > 2 else "") +
                      "; the partition dimension 0 cannot be reduced")
    kept = math.prod(data.shape[1:ndim - len(axes)])
    checks.elements(i, "dst", kept, f", what is left of {list(data.shape)} without dimensions {list(wanted)}")


def tensor_partition_reduce(dst: NkiTensor, op: Any, data: NkiTensor, name: str | None = None) -> Instr:
    """dst [1, F] = reduction of data [P, F] over partitions, on GpSimd: add, average, maximum, bitwise_or/and."""
    machine, i = begin("tensor_partition_reduce", _DST, ("data",), "gpsimd",
                       {"dst": dst, "op": op, "data": data, "name": name})
    if machine.checks:
        checks.tiles(i, "dst", "data")
        checks.op_in(i, "op", _PARTITION_REDUCTIONS, "one of add, average, maximum, bitwise_or and bitwise_and")
        if op.name.startswith("bitwise"):
            checks.integers(i, op.name, "dst", "data")
        checks.not_packed(i, "dst", "data")
        checks.gpsimd_reach(i, "dst", "data")
        if dst.shape[0] != 1:
            checks.refuse(i, "dst", f"has {dst.shape[0]} partitions; the result has 1")
        checks.elements(i, "dst", checks.free(data), ", as data")
    return machine.issue(i)


def tensor_scalar_reduce(dst: NkiTensor, data: NkiTensor, op0: Any, operand0: Any, reduce_op: Any,
                         reduce_res: NkiTensor | None = None, reverse0: bool = False,
                         reduce_cmd: ReduceCmd = ReduceCmd.reset_reduce, reduce_init: Any = None,
                         reduce_res_negate: bool = False, name: str | None = None) -> Instr:
    """dst = data op0 operand0, and its reduction over all free dimensions into the accumulators of the Vector engine.

    op0: an arithmetic operator. operand0: a number or a float32 tile [P, 1]. reduce_op: add, multiply, maximum,
    minimum. reduce_res [P, 1] receives the accumulators, negated with reduce_res_negate. reduce_cmd: reset_reduce,
    reduce, or load_reduce, which starts from reduce_init (a number or a float32 tile [P, 1]).
    """
    args = {"dst": dst, "data": data, "op0": op0, "operand0": operand0, "reduce_op": reduce_op,
            "reduce_res": reduce_res, "reverse0": reverse0, "reduce_cmd": reduce_cmd, "reduce_init": reduce_init,
            "reduce_res_negate": reduce_res_negate, "name": name}
    reads = ("data", *(n for n in ("operand0", "reduce_init") if type(args[n]) is NkiTensor))
    machine, i = begin("tensor_scalar_reduce", present(args, "dst", "reduce_res"), reads, "vector", args)
    if machine.checks:
        checks.tiles(i, "dst", "data")
        checks.same_size(i, "data", "dst")
        checks.not_packed(i, "dst", "data")
        checks.op_in(i, "op0", checks.ARITHMETIC, "an arithmetic operator")
        if op0.name in _TRN3_OP0:
            checks.generation(i, machine.limits, 4, f"nl.{op0.name} as op0")
        if checks.ALU[op0.name].arity == 2:
            checks.column(i, "operand0", data, F32)
        elif operand0 is not None and (type(operand0) is NkiTensor or operand0 != 0):
            checks.refuse(i, "operand0", f"must be None or 0: nl.{op0.name} takes one operand")
        if reverse0:
            checks.refuse(i, "reverse0", "is not supported by this instruction")
        checks.op_in(i, "reduce_op", _FREE_REDUCTIONS, "one of add, multiply, maximum and minimum")
        checks.member(i, "reduce_cmd", ReduceCmd, ReduceCmd.reset_reduce, ReduceCmd.reduce, ReduceCmd.load_reduce)
        _initial(i, "reduce_init", data)
        _result(i, dst)
    return machine.issue(i)


def _initial(i: Instr, name: str, like: NkiTensor) -> None:
    """The value that load_reduce loads is given exactly when it is needed."""
    if i.args["reduce_cmd"] is ReduceCmd.load_reduce:
        if i.args[name] is None:
            checks.refuse(i, name, "is missing, and reduce_cmd.load_reduce loads it")
        checks.column(i, name, like, F32)
    elif i.args[name] is not None:
        checks.refuse(i, name, "is only for reduce_cmd.load_reduce")


def _result(i: Instr, like: NkiTensor) -> None:
    if i.args["reduce_res"] is not None:
        checks.tile(i, "reduce_res")
        checks.same_partitions(i, "dst", "reduce_res")
        checks.elements(i, "reduce_res", 1)


def tensor_scalar_cumulative(dst: NkiTensor, src: NkiTensor, op0: Any, op1: Any, imm0: Any, imm1: Any = None,
                             reduce_cmd: ReduceCmd = ReduceCmd.reset_reduce, name: str | None = None) -> Instr:
    """A running reduction: register = op1(op0(src[j], imm0), register), stored at each j. Vector engine.

    op0: a binary arithmetic operator. op1: add, subtract, multiply, maximum or minimum. imm0: a number or float32 tile
    [P, 1]. reduce_cmd: reset_reduce, reduce (go on from the accumulators) or load_reduce (start from imm1). No 32-bit
    integers.
    """
    args = {"dst": dst, "src": src, "op0": op0, "op1": op1, "imm0": imm0, "imm1": imm1, "reduce_cmd": reduce_cmd,
            "name": name}
    reads = ("src", *(n for n in ("imm0", "imm1") if type(args[n]) is NkiTensor))
    machine, i = begin("tensor_scalar_cumulative", _DST, reads, "vector", args)
    if machine.checks:
        checks.tiles(i, "dst", "src")
        checks.same_size(i, "src", "dst")
        checks.dtype_in(i, "dst", _SMALL)
        checks.dtype_in(i, "src", _SMALL)
        checks.op_in(i, "op0", checks.BINARY, "a binary arithmetic operator")
        checks.op_in(i, "op1", _CUMULATIVE, "one of add, subtract, multiply, maximum and minimum")
        checks.column(i, "imm0", src, F32)
        checks.member(i, "reduce_cmd", ReduceCmd, ReduceCmd.reset_reduce, ReduceCmd.reduce, ReduceCmd.load_reduce)
        _initial(i, "imm1", src)
    return machine.issue(i)


def tensor_tensor_scan(dst: NkiTensor, data0: NkiTensor, data1: NkiTensor, initial: Any, op0: Any, op1: Any,
                       reverse0: bool = False, reverse1: bool = False, name: str | None = None) -> Instr:
    """r[j] = op1(op0(data0[j], r[j-1]), data1[j]) along the free dimension, r[-1] = initial. Vector engine.

    The carry is float32; dst rounds each result once. initial: a number or a tile [P, 1]. op0, op1: binary arithmetic
    operators. data0 and data1 are not both in PSUM.
    """
    args = {"dst": dst, "data0": data0, "data1": data1, "initial": initial, "op0": op0, "op1": op1,
            "reverse0": reverse0, "reverse1": reverse1, "name": name}
    reads = ("data0", "data1", "initial") if type(initial) is NkiTensor else ("data0", "data1")
    machine, i = begin("tensor_tensor_scan", _DST, reads, "vector", args)
    if machine.checks:
        checks.tiles(i, "dst", "data0", "data1")
        checks.same_size(i, "data0", "data1")
        checks.same_size(i, "data0", "dst")
        checks.not_both_psum(i, "data0", "data1")
        checks.not_packed(i, "dst", "data0", "data1")
        checks.op_in(i, "op0", checks.BINARY, "a binary arithmetic operator")
        checks.op_in(i, "op1", checks.BINARY, "a binary arithmetic operator")
        checks.column(i, "initial", data0)
    return machine.issue(i)


def bn_stats(dst: NkiTensor, data: NkiTensor, name: str | None = None) -> Instr:
    """dst [P, 6] = count, mean and variance * count of the even elements of data, then of the odd ones. Vector engine.

    data: at most 512 elements per partition.
    """
    machine, i = begin("bn_stats", _DST, ("data",), "vector", {"dst": dst, "data": data, "name": name})
    if machine.checks:
        checks.tiles(i, "dst", "data")
        checks.same_partitions(i, "data", "dst")
        checks.not_packed(i, "dst", "data")
        checks.elements_between(i, "data", 1, limits.BN_STATS_ELEMENTS)
        checks.elements(i, "dst", 6)
    return machine.issue(i)


def bn_aggr(dst: NkiTensor, data: NkiTensor, name: str | None = None) -> Instr:
    """dst [P, 2] = mean and population variance from the triples (count, mean, variance * count) of bn_stats."""
    machine, i = begin("bn_aggr", _DST, ("data",), "vector", {"dst": dst, "data": data, "name": name})
    if machine.checks:
        checks.tiles(i, "dst", "data")
        checks.same_partitions(i, "data", "dst")
        checks.not_packed(i, "dst", "data")
        found = checks.free(data)
        if found % 3 or not found:
            checks.refuse(i, "data", f"has {found} elements per partition; they come in triples")
        checks.elements(i, "dst", 2)
    return machine.issue(i)
