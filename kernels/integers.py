"""Integer arithmetic of its own: division by a number, and how often each integer occurs."""
from __future__ import annotations

import functools

import nki
import nki.isa as nisa
import nki.language as nl

from ..dispatch.plan import Arg, Call, Decline, KernelCall, Reason
from .rules import INTEGERS, Elementwise, product, replace, torch, unsupported
from .tiling import F, P, load, pieces, store, tile, tile_like

MOST_BINS = 1 << 12
WORD = 1 << 64


def floor_divide(dst, x, divisor):
    """x // divisor, a positive int; all int64, exact.

    What is left after the remainder is a multiple of the divisor. By its odd part it is divided through a product with
    the inverse modulo 2 ** 64 (H. Warren, "Hacker's Delight", section 10-16), by its power of two through a shift.
    """
    shift = (divisor & -divisor).bit_length() - 1
    inverse = pow(divisor >> shift, -1, WORD)
    inverse -= WORD if inverse >= WORD // 2 else 0
    rest, whole = tile_like(x, nl.int64), tile_like(x, nl.int64)
    nisa.tensor_scalar(dst=rest, data=x, op0=nl.mod, operand0=divisor)
    nisa.tensor_tensor(dst=whole, data1=x, data2=rest, op=nl.subtract)
    if not shift:
        nisa.tensor_scalar(dst=dst, data=whole, op0=nl.multiply, operand0=inverse)
        return
    quotient, sign = tile_like(x, nl.int64), tile_like(x, nl.int64)
    nisa.tensor_scalar(dst=quotient, data=whole, op0=nl.multiply, operand0=inverse)
    nisa.tensor_scalar(dst=sign, data=quotient, op0=nl.less, operand0=0, op1=nl.multiply, operand1=-1)
    nisa.tensor_tensor(dst=quotient, data1=quotient, data2=sign, op=nl.bitwise_xor)
    nisa.tensor_scalar(dst=quotient, data=quotient, op0=nl.right_shift, operand0=shift)
    nisa.tensor_tensor(dst=dst, data1=quotient, data2=sign, op=nl.bitwise_xor)


@functools.lru_cache(maxsize=256)
def dividing_by(divisor: int) -> functools.partial:
    return functools.partial(floor_divide, divisor=divisor)


@nki.jit
def count_integers(out, x, first):
    """out[b] = how many elements of x equal first + b.

    Dimensions:
        B: bins. N: elements.
    Args:
        out: HBM [B, 1] integer, written. x: HBM [1, N] integer; any strides. first: int (compile-time constant).
    Pseudocode:
        for each 128 bins: sum over chunks of x of (x == number of the bin)
    """
    for r, n in pieces(out.shape[0], P):
        number, own, total, part = tile(n, 1, nl.int32), *(tile(n, 1, nl.int64) for _ in range(3))
        nisa.iota(dst=number, pattern=[[1, 1]], offset=r, channel_multiplier=1)
        nisa.tensor_copy(dst=own, src=number)
        nisa.tensor_scalar(dst=own, data=own, op0=nl.add, operand0=first)
        for i, (c, w) in enumerate(pieces(x.shape[1], F)):
            same = tile(n, w, nl.int64)
            nisa.tensor_scalar(dst=same, data=load(x[:, c:c + w].broadcast(0, n), nl.int64), op0=nl.equal, operand0=own)
            nisa.tensor_reduce(dst=part if i else total, op=nl.add, data=same, axis=1)
            if i:
                nisa.tensor_tensor(dst=total, data1=total, data2=part, op=nl.add)
        result = tile(n, 1, out.dtype)
        nisa.tensor_copy(dst=result, src=total)
        store(out[r:r + n], result)
    return out


# ---- aten ops

class FloorDivide:
    """Integers by a number, which is a part of the key. A tensor of divisors may hold a 0, which is an error."""

    operands = ()

    def lower(self, call: Call) -> KernelCall | Decline:
        x, divisor = call["self"], call["other"]
        if isinstance(divisor, Arg) or not isinstance(x, Arg):
            return Decline(Reason.NO_KERNEL, f"{call.name} by a tensor")
        declined = unsupported([x], INTEGERS, call.name)
        if declined:
            return declined
        if type(divisor) is not int or not 0 < divisor <= torch.iinfo(x.dtype).max:
            return Decline(Reason.DTYPE, f"{call.name} by a number that is not a positive {x.dtype}")
        return Elementwise(dividing_by(divisor), ("self",), allowed=INTEGERS).lower(call)


class Histogram:
    """histc of integers with a bin for each: what counts the tokens of an expert."""

    operands = ()

    def lower(self, call: Call) -> KernelCall | Decline:
        x, bins, low, high = call["self"], call["bins"], call["min"], call["max"]
        declined = unsupported([x], INTEGERS, call.name)
        if declined:
            return declined
        if high - low != bins - 1 or low != int(low) or not 1 < bins <= MOST_BINS:
            return Decline(Reason.NO_KERNEL, f"{call.name} other than with a bin for each integer")
        row = x.view().reshape((1, product(x.shape)))
        if not x.numel or row is None:
            return Decline(Reason.SHAPE, f"{call.name} of no elements, or of some that do not lie evenly in memory")
        out = call.outputs[0]
        return KernelCall(count_integers, {"x": row}, [replace(out, seen=((bins, 1), (*out.strides, 1)))],
                          {"first": int(low)})


ROUTES = {
    "floor_divide": FloorDivide(),
    "floor_divide_.Tensor": FloorDivide(),
    "histc": Histogram(),
}
