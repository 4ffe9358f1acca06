"""Activation functions on the Scalar engine, and exponential on the Vector engine."""
from __future__ import annotations

from typing import Any

from .. import dtypes
from ..program import Instr
from ..semantics.functions import FUNCTIONS
from ..tensor import NkiTensor
from . import checks
from ._issue import begin, present
from .constants import reduce_cmd as ReduceCmd

F32 = (dtypes.float32,)
_NOT_TF32 = frozenset(dtypes.ALL) - {"tfloat32"}
_IDLE, _RESET, _REDUCE, _RESET_REDUCE = ReduceCmd.idle, ReduceCmd.reset, ReduceCmd.reduce, ReduceCmd.reset_reduce
_ACTIVATIONS = "an activation function of the Scalar engine"
_ACTIVATE2_OPS = frozenset((("multiply", "add"), ("multiply", "subtract"), ("multiply", "bypass"), ("add", "bypass"),
                            ("subtract", "bypass"), ("bypass", "bypass")))
_ACTIVATE2_REDUCTIONS = frozenset(("add", "maximum", "minimum", "abs_max", "abs_min"))


def _scaled_tiles(i: Instr, limits: Any, dst: NkiTensor, data: NkiTensor) -> None:
    """What activation and activation_reduce demand of data, scale and bias."""
    checks.tile(i, "dst")
    checks.tile(i, "data")
    checks.same_size(i, "data", "dst")
    checks.not_packed(i, "dst", "data")
    checks.dtype_on_target(i, limits, "dst", "data")
    checks.op_in(i, "op", FUNCTIONS, _ACTIVATIONS)
    if type(i.args["scale"]) is not float:
        checks.column(i, "scale", data, F32)
    bias = i.args["bias"]
    if bias is not None:
        checks.column(i, "bias", data, _NOT_TF32)
        if type(bias) is not NkiTensor:
            if bias != 0:
                checks.generation(i, limits, 3, "a number as bias; use a tile [P, 1]: it")
        elif i.args["op"].name == "reciprocal":
            checks.generation(i, limits, 3, "a bias with nl.reciprocal")


def _reduce_result(i: Instr, like: NkiTensor) -> None:
    if i.args["reduce_res"] is None:
        return
    checks.tile(i, "reduce_res")
    checks.same_partitions(i, "dst", "reduce_res")
    checks.elements(i, "reduce_res", 1)
    command = i.args.get("reduce_cmd")
    if command is _IDLE:
        checks.refuse(i, "reduce_cmd", "= reduce_cmd.idle does not reduce, so reduce_res would read what the "
                                       "accumulators happen to hold; pass reduce_cmd.reset_reduce")


def activation(dst: NkiTensor, op: Any, data: NkiTensor, bias: Any = None, scale: Any = 1.0, reduce_op: Any = None,
               reduce_res: NkiTensor | None = None, reduce_cmd: ReduceCmd = _IDLE, name: str | None = None) -> Instr:
    """dst = op(data * scale + bias) in float32 on the Scalar engine, with an optional sum over the free dimensions.

    dst, data: on-chip tiles of equal P and F, any dtype. scale: a number or a float32 tile [P, 1]. bias: None, a number
    (trn2 or newer) or a tile [P, 1] of any dtype but tfloat32. reduce_cmd says how the sum goes into the 128
    accumulators of the engine; reduce_res, a tile [P, 1], receives them. reduce_op is nl.add.
    """
    args = {"dst": dst, "op": op, "data": data, "bias": bias, "scale": scale, "reduce_op": reduce_op,
            "reduce_res": reduce_res, "reduce_cmd": reduce_cmd, "name": name}
    reads: tuple[str, ...] = ("data",)
    if type(bias) is NkiTensor:
        reads = ("data", "bias")
    if type(scale) is NkiTensor:
        reads = (*reads, "scale")
    machine, i = begin("activation", ("dst",) if reduce_res is None else ("dst", "reduce_res"), reads, "scalar", args)
    if machine.checks:
        _scaled_tiles(i, machine.limits, dst, data)
        if reduce_op is not None:
            checks.op_in(i, "reduce_op", ("add",), "a reduction of activation; it must be nl.add")
        if reduce_cmd is not _IDLE or type(reduce_cmd) is not ReduceCmd:
            checks.member(i, "reduce_cmd", ReduceCmd, _IDLE, _RESET, _REDUCE, _RESET_REDUCE)
        _reduce_result(i, data)
    return machine.issue(i)


def activation_reduce(dst: NkiTensor, op: Any, data: NkiTensor, reduce_op: Any, reduce_res: NkiTensor | None,
                      bias: Any = None, scale: Any = 1.0, name: str | None = None) -> Instr:
    """activation with reduce_cmd.reset_reduce: reduce_res [P, 1] = sum over the free dimensions of the result.

    The sum is taken of the float32 values before dst rounds them. reduce_op is nl.add. With reduce_res None the sum
    stays in the accumulators.
    """
    args = {"dst": dst, "op": op, "data": data, "reduce_op": reduce_op, "reduce_res": reduce_res, "bias": bias,
            "scale": scale, "name": name}
    reads: tuple[str, ...] = ("data",)
    if type(bias) is NkiTensor:
        reads = ("data", "bias")
    if type(scale) is NkiTensor:
        reads = (*reads, "scale")
    machine, i = begin("activation_reduce", ("dst",) if reduce_res is None else ("dst", "reduce_res"), reads, "scalar",
                       args)
    if machine.checks:
        _scaled_tiles(i, machine.limits, dst, data)
        checks.op_in(i, "reduce_op", ("add",), "a reduction of activation_reduce; it must be nl.add")
        _reduce_result(i, data)
    return machine.issue(i)


