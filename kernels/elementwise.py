"""The elementwise kernel: one tile function, mapped over tiles of operands of any rank and strides.

A tile function has the signature `f(dst, *tiles)` and writes `dst`, an SBUF tile, from tiles of the same shape. An op
token such as `nl.exp` stands for the instruction that computes it. Arithmetic is float32, rounded once when `dst` is
written; where every tile is an integer it is exact.
"""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import nki
import nki.isa as nisa
import nki.language as nl

from .tiling import blocks, load, store, tile_like, walks

TileFunction = Callable[..., None] | Any


@nki.jit
@walks("out", "ins")
def elementwise(out, ins, function, compute=None, result=None, through=None):
    """out[i] = function(ins[0][i], ins[1][i], ...).

    Dimensions:
        any rank; all operands have the shape of `out` (stride 0 where an operand is repeated)
    Args:
        out: HBM tensor, written. Any strides; it may be one of `ins`.
        ins: tuple of HBM tensors, each of its own dtype; one of shape [1, 1] is repeated.
        function: an op token or a tile function (compile-time constant).
        compute: dtype to which inputs are cast first; None: each stays what it is.
        through: dtype to which they are cast before that, for comparisons of integers that wrap first; or None.
        result: dtype that the function writes, if not out's; it is then cast.
    Constraints:
        `out` overlaps an input only where both are the same view.
    Pseudocode:
        for each block of 128 x F elements:
            tiles = load the block of every input, cast
            function(result tile, *tiles)
            store the result, cast
    """
    for o, *xs in blocks(out, *(repeated(x, out.shape) for x in ins)):
        tiles = [load(x, compute, through) for x in xs]
        done = tile_like(o, result or out.dtype)
        apply(function, done, tiles)
        if done.dtype != out.dtype:
            narrow = tile_like(o, out.dtype)
            nisa.tensor_copy(dst=narrow, src=done)
            done = narrow
        store(o, done)
    return out


def repeated(x: Any, shape: Any) -> Any:
    """An operand [1, 1] as a view of `shape`; anything else as it is."""
    if tuple(x.shape) != (1, 1) or tuple(shape) == (1, 1):
        return x
    x = x.reshape((1,) * len(shape))
    for dim, size in enumerate(shape):
        x = x.broadcast(dim, size)
    return x


def apply(function: TileFunction, dst: Any, tiles: list[Any]) -> None:
    """Run a tile function, or the instruction that an op token names."""
    if not isinstance(function, type(nl.copy)):
        function(dst, *tiles)
    elif len(tiles) == 2:
        nisa.tensor_tensor(dst=dst, data1=tiles[0], data2=tiles[1], op=function)
    elif function is nl.copy:
        nisa.tensor_copy(dst=dst, src=tiles[0])
    else:
        nisa.activation(dst=dst, op=function, data=tiles[0])


# ---- tile functions. Intermediate tiles are float32, as on the engines.

def f32(like: Any) -> Any:
    return tile_like(like, nl.float32)


def like(t: Any) -> Any:
    """A tile for an intermediate value: float32, or t's own dtype where that is an integer."""
    return tile_like(t, nl.float32 if t.dtype.kind == "f" else t.dtype)


def add_scaled(dst, x, y, alpha):
    """x + alpha * y"""
    scaled = like(dst)
    nisa.tensor_tensor(dst=scaled, data1=y, data2=alpha, op=nl.multiply)
    nisa.tensor_tensor(dst=dst, data1=x, data2=scaled, op=nl.add)


def subtract_scaled(dst, x, y, alpha):
    """x - alpha * y"""
    scaled = like(dst)
    nisa.tensor_tensor(dst=scaled, data1=y, data2=alpha, op=nl.multiply)
    nisa.tensor_tensor(dst=dst, data1=x, data2=scaled, op=nl.subtract)


def reverse_subtract_scaled(dst, x, y, alpha):
    """y - alpha * x"""
    subtract_scaled(dst, y, x, alpha)


def negative(dst, x):
    nisa.tensor_scalar(dst=dst, data=x, op0=nl.multiply, operand0=-1)


def flip_signs(dst, x):
    """Two 16-bit floats in each int32, negated."""
    nisa.tensor_scalar(dst=dst, data=x, op0=nl.bitwise_xor, operand0=-0x7fff8000)       # 0x80008000


def clear_signs(dst, x):
    """Two 16-bit floats in each int32, without their signs."""
    nisa.tensor_scalar(dst=dst, data=x, op0=nl.bitwise_and, operand0=0x7fff7fff)


def addcmul(dst, x, a, b, value):
    """x + value * a * b"""
    product = like(dst)
    nisa.tensor_tensor(dst=product, data1=a, data2=b, op=nl.multiply)
    nisa.tensor_tensor(dst=product, data1=product, data2=value, op=nl.multiply)
    nisa.tensor_tensor(dst=dst, data1=x, data2=product, op=nl.add)


