"""Patterns and selections: iota, affine_select (GpSimd), range_select, select_reduce (Vector)."""
from __future__ import annotations

import math
from typing import Any

from .. import dtypes
from ..limits import AFFINE_DIMENSIONS, FP32_MIN
from ..program import Instr
from ..registers import VirtualRegister
from ..semantics.alu import COMPARISONS
from ..tensor import NkiTensor
from ..tokens import TOKENS
from . import checks
from ._issue import begin, present
from .constants import reduce_cmd as ReduceCmd

F32 = (dtypes.float32,)
_EQUAL, _MAXIMUM = TOKENS["equal"], TOKENS["maximum"]
_RANGE_COMPARISONS = frozenset(("equal", "less", "less_equal", "greater", "greater_equal"))


def _pattern(i: Instr, *names: str) -> None:
    """`pattern` is at most four pairs [step, count] that make as many elements as the tiles have per partition."""
    pattern = i.args["pattern"]
    try:
        pairs = [(int(step), int(count)) for step, count in pattern]
    except (TypeError, ValueError):
        checks.refuse(i, "pattern", f"must be pairs [step, count] of ints, not {pattern!r}")
    if not 1 <= len(pairs) <= AFFINE_DIMENSIONS:
        checks.refuse(i, "pattern", f"has {len(pairs)} dimensions; the limit is 1 to {AFFINE_DIMENSIONS}")
    count = math.prod(c for _, c in pairs)
    for name in names:
        found = checks.free(i.args[name])
        if found != count:
            checks.refuse(i, "pattern", f"makes {count} elements, and {name} has {found} per partition")
    checks.int32(i, "channel_multiplier")
    checks.int32(i, "offset")


def _offset(reads: tuple[str, ...], offset: Any) -> tuple[str, ...]:
    return (*reads, "offset") if isinstance(offset, VirtualRegister) else reads


def iota(dst: NkiTensor, pattern: Any, offset: Any = 0, channel_multiplier: int = 0, name: str | None = None) -> Instr:
    """dst[p, w, z, y, x] = offset + p * channel_multiplier + w * step_w + … + x * step_x, on GpSimd.

    pattern: up to four [step, count], the last the fastest; their counts multiply to the elements of dst per partition.
    offset: an int or a register. The value is a 32-bit integer, cast to the dtype of dst, a tile in SBUF.
    """
    machine, i = begin("iota", ("dst",), _offset((), offset), "gpsimd",
                       {"dst": dst, "pattern": pattern, "offset": offset, "channel_multiplier": channel_multiplier,
                        "name": name})
    if machine.checks:
        checks.tile(i, "dst")
        checks.in_sbuf(i, "dst")
        checks.not_packed(i, "dst")
        _pattern(i, "dst")
    return machine.issue(i)


def affine_select(dst: NkiTensor, pattern: Any, channel_multiplier: int, on_true_tile: NkiTensor, on_false_value: float,
                  cmp_op: Any = _EQUAL, offset: Any = 0, name: str | None = None) -> Instr:
    """dst = on_true_tile where the affine value (see iota) compares true with 0, else on_false_value.

    GpSimd, SBUF only. cmp_op: a comparison. on_false_value: a number. A change of dtype goes through float32.
    """
    machine, i = begin("affine_select", ("dst",), _offset(("on_true_tile",), offset), "gpsimd",
                       {"dst": dst, "pattern": pattern, "channel_multiplier": channel_multiplier,
                        "on_true_tile": on_true_tile, "on_false_value": on_false_value, "cmp_op": cmp_op,
                        "offset": offset, "name": name})
    if machine.checks:
        checks.tiles(i, "dst", "on_true_tile")
        checks.in_sbuf(i, "dst", "on_true_tile")
        checks.same_size(i, "on_true_tile", "dst")
        checks.not_packed(i, "dst", "on_true_tile")
        checks.op_in(i, "cmp_op", COMPARISONS, "a comparison")
        checks.number(i, "on_false_value")
        _pattern(i, "dst")
    return machine.issue(i)