def activate2(dst: NkiTensor, op: Any, data: NkiTensor, imm0: Any, imm1: Any, op0: Any, op1: Any,
              relu_param: Any = 0.0, reverse0: bool = False, reverse1: bool = False, reduce_op: Any = None,
              reduce_res: NkiTensor | None = None, reduce_cmd: ReduceCmd = _IDLE, name: str | None = None) -> Instr:
    """dst = op((data op0 imm0) op1 imm1) in float32 on the Scalar engine of trn3, with an optional reduction.

    (op0, op1): multiply with add, subtract or bypass; add, subtract or bypass with bypass. imm0, imm1, relu_param (the
    slope of nl.prelu): numbers or tiles [P, 1]. reduce_op: add, maximum, minimum, abs_max, abs_min.
    """
    args = {"dst": dst, "op": op, "data": data, "imm0": imm0, "imm1": imm1, "op0": op0, "op1": op1,
            "relu_param": relu_param, "reverse0": reverse0, "reverse1": reverse1, "reduce_op": reduce_op,
            "reduce_res": reduce_res, "reduce_cmd": reduce_cmd, "name": name}
    reads = ("data", *(n for n in ("imm0", "imm1", "relu_param") if type(args[n]) is NkiTensor))
    machine, i = begin("activate2", present(args, "dst", "reduce_res"), reads, "scalar", args)
    if machine.checks:
        checks.generation(i, machine.limits, 4)
        checks.tiles(i, "dst", "data")
        checks.same_size(i, "data", "dst")
        checks.not_packed(i, "dst", "data")
        checks.op_in(i, "op", FUNCTIONS.keys() | {"prelu"}, _ACTIVATIONS)
        checks.op_in(i, "op0", ("multiply", "add", "subtract", "bypass"), "multiply, add, subtract or bypass")
        checks.op_in(i, "op1", ("add", "subtract", "bypass"), "add, subtract or bypass")
        if (op0.name, op1.name) not in _ACTIVATE2_OPS:
            checks.refuse(i, "op1", f"= nl.{op1.name} does not combine with op0 = nl.{op0.name}; allowed pairs: "
                                    + "; ".join(f"{a}, {b}" for a, b in sorted(_ACTIVATE2_OPS)))
        for number in ("imm0", "imm1", "relu_param"):
            checks.column(i, number, data)
        if type(imm0) is NkiTensor and type(imm1) is NkiTensor:
            checks.same_dtype(i, "imm0", "imm1")
        for flag, operator in (("reverse0", op0), ("reverse1", op1)):
            if args[flag] and operator.name == "bypass":
                checks.refuse(i, flag, "needs an operator, not nl.bypass")
        checks.member(i, "reduce_cmd", ReduceCmd, _IDLE, _RESET, _REDUCE, _RESET_REDUCE)
        if reduce_op is not None:
            checks.op_in(i, "reduce_op", _ACTIVATE2_REDUCTIONS, "add, maximum, minimum, abs_max or abs_min")
        elif reduce_cmd in (_REDUCE, _RESET_REDUCE):
            checks.refuse(i, "reduce_op", f"is missing, and reduce_cmd = {reduce_cmd} reduces")
        _reduce_result(i, data)
    return machine.issue(i)


_EXP_DST = checks.FLOATS | {"int8", "int16", "int32", "uint8", "uint16"}


def exponential(dst: NkiTensor, src: NkiTensor, max_value: Any = 0.0, reduce_res: NkiTensor | None = None,
                reduce_cmd: ReduceCmd = _IDLE, reduce_init: Any = 0.0, name: str | None = None) -> Instr:
    """dst = exp(src - max_value) in float32 on the Vector engine of trn3, with an optional running sum.

    max_value, reduce_init: numbers or float32 tiles [P, 1]; reduce_init only with reduce_cmd.load_reduce. reduce_res
    [P, 1] of a float dtype receives the accumulators.
    """
    args = {"dst": dst, "src": src, "max_value": max_value, "reduce_res": reduce_res, "reduce_cmd": reduce_cmd,
            "reduce_init": reduce_init, "name": name}
    reads = ("src", *(n for n in ("max_value", "reduce_init") if type(args[n]) is NkiTensor))
    machine, i = begin("exponential", present(args, "dst", "reduce_res"), reads, "vector", args)
    if machine.checks:
        checks.generation(i, machine.limits, 4)
        checks.tiles(i, "dst", "src")
        checks.same_size(i, "src", "dst")
        checks.dtype_in(i, "dst", _EXP_DST)
        checks.dtype_in(i, "src", (_EXP_DST | {"uint32"}) - {"tfloat32"})
        for name_, t in (("dst", dst), ("src", src)):
            if t.ndim > 4:
                checks.refuse(i, name_, f"has {t.ndim} dimensions; the limit is 4")
        checks.column(i, "max_value", src, F32)
        checks.column(i, "reduce_init", src, F32)
        checks.member(i, "reduce_cmd", ReduceCmd, _IDLE, _REDUCE, _RESET_REDUCE, ReduceCmd.load_reduce)
        if reduce_cmd is not ReduceCmd.load_reduce and (type(reduce_init) is NkiTensor or reduce_init != 0):
            checks.refuse(i, "reduce_init", "is only for reduce_cmd.load_reduce")
        _reduce_result(i, src)
        if reduce_res is not None:
            checks.dtype_in(i, "reduce_res", checks.FLOATS)
    return machine.issue(i)
