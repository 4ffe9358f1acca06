"""Copies, casts, fills and ranges: the tile functions and kernels that move or make data without arithmetic on it."""
from __future__ import annotations

import math

import nki
import nki.isa as nisa
import nki.language as nl

from ..dispatch.plan import Arg, Decline, KernelCall, Operand, Out, Reason, View
from .elementwise import elementwise, f32, truth
from .layout import coalesce
from .rules import FLOATS, INTEGERS, NUMBERS, operand, replace, unsupported, widened
from .shapes import settled
from .tiling import P, blocks, load, pieces, store, tile, tile_like


def cast(dst, x):
    """x in dst's dtype, by PyTorch's rules: float to integer truncates, integers wrap, anything to bool is x != 0."""
    if dst.dtype == x.dtype:
        nisa.tensor_copy(dst=dst, src=x)
    elif dst.dtype == nl.bool_:
        nisa.tensor_copy(dst=dst, src=truth(x))
    elif dst.dtype.kind == "f":
        nisa.tensor_copy(dst=dst, src=x)
    else:
        wide = dst if dst.dtype == nl.int64 else tile_like(dst, nl.int64)    # int64 on one side keeps every bit
        if x.dtype.kind == "f":
            _truncate(wide, x, 63 if dst.dtype == nl.int64 else 31)
        else:
            nisa.tensor_copy(dst=wide, src=x)
        if wide is not dst:
            nisa.tensor_copy(dst=dst, src=wide)


def _truncate(dst, x, bits):
    """dst (int64) = x towards zero; -2 ** bits where that has no such integer, or x is NaN, as the CPU converts."""
    t, size, bad, lowest = f32(x), f32(x), tile_like(x, nl.uint8), tile_like(x, nl.int64)
    nisa.activation(dst=t, op=nl.trunc, data=x)
    nisa.tensor_copy(dst=dst, src=t)
    nisa.activation(dst=size, op=nl.abs, data=x)
    nisa.tensor_scalar(dst=bad, data=size, op0=nl.less, operand0=2.0 ** bits, op1=nl.equal, operand1=0.0)
    nisa.memset(dst=lowest, value=-2 ** bits)
    nisa.tensor_copy_predicated(dst=dst, src=lowest, predicate=bad)


@nki.jit
def fill(out, value, narrow=None, parts=1):
    """Every element of `out` is value.

    Dimensions:
        out: any rank
    Args:
        out: HBM tensor, written. Any strides, any dtype.
        value: HBM [1, 1], of any dtype.
        narrow, parts: the dtype of the elements, where `out` is int32, and how many it holds in each (compile-time
            constants).
    Pseudocode:
        t = value, cast, repeated over a tile
        for each block of out: store t
    """
    made: dict[tuple[int, int], object] = {}
    for (o,) in blocks(out):
        shape = tuple(o.shape)
        if shape not in made:
            rows, columns = shape
            dtype = out.dtype if narrow is None else narrow
            width = columns if narrow is None else parts
            t = tile(rows, width, dtype)
            cast(t, load(value.broadcast(0, rows).broadcast(1, width)))
            made[shape] = t if narrow is None else t.view(nl.int32).broadcast(1, columns)
        store(o, made[shape])
    return out