def addcdiv(dst, x, a, b, value):
    """x + value * a / b"""
    quotient = f32(dst)
    nisa.tensor_tensor(dst=quotient, data1=a, data2=value, op=nl.multiply)
    nisa.tensor_tensor(dst=quotient, data1=quotient, data2=b, op=nl.divide)
    nisa.tensor_tensor(dst=dst, data1=x, data2=quotient, op=nl.add)


def lerp(dst, x, end, weight):
    """x + weight * (end - x), from the nearer end, as PyTorch computes it"""
    difference, low, high, rest, near = f32(dst), f32(dst), f32(dst), f32(dst), tile_like(dst, nl.uint8)
    nisa.tensor_tensor(dst=difference, data1=end, data2=x, op=nl.subtract)
    nisa.tensor_tensor(dst=low, data1=difference, data2=weight, op=nl.multiply)
    nisa.tensor_tensor(dst=low, data1=x, data2=low, op=nl.add)
    nisa.tensor_scalar(dst=rest, data=weight, op0=nl.subtract, operand0=1.0, reverse0=True)
    nisa.tensor_tensor(dst=high, data1=difference, data2=rest, op=nl.multiply)
    nisa.tensor_tensor(dst=high, data1=end, data2=high, op=nl.subtract)
    nisa.tensor_scalar(dst=near, data=_absolute(weight), op0=nl.less, operand0=0.5)
    nisa.tensor_copy_predicated(dst=high, src=low, predicate=near)
    nisa.tensor_copy(dst=dst, src=high)


def _absolute(x):
    t = f32(x)
    nisa.activation(dst=t, op=nl.abs, data=x)
    return t


def absolute(dst, x):
    if x.dtype.kind == "f":
        nisa.activation(dst=dst, op=nl.abs, data=x)
    else:
        t = like(x)
        nisa.tensor_scalar(dst=t, data=x, op0=nl.multiply, operand0=-1)
        nisa.tensor_tensor(dst=dst, data1=x, data2=t, op=nl.maximum)


def select(dst, condition, x, y):
    """condition ? x : y, as bits: any dtype, no rounding"""
    nisa.tensor_copy(dst=dst, src=y)
    chosen = x
    if x.dtype != dst.dtype:
        chosen = tile_like(dst, dst.dtype)
        nisa.tensor_copy(dst=chosen, src=x)
    nisa.tensor_copy_predicated(dst=dst, src=chosen, predicate=condition.view(nl.uint8))


def masked_fill(dst, x, mask, value):
    select(dst, mask, value, x)


def where_nan(dst, x, result):
    """result, but x where x is NaN"""
    nan = tile_like(x, nl.uint8)
    nisa.tensor_tensor(dst=nan, data1=x, data2=x, op=nl.not_equal)
    select(dst, nan, x, result)


def clamp(dst, x, low, high):
    nisa.tensor_tensor(dst=dst, data1=x, data2=low, op=nl.maximum)
    nisa.tensor_tensor(dst=dst, data1=dst, data2=high, op=nl.minimum)


def logical_not(dst, x):
    nisa.tensor_scalar(dst=dst, data=x, op0=nl.equal, operand0=0 if x.dtype.kind != "f" else 0.0)


def truth(x):
    """A uint8 tile: 1 where x is not zero (NaN counts as true)."""
    t = tile_like(x, nl.uint8)
    nisa.tensor_scalar(dst=t, data=x, op0=nl.not_equal, operand0=0 if x.dtype.kind != "f" else 0.0)
    return t


def logical(op):
    def function(dst, x, y):
        nisa.tensor_tensor(dst=dst, data1=truth(x), data2=truth(y), op=op)
    function.__name__ = str(op)
    return function


def bitwise_not(dst, x):
    if x.dtype == nl.bool_:
        logical_not(dst, x)
    else:
        nisa.tensor_scalar(dst=dst, data=x, op0=nl.bitwise_xor, operand0=-1)


def square_root(dst, x):
    """x ** 0.5, which unlike sqrt(x) is inf for -inf and 0.0 for -0.0"""
    _root(dst, x, nl.sqrt, float("inf"))


def reciprocal_root(dst, x):
    """x ** -0.5, which unlike rsqrt(x) is 0.0 for -inf and inf for -0.0"""
    _root(dst, x, nl.rsqrt, 0.0)


def _root(dst, x, root, of_negative_infinity):
    positive, result, limit = f32(x), f32(x), f32(x)
    nisa.tensor_scalar(dst=positive, data=x, op0=nl.add, operand0=0.0)          # -0.0 + 0.0 = 0.0
    nisa.activation(dst=result, op=root, data=positive)
    nisa.memset(dst=limit, value=of_negative_infinity)
    _replace(result, positive, nl.equal, float("-inf"), limit)
    nisa.tensor_copy(dst=dst, src=result)


