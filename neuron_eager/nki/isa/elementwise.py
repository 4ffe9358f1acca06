"""Element-wise instructions of the Vector, Scalar and GpSimd engines."""
from __future__ import annotations

from typing import Any

from .. import dtypes
from ..program import Instr
from ..tensor import NkiTensor
from . import checks
from ._issue import begin, choose
from .checks import WORDS
from .constants import engine as Engine

_DST = ("dst",)
_UNKNOWN = Engine.unknown
_VECTOR, _SCALAR, _GPSIMD = Engine.vector, Engine.scalar, Engine.gpsimd
_SCALAR_FORMS = (("multiply", "add"), ("multiply", None), ("add", None))    # of tensor_scalar, before trn3
_TRN3_OP0 = frozenset(("square", "relu", "abs_max", "abs_min"))


def memset(dst: NkiTensor, value: float | int, engine: Engine = _UNKNOWN, name: str | None = None) -> Instr:
    """dst[:] = value, on the Vector or GpSimd engine.

    dst: on-chip tile [P, ...] of any dtype. value: a float for a float dtype, an int for an integer dtype; 0 for the
    packed x4 types. GpSimd does not reach PSUM.
    """
    machine, i = begin("memset", _DST, (), "vector", {"dst": dst, "value": value, "engine": engine, "name": name})
    if machine.checks:
        checks.tile(i, "dst")
        checks.dtype_on_target(i, machine.limits, "dst")
        checks.member(i, "engine", Engine, _UNKNOWN, _VECTOR, _GPSIMD)
        _memset_value(i, dst, value)
    if engine is _UNKNOWN:
        choose(i, _VECTOR)
    else:
        choose(i, engine)
        if engine is _GPSIMD:
            checks.gpsimd_reach(i, "dst")
    return machine.issue(i)


def _memset_value(i: Instr, dst: NkiTensor, value: Any) -> None:
    if dst.dtype.packed > 1:
        if value != 0:
            checks.refuse(i, "value", f"is {value!r}; a tile of {dst.dtype} can only be set to 0")
    elif dst.dtype.kind == "f":
        if isinstance(value, (bool, int)) or not hasattr(value, "__float__"):
            checks.refuse(i, "value", f"is {value!r}, an {type(value).__name__}; dst is {dst.dtype} and takes a float, "
                                      f"such as {float(value) if hasattr(value, '__float__') else 0.0}")
    elif not hasattr(value, "__index__"):
        checks.refuse(i, "value", f"is {value!r}, a {type(value).__name__}; dst is {dst.dtype} and takes an int")


def tensor_copy(dst: NkiTensor, src: NkiTensor, engine: Engine = _UNKNOWN, name: str | None = None) -> Instr:
    """dst = src between on-chip tiles of equal P and F, on the Vector, Scalar or GpSimd engine.

    Equal dtypes copy bits; others convert through float32. The Scalar engine copies from trn2 on; GpSimd does not
    reach PSUM.
    """
    machine, i = begin("tensor_copy", _DST, ("src",), "vector",
                       {"dst": dst, "src": src, "engine": engine, "name": name})
    if machine.checks:
        checks.tile(i, "dst")
        checks.tile(i, "src")
        checks.same_size(i, "dst", "src")
        if dst.dtype is not src.dtype:
            checks.not_packed(i, "dst", "src")
        checks.dtype_on_target(i, machine.limits, "dst", "src")
        checks.member(i, "engine", Engine, _UNKNOWN, _VECTOR, _SCALAR, _GPSIMD)
        if engine is _SCALAR:
            checks.generation(i, machine.limits, 3, "tensor_copy on the Scalar engine")
        elif engine is _GPSIMD:
            checks.gpsimd_reach(i, "dst", "src")
    choose(i, _VECTOR if engine is _UNKNOWN else engine)
    return machine.issue(i)


def tensor_copy_predicated(dst: NkiTensor, src: NkiTensor | float, predicate: NkiTensor, reverse_pred: bool = False,
                           name: str | None = None) -> Instr:
    """dst[predicate != 0] = src; other elements keep their value (the reverse with reverse_pred). Vector engine.

    src: a tile of dst's dtype with its P and F, or a number. predicate: uint8, uint16 or uint32, same P and F. src and
    predicate are not both in PSUM.
    """
    args = {"dst": dst, "src": src, "predicate": predicate, "reverse_pred": reverse_pred, "name": name}
    is_tile = type(src) is NkiTensor
    machine, i = begin("tensor_copy_predicated", _DST, ("src", "predicate", "dst") if is_tile else ("predicate", "dst"),
                       "vector", args)
    if machine.checks:
        checks.tiles(i, "dst", "predicate")
        checks.same_size(i, "dst", "predicate")
        checks.dtype_in(i, "predicate", ("uint8", "uint16", "uint32"))
        if is_tile:
            checks.tile(i, "src")
            checks.same_size(i, "dst", "src")
            checks.same_dtype(i, "dst", "src")
            checks.not_both_psum(i, "src", "predicate")
        else:
            checks.number(i, "src")
    return machine.issue(i)


