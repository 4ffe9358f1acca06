"""Running sums along the columns of a matrix."""
from __future__ import annotations

import nki
import nki.isa as nisa
import nki.language as nl

from ..dispatch.plan import Call, Decline, KernelCall, Reason
from .rowwise import as_rows
from .rules import FLOATS, INTEGERS, torch, unsupported
from .tiling import P, load, pieces, store, tile, walks

CHUNK = 2048                # columns of a tile
DIGIT = 12                  # bits: sums of CHUNK + 1 such digits are exact in float32


@nki.jit
@walks("out", "x")
def running_sum(out, x):
    """out[r, c] = sum of x[r, 0 ... c].

    Dimensions:
        R: rows. C: columns. More dimensions before them are walked one index at a time.
    Args:
        out: HBM [..., R, C], floating point, written; may be the same view as `x`. x: HBM [..., R, C]; any strides.
    Constraints:
        the sum is float32.
    Pseudocode:
        for each tile of 128 rows, for each column chunk: scan, from the last value of the chunk before
    """
    if out.ndim > 2:
        for i in range(out.shape[0]):
            running_sum(out[i], x[i])
        return out
    rows, columns = out.shape
    for r, n in pieces(rows, P):
        carry = tile(n, 1, nl.float32)
        nisa.memset(dst=carry, value=0.0)
        for c, w in pieces(columns, CHUNK):
            sums = _scan(load(x[r:r + n, c:c + w], nl.float32), carry)
            carry = sums[:, w - 1:w]
            o = tile(n, w, out.dtype)
            nisa.tensor_copy(dst=o, src=sums)
            store(out[r:r + n, c:c + w], o)
    return out


def _scan(t, initial):
    """[n, w] float32: initial plus the running sum of t."""
    n, w = t.shape
    sums, zeros = tile(n, w, nl.float32), tile(n, w, nl.float32)
    nisa.memset(dst=zeros, value=0.0)
    nisa.tensor_tensor_scan(dst=sums, data0=t, data1=zeros, initial=initial, op0=nl.add, op1=nl.add)
    return sums


@nki.jit
@walks("out", "x")
def running_integer_sum(out, x):
    """out[r, c] = sum of x[r, 0 ... c], exactly, modulo 2 ** 64.

    Dimensions:
        as in `running_sum`.
    Args:
        out: HBM [..., R, C], integer, written; may be the same view as `x`. x: HBM [..., R, C], integer or bool.
    Pseudocode:
        as in `running_sum`, for each digit of 12 bits of x by itself, where float32 is exact; their sums shifted, added
    """
    if out.ndim > 2:
        for i in range(out.shape[0]):
            running_integer_sum(out[i], x[i])
        return out
    rows, columns = out.shape
    for r, n in pieces(rows, P):
        carry = None
        for c, w in pieces(columns, CHUNK):
            total = _exact_scan(load(x[r:r + n, c:c + w]), carry)
            carry = total[:, w - 1:w]
            o = tile(n, w, out.dtype)
            nisa.tensor_copy(dst=o, src=total)
            store(out[r:r + n, c:c + w], o)
    return out


def _exact_scan(t, carry):
    """[n, w] int64: carry plus the running sum of t, an integer tile."""
    n, w = t.shape
    wide, total = tile(n, w, nl.int64), tile(n, w, nl.int64)
    nisa.tensor_copy(dst=wide, src=t)
    zero = tile(n, 1, nl.float32)
    nisa.memset(dst=zero, value=0.0)
    bits = {nl.bool_: 1, nl.uint8: 8}.get(t.dtype, 64)
    for shift in range(0, bits, DIGIT):
        digit, part = tile(n, w, nl.int64), tile(n, w, nl.float32)
        nisa.tensor_scalar(dst=digit, data=wide, op0=nl.right_shift, operand0=shift, op1=nl.bitwise_and,
                           operand1=(1 << DIGIT) - 1)
        nisa.tensor_copy(dst=part, src=digit)
        exact = total if not shift else tile(n, w, nl.int64)
        nisa.tensor_copy(dst=exact, src=_scan(part, zero))
        if shift:
            nisa.tensor_scalar(dst=exact, data=exact, op0=nl.multiply, operand0=1 << shift)
            nisa.tensor_tensor(dst=total, data1=total, data2=exact, op=nl.add)
    if carry is not None:
        nisa.tensor_scalar(dst=total, data=total, op0=nl.add, operand0=carry)
    return total


class CumSum:
    operands = ()

    def lower(self, call: Call) -> KernelCall | Decline:
        x, out = call["self"], call.outputs[0]
        declined = unsupported([x, out], FLOATS | INTEGERS | {torch.bool}, call.name)
        if declined:
            return declined
        if not x.numel:
            return Decline(Reason.SHAPE, f"{call.name} of no elements")
        floating = out.dtype in FLOATS
        if floating != (x.dtype in FLOATS) and not (floating and x.dtype is torch.bool):
            return Decline(Reason.DTYPE, f"{call.name} of {x.dtype} as {out.dtype}")
        (seen,), (view,) = as_rows([out], [x], call["dim"])
        return KernelCall(running_sum if floating else running_integer_sum, {"x": view}, [seen],
                          same_view=x.dtype == out.dtype)


ROUTES = {"cumsum": CumSum()}
