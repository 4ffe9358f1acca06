"""Elementwise functions on tiles. The result is a new SBUF tile whose dtype is that of the first tile unless given."""
from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from ...errors import NkiTypeError
from .. import isa
from ..dtypes import as_dtype, uint8
from ..location import here
from ..tensor import NkiTensor
from ..tokens import TOKENS, Op
from .create import fill, ndarray
from .move import cast, copy

BINARY = (
    "add", "subtract", "multiply", "divide", "maximum", "minimum", "power", "abs_max", "abs_min", "mod", "fmod",
    "equal", "not_equal", "greater", "greater_equal", "less", "less_equal", "logical_and", "logical_or", "logical_xor",
    "bitwise_and", "bitwise_or", "bitwise_xor", "left_shift", "right_shift")
ACTIVATIONS = (
    "exp", "log", "sqrt", "sin", "cos", "tan", "arctan", "tanh", "sigmoid", "relu", "gelu", "gelu_dx",
    "gelu_apprx_tanh", "gelu_apprx_sigmoid", "gelu_apprx_sigmoid_dx", "silu", "silu_dx", "softplus", "mish", "erf",
    "erf_dx", "square", "abs", "sign", "ceil", "floor", "trunc")


def _binary(op: Op) -> Callable[..., NkiTensor]:
    def function(x: Any, y: Any, dtype: Any = None) -> NkiTensor:
        first = x if isinstance(x, NkiTensor) else y
        if not isinstance(first, NkiTensor):
            raise NkiTypeError(f"nl.{op}({x!r}, {y!r}): one argument must be a tile; on numbers use Python's operators",
                               here())
        t = ndarray(first.shape, dtype or first.dtype)
        if isinstance(x, NkiTensor) and isinstance(y, NkiTensor):
            isa.tensor_tensor(dst=t, data1=x, data2=y, op=op)
        elif isinstance(x, NkiTensor):
            isa.tensor_scalar(dst=t, data=x, op0=op, operand0=y)
        else:
            isa.tensor_scalar(dst=t, data=y, op0=op, operand0=x, reverse0=True)
        return t

    return _named(function, op)


def _activation(op: Op) -> Callable[..., NkiTensor]:
    def function(x: NkiTensor, dtype: Any = None) -> NkiTensor:
        t = ndarray(x.shape, dtype or x.dtype)
        isa.activation(dst=t, op=op, data=x)
        return t

    return _named(function, op)


def _named(function: Callable[..., NkiTensor], op: Op) -> Callable[..., NkiTensor]:
    function.__name__ = function.__qualname__ = op.name
    function.__doc__ = op.__doc__
    return function


def reciprocal(x: NkiTensor, dtype: Any = None) -> NkiTensor:
    """1 / x, element by element."""
    t = ndarray(x.shape, dtype or x.dtype)
    isa.reciprocal(dst=t, data=x)
    return t


def rsqrt(x: NkiTensor, dtype: Any = None) -> NkiTensor:
    """1 / sqrt(x), element by element."""
    t = ndarray(x.shape, dtype or x.dtype)
    isa.activation(dst=t, op=TOKENS["rsqrt"], data=x)
    return t


def negative(x: NkiTensor, dtype: Any = None) -> NkiTensor:
    """-x, element by element."""
    return TOKENS["multiply"](x, -1.0 if x.dtype.kind == "f" else -1, dtype)


def logical_not(x: NkiTensor, dtype: Any = None) -> NkiTensor:
    """1 where x is 0, else 0."""
    return TOKENS["logical_xor"](x, 1.0 if x.dtype.kind == "f" else 1, dtype)


def invert(x: NkiTensor, dtype: Any = None) -> NkiTensor:
    """The bits of an integer inverted."""
    t = ndarray(x.shape, dtype or x.dtype)
    isa.tensor_scalar(dst=t, data=x, op0=TOKENS["bitwise_xor"], operand0=(1 << 8 * x.dtype.itemsize) - 1
                      if x.dtype.kind == "u" else -1)
    return t


def where(condition: NkiTensor, x: Any, y: Any, dtype: Any = None) -> NkiTensor:
    """x where the condition is not 0, else y. x and y are tiles or numbers; at least one is a tile unless `dtype` is
    given."""
    given = [v for v in (x, y) if isinstance(v, NkiTensor)]
    kind = as_dtype(dtype) if dtype is not None else given[0].dtype if given else condition.dtype
    t = ndarray(condition.shape, kind)
    if isinstance(y, NkiTensor):
        isa.tensor_copy(dst=t, src=y)
    else:
        fill(t, y)
    if isinstance(x, NkiTensor):
        source = cast(x, kind)
    else:
        source = ndarray(condition.shape, kind)
        fill(source, x)
    flags = ndarray(condition.shape, uint8)
    isa.tensor_scalar(dst=flags, data=condition, op0=TOKENS["not_equal"],
                      operand0=0.0 if condition.dtype.kind == "f" else 0)
    isa.tensor_copy_predicated(dst=t, src=source, predicate=flags)
    return t


def dropout(x: NkiTensor, rate: Any, dtype: Any = None) -> NkiTensor:
    """x with each element set to 0 with probability `rate` (a number or a [P, 1] tile). Nothing is rescaled."""
    t = ndarray(x.shape, dtype or x.dtype)
    isa.dropout(dst=t, data=x, prob=rate)
    return t


def gather_flattened(data: NkiTensor, indices: NkiTensor, axis: int = 0, dtype: Any = None) -> NkiTensor:
    """out[p, i] = data[p, indices[p, i]], the free dimensions of both taken as one."""
    t = ndarray(indices.shape, data.dtype)
    isa.nc_n_gather(dst=t, data=data, indices=indices)
    return cast(t, dtype or data.dtype)


FUNCTIONS: dict[str, Callable[..., Any]] = {name: _binary(TOKENS[name]) for name in BINARY}
FUNCTIONS.update({name: _activation(TOKENS[name]) for name in ACTIVATIONS})
FUNCTIONS.update(reciprocal=reciprocal, rsqrt=rsqrt, negative=negative, logical_not=logical_not, invert=invert,
                 copy=copy)
for _name, _function in FUNCTIONS.items():
    TOKENS[_name].function = _function
    TOKENS[_name].__signature__ = inspect.signature(_function)     # type: ignore[attr-defined]