def tensor_tensor(dst: NkiTensor, data1: NkiTensor, data2: NkiTensor, op: Any, engine: Engine = _UNKNOWN,
                  name: str | None = None) -> Instr:
    """dst = data1 op data2, element by element; equal P and F, no broadcasting. Vector or GpSimd engine.

    op: a binary ALU operator. Bit operators take integers as they are. Arithmetic is float32, except that int32 or
    uint32 tiles (all three) run in native integers on GpSimd, unless one is in PSUM or the Vector engine is asked for.
    nl.power runs on GpSimd. data1 and data2 are not both in PSUM.
    """
    machine, i = begin("tensor_tensor", _DST, ("data1", "data2"), "vector",
                       {"dst": dst, "data1": data1, "data2": data2, "op": op, "engine": engine, "name": name})
    if machine.checks:
        checks.tile(i, "dst")
        checks.tile(i, "data1")
        checks.tile(i, "data2")
        checks.same_size(i, "data1", "data2")
        checks.same_size(i, "data1", "dst")
        checks.not_both_psum(i, "data1", "data2")
        alu = checks.alu_op(i, "op")
        if alu.arity != 2:
            checks.refuse(i, "op", f"= nl.{alu.name} takes one operand")
        if alu.bits:
            checks.integers(i, alu.name, "dst", "data1", "data2")
        else:
            checks.not_packed(i, "dst", "data1", "data2")
        checks.dtype_on_target(i, machine.limits, "dst", "data1", "data2")
        checks.member(i, "engine", Engine, _UNKNOWN, _VECTOR, _GPSIMD)
    power = op.name == "power"
    if engine is _UNKNOWN:
        native = (data1.dtype in WORDS and dst.dtype in WORDS and data2.dtype in WORDS
                  and not checks.any_psum(dst, data1, data2) and not checks.ALU[op.name].bits)
        engine = _GPSIMD if power or native else _VECTOR
    elif power and engine is _VECTOR:
        checks.refuse(i, "engine", "= engine.vector cannot compute nl.power; it runs on GpSimd")
    if engine is _GPSIMD and machine.checks:
        checks.gpsimd_reach(i, "dst", "data1", "data2")
    choose(i, engine)
    return machine.issue(i)


def tensor_scalar(dst: NkiTensor, data: NkiTensor, op0: Any, operand0: Any, reverse0: bool = False, op1: Any = None,
                  operand1: Any = None, reverse1: bool = False, engine: Engine = _UNKNOWN,
                  name: str | None = None) -> Instr:
    """dst = (data op0 operand0) op1 operand1, with operands that are numbers or tiles [P, 1].

    reverse0 and reverse1 swap the sides of their operator. A unary op takes operand None or 0. Both ops are bit
    operators (integers, Vector engine) or both arithmetic (float32; operand tiles float32). With int32 or uint32 tiles
    and int operands the arithmetic is in native integers. rsqrt runs on GpSimd or Scalar; the Scalar engine before trn3
    has only multiply+add, multiply, and add; square, relu, abs_max and abs_min as op0 need trn3.
    """
    args = {"dst": dst, "data": data, "op0": op0, "operand0": operand0, "reverse0": reverse0, "op1": op1,
            "operand1": operand1, "reverse1": reverse1, "engine": engine, "name": name}
    reads: tuple[str, ...] = ("data",)
    if type(operand0) is NkiTensor:
        reads = ("data", "operand0")
    if type(operand1) is NkiTensor:
        reads = (*reads, "operand1")
    machine, i = begin("tensor_scalar", _DST, reads, "vector", args)
    if machine.checks:
        checks.tile(i, "dst")
        checks.tile(i, "data")
        checks.same_size(i, "data", "dst")
        checks.dtype_on_target(i, machine.limits, "dst", "data")
        checks.member(i, "engine", Engine, _UNKNOWN, _VECTOR, _SCALAR, _GPSIMD)
        _scalar_stages(i, machine.limits, dst, data)
    choose(i, _scalar_engine(i, engine, machine.checks))
    return machine.issue(i)


def _scalar_stages(i: Instr, limits: Any, dst: NkiTensor, data: NkiTensor) -> None:
    """The rules of the one or two operators of a tensor_scalar."""
    args = i.args
    first = checks.alu_op(i, "op0")
    scalar_operand(i, "op0", "operand0", data, dst)
    if first.name in _TRN3_OP0:
        checks.generation(i, limits, 4, f"nl.{first.name} as op0")
    if first.bits:
        checks.integers(i, first.name, "dst", "data")
    else:
        checks.not_packed(i, "dst", "data")
    if args["op1"] is None:
        if args["operand1"] is not None:
            checks.refuse(i, "operand1", "is given without op1")
        return
    second = checks.alu_op(i, "op1")
    if second.bits != first.bits:
        checks.refuse(i, "op1", f"= nl.{second.name} and op0 = nl.{first.name}: both must be bit operators, or both "
                                "arithmetic")
    scalar_operand(i, "op1", "operand1", data, dst)


