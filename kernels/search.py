"""Positions of extremes in rows, and membership of elements in a set."""
from __future__ import annotations

import nki
import nki.isa as nisa
import nki.language as nl

from ..dispatch.plan import Call, Decline, KernelCall, Out, Reason
from .layout import contiguous_strides
from .rowwise import as_rows
from .rules import NUMBERS, compact, replace, unsupported
from .tiling import F, P, blocks, load, pieces, store, tile, walks

MOST = 1 << 24              # columns: their numbers are exact in float32
LONGEST = 256               # elements of a set: each is one comparison of everything


@nki.jit
@walks("values", "indices", "x")
def extreme(values, indices, x, largest):
    """The largest (or smallest) element of each row, and the first column that has it.

    Dimensions:
        R: rows. C: columns, 1 ... 2 ** 24. More dimensions before them are walked one index at a time.
    Args:
        values: HBM [..., R, 1] of x's dtype, written. indices: HBM [..., R, 1] int64, written.
        x: HBM [..., R, C]; any strides. largest: bool (compile-time constant).
    Constraints:
        a NaN counts as the extreme, as in PyTorch. Integers are compared exactly.
    Pseudocode:
        for each tile of 128 rows: best = max over column chunks
            at = min over column chunks of (column where x == best or x is NaN, else C)
    """
    if x.ndim > 2:
        for i in range(x.shape[0]):
            extreme(values[i], indices[i], x[i], largest)
        return values, indices
    rows, columns = x.shape
    number = nl.float32 if x.dtype.kind == "f" else nl.int64
    for r, n in pieces(rows, P):
        chunks = list(pieces(columns, F))
        best, part = tile(n, 1, number), tile(n, 1, number)
        for i, (c, w) in enumerate(chunks):
            nisa.tensor_reduce(dst=part if i else best, op=nl.maximum if largest else nl.minimum,
                               data=load(x[r:r + n, c:c + w], number), axis=1)
            if i:
                nisa.tensor_tensor(dst=best, data1=best, data2=part, op=nl.maximum if largest else nl.minimum)
        at, position = tile(n, 1, nl.float32), tile(n, 1, nl.float32)
        for i, (c, w) in enumerate(chunks):
            first_of(position if i else at, load(x[r:r + n, c:c + w], number), best, c, columns)
            if i:
                nisa.tensor_tensor(dst=at, data1=at, data2=position, op=nl.minimum)
        for out, result in ((values, best), (indices, at)):
            t = tile(n, 1, out.dtype)
            nisa.tensor_copy(dst=t, src=result)
            store(out[r:r + n], t)
    return values, indices


def first_of(dst, t, best, start, missing, left=None):
    """dst [n, 1] = the first column of t that equals `best` or is NaN, counted from `start`; else `missing`.

    left: uint8 tile; columns where it is 0 do not count.
    """
    rows, columns = t.shape
    column, away = tile(rows, columns, nl.float32), tile(rows, columns, t.dtype)
    nisa.iota(dst=column, pattern=[[1, columns]], offset=start, channel_multiplier=0)
    nisa.tensor_scalar(dst=away, data=t, op0=nl.not_equal, operand0=best)
    if t.dtype.kind == "f":
        number = tile(rows, columns, t.dtype)
        nisa.tensor_tensor(dst=number, data1=t, data2=t, op=nl.equal)
        nisa.tensor_tensor(dst=away, data1=away, data2=number, op=nl.multiply)
    far = tile(rows, columns, nl.float32)
    nisa.tensor_scalar(dst=far, data=away, op0=nl.multiply, operand0=missing)
    nisa.tensor_tensor(dst=column, data1=column, data2=far, op=nl.maximum)
    if left is not None:
        counted = tile(rows, columns, nl.float32)
        nisa.memset(dst=counted, value=float(missing))
        nisa.tensor_copy_predicated(dst=counted, src=column, predicate=left)
        column = counted
    nisa.tensor_reduce(dst=dst, op=nl.minimum, data=column, axis=1)


