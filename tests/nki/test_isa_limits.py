# ruff: noqa: E501    (a table: one limit, one line)
"""Each documented limit of each instruction, as a call that must be refused; and the page that lists them.

    python tests/nki/test_isa_limits.py        writes docs/nki-functions.md
"""
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import neuron_eager.nki.isa as nisa
import neuron_eager.nki.language as nl
from neuron_eager.errors import NkiError
from neuron_eager.nki.isa.trial import Trial
from neuron_eager.nki.limits import ACTIVATION_RANGES, EXTENSION_OPS
from neuron_eager.nki.semantics import TABLE
from neuron_eager.nki.semantics.alu import ALU
from neuron_eager.nki.semantics.functions import FUNCTIONS

PAGE = Path(__file__).parents[2] / "docs" / "nki-functions.md"
MACHINE = {"core_barrier", "sendrecv"}      # run by the machine itself, between two cores
E, RC, DGE, PM = nisa.engine, nisa.reduce_cmd, nisa.dge_mode, nisa.matmul_perf_mode
SBUF, PSUM, HBM = "sbuf", "psum", "shared_hbm"


@dataclass
class Limit:
    """What is not allowed, a call that does it, and what the error says. `target`: the newest one that refuses."""

    function: str
    rule: str
    call: Callable[[Trial], Any]
    message: str
    target: str = "trn3"


def f32(t, *shape, buffer=SBUF):
    return t.empty(shape, nl.float32, buffer)


def i32(t, *shape):
    return t.empty(shape, nl.int32)


def u8(t, *shape, buffer=SBUF):
    return t.empty(shape, nl.uint8, buffer)


def fp8(t, *shape):
    return t.empty(shape, nl.float8_e4m3)


def x4(t, *shape):
    return t.empty(shape, nl.float8_e4m3fn_x4)


def on(t, buffer, *shape, dtype="float32"):
    return t.empty(shape, dtype, buffer)


def indirect(t, tile):
    return tile.indirect(t.empty((tile.shape[0], 1), nl.uint16), num_elem=16)