def range_select(dst: NkiTensor, on_true_tile: NkiTensor, comp_op0: Any, comp_op1: Any, bound0: NkiTensor,
                 bound1: NkiTensor, reduce_cmd: ReduceCmd = ReduceCmd.reset_reduce,
                 reduce_res: NkiTensor | None = None, reduce_op: Any = _MAXIMUM, range_start: int = 0,
                 on_false_value: float = FP32_MIN, name: str | None = None) -> Instr:
    """dst[p, j] = on_true_tile[p, j] where index comp_op0 bound0[p] and index comp_op1 bound1[p], else FP32_MIN.

    index is range_start + j. The maximum of each row goes into the accumulators of the Vector engine and to reduce_res
    [P, 1]. bound0, bound1: float32 [P, 1]. on_true_tile: a float dtype. Comparisons: equal, less, less_equal, greater,
    greater_equal, in float32 (indices below 2**24). trn2 or newer.
    """
    args = {"dst": dst, "on_true_tile": on_true_tile, "comp_op0": comp_op0, "comp_op1": comp_op1, "bound0": bound0,
            "bound1": bound1, "reduce_cmd": reduce_cmd, "reduce_res": reduce_res, "reduce_op": reduce_op,
            "range_start": range_start, "on_false_value": on_false_value, "name": name}
    machine, i = begin("range_select", present(args, "dst", "reduce_res"), ("on_true_tile", "bound0", "bound1"),
                       "vector", args)
    if machine.checks:
        checks.generation(i, machine.limits, 3)
        checks.tiles(i, "dst", "on_true_tile", "bound0", "bound1")
        checks.same_size(i, "on_true_tile", "dst")
        checks.dtype_in(i, "on_true_tile", checks.FLOATS)
        for name_ in ("comp_op0", "comp_op1"):
            checks.op_in(i, name_, _RANGE_COMPARISONS, "equal, less, less_equal, greater or greater_equal")
        for name_ in ("bound0", "bound1"):
            checks.column(i, name_, on_true_tile, F32)
        checks.op_in(i, "reduce_op", ("maximum",), "supported here; it must be nl.maximum")
        checks.member(i, "reduce_cmd", ReduceCmd)
        checks.int32(i, "range_start")
        checks.number(i, "on_false_value")
        if abs(float(on_false_value) - FP32_MIN) > 1e32:
            checks.refuse(i, "on_false_value", f"= {on_false_value} must be {FP32_MIN:.8e}, the lowest float32")
        if not abs(range_start) + checks.free(on_true_tile) <= 1 << 24:
            checks.refuse(i, "range_start", f"= {range_start}: indices beyond 2**24 are not exact in float32")
        if reduce_res is not None:
            checks.tile(i, "reduce_res")
            checks.column(i, "reduce_res", on_true_tile)
    return machine.issue(i)


def select_reduce(dst: NkiTensor, predicate: NkiTensor, on_true: NkiTensor, on_false: Any,
                  reduce_res: NkiTensor | None = None, reduce_cmd: ReduceCmd = ReduceCmd.idle,
                  reduce_op: Any = _MAXIMUM, reverse_pred: bool = False, name: str | None = None) -> Instr:
    """dst = on_true where predicate is not 0, else on_false, and optionally the maximum of each row. Vector engine.

    predicate: int8, uint8, int16 or uint16. on_true: any dtype but tfloat32, int32 and uint32. on_false: a
    number, or a tile [P, 1]. on_true and predicate are not both in PSUM. reduce_res: float [P, 1].
    """
    args = {"dst": dst, "predicate": predicate, "on_true": on_true, "on_false": on_false, "reduce_res": reduce_res,
            "reduce_cmd": reduce_cmd, "reduce_op": reduce_op, "reverse_pred": reverse_pred, "name": name}
    reads = ("predicate", "on_true", "on_false") if type(on_false) is NkiTensor else ("predicate", "on_true")
    machine, i = begin("select_reduce", present(args, "dst", "reduce_res"), reads, "vector", args)
    if machine.checks:
        checks.tiles(i, "dst", "predicate", "on_true")
        checks.same_size(i, "on_true", "dst")
        checks.same_size(i, "on_true", "predicate")
        checks.dtype_in(i, "predicate", ("int8", "uint8", "int16", "uint16"))
        if on_true.dtype in (dtypes.tfloat32, dtypes.int32, dtypes.uint32):
            checks.refuse(i, "on_true", f"is {on_true.dtype}; it may not be tfloat32, int32 or uint32")
        checks.not_packed(i, "dst", "on_true")
        checks.not_both_psum(i, "on_true", "predicate")
        checks.column(i, "on_false", on_true)
        checks.op_in(i, "reduce_op", ("maximum",), "supported here; it must be nl.maximum")
        checks.member(i, "reduce_cmd", ReduceCmd, ReduceCmd.idle, ReduceCmd.reduce, ReduceCmd.reset_reduce)
        if reduce_res is not None:
            checks.tile(i, "reduce_res")
            checks.column(i, "reduce_res", on_true, checks.FLOATS)
            if reduce_cmd is ReduceCmd.idle:
                checks.refuse(i, "reduce_cmd", "= reduce_cmd.idle does not reduce, so reduce_res would read what the "
                                               "accumulators happen to hold; pass reduce_cmd.reset_reduce")
    return machine.issue(i)