def scalar_operand(i: Instr, op: str, operand: str, data: NkiTensor, dst: NkiTensor) -> None:
    """The operand of one operator: absent for a unary one, else a number or a column of a fitting dtype."""
    alu, value = checks.ALU[i.args[op].name], i.args[operand]
    if alu.arity == 1:
        if value is not None and (type(value) is NkiTensor or value != 0):
            checks.refuse(i, operand, f"must be None or 0: nl.{alu.name} takes one operand")
        return
    if type(value) is float and not alu.bits:
        return
    if value is None:
        checks.refuse(i, operand, f"is missing; nl.{alu.name} takes two operands")
    checks.column(i, operand, data)
    if alu.bits:
        checks.integers(i, alu.name, operand)
    elif type(value) is NkiTensor and value.dtype is not dtypes.float32 and (
            value.dtype.kind == "f" or not _integer_form(dst, data, value)):
        checks.refuse(i, operand, f"is {value.dtype}; an operand tile of an arithmetic operator must be float32")


def _integer_form(dst: NkiTensor, data: NkiTensor, operand: NkiTensor) -> bool:
    """int32/uint32 throughout, or the int64 extension."""
    if dtypes.int64 in (dst.dtype, data.dtype, operand.dtype):
        return dst.dtype.kind != "f" and data.dtype.kind != "f"
    return dst.dtype in WORDS and data.dtype in WORDS and operand.dtype in WORDS


def _scalar_engine(i: Instr, engine: Engine, checked: bool) -> Engine:
    args = i.args
    ops = (args["op0"].name, None if args["op1"] is None else args["op1"].name)
    rsqrt = "rsqrt" in ops
    if engine is _UNKNOWN:
        if not rsqrt:
            return _VECTOR
        return _SCALAR if checks.any_psum(args["dst"], args["data"], args["operand0"], args["operand1"]) else _GPSIMD
    if checked:
        if rsqrt and engine is _VECTOR:
            checks.refuse(i, "engine", "= engine.vector cannot compute nl.rsqrt; use engine.gpsimd or engine.scalar")
        if engine is _GPSIMD:
            if not rsqrt:
                checks.refuse(i, "engine", "= engine.gpsimd computes only nl.rsqrt here")
            checks.gpsimd_reach(i, "dst", "data", "operand0", "operand1")
        if engine is _SCALAR:
            if checks.ALU[ops[0]].bits:
                checks.refuse(i, "engine", f"= engine.scalar cannot compute nl.{ops[0]}; bit operators run on Vector")
            if ops not in _SCALAR_FORMS and not rsqrt and not checks.current().limits.at_least(4):
                checks.refuse(i, "engine", "= engine.scalar computes only multiply then add, multiply, or add here")
    return engine


def scalar_tensor_tensor(dst: NkiTensor, data: NkiTensor, op0: Any, operand0: Any, op1: Any, operand1: NkiTensor,
                         reverse0: bool = False, reverse1: bool = False, name: str | None = None) -> Instr:
    """dst = (data op0 operand0) op1 operand1, in float32 on the Vector engine.

    operand0: a number or a tile [P, 1]. operand1: a tile with the P and F of data. Arithmetic operators only. data and
    operand1 are not both in PSUM.
    """
    machine, i = begin(
        "scalar_tensor_tensor", _DST,
        ("data", "operand0", "operand1") if type(operand0) is NkiTensor else ("data", "operand1"), "vector",
        {"dst": dst, "data": data, "op0": op0, "operand0": operand0, "op1": op1, "operand1": operand1,
         "reverse0": reverse0, "reverse1": reverse1, "name": name})
    if machine.checks:
        checks.tiles(i, "dst", "data", "operand1")
        checks.same_size(i, "data", "operand1")
        checks.same_size(i, "data", "dst")
        checks.not_both_psum(i, "data", "operand1")
        checks.not_packed(i, "dst", "data", "operand1")
        checks.op_in(i, "op0", checks.ARITHMETIC, "an arithmetic operator")
        checks.op_in(i, "op1", checks.BINARY, "a binary arithmetic operator")
        if checks.ALU[op0.name].arity == 2:
            checks.column(i, "operand0", data)
        checks.dtype_on_target(i, machine.limits, "dst", "data", "operand1")
    return machine.issue(i)


def reciprocal(dst: NkiTensor, data: NkiTensor, name: str | None = None) -> Instr:
    """dst = 1 / data in float32, on the Vector engine; on-chip tiles of equal P and F, any dtype."""
    machine, i = begin("reciprocal", _DST, ("data",), "vector", {"dst": dst, "data": data, "name": name})
    if machine.checks:
        checks.tiles(i, "dst", "data")
        checks.same_size(i, "data", "dst")
        checks.not_packed(i, "dst", "data")
        checks.dtype_on_target(i, machine.limits, "dst", "data")
    return machine.issue(i)