LIMITS = [
    # ---- shared by all engines
    Limit("tensor_copy", "operands start at partition 0, 32, 64 or 96",
          lambda t: nisa.tensor_copy(f32(t, 16, 4), f32(t, 128, 4)[16:32]), r"src starts at partition 16; .* 0, 32, 64, 96"),
    Limit("tensor_copy", "33 to 64 partitions start at 0 or 64",
          lambda t: nisa.tensor_copy(f32(t, 128, 4)[32:96], f32(t, 64, 4)), r"dst starts at partition 32; .* 0, 64"),
    Limit("tensor_copy", "more than 64 partitions start at 0",
          lambda t: nisa.tensor_copy(f32(t, 128, 4)[32:128], f32(t, 96, 4)), r"dst starts at partition 32"),
    Limit("tensor_copy", "partitions are consecutive",
          lambda t: nisa.tensor_copy(f32(t, 32, 4), f32(t, 128, 4)[0:128:4]), r"src steps 4 partitions at a time"),
    Limit("tensor_copy", "on-chip tiles only",
          lambda t: nisa.tensor_copy(f32(t, 4, 4), f32(t, 4, 4, buffer=HBM)), r"src is in shared_hbm; .* nisa.dma_copy"),
    Limit("tensor_copy", "equal partitions and elements",
          lambda t: nisa.tensor_copy(f32(t, 4, 4), f32(t, 4, 5)), r"src has 5 elements per partition and dst has 4"),
    Limit("tensor_copy", "the Scalar engine copies from trn2 on",
          lambda t: nisa.tensor_copy(f32(t, 4, 4), f32(t, 4, 4), E.scalar), r"needs NeuronCore-v3", "trn1"),
    Limit("tensor_copy", "GpSimd does not reach PSUM",
          lambda t: nisa.tensor_copy(f32(t, 4, 4), f32(t, 4, 4, buffer=PSUM), E.gpsimd), r"src is in PSUM, which the GpSimd"),
    Limit("tensor_copy", "dtypes that the target has",
          lambda t: nisa.tensor_copy(on(t, SBUF, 4, 4, dtype="float8_e4m3fn"), f32(t, 4, 4)),
          r"dst is float8_e4m3fn, which trn2 does not have", "trn2"),
    Limit("tensor_copy", "packed dtypes do not convert",
          lambda t: nisa.tensor_copy(f32(t, 4, 4), x4(t, 4, 4)), r"src is float8_e4m3fn_x4; packed values"),

    Limit("tensor_copy", "at most five dimensions", lambda t: nisa.tensor_copy(f32(t, 4, 1, 1, 1, 1, 4), f32(t, 4, 4)), r"dst has 6 dimensions"),
    Limit("tensor_copy", "columns by .indirect() need trn3", lambda t: nisa.tensor_copy(f32(t, 16, 16), indirect(t, f32(t, 16, 64))), r"needs NeuronCore-v4", "trn2"),
    Limit("tensor_tensor", "data2 takes no .indirect()", lambda t: nisa.tensor_tensor(f32(t, 16, 16), f32(t, 16, 16), indirect(t, f32(t, 16, 64)), nl.add),
          r"data2 cannot use .indirect\(\); of this instruction dst, data1 can"),
    Limit("reciprocal", "no .indirect()", lambda t: nisa.reciprocal(f32(t, 16, 16), indirect(t, f32(t, 16, 64))), r"data cannot use .indirect"),
    Limit("nc_matmul", "no .indirect() on moving with is_transpose",
          lambda t: nisa.nc_matmul(on(t, PSUM, 8, 16, dtype="bfloat16"), on(t, SBUF, 16, 8, dtype="bfloat16"), indirect(t, on(t, SBUF, 16, 64, dtype="bfloat16")), is_transpose=True),
          r"moving cannot use .indirect\(\) with is_transpose"),
    Limit("nc_matmul", ".indirect() operands are 8- or 16-bit floats",
          lambda t: nisa.nc_matmul(f32(t, 8, 16, buffer=PSUM), f32(t, 16, 8), indirect(t, f32(t, 16, 64))), r"moving is float32; it must be float16"),
    Limit("dma_copy", "a vector_offset is for HBM", lambda t: nisa.dma_copy(f32(t, 4, 4, buffer=HBM), f32(t, 8, 4).ap([[4, 4], [1, 4]], vector_offset=on(t, SBUF, 4, 1, dtype="uint32"))),
          r"only an HBM tensor takes a vector_offset"),

    # ---- element-wise
    Limit("memset", "an int for an integer dtype", lambda t: nisa.memset(i32(t, 4, 4), 2.0), r"value is 2.0, a float; dst is int32"),
    Limit("memset", "a float for a float dtype", lambda t: nisa.memset(f32(t, 4, 4), 2), r"value is 2, an int; dst is float32"),
    Limit("memset", "only 0 for packed dtypes", lambda t: nisa.memset(x4(t, 4, 4), 1), r"value is 1; .* can only be set to 0"),
    Limit("memset", "Vector or GpSimd", lambda t: nisa.memset(f32(t, 4, 4), 0.0, E.scalar), r"engine = engine.scalar"),
    Limit("memset", "GpSimd does not reach PSUM", lambda t: nisa.memset(f32(t, 4, 4, buffer=PSUM), 0.0, E.gpsimd), r"in PSUM"),
    Limit("tensor_copy_predicated", "predicate is unsigned", lambda t: nisa.tensor_copy_predicated(f32(t, 4, 4), f32(t, 4, 4), i32(t, 4, 4)),
          r"predicate is int32; it must be uint8, uint16, uint32"),
    Limit("tensor_copy_predicated", "src has the dtype of dst",
          lambda t: nisa.tensor_copy_predicated(f32(t, 4, 4), i32(t, 4, 4), u8(t, 4, 4)), r"src is int32 and dst is float32"),
    Limit("tensor_copy_predicated", "src and predicate not both in PSUM",
          lambda t: nisa.tensor_copy_predicated(f32(t, 4, 4), f32(t, 4, 4, buffer=PSUM), u8(t, 4, 4, buffer=PSUM)), r"PSUM, and so is src"),
    Limit("tensor_tensor", "equal partitions", lambda t: nisa.tensor_tensor(f32(t, 4, 4), f32(t, 4, 4), f32(t, 8, 4), nl.add),
          r"data2 has 8 partitions and data1 has 4"),
    Limit("tensor_tensor", "no broadcasting", lambda t: nisa.tensor_tensor(f32(t, 4, 4), f32(t, 4, 4), f32(t, 4, 1), nl.add),
          r"data2 has 1 elements per partition and data1 has 4"),
    Limit("tensor_tensor", "data1 and data2 not both in PSUM",
          lambda t: nisa.tensor_tensor(f32(t, 4, 4), f32(t, 4, 4, buffer=PSUM), f32(t, 4, 4, buffer=PSUM), nl.add), r"PSUM, and so is data1"),
    Limit("tensor_tensor", "an operator of the ALU", lambda t: nisa.tensor_tensor(f32(t, 4, 4), f32(t, 4, 4), f32(t, 4, 4), nl.tanh),
          r"op = nl.tanh is not an operator"),
    Limit("tensor_tensor", "a binary operator", lambda t: nisa.tensor_tensor(f32(t, 4, 4), f32(t, 4, 4), f32(t, 4, 4), nl.square),
          r"nl.square takes one operand"),
    Limit("tensor_tensor", "bit operators take integers",
          lambda t: nisa.tensor_tensor(f32(t, 4, 4), f32(t, 4, 4), f32(t, 4, 4), nl.bitwise_and), r"is float32; nl.bitwise_and works on the bits"),
    Limit("tensor_tensor", "power runs on GpSimd", lambda t: nisa.tensor_tensor(f32(t, 4, 4), f32(t, 4, 4), f32(t, 4, 4), nl.power, E.vector),
          r"cannot compute nl.power"),
    Limit("tensor_tensor", "power takes no PSUM tile",
          lambda t: nisa.tensor_tensor(f32(t, 4, 4), f32(t, 4, 4, buffer=PSUM), f32(t, 4, 4), nl.power), r"PSUM, which the GpSimd"),
    Limit("tensor_scalar", "operand tiles are [P, 1]", lambda t: nisa.tensor_scalar(f32(t, 4, 4), f32(t, 4, 4), nl.add, f32(t, 4, 2)),
          r"operand0 must be a number or a tile of shape \(4, 1\)"),
    Limit("tensor_scalar", "operand tiles of arithmetic are float32",
          lambda t: nisa.tensor_scalar(f32(t, 4, 4), f32(t, 4, 4), nl.add, on(t, SBUF, 4, 1, dtype="bfloat16")), r"operand0 is bfloat16; .* float32"),
    Limit("tensor_scalar", "both operators are of one kind",
          lambda t: nisa.tensor_scalar(i32(t, 4, 4), i32(t, 4, 4), nl.bitwise_and, 1, op1=nl.add, operand1=1), r"both must be bit operators"),
    Limit("tensor_scalar", "bit operators take integers", lambda t: nisa.tensor_scalar(f32(t, 4, 4), i32(t, 4, 4), nl.bitwise_and, 1),
          r"dst is float32; nl.bitwise_and"),
    Limit("tensor_scalar", "bit operators run on Vector",
          lambda t: nisa.tensor_scalar(i32(t, 4, 4), i32(t, 4, 4), nl.bitwise_and, 1, engine=E.scalar), r"cannot compute nl.bitwise_and"),
    Limit("tensor_scalar", "a unary operator takes no operand", lambda t: nisa.tensor_scalar(f32(t, 4, 4), f32(t, 4, 4), nl.abs, 2.0),
          r"operand0 must be None or 0: nl.abs"),
    Limit("tensor_scalar", "operand1 needs op1", lambda t: nisa.tensor_scalar(f32(t, 4, 4), f32(t, 4, 4), nl.add, 1.0, operand1=2.0), r"without op1"),
    Limit("tensor_scalar", "rsqrt does not run on Vector",
          lambda t: nisa.tensor_scalar(f32(t, 4, 4), f32(t, 4, 4), nl.rsqrt, None, engine=E.vector), r"cannot compute nl.rsqrt"),
    Limit("tensor_scalar", "GpSimd computes only rsqrt",
          lambda t: nisa.tensor_scalar(f32(t, 4, 4), f32(t, 4, 4), nl.add, 1.0, engine=E.gpsimd), r"only nl.rsqrt"),
    Limit("tensor_scalar", "before trn3 the Scalar engine multiplies, adds, or both in that order",
          lambda t: nisa.tensor_scalar(f32(t, 4, 4), f32(t, 4, 4), nl.subtract, 1.0, engine=E.scalar), r"only multiply then add", "trn2"),
    *[Limit("tensor_scalar", f"{op} as op0 needs trn3",
            lambda t, op=op: nisa.tensor_scalar(f32(t, 4, 4), f32(t, 4, 4), getattr(nl, op), None if op in ("square", "relu") else 1.0),
            r"needs NeuronCore-v4", "trn2") for op in ("square", "relu", "abs_max", "abs_min")],
    Limit("scalar_tensor_tensor", "arithmetic operators only",
          lambda t: nisa.scalar_tensor_tensor(i32(t, 4, 4), i32(t, 4, 4), nl.bitwise_and, 1, nl.add, i32(t, 4, 4)), r"op0 = nl.bitwise_and is not an arithmetic"),
    Limit("scalar_tensor_tensor", "data and operand1 not both in PSUM",
          lambda t: nisa.scalar_tensor_tensor(f32(t, 4, 4), f32(t, 4, 4, buffer=PSUM), nl.add, 1.0, nl.add, f32(t, 4, 4, buffer=PSUM)), r"so is data"),
    Limit("scalar_tensor_tensor", "operand0 tiles are [P, 1]",
          lambda t: nisa.scalar_tensor_tensor(f32(t, 4, 4), f32(t, 4, 4), nl.add, f32(t, 3, 1), nl.add, f32(t, 4, 4)), r"operand0 must be a number or a tile of shape \(4, 1\)"),
    Limit("reciprocal", "equal partitions and elements", lambda t: nisa.reciprocal(f32(t, 4, 4), f32(t, 4, 5)), r"dst has 4 elements"),
    Limit("iota", "dst in SBUF", lambda t: nisa.iota(f32(t, 4, 4, buffer=PSUM), [[1, 4]]), r"dst is in psum; it must be in SBUF"),
    Limit("iota", "the pattern makes as many elements as dst has", lambda t: nisa.iota(f32(t, 4, 4), [[1, 5]]), r"makes 5 elements, and dst has 4"),
    Limit("iota", "at most four dimensions", lambda t: nisa.iota(f32(t, 4, 4), [[1, 1]] * 5), r"has 5 dimensions"),
    Limit("iota", "a 32-bit offset", lambda t: nisa.iota(f32(t, 4, 4), [[1, 4]], 2 ** 31), r"offset 2147483648 does not fit into 32 bits"),
    Limit("affine_select", "SBUF only", lambda t: nisa.affine_select(f32(t, 4, 4), [[1, 4]], 1, f32(t, 4, 4, buffer=PSUM), 0.0), r"on_true_tile is in psum"),
    Limit("affine_select", "cmp_op is a comparison", lambda t: nisa.affine_select(f32(t, 4, 4), [[1, 4]], 1, f32(t, 4, 4), 0.0, nl.add), r"nl.add is not a comparison"),
    Limit("affine_select", "on_false_value is a number",
          lambda t: nisa.affine_select(f32(t, 4, 4), [[1, 4]], 1, f32(t, 4, 4), f32(t, 4, 1)), r"on_false_value must be a number"),
    Limit("range_select", "needs trn2",
          lambda t: nisa.range_select(f32(t, 4, 4), f32(t, 4, 4), nl.less, nl.less, f32(t, 4, 1), f32(t, 4, 1)), r"needs NeuronCore-v3", "trn1"),
    Limit("range_select", "bounds are float32",
          lambda t: nisa.range_select(f32(t, 4, 4), f32(t, 4, 4), nl.less, nl.less, i32(t, 4, 1), f32(t, 4, 1)), r"bound0 is int32"),
    Limit("range_select", "a float tile", lambda t: nisa.range_select(f32(t, 4, 4), i32(t, 4, 4), nl.less, nl.less, f32(t, 4, 1), f32(t, 4, 1)),
          r"on_true_tile is int32"),
    Limit("range_select", "five comparisons", lambda t: nisa.range_select(f32(t, 4, 4), f32(t, 4, 4), nl.not_equal, nl.less, f32(t, 4, 1), f32(t, 4, 1)),
          r"comp_op0 = nl.not_equal"),
    Limit("range_select", "the fill is FP32_MIN",
          lambda t: nisa.range_select(f32(t, 4, 4), f32(t, 4, 4), nl.less, nl.less, f32(t, 4, 1), f32(t, 4, 1), on_false_value=0.0), r"must be -3.40282"),
    Limit("range_select", "only the maximum",
          lambda t: nisa.range_select(f32(t, 4, 4), f32(t, 4, 4), nl.less, nl.less, f32(t, 4, 1), f32(t, 4, 1), reduce_op=nl.add), r"must be nl.maximum"),
    Limit("range_select", "indices below 2**24",
          lambda t: nisa.range_select(f32(t, 4, 4), f32(t, 4, 4), nl.less, nl.less, f32(t, 4, 1), f32(t, 4, 1), range_start=2 ** 24), r"not exact in float32"),
    Limit("select_reduce", "predicate of 8 or 16 bits", lambda t: nisa.select_reduce(f32(t, 4, 4), i32(t, 4, 4), f32(t, 4, 4), 0.0), r"predicate is int32"),
    Limit("select_reduce", "on_true is not tfloat32 or a 32-bit integer",
          lambda t: nisa.select_reduce(f32(t, 4, 4), u8(t, 4, 4), i32(t, 4, 4), 0.0), r"on_true is int32"),
    Limit("select_reduce", "on_true and predicate not both in PSUM",
          lambda t: nisa.select_reduce(f32(t, 4, 4), u8(t, 4, 4, buffer=PSUM), f32(t, 4, 4, buffer=PSUM), 0.0), r"so is on_true"),
    Limit("select_reduce", "reduce_res is a float", lambda t: nisa.select_reduce(f32(t, 4, 4), u8(t, 4, 4), f32(t, 4, 4), 0.0, i32(t, 4, 1), RC.reset_reduce),
          r"reduce_res is int32"),
    Limit("select_reduce", "reduce_res needs a command that reduces", lambda t: nisa.select_reduce(f32(t, 4, 4), u8(t, 4, 4), f32(t, 4, 4), 0.0, f32(t, 4, 1)),
          r"reduce_cmd.idle does not reduce"),
    Limit("dropout", "dst has the dtype of data", lambda t: nisa.dropout(f32(t, 4, 4), i32(t, 4, 4), 0.5), r"dst is float32 and data is int32"),
    Limit("dropout", "prob of integer data is float32",
          lambda t: nisa.dropout(i32(t, 4, 4), i32(t, 4, 4), on(t, SBUF, 4, 1, dtype="bfloat16")), r"prob is bfloat16"),

    # ---- activations
    Limit("activation", "a function of the Scalar engine", lambda t: nisa.activation(f32(t, 4, 4), nl.add, f32(t, 4, 4)), r"op = nl.add is not an activation"),
    Limit("activation", "scale tiles are float32", lambda t: nisa.activation(f32(t, 4, 4), nl.exp, f32(t, 4, 4), scale=on(t, SBUF, 4, 1, dtype="bfloat16")),
          r"scale is bfloat16"),
    Limit("activation", "bias tiles are not tfloat32", lambda t: nisa.activation(f32(t, 4, 4), nl.exp, f32(t, 4, 4), bias=on(t, SBUF, 4, 1, dtype="tfloat32")),
          r"bias is tfloat32"),
    Limit("activation", "bias tiles are [P, 1]", lambda t: nisa.activation(f32(t, 4, 4), nl.exp, f32(t, 4, 4), bias=f32(t, 4, 4)), r"shape \(4, 1\)"),
    Limit("activation", "a number as bias needs trn2", lambda t: nisa.activation(f32(t, 4, 4), nl.exp, f32(t, 4, 4), bias=1.0), r"needs NeuronCore-v3", "trn1"),
    Limit("activation", "a bias with reciprocal needs trn2", lambda t: nisa.activation(f32(t, 4, 4), nl.reciprocal, f32(t, 4, 4), bias=f32(t, 4, 1)),
          r"needs NeuronCore-v3", "trn1"),
    Limit("activation", "reduce_op is add", lambda t: nisa.activation(f32(t, 4, 4), nl.exp, f32(t, 4, 4), reduce_op=nl.maximum, reduce_cmd=RC.reduce), r"must be nl.add"),
    Limit("activation", "reduce_res has one element per partition",
          lambda t: nisa.activation(f32(t, 4, 4), nl.exp, f32(t, 4, 4), reduce_op=nl.add, reduce_cmd=RC.reduce, reduce_res=f32(t, 4, 2)), r"reduce_res has 2 elements"),
    Limit("activation", "reduce_res needs a command that reduces",
          lambda t: nisa.activation(f32(t, 4, 4), nl.exp, f32(t, 4, 4), reduce_op=nl.add, reduce_res=f32(t, 4, 1)), r"reduce_cmd.idle does not reduce"),
    Limit("activation", "no load_reduce", lambda t: nisa.activation(f32(t, 4, 4), nl.exp, f32(t, 4, 4), reduce_cmd=RC.load_reduce), r"reduce_cmd.load_reduce is not supported"),
    Limit("activation_reduce", "reduce_op is add", lambda t: nisa.activation_reduce(f32(t, 4, 4), nl.exp, f32(t, 4, 4), nl.multiply, f32(t, 4, 1)), r"must be nl.add"),
    Limit("activate2", "needs trn3", lambda t: nisa.activate2(f32(t, 4, 4), nl.exp, f32(t, 4, 4), 1.0, 1.0, nl.multiply, nl.add), r"needs NeuronCore-v4", "trn2"),
    Limit("activate2", "six pairs of operators", lambda t: nisa.activate2(f32(t, 4, 4), nl.exp, f32(t, 4, 4), 1.0, 1.0, nl.add, nl.add), r"does not combine with op0 = nl.add"),
    Limit("activate2", "tiles of imm0 and imm1 have one dtype",
          lambda t: nisa.activate2(f32(t, 4, 4), nl.exp, f32(t, 4, 4), f32(t, 4, 1), on(t, SBUF, 4, 1, dtype="bfloat16"), nl.multiply, nl.add), r"imm1 is bfloat16"),
    Limit("activate2", "a reverse flag needs its operator",
          lambda t: nisa.activate2(f32(t, 4, 4), nl.exp, f32(t, 4, 4), 1.0, 1.0, nl.add, nl.bypass, reverse1=True), r"reverse1 needs an operator"),
    Limit("activate2", "reduce_op is given where reduce_cmd reduces",
          lambda t: nisa.activate2(f32(t, 4, 4), nl.exp, f32(t, 4, 4), 1.0, 1.0, nl.add, nl.bypass, reduce_cmd=RC.reduce), r"reduce_op is missing"),
    Limit("exponential", "needs trn3", lambda t: nisa.exponential(f32(t, 4, 4), f32(t, 4, 4)), r"needs NeuronCore-v4", "trn2"),
    Limit("exponential", "max_value tiles are float32", lambda t: nisa.exponential(f32(t, 4, 4), f32(t, 4, 4), i32(t, 4, 1)), r"max_value is int32"),
    Limit("exponential", "reduce_init only with load_reduce", lambda t: nisa.exponential(f32(t, 4, 4), f32(t, 4, 4), reduce_init=1.0), r"reduce_init is only for"),
    Limit("exponential", "at most four dimensions", lambda t: nisa.exponential(f32(t, 4, 1, 1, 2, 2), f32(t, 4, 4)), r"dst has 5 dimensions"),

    # ---- reductions
    Limit("tensor_reduce", "not the partition dimension", lambda t: nisa.tensor_reduce(f32(t, 1, 4), nl.add, f32(t, 1, 4), axis=0), r"axis = 0 must be the last free"),
    Limit("tensor_reduce", "the last dimensions without a gap", lambda t: nisa.tensor_reduce(f32(t, 4, 3), nl.add, f32(t, 4, 2, 3), axis=1), r"axis = 1 must be"),
    Limit("tensor_reduce", "dst holds what is left", lambda t: nisa.tensor_reduce(f32(t, 4, 3), nl.add, f32(t, 4, 2, 3), axis=2), r"dst has 3 elements .* must have 2"),
    Limit("tensor_reduce", "a reduction", lambda t: nisa.tensor_reduce(f32(t, 4, 1), nl.power, f32(t, 4, 3), axis=1), r"nl.power is not a reduction"),
    Limit("tensor_reduce", "bit reductions take integers", lambda t: nisa.tensor_reduce(f32(t, 4, 1), nl.bitwise_or, f32(t, 4, 3), axis=1), r"works on the bits"),
    Limit("tensor_reduce", "bit reductions do not negate", lambda t: nisa.tensor_reduce(i32(t, 4, 1), nl.bitwise_or, i32(t, 4, 3), axis=1, negate=True), r"negate needs"),
    Limit("tensor_partition_reduce", "five reductions", lambda t: nisa.tensor_partition_reduce(f32(t, 1, 4), nl.minimum, f32(t, 4, 4)), r"nl.minimum is not one of add"),
    Limit("tensor_partition_reduce", "not in PSUM", lambda t: nisa.tensor_partition_reduce(f32(t, 1, 4), nl.add, f32(t, 4, 4, buffer=PSUM)), r"data is in PSUM"),
    Limit("tensor_partition_reduce", "dst has one partition", lambda t: nisa.tensor_partition_reduce(f32(t, 4, 4), nl.add, f32(t, 4, 4)), r"dst has 4 partitions"),
    Limit("tensor_scalar_reduce", "arithmetic op0", lambda t: nisa.tensor_scalar_reduce(i32(t, 4, 4), i32(t, 4, 4), nl.bitwise_or, 1, nl.add), r"not an arithmetic"),
    Limit("tensor_scalar_reduce", "four reductions", lambda t: nisa.tensor_scalar_reduce(f32(t, 4, 4), f32(t, 4, 4), nl.add, 1.0, nl.subtract), r"nl.subtract is not one of"),
    Limit("tensor_scalar_reduce", "load_reduce needs reduce_init",
          lambda t: nisa.tensor_scalar_reduce(f32(t, 4, 4), f32(t, 4, 4), nl.add, 1.0, nl.add, reduce_cmd=RC.load_reduce), r"reduce_init is missing"),
    Limit("tensor_scalar_reduce", "reduce_init only with load_reduce",
          lambda t: nisa.tensor_scalar_reduce(f32(t, 4, 4), f32(t, 4, 4), nl.add, 1.0, nl.add, reduce_init=1.0), r"only for reduce_cmd.load_reduce"),
    Limit("tensor_scalar_reduce", "no reverse0", lambda t: nisa.tensor_scalar_reduce(f32(t, 4, 4), f32(t, 4, 4), nl.add, 1.0, nl.add, reverse0=True), r"reverse0 is not supported"),
    Limit("tensor_scalar_reduce", "idle is not a command here",
          lambda t: nisa.tensor_scalar_reduce(f32(t, 4, 4), f32(t, 4, 4), nl.add, 1.0, nl.add, reduce_cmd=RC.idle), r"reduce_cmd.idle is not supported"),
    Limit("tensor_scalar_cumulative", "no 32-bit integers", lambda t: nisa.tensor_scalar_cumulative(i32(t, 4, 4), f32(t, 4, 4), nl.add, nl.add, 0.0), r"dst is int32"),
    Limit("tensor_scalar_cumulative", "five running operators", lambda t: nisa.tensor_scalar_cumulative(f32(t, 4, 4), f32(t, 4, 4), nl.add, nl.power, 0.0), r"op1 = nl.power"),
    Limit("tensor_tensor_scan", "data0 and data1 not both in PSUM",
          lambda t: nisa.tensor_tensor_scan(f32(t, 4, 4), f32(t, 4, 4, buffer=PSUM), f32(t, 4, 4, buffer=PSUM), 0.0, nl.add, nl.add), r"so is data0"),
    Limit("tensor_tensor_scan", "initial is a number or [P, 1]",
          lambda t: nisa.tensor_tensor_scan(f32(t, 4, 4), f32(t, 4, 4), f32(t, 4, 4), f32(t, 4, 4), nl.add, nl.add), r"initial must be a number or a tile"),
    Limit("bn_stats", "at most 512 elements", lambda t: nisa.bn_stats(f32(t, 4, 6), f32(t, 4, 513)), r"data has 513 elements per partition; the limit is 1 to 512"),
    Limit("bn_stats", "dst has 6 elements", lambda t: nisa.bn_stats(f32(t, 4, 5), f32(t, 4, 8)), r"dst has 5 elements .* must have 6"),
    Limit("bn_aggr", "triples", lambda t: nisa.bn_aggr(f32(t, 4, 2), f32(t, 4, 4)), r"data has 4 elements per partition; they come in triples"),
    Limit("bn_aggr", "dst has 2 elements", lambda t: nisa.bn_aggr(f32(t, 4, 3), f32(t, 4, 6)), r"dst has 3 elements .* must have 2"),

    # ---- the Tensor engine
    *[Limit("nc_matmul", "N up to 512 before trn3",
            lambda t: nisa.nc_matmul(f32(t, 64, 513, buffer=PSUM), f32(t, 32, 64), f32(t, 32, 513)), r"moving has 513 elements per partition; the limit is 512", target)
      for target in ("trn2", "trn1")],
    Limit("nc_matmul", "N up to 4096 for a float32 dst",
          lambda t: nisa.nc_matmul(f32(t, 64, 4097, buffer=PSUM), f32(t, 32, 64), f32(t, 32, 4097)), r"limit is 4096 for a dst of float32"),
    Limit("nc_matmul", "M up to 128", lambda t: nisa.nc_matmul(f32(t, 128, 8, buffer=PSUM), f32(t, 32, 129), f32(t, 32, 8)), r"stationary has 129 elements"),
    Limit("nc_matmul", "one K", lambda t: nisa.nc_matmul(f32(t, 64, 8, buffer=PSUM), f32(t, 32, 64), f32(t, 64, 8)), r"moving has 64 partitions and stationary has 32; both are K"),
    Limit("nc_matmul", "dst is M × N", lambda t: nisa.nc_matmul(f32(t, 32, 8, buffer=PSUM), f32(t, 32, 64), f32(t, 32, 8)), r"dst has 32 partitions; stationary has 64"),
    Limit("nc_matmul", "dst in PSUM", lambda t: nisa.nc_matmul(f32(t, 64, 8), f32(t, 32, 64), f32(t, 32, 8)), r"dst is in sbuf; the Tensor engine writes to PSUM"),
    Limit("nc_matmul", "inputs in SBUF", lambda t: nisa.nc_matmul(f32(t, 64, 8, buffer=PSUM), f32(t, 32, 64), f32(t, 32, 8, buffer=PSUM)), r"moving is in psum"),
    Limit("nc_matmul", "dst is float32 before trn3", lambda t: nisa.nc_matmul(on(t, PSUM, 64, 8, dtype="bfloat16"), f32(t, 32, 64), f32(t, 32, 8)),
          r"dst is bfloat16; a matmul writes float32", "trn2"),
    Limit("nc_matmul", "float32 only with float32 or tfloat32",
          lambda t: nisa.nc_matmul(f32(t, 64, 8, buffer=PSUM), f32(t, 32, 64), on(t, SBUF, 32, 8, dtype="bfloat16")), r"multiply only with each other"),
    Limit("nc_matmul", "no integers", lambda t: nisa.nc_matmul(f32(t, 64, 8, buffer=PSUM), i32(t, 32, 64), i32(t, 32, 8)), r"stationary is int32"),
    Limit("nc_matmul", "float8_e4m3fn needs trn3",
          lambda t: nisa.nc_matmul(f32(t, 64, 8, buffer=PSUM), on(t, SBUF, 32, 64, dtype="float8_e4m3fn"), fp8(t, 32, 8)), r"stationary is float8_e4m3fn", "trn2"),
    Limit("nc_matmul", "float8_e4m3 not with float8_e4m3fn",
          lambda t: nisa.nc_matmul(f32(t, 64, 8, buffer=PSUM), on(t, SBUF, 32, 64, dtype="float8_e4m3fn"), fp8(t, 32, 8)), r"do not mix"),
    Limit("nc_matmul", "dst lies in one PSUM bank before trn3",
          lambda t: nisa.nc_matmul(f32(t, 64, 1024, buffer=PSUM)[:, 256:768], f32(t, 32, 64), f32(t, 32, 512)), r"lies in PSUM banks 0 and 1", "trn2"),
    Limit("nc_matmul", "double_row needs trn2",
          lambda t: nisa.nc_matmul(f32(t, 8, 8, buffer=PSUM), fp8(t, 32, 2, 8), fp8(t, 32, 2, 8), perf_mode=PM.double_row), r"needs NeuronCore-v3", "trn1"),
    Limit("nc_matmul", "double_row has a first free dimension of 2",
          lambda t: nisa.nc_matmul(f32(t, 8, 8, buffer=PSUM), fp8(t, 32, 4, 8), fp8(t, 32, 2, 8), perf_mode=PM.double_row), r"it is \[K, 2"),
    Limit("nc_matmul", "double_row is for fp8",
          lambda t: nisa.nc_matmul(f32(t, 8, 8, buffer=PSUM), f32(t, 32, 2, 8), f32(t, 32, 2, 8), perf_mode=PM.double_row), r"stationary is float32"),
    Limit("nc_matmul", "tile_position and tile_size go together",
          lambda t: nisa.nc_matmul(f32(t, 8, 8, buffer=PSUM), f32(t, 32, 8), f32(t, 32, 8), tile_size=(32, 128)), r"tile_position = \(\)"),
    Limit("nc_matmul", "start row a multiple of the row size",
          lambda t: nisa.nc_matmul(f32(t, 8, 8, buffer=PSUM), f32(t, 32, 8), f32(t, 32, 8), tile_position=(32, 0), tile_size=(64, 128)), r"multiple of 64"),
    Limit("nc_matmul", "stationary fits into tile_size",
          lambda t: nisa.nc_matmul(f32(t, 8, 8, buffer=PSUM), f32(t, 64, 8), f32(t, 64, 8), tile_position=(0, 0), tile_size=(32, 128)), r"tile_size allows 32"),
    Limit("nc_matmul", "row tiles of 32 need trn2",
          lambda t: nisa.nc_matmul(f32(t, 8, 8, buffer=PSUM), f32(t, 32, 8), f32(t, 32, 8), tile_position=(0, 0), tile_size=(32, 128)), r"64 or 128", "trn1"),
    Limit("nc_transpose", "equal dtypes", lambda t: nisa.nc_transpose(f32(t, 8, 4, buffer=PSUM), on(t, SBUF, 4, 8, dtype="bfloat16")), r"dst is float32 and data is bfloat16"),
    Limit("nc_transpose", "at most 128 × 128 on the Tensor engine", lambda t: nisa.nc_transpose(f32(t, 128, 8, buffer=PSUM), f32(t, 8, 129)), r"at most 128"),
    Limit("nc_transpose", "at most 32 × 32 on the Vector engine", lambda t: nisa.nc_transpose(f32(t, 64, 32), f32(t, 32, 64)), r"at most 32 × 32"),
    Limit("nc_transpose", "from SBUF to PSUM on the Tensor engine", lambda t: nisa.nc_transpose(f32(t, 8, 4), f32(t, 4, 8), E.tensor), r"dst is in sbuf"),
    Limit("nc_transpose", "dst is F × P", lambda t: nisa.nc_transpose(f32(t, 4, 8, buffer=PSUM), f32(t, 4, 8)), r"the transpose is 8 × 4"),
    Limit("quantize_mx", "needs trn3", lambda t: nisa.quantize_mx(x4(t, 32, 2), on(t, SBUF, 32, 8, dtype="bfloat16"), u8(t, 32, 2)), r"needs NeuronCore-v4", "trn2"),
    Limit("quantize_mx", "float16 or bfloat16", lambda t: nisa.quantize_mx(x4(t, 32, 2), f32(t, 32, 8), u8(t, 32, 2)), r"src is float32"),
    Limit("quantize_mx", "partitions a multiple of 32", lambda t: nisa.quantize_mx(x4(t, 16, 2), on(t, SBUF, 16, 8, dtype="bfloat16"), u8(t, 32, 2)), r"multiple of 32"),
    Limit("quantize_mx", "elements a multiple of 4", lambda t: nisa.quantize_mx(x4(t, 32, 2), on(t, SBUF, 32, 9, dtype="bfloat16"), u8(t, 32, 2)), r"multiple of 4"),
    Limit("quantize_mx", "scales are e8m0 or uint8", lambda t: nisa.quantize_mx(x4(t, 32, 2), on(t, SBUF, 32, 8, dtype="bfloat16"), f32(t, 32, 2)), r"dst_scale is float32"),
    Limit("quantize_mx", "room for the scales of each quadrant",
          lambda t: nisa.quantize_mx(x4(t, 128, 2), on(t, SBUF, 128, 8, dtype="bfloat16"), u8(t, 16, 2)), r"at least 100 partitions"),
    Limit("quantize_mx", "scales start at partition 0, 4, 8 or 12 of a quadrant",
          lambda t: nisa.quantize_mx(x4(t, 32, 2), on(t, SBUF, 32, 8, dtype="bfloat16"), u8(t, 32, 2)[2:6]), r"starts at partition 2 of a quadrant"),
    Limit("nc_matmul_mx", "needs trn3", lambda t: nisa.nc_matmul_mx(f32(t, 8, 8, buffer=PSUM), x4(t, 32, 8), x4(t, 32, 8), u8(t, 32, 8), u8(t, 32, 8)), r"needs NeuronCore-v4", "trn2"),
    Limit("nc_matmul_mx", "packed inputs", lambda t: nisa.nc_matmul_mx(f32(t, 8, 8, buffer=PSUM), fp8(t, 32, 8), x4(t, 32, 8), u8(t, 32, 8), u8(t, 32, 8)), r"stationary is float8_e4m3;"),
    Limit("nc_matmul_mx", "K a multiple of 32", lambda t: nisa.nc_matmul_mx(f32(t, 8, 8, buffer=PSUM), x4(t, 16, 8), x4(t, 16, 8), u8(t, 32, 8), u8(t, 32, 8)), r"multiple of 32"),
    Limit("nc_matmul_mx", "M even", lambda t: nisa.nc_matmul_mx(f32(t, 7, 8, buffer=PSUM), x4(t, 32, 7), x4(t, 32, 8), u8(t, 32, 7), u8(t, 32, 8)), r"even number"),
    Limit("nc_matmul_mx", "only row tiles",
          lambda t: nisa.nc_matmul_mx(f32(t, 8, 8, buffer=PSUM), x4(t, 32, 8), x4(t, 32, 8), u8(t, 32, 8), u8(t, 32, 8), (0, 0), (32, 64)), r"column size must be 128"),

    # ---- gathers and searches
    Limit("nc_stream_shuffle", "a mask of 32 entries", lambda t: nisa.nc_stream_shuffle(f32(t, 32, 4), f32(t, 32, 4), [0] * 31), r"list of 32 partitions"),
    Limit("nc_stream_shuffle", "entries 0 to 31, or 255", lambda t: nisa.nc_stream_shuffle(f32(t, 32, 4), f32(t, 32, 4), [32] * 32), r"entry 32; entries are 0 to 31"),
    Limit("nc_stream_shuffle", "equal dtypes", lambda t: nisa.nc_stream_shuffle(f32(t, 32, 4), i32(t, 32, 4), [0] * 32), r"dst is float32 and src is int32"),
    Limit("nc_stream_shuffle", "quadrant starts", lambda t: nisa.nc_stream_shuffle(f32(t, 128, 4)[32:33], f32(t, 64, 4), [0] * 32), r"dst starts at partition 32; .* 0 or 64"),
    Limit("nc_stream_shuffle", "sources that src has", lambda t: nisa.nc_stream_shuffle(f32(t, 32, 4), f32(t, 8, 4), [9] * 32), r"moves partition 9 to 0, and src has 8"),
    Limit("local_gather", "uint16 indices", lambda t: nisa.local_gather(f32(t, 16, 16), f32(t, 16, 8), on(t, SBUF, 16, 1, dtype="uint32")), r"index is uint32"),
    Limit("local_gather", "partitions a multiple of 16", lambda t: nisa.local_gather(f32(t, 8, 16), f32(t, 8, 8), on(t, SBUF, 8, 1, dtype="uint16")), r"multiple of 16"),
    Limit("local_gather", "1, 2, 4, 8, 16 or 32 elements per index",
          lambda t: nisa.local_gather(f32(t, 16, 48), f32(t, 16, 8), on(t, SBUF, 16, 1, dtype="uint16"), 3), r"num_elem_per_idx must be one of"),
    Limit("local_gather", "at most 4096 indices per core",
          lambda t: nisa.local_gather(f32(t, 16, 4112), f32(t, 16, 8), on(t, SBUF, 16, 257, dtype="uint16")), r"limit is 4096"),
    Limit("local_gather", "dst holds what is gathered", lambda t: nisa.local_gather(f32(t, 16, 15), f32(t, 16, 8), on(t, SBUF, 16, 1, dtype="uint16")), r"must have 16"),
    Limit("nc_n_gather", "uint32 indices", lambda t: nisa.nc_n_gather(f32(t, 4, 4), f32(t, 4, 4), i32(t, 4, 4)), r"indices is int32"),
    Limit("nc_n_gather", "SBUF only", lambda t: nisa.nc_n_gather(f32(t, 4, 4), f32(t, 4, 4, buffer=PSUM), on(t, SBUF, 4, 4, dtype="uint32")), r"data is in psum"),
    Limit("max8", "8 to 16384 elements", lambda t: nisa.max8(f32(t, 4, 8), f32(t, 4, 7)), r"src has 7 elements per partition; the limit is 8 to 16384"),
    Limit("max8", "dst has 8 elements", lambda t: nisa.max8(f32(t, 4, 9), f32(t, 4, 9)), r"dst has 9 elements"),
    Limit("max8", "at most three dimensions", lambda t: nisa.max8(f32(t, 4, 8), f32(t, 4, 2, 2, 2)), r"src has 4 dimensions"),
    Limit("nc_find_index8", "uint16 or uint32 results", lambda t: nisa.nc_find_index8(i32(t, 4, 8), f32(t, 4, 8), f32(t, 4, 8)), r"dst is int32"),
    Limit("nc_find_index8", "8 values", lambda t: nisa.nc_find_index8(on(t, SBUF, 4, 8, dtype="uint32"), f32(t, 4, 8), f32(t, 4, 7)), r"vals has 7 elements"),
    Limit("nc_match_replace8", "8 values", lambda t: nisa.nc_match_replace8(f32(t, 4, 9), f32(t, 4, 9), f32(t, 4, 7), 0.0), r"vals has 7 elements"),
    Limit("nc_match_replace8", "imm is a number", lambda t: nisa.nc_match_replace8(f32(t, 4, 9), f32(t, 4, 9), f32(t, 4, 8), f32(t, 4, 1)), r"imm must be a number"),
    Limit("nonzero_with_count", "needs trn2", lambda t: nisa.nonzero_with_count(i32(t, 4, 5), f32(t, 4, 4)), r"needs NeuronCore-v3", "trn1"),
    Limit("nonzero_with_count", "one element more in dst", lambda t: nisa.nonzero_with_count(i32(t, 4, 4), f32(t, 4, 4)), r"must have 5, one more than src"),
    Limit("nonzero_with_count", "int32 dst", lambda t: nisa.nonzero_with_count(f32(t, 4, 5), f32(t, 4, 4)), r"dst is float32"),
    Limit("topk", "bfloat16 source", lambda t: nisa.topk(on(t, SBUF, 16, 8, dtype="bfloat16"), on(t, SBUF, 16, 8, dtype="uint32"), f32(t, 16, 4), 32), r"src is float32"),
    Limit("topk", "8 <= n < 65536, and src holds n",
          lambda t: nisa.topk(on(t, SBUF, 16, 4, dtype="bfloat16"), on(t, SBUF, 16, 4, dtype="uint32"), on(t, SBUF, 16, 4, dtype="bfloat16"), 65), r"src holds 64"),
    Limit("topk", "k <= n", lambda t: nisa.topk(on(t, SBUF, 16, 33, dtype="bfloat16"), on(t, SBUF, 16, 33, dtype="uint32"), on(t, SBUF, 16, 4, dtype="bfloat16"), 32), r"val_dst has 33"),
    Limit("sequence_bounds", "one partition", lambda t: nisa.sequence_bounds(i32(t, 1, 2, 4), i32(t, 2, 4)), r"segment_ids has 2 partitions"),
    Limit("sequence_bounds", "dst is [1, 2, n]", lambda t: nisa.sequence_bounds(i32(t, 1, 8), i32(t, 1, 4)), r"must be \[1, 2, 4\]"),

    # ---- random numbers
    Limit("rng", "integer dtypes", lambda t: nisa.rng(f32(t, 4, 4)), r"dst is float32"),
    Limit("rng", "GpSimd from trn2 on", lambda t: nisa.rng(i32(t, 4, 4), E.gpsimd), r"needs NeuronCore-v3", "trn1"),
    Limit("rand2", "needs trn3", lambda t: nisa.rand2(f32(t, 4, 4), 0.0, 1.0), r"needs NeuronCore-v4", "trn2"),
    Limit("rand2", "min below max", lambda t: nisa.rand2(f32(t, 4, 4), 1.0, 1.0), r"must be above min"),
    Limit("set_rng_seed", "one 32-bit value", lambda t: nisa.set_rng_seed(i32(t, 1, 2)), r"must be \[1, 1\]"),
    Limit("rand_set_state", "6 words on GpSimd", lambda t: nisa.rand_set_state(on(t, SBUF, 4, 24, dtype="uint32")), r"must have 6"),
    Limit("rand_set_state", "the Vector engine's needs trn3",
          lambda t: nisa.rand_set_state(on(t, SBUF, 4, 24, dtype="uint32"), E.vector), r"needs NeuronCore-v4", "trn2"),
    Limit("rand_get_state", "24 words on Vector", lambda t: nisa.rand_get_state(on(t, SBUF, 4, 6, dtype="uint32"), E.vector), r"must have 24"),
    Limit("rand_get_state", "SBUF on GpSimd", lambda t: nisa.rand_get_state(on(t, PSUM, 4, 6, dtype="uint32")), r"dst is in psum"),

    # ---- DMA
    Limit("dma_copy", "not from PSUM", lambda t: nisa.dma_copy(f32(t, 4, 4, buffer=HBM), f32(t, 4, 4, buffer=PSUM)), r"src is in PSUM, which DMA cannot access; .* nisa.tensor_copy first"),
    Limit("dma_copy", "not to PSUM", lambda t: nisa.dma_copy(f32(t, 4, 4, buffer=PSUM), f32(t, 4, 4, buffer=HBM)), r"dst is in PSUM"),
    Limit("dma_copy", "equal element counts", lambda t: nisa.dma_copy(f32(t, 4, 4), f32(t, 4, 5, buffer=HBM)), r"src has 20 elements and dst has 16"),
    Limit("dma_copy", "hwdge does not convert", lambda t: nisa.dma_copy(f32(t, 4, 4), on(t, HBM, 4, 4, dtype="bfloat16"), dge_mode=DGE.hwdge), r"src is bfloat16 and dst is float32"),
    Limit("dma_copy", "hwdge needs trn2", lambda t: nisa.dma_copy(f32(t, 4, 4), f32(t, 4, 4, buffer=HBM), dge_mode=DGE.hwdge), r"needs NeuronCore-v3", "trn1"),
    Limit("dma_copy", "oob_mode.skip needs a run-time index", lambda t: nisa.dma_copy(f32(t, 4, 4), f32(t, 4, 4, buffer=HBM), oob_mode=nisa.oob_mode.skip), r"needs a run-time index"),
    Limit("dma_copy", "priorities need trn3", lambda t: nisa.dma_copy(f32(t, 4, 4), f32(t, 4, 4, buffer=HBM), priority=1), r"needs NeuronCore-v4", "trn2"),
    Limit("dma_copy", "priorities are 0 to 3", lambda t: nisa.dma_copy(f32(t, 4, 4), f32(t, 4, 4, buffer=HBM), priority=4), r"must be 0 to 3"),
    Limit("dma_transpose", "dst has the permuted shape", lambda t: nisa.dma_transpose(f32(t, 4, 8), f32(t, 4, 8, buffer=HBM)), r"the transposed src has \[8, 4\]"),
    Limit("dma_transpose", "equal ranks", lambda t: nisa.dma_transpose(f32(t, 8, 8), f32(t, 4, 2, 8, buffer=HBM)), r"has \[8, 2, 4\]"),
    Limit("dma_transpose", "three permutations", lambda t: nisa.dma_transpose(f32(t, 2, 4, 8), f32(t, 4, 2, 8, buffer=HBM), axes=(1, 0, 2)), r"only \(2, 1, 0\) is supported"),
    Limit("dma_transpose", "equal dtypes", lambda t: nisa.dma_transpose(f32(t, 8, 4), i32(t, 4, 8)), r"dst is float32 and src is int32"),
    Limit("dma_transpose", "hwdge takes 2-byte dtypes", lambda t: nisa.dma_transpose(f32(t, 8, 16), f32(t, 16, 8, buffer=HBM), dge_mode=DGE.hwdge), r"2-byte dtypes"),
    Limit("dma_transpose", "hwdge takes 16 rows",
          lambda t: nisa.dma_transpose(on(t, SBUF, 8, 8, dtype="bfloat16"), on(t, HBM, 8, 8, dtype="bfloat16"), dge_mode=DGE.hwdge), r"src has 8 rows"),
    Limit("dma_transpose", "with run-time indices, rows a multiple of 16",
          lambda t: nisa.dma_transpose(on(t, SBUF, 8, 8, dtype="bfloat16"), on(t, HBM, 32, 8, dtype="bfloat16").ap(
              [[8, 8], [1, 8]], vector_offset=on(t, SBUF, 16, 1, dtype="uint32"))), r"src has 8 rows; .* multiple of 16"),
    Limit("dma_compute", "only add", lambda t: nisa.dma_compute(f32(t, 4, 4), [f32(t, 4, 4)], nl.maximum), r"must be nl.add"),
    Limit("dma_compute", "at most 16 sources", lambda t: nisa.dma_compute(f32(t, 4, 4), [f32(t, 4, 4)] * 17, nl.add), r"1 to 16 tensors"),
    Limit("dma_compute", "scales are 1.0", lambda t: nisa.dma_compute(f32(t, 4, 4), [f32(t, 4, 4)], nl.add, [2.0]), r"scales = \[2.0\]"),
    Limit("dma_compute", "sources not in PSUM", lambda t: nisa.dma_compute(f32(t, 4, 4), [f32(t, 4, 4, buffer=PSUM)], nl.add), r"srcs \[0\] is in PSUM"),
    Limit("dma_compute", "with a vector_offset, dst and one more source",
          lambda t: nisa.dma_compute(f32(t, 4, 4), [f32(t, 9, 4, buffer=HBM).ap([[4, 4], [1, 4]], vector_offset=on(t, SBUF, 4, 1, dtype="uint32"))], nl.add), r"two tensors, one of them dst"),

    # ---- two cores, registers
    Limit("core_barrier", "cores (0, 1)", lambda t: nisa.core_barrier(f32(t, 4, 4, buffer=HBM), (0, 1, 2)), r"must be \(0, 1\)"),
    Limit("core_barrier", "needs trn2", lambda t: nisa.core_barrier(f32(t, 4, 4, buffer=HBM), (0, 1)), r"needs NeuronCore-v3", "trn1"),
    Limit("core_barrier", "data in HBM", lambda t: nisa.core_barrier(f32(t, 4, 4), (0, 1)), r"cores share HBM only"),
    Limit("sendrecv", "equal shapes", lambda t: nisa.sendrecv(f32(t, 4, 4), f32(t, 4, 5), 0, 1, 0), r"they must be equal"),
    Limit("sendrecv", "SBUF only", lambda t: nisa.sendrecv(f32(t, 4, 4, buffer=PSUM), f32(t, 4, 4), 0, 1, 0), r"src is in psum"),
    Limit("sendrecv", "ranks 0 and 1", lambda t: nisa.sendrecv(f32(t, 4, 4), f32(t, 4, 4), 2, 1, 0), r"send_to_rank = 2 must be 0 or 1"),
    Limit("sendrecv", "GpSimd's DMA moves 1024 bytes per partition of a 32-bit dtype",
          lambda t: nisa.sendrecv(f32(t, 4, 257), f32(t, 4, 257), 0, 1, 0, nisa.dma_engine.gpsimd_dma), r"1028 bytes per partition"),
    Limit("register_load", "one element", lambda t: nisa.register_load(nisa.register_alloc(), i32(t, 1, 2)), r"src has 2 elements"),
    Limit("register_store", "one element", lambda t: nisa.register_store(i32(t, 1, 2), nisa.register_alloc(1)), r"dst has 2 elements"),
    Limit("register_store", "not to PSUM", lambda t: nisa.register_store(f32(t, 1, 1, buffer=PSUM), nisa.register_alloc(1)), r"dst is in PSUM"),
    Limit("register_move", "a 32-bit value", lambda t: nisa.register_move(nisa.register_alloc(), 2 ** 31), r"does not fit into 32 bits"),
    Limit("register_alloc", "an int", lambda t: nisa.register_alloc(1.5), r"x must be an int or None"),
]