@nki.jit
def arange(out, start, step):
    """out[i] = start + i * step.

    Dimensions:
        out: [N]
    Args:
        out: HBM tensor, written.
        start, step: HBM [1, 1], int64 for an integer `out`, else float32.
    Pseudocode:
        for each block [rows, columns] of out: index = iota; store start + index * step
    """
    number = nl.int64 if out.dtype.kind != "f" else nl.float32
    done, total = 0, out.shape[0]
    while done < total:
        rows = P if total - done >= P else 1
        columns = min(512, (total - done) // rows)
        index = tile(rows, columns, nl.int32)
        nisa.iota(dst=index, pattern=[[1, columns]], offset=done, channel_multiplier=columns)
        exact, result = tile(rows, columns, number), tile(rows, columns, out.dtype)
        nisa.tensor_copy(dst=exact, src=index)
        begin, by = (load(x.broadcast(0, rows).broadcast(1, columns)) for x in (start, step))
        nisa.tensor_tensor(dst=exact, data1=exact, data2=by, op=nl.multiply)
        nisa.tensor_tensor(dst=result, data1=exact, data2=begin, op=nl.add)
        store(out[done:done + rows * columns].reshape_dim(0, (rows, columns)), result)
        done += rows * columns
    return out


@nki.jit
def transpose(out, x):
    """out = x, where the two are laid out across each other: 128 x 128 blocks through the tensor engine.

    Dimensions:
        R, C: both at least 1
    Args:
        out: HBM [R, C], written, rows contiguous.
        x: HBM [R, C] with columns contiguous (strides (1, s)), of out's dtype.
    Pseudocode:
        for each block: load x's block as [columns, rows]; transpose into PSUM; copy; store
    """
    rows, columns = out.shape
    across = x.permute((1, 0))
    for r, n in pieces(rows, P):
        for c, w in pieces(columns, P):
            a, t = tile(w, n, x.dtype), nl.ndarray((n, w), x.dtype, buffer=nl.psum)
            nisa.dma_copy(dst=a, src=across[c:c + w, r:r + n])
            nisa.nc_transpose(dst=t, data=a)
            s = tile(n, w, x.dtype)
            nisa.tensor_copy(dst=s, src=t)
            store(out[r:r + n, c:c + w], s)
    return out


# ---- aten ops

class Fill:
    """fill_ and zero_: `value` is data."""

    operands = ("value",)
    exact = True            # also for float64: values are moved, not computed with

    def lower(self, call):
        target = call["self"]
        declined = unsupported([target], NUMBERS, call.name)
        if declined:
            return declined
        out = Out(target.shape, target.strides, target.dtype, target)
        shape, (strides,) = coalesce(out.shape, [out.strides])
        out = replace(out, seen=(shape or (1,), strides or (1,)))
        value = call.get("value", 0)
        if isinstance(value, Arg):
            if value.shape:
                return Decline(Reason.SHAPE, f"{call.name} with a tensor that has dimensions")
            declined = unsupported([value], NUMBERS, call.name)
            seen: View | Operand = value.view((1, 1), (1, 1))
        else:
            seen = operand(value, target.dtype)
        out, _ = widened(out, [])
        narrow = None if out.bits is None else str(out.dtype).removeprefix("torch.")
        return declined or KernelCall(fill, {"value": seen}, [out],
                                      {"narrow": narrow, "parts": 4 // out.dtype.itemsize if narrow else 1})


class Arange:
    """arange into `out`. Its length depends on the numbers: they are part of the key, but not of the kernel."""

    operands = ()

    def lower(self, call):
        out = self.out(call) or call.outputs[0]
        declined = unsupported([out], INTEGERS | FLOATS, call.name)
        if declined:
            return declined
        start, step = (operand(call.get(name, default), out.dtype) for name, default in (("start", 0), ("step", 1)))
        return KernelCall(arange, {"start": start, "step": step}, [out])


    def out(self, call):
        """The result as PyTorch has it; None if PyTorch should say it."""
        start, end, step = (call.get(name, default) for name, default in (("start", 0), ("end", 0), ("step", 1)))
        dtype, numbers = call["out"].dtype, (start, end, step)
        exact = all(type(n) is int for n in numbers)
        if not step or not (exact or dtype in FLOATS and all(
                type(n) in (int, float) and math.isfinite(n) for n in numbers)):
            return None
        length = -((start - end) // step) if exact else math.ceil((end - start) / step)
        return settled(call, (length,), dtype) if length >= 0 else None


class Copy:
    """_copy_from between neuron tensors: a cast, or a copy to another layout."""

    operands = ()
    exact = True

    def lower(self, call):
        source, target = call["self"], call["dst"]
        declined = unsupported([source, target], NUMBERS, call.name)
        if declined:
            return declined
        out = Out(target.shape, target.strides, target.dtype, target)
        view = source.broadcast(target.shape)
        shape, (out_strides, in_strides) = coalesce(out.shape, [out.strides, view.strides])
        out = replace(out, seen=(shape or (1,), out_strides or (1,)))
        view = replace(view, shape=shape or (1,), strides=in_strides or (1,))
        if (source.dtype == target.dtype and len(shape) == 2 and out_strides[1] == 1 and in_strides[0] == 1
                and in_strides[1] > 1):
            return KernelCall(transpose, {"x": view}, [out])
        if source.dtype == target.dtype:
            out, (view,) = widened(out, [view])
        return KernelCall(elementwise, {"ins": (view,)}, [out], {"function": cast}, same_view=True)


ROUTES = {
    "fill_.Scalar": Fill(),
    "fill_.Tensor": Fill(),
    "zero_": Fill(),
    "arange.start_out": Arange(),
    "_copy_from": Copy(),
}