def leaky_relu(dst, x, slope):
    """x where x > 0, else x * slope"""
    high, scaled, whole = tile_like(x, nl.uint8), f32(x), f32(x)
    nisa.tensor_scalar(dst=high, data=x, op0=nl.greater, operand0=0.0)
    nisa.tensor_tensor(dst=scaled, data1=x, data2=slope, op=nl.multiply)
    nisa.tensor_copy(dst=whole, src=x)
    nisa.tensor_copy_predicated(dst=scaled, src=whole, predicate=high)
    nisa.tensor_copy(dst=dst, src=scaled)


def hardsigmoid(dst, x):
    """min(max(x + 3, 0), 6) / 6"""
    t = f32(x)
    nisa.tensor_scalar(dst=t, data=x, op0=nl.add, operand0=3.0, op1=nl.maximum, operand1=0.0)
    nisa.tensor_scalar(dst=dst, data=t, op0=nl.minimum, operand0=6.0, op1=nl.multiply, operand1=1 / 6)


def hardswish(dst, x):
    """x * min(max(x + 3, 0), 6) / 6"""
    t = f32(x)
    hardsigmoid(t, x)
    nisa.tensor_tensor(dst=dst, data1=x, data2=t, op=nl.multiply)


def threshold(dst, x, limit, value):
    """x where x > limit (or x is NaN), else value"""
    low, result, other = tile_like(x, nl.uint8), f32(x), f32(x)
    nisa.tensor_tensor(dst=low, data1=x, data2=limit, op=nl.less_equal)
    nisa.tensor_copy(dst=result, src=x)
    nisa.tensor_copy(dst=other, src=value)
    nisa.tensor_copy_predicated(dst=result, src=other, predicate=low)
    nisa.tensor_copy(dst=dst, src=result)


def is_positive_infinity(dst, x):
    nisa.tensor_scalar(dst=dst, data=x, op0=nl.equal, operand0=float("inf"))


def is_negative_infinity(dst, x):
    nisa.tensor_scalar(dst=dst, data=x, op0=nl.equal, operand0=float("-inf"))


def is_nan(dst, x):
    nisa.tensor_tensor(dst=dst, data1=x, data2=x, op=nl.not_equal)


def expm1(dst, x):
    """exp(x) - 1 without cancellation: (u - 1) * x / log(u) with u = exp(x). W. Kahan's correction, as in
    N. Higham, "Accuracy and Stability of Numerical Algorithms", section 1.14.1."""
    u, low, log = f32(x), f32(x), f32(x)
    nisa.activation(dst=u, op=nl.exp, data=x)
    nisa.tensor_scalar(dst=low, data=u, op0=nl.subtract, operand0=1.0)
    nisa.activation(dst=log, op=nl.log, data=u)
    result = f32(x)
    nisa.tensor_tensor(dst=result, data1=low, data2=x, op=nl.multiply)
    nisa.tensor_tensor(dst=result, data1=result, data2=log, op=nl.divide)
    _replace(result, u, nl.equal, 1.0, x)                     # log(u) = 0
    _replace(result, low, nl.equal, -1.0, low)                # u underflowed against 1
    _replace(result, u, nl.equal, float("inf"), u)
    nisa.tensor_copy(dst=dst, src=result)


def log1p(dst, x):
    """log(1 + x) without cancellation: log(u) * (x / (u - 1)) with u = 1 + x (same source as expm1)."""
    u, low, log, result = f32(x), f32(x), f32(x), f32(x)
    nisa.tensor_scalar(dst=u, data=x, op0=nl.add, operand0=1.0)
    nisa.tensor_scalar(dst=low, data=u, op0=nl.subtract, operand0=1.0)
    nisa.activation(dst=log, op=nl.log, data=u)
    nisa.tensor_tensor(dst=result, data1=x, data2=low, op=nl.divide)
    nisa.tensor_tensor(dst=result, data1=result, data2=log, op=nl.multiply)
    _replace(result, low, nl.equal, 0.0, x)
    _replace(result, u, nl.equal, float("inf"), u)
    nisa.tensor_copy(dst=dst, src=result)


def _replace(dst, data, comparison, value, by):
    """dst = by where (data comparison value); all float32."""
    mask = tile_like(data, nl.uint8)
    nisa.tensor_scalar(dst=mask, data=data, op0=comparison, operand0=value)
    chosen = by
    if by.dtype != dst.dtype:
        chosen = f32(by)
        nisa.tensor_copy(dst=chosen, src=by)
    nisa.tensor_copy_predicated(dst=dst, src=chosen, predicate=mask)