@pytest.mark.parametrize("limit", LIMITS, ids=lambda v: f"{v.function}: {v.rule} ({v.target})")
def test_refused(limit):
    with Trial(limit.target) as t, pytest.raises(NkiError) as error:
        limit.call(t)
    text = str(error.value)
    assert re.search(limit.message, text), text
    assert re.search(rf"^\S*test_isa_limits\.py:\d+: {limit.function} ", text), "the place and the instruction"
    assert f"[{limit.target}]" in text


def test_an_error_shows_the_whole_instruction():
    with Trial("trn2") as t, pytest.raises(AssertionError) as error:
        x = t.empty((128, 513), nl.bfloat16, name="x")
        nisa.nc_matmul(t.empty((64, 513), buffer="psum", name="acc"), t.empty((128, 64), nl.bfloat16, name="w"), x)
    where, rest = str(error.value).split(": ", 1)
    assert where.rpartition(":")[0] == __file__
    assert rest.splitlines() == [
        "nc_matmul moving has 513 elements per partition; the limit is 512 for a dst of float32 [trn2]",
        "    dst = acc (psum float32[64, 513])",
        "    stationary = w (sbuf bfloat16[128, 64])",
        "    moving = x (sbuf bfloat16[128, 513])",
    ]


def test_checks_can_be_off():
    with Trial("trn2", checks=False) as t:
        moving, stationary = t.tile([[1.0] * 600]), t.tile([[2.0]])
        nisa.nc_matmul(dst := t.empty((1, 600), buffer="psum"), stationary, moving)
        assert (dst.numpy() == 2).all()