@nki.jit
def is_among(out, x, wanted, inverted):
    """out[i] = whether x[i] is one of `wanted`, or the opposite.

    Dimensions:
        out, x: one shape, any rank. W: elements of the set.
    Args:
        out: HBM bool, written. x: HBM tensor. wanted: HBM [1, W], of a dtype that compares with x's.
        inverted: bool (compile-time constant).
    Pseudocode:
        for each block: found = any over w of (x == wanted[w])
    """
    exact = nl.int64 if x.dtype.kind != "f" and wanted.dtype.kind != "f" else nl.float32
    for o, part in blocks(out, x):
        rows, columns = o.shape
        t = load(part, exact)
        found, same, result = tile(rows, columns, exact), tile(rows, columns, exact), tile(rows, columns, out.dtype)
        nisa.memset(dst=found, value=0 if exact == nl.int64 else 0.0)
        for w in range(wanted.shape[1]):
            nisa.tensor_scalar(dst=same, data=t, op0=nl.equal,
                               operand0=load(wanted[:, w:w + 1].broadcast(0, rows), exact))
            nisa.tensor_tensor(dst=found, data1=found, data2=same, op=nl.maximum)
        if inverted:
            nisa.tensor_scalar(dst=found, data=found, op0=nl.equal, operand0=0)
        nisa.tensor_copy(dst=result, src=found)
        store(o, result)
    return out


# ---- aten ops

class Extreme:
    """argmax, argmin, max.dim and min.dim. Without a dimension, all elements are one row."""

    operands = ()

    def __init__(self, largest: bool, values: bool) -> None:
        self.largest, self.values = largest, values

    def lower(self, call: Call) -> KernelCall | Decline:
        x = call["self"]
        declined = unsupported([x], NUMBERS, call.name)
        if declined:
            return declined
        results, dim = call.outputs, call.get("dim")
        if not x.numel or x.shape and (x.numel if dim is None else x.shape[dim]) >= MOST:
            return Decline(Reason.SHAPE, f"{call.name} of no elements, or of 2**24 in a row")
        if dim is None:
            flat = x.view().reshape((1, x.numel))
            if flat is None:
                return Decline(Reason.SHAPE, f"{call.name} of all elements of a tensor that is not contiguous")
            view, seen = flat, [replace(o, seen=((1, 1), (1, 1))) for o in results]
        else:
            seen, (view,) = as_rows(results, [x], dim)
        if self.values:
            return KernelCall(extreme, {"x": view}, seen, {"largest": self.largest})
        rows, _ = seen[0].layout
        scratch = Out(rows, contiguous_strides(rows), x.dtype)
        return KernelCall(extreme, {"x": view}, [scratch, seen[0]], {"largest": self.largest}, returns=[1])


class IsIn:
    operands = ()

    def lower(self, call: Call) -> KernelCall | Decline:
        x, wanted, out = call["elements"], call["test_elements"], call.outputs[0]
        declined = unsupported([x, wanted], NUMBERS, call.name)
        if declined:
            return declined
        row = wanted.view().reshape((1, wanted.numel))
        if not 0 < wanted.numel <= LONGEST or row is None:
            return Decline(Reason.SHAPE, f"{call.name} of no elements, of more than {LONGEST}, or of some that do not "
                                         "lie evenly in memory")
        if out.into is None:
            out = replace(out, strides=contiguous_strides(out.shape))
        out, (view,) = compact(out, [x])
        return KernelCall(is_among, {"x": view, "wanted": row}, [out], {"inverted": call.get("invert", False)})


ROUTES = {
    "argmax": Extreme(largest=True, values=False),
    "argmin": Extreme(largest=False, values=False),
    "max.dim": Extreme(largest=True, values=True),
    "min.dim": Extreme(largest=False, values=True),
    "isin.Tensor_Tensor": IsIn(),
}
