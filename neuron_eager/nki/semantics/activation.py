"""The activation instructions: a scale and a bias, a function, and a sum into the accumulators, all in float32."""
from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from ...errors import NkiWarning
from ..limits import ACTIVATION_RANGES
from ..location import here
from .alu import ALU, Array
from .elementwise import Args, apply_scalar, read_out
from .functions import FUNCTIONS, outside_range, prelu
from .operands import f32, scalar_f32, store
from .reduce import accumulate
from .state import State


def _scaled(data: Array, scale: Any, bias: Any) -> Array:
    value = data if type(scale) is float and scale == 1.0 else data * scalar_f32(scale)
    if bias is None or (type(bias) is float and bias == 0.0):
        return value
    return value + scalar_f32(bias)


def _function(op: Any, x: Array, state: State) -> Array:
    """op(x), with a warning at the kernel's line where the chip would give something else."""
    name = op.name
    if name in ACTIVATION_RANGES and state.ranges:
        count = outside_range(name, x)
        if count:
            _warn(name, count, x.size)
    return FUNCTIONS[name](x)


def _warn(name: str, count: int, size: int) -> None:
    place = here()
    if place is None:
        return
    low, high = ACTIVATION_RANGES[name]
    text = f"nl.{name}: {count} of {size} inputs are outside [{low:.4g}, {high:.4g}]"
    if low > 0:
        text += " in magnitude"
    text += ", where the Scalar engine gives invalid results; the interpreter computes the exact function"
    if name == "sin":
        text += ". nl.sin(tile) reduces its argument first"
    warnings.warn_explicit(text, NkiWarning, place.file, place.line)


def activation(a: Args, state: State) -> None:
    dst = a["dst"]
    value = _function(a["op"], _scaled(f32(a["data"]), a["scale"], a["bias"]), state)
    command = a["reduce_cmd"].name
    if command != "idle":
        accumulate(state.scalar[:dst.shape[0]], command, ALU["add"], value)
    store(dst, value)
    read_out(a["reduce_res"], state.scalar)


def activation_reduce(a: Args, state: State) -> None:
    dst = a["dst"]
    value = _function(a["op"], _scaled(f32(a["data"]), a["scale"], a["bias"]), state)
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
        value = _function(a["op"], value, state)
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