# ---- the page

NOT_FUNCTIONS = {"get_nc_version", "get_nc_sub_version"}


def functions():
    return [n for n in nisa.__all__ if callable(getattr(nisa, n)) and not isinstance(getattr(nisa, n), type)
            and n not in NOT_FUNCTIONS]


def page():
    lines = ["# NKI instructions", "",
             "Every function of `nki.isa`: whether the interpreter executes it, and the limits that are checked while a "
             "kernel is traced or interpreted. A target in brackets is the newest one that has the limit. Each limit is "
             "a test; `python tests/nki/test_isa_limits.py` writes this page.", "",
             "Limits of every on-chip operand: at most 128 consecutive partitions, starting at partition 0, 32, 64 or 96 "
             "(33 to 64 partitions: 0 or 64; more: 0); SBUF or PSUM; a dtype that the target has.", "",
             "| function | what it does | runs | checked limits |", "|---|---|---|---|"]
    for name in functions():
        first = (getattr(nisa, name).__doc__ or "").strip().splitlines()[0].replace("|", "\\|")
        rules = {}
        for limit in LIMITS:
            if limit.function == name:
                rules.setdefault(limit.rule, []).append(limit.target)
        shown = "; ".join(rule + ("" if "trn3" in targets else f" [{targets[0]}]") for rule, targets in rules.items())
        runs = "yes" if name in TABLE else "two cores" if name in MACHINE else "no"
        lines.append(f"| `{name}` | {first} | {runs} | {shown} |")
    lines += ["", "## Activation functions", "",
              "`op=` of `activation` and its relatives, exact here. The chip computes some of them only in a range; the "
              "interpreter warns, at the kernel's line, of finite non-zero inputs outside it. Extensions exist only in the "
              "embedded NKI, as do the ALU operators " + ", ".join(f"`nl.{n}`" for n in sorted(EXTENSION_OPS & set(ALU)))
              + " and the dtypes int64 and float64.", "", "| function | range on the chip |", "|---|---|"]
    for name in sorted(FUNCTIONS):
        low, high = ACTIVATION_RANGES.get(name, (None, None))
        shown = "extension" if name in EXTENSION_OPS else "all" if low is None else (
            f"[{low:.5g}, {high:.5g}]" if low < 0 else
            ("±" if name == "reciprocal" else "") + f"[2^{math.log2(low):.0f}, 2^{math.log2(high):.0f}]")
        lines.append(f"| `nl.{name}` | {shown} |")
    return "\n".join(lines) + "\n"


def test_every_function_runs_and_has_checked_limits():
    for name in functions():
        assert name in TABLE or name in MACHINE, f"{name} is not implemented"
        assert any(limit.function == name for limit in LIMITS), f"no limit of {name} is tested"
        assert getattr(nisa, name).__doc__, f"{name} has no documentation"


def test_the_page_is_up_to_date():
    assert PAGE.read_text() == page(), f"run python {Path(__file__).relative_to(PAGE.parents[1])}"


if __name__ == "__main__":
    PAGE.write_text(page())
