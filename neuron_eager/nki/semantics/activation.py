"""The activation instructions: a scale and a bias, a function, and a sum into the accumulators, all in float32."""
from __future__ import annotations

from typing import Any

import numpy as np

from .alu import ALU, Array
from .elementwise import Args, apply_scalar, read_out
from .functions import FUNCTIONS, prelu
from .operands import f32, scalar_f32, store
from .reduce import accumulate
from .state import State


def _scaled(data: Array, scale: Any, bias: Any) -> Array:
    value = data if type(scale) is float and scale == 1.0 else data * scalar_f32(scale)
    if bias is None or (type(bias) is float and bias == 0.0):
        return value
    return value + scalar_f32(bias)


def activation(a: Args, state: State) -> None:
    dst = a["dst"]
    value = FUNCTIONS[a["op"].name](_scaled(f32(a["data"]), a["scale"], a["bias"]))
    command = a["reduce_cmd"].name
    if command != "idle":
        accumulate(state.scalar[:dst.shape[0]], command, ALU["add"], value)
    store(dst, value)
    read_out(a["reduce_res"], state.scalar)


def activation_reduce(a: Args, state: State) -> None:
    dst = a["dst"]
    value = FUNCTIONS[a["op"].name](_scaled(f32(a["data"]), a["scale"], a["bias"]))
    accumulate(state.scalar[:dst.shape[0]], "reset_reduce", ALU[a["reduce_op"].name], value)
    store(dst, value)
    read_out(a["reduce_res"], state.scalar)


def activate2(a: Args, state: State) -> None:
    dst, value = a["dst"], f32(a["data"])
    for i in (0, 1):
        op = ALU[a[f"op{i}"].name]
        if op.name != "bypass":
            value = apply_scalar(op, value, scalar_f32(a[f"imm{i}"]), a[f"reverse{i}"])
    if a["op"].name == "prelu":
        value = prelu(value, scalar_f32(a["relu_param"]))
    else:
        value = FUNCTIONS[a["op"].name](value)
    if a["reduce_op"] is not None:
        accumulate(state.scalar[:dst.shape[0]], a["reduce_cmd"].name, ALU[a["reduce_op"].name], value)
    elif a["reduce_cmd"].name == "reset":
        state.scalar[:dst.shape[0]] = 0
    store(dst, value)
    read_out(a["reduce_res"], state.scalar)


def exponential(a: Args, state: State) -> None:
    dst = a["dst"]
    value = np.exp(f32(a["src"]) - scalar_f32(a["max_value"]))
    if a["reduce_cmd"].name != "idle":
        accumulate(state.vector[:dst.shape[0]], a["reduce_cmd"].name, ALU["add"], value,
                   scalar_f32(a["reduce_init"]))
    store(dst, value)
    read_out(a["reduce_res"], state.vector)
