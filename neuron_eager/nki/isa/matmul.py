"""The Tensor engine: nc_matmul, nc_transpose."""
from __future__ import annotations

import math
import warnings

from ...errors import NkiUninitializedError, NkiWarning
from .. import limits as chip
from ..limits import Limits
from ..program import Instr
from ..tensor import NkiTensor
from . import checks
from ._issue import begin, choose
from .constants import engine as Engine
from .constants import matmul_perf_mode as PerfMode

_NONE, _DOUBLE_ROW = PerfMode.none, PerfMode.double_row
_INDIRECT = ("float16", "bfloat16", "float8_e4m3", "float8_e5m2", "float8_e4m3fn")
_WIDE = frozenset(("float32", "tfloat32"))


def nc_matmul(dst: NkiTensor, stationary: NkiTensor, moving: NkiTensor, is_stationary_onezero: bool = False,
              is_moving_onezero: bool = False, is_transpose: bool = False, accumulate: bool | None = None,
              tile_position: tuple[int, ...] = (), tile_size: tuple[int, ...] = (), perf_mode: PerfMode = _NONE,
              name: str | None = None) -> Instr:
    """dst [M, N] (+)= stationary [K, M].T @ moving [K, N], float32 inside; free dimensions may be several.

    K, M <= 128; N <= 512, on trn3 4096 for a float32 and 8192 for a bfloat16 dst. Inputs in SBUF, dst in PSUM: float32
    (trn3: or bfloat16; with is_transpose, the dtype of stationary). Inputs: float8_e4m3, float8_e5m2, bfloat16,
    float16, tfloat32, float32 (trn3: float8_e4m3fn, not with float8_e4m3); a 32-bit one only with another.
    accumulate: True adds to dst, False overwrites, None overwrites where no matmul has written yet and adds elsewhere.
    perf_mode.double_row (trn2, fp8): K runs over partitions and a first free dimension of 2. tile_position, tile_size:
    (row, column), both or none.
    """
    if accumulate is not None:
        accumulate = bool(accumulate)
    machine, i = begin("nc_matmul", ("dst",), ("stationary", "moving"), "tensor",
                       {"dst": dst, "stationary": stationary, "moving": moving,
                        "is_stationary_onezero": is_stationary_onezero, "is_moving_onezero": is_moving_onezero,
                        "is_transpose": is_transpose, "accumulate": accumulate, "tile_position": tile_position,
                        "tile_size": tile_size, "perf_mode": perf_mode, "name": name})
    if machine.checks:
        checks.tile(i, "dst")
        checks.tile(i, "stationary")
        checks.tile(i, "moving")
        checks.in_psum(i, "dst")
        checks.in_sbuf(i, "stationary", "moving")
        limits = machine.limits
        _dtypes(i, limits, dst, stationary, moving)
        _sizes(i, limits, dst, stationary, moving)
        if tile_position or tile_size:
            _tiling(i, limits, stationary)
        if dst.dynamic or stationary.dynamic or moving.dynamic:
            _indirect(i, is_transpose)
        if accumulate and dst.storage.psum_state is None and not dst.dynamic:
            onto_no_product(i, limits, dst)
    return machine.issue(i)


def _indirect(i: Instr, is_transpose: bool) -> None:
    """.indirect() does not combine with tiling, nor on moving with a transpose, and is for 8- and 16-bit floats."""
    for name in ("dst", "stationary", "moving"):
        t = i.args[name]
        if not t.dynamic or t.dynamic[0].kind != "indirect":
            continue
        if any(i.args["tile_position"]):
            checks.refuse(i, name, f"cannot use .indirect() with tile_position = {i.args['tile_position']}")
        if name == "moving" and is_transpose:
            checks.refuse(i, name, "cannot use .indirect() with is_transpose=True")
        if name != "dst":
            checks.dtype_in(i, name, _INDIRECT)


def onto_no_product(i: Instr, limits: Limits, dst: NkiTensor) -> None:
    """accumulate=True where no matmul has written: undefined for fresh PSUM, and before trn3 for any other content."""
    if dst.storage.first_use < 0:
        raise NkiUninitializedError(checks.explain(
            i, "accumulate", "= True: dst reads what nothing has written. The first matmul overwrites: "
                             "accumulate=False, or None to let the first write overwrite and later ones add"), i.loc)
    if not limits.at_least(4):
        text = checks.explain(i, "accumulate", "= True adds to a dst that an instruction other than a matmul has "
                                               "written, which this target does not define")
        warnings.warn(text, NkiWarning, stacklevel=3)


def _dtypes(i: Instr, limits: Limits, dst: NkiTensor, stationary: NkiTensor, moving: NkiTensor) -> None:
    s, m = stationary.dtype, moving.dtype
    transpose = i.args["is_transpose"]
    if not transpose:
        checks.dtype_in(i, "stationary", limits.matmul_inputs)
        checks.dtype_in(i, "moving", limits.matmul_inputs)
    if s is not m and not transpose:
        if (s in _WIDE) != (m in _WIDE):
            checks.refuse(i, "moving", f"is {m} and stationary is {s}; float32 and tfloat32 multiply only with "
                                       "each other")
        if {"float8_e4m3", "float8_e4m3fn"} == {s, m}:
            checks.refuse(i, "moving", f"is {m} and stationary is {s}; the two kinds of float8_e4m3 do not mix")
    if dst.dtype not in limits.matmul_moving and not (transpose and dst.dtype is s):
        checks.refuse(i, "dst", f"is {dst.dtype}; a matmul writes {' or '.join(limits.matmul_moving)}")


def _sizes(i: Instr, limits: Limits, dst: NkiTensor, stationary: NkiTensor, moving: NkiTensor) -> None:
    rows, columns, count = stationary.shape[0], checks.free(stationary), checks.free(moving)
    if moving.shape[0] != rows:
        checks.refuse(i, "moving", f"has {moving.shape[0]} partitions and stationary has {rows}; both are K")
    if i.args["perf_mode"] is not _NONE:
        columns, count = _double_row(i, limits, stationary, moving)
    if columns > limits.matmul_stationary:
        checks.refuse(i, "stationary", f"has {columns} elements per partition; the limit is {limits.matmul_stationary}")
    most = limits.matmul_moving.get(dst.dtype, limits.matmul_moving["float32"])
    if count > most:
        checks.refuse(i, "moving", f"has {count} elements per partition; the limit is {most} for a dst of {dst.dtype}")
    if dst.shape[0] != columns:
        checks.refuse(i, "dst", f"has {dst.shape[0]} partitions; stationary has {columns} elements per partition (M)")
    found = checks.free(dst)
    if found != count:
        checks.refuse(i, "dst", f"has {found} elements per partition; moving has {count} (N)")
    storage = dst.storage
    if storage.partition_bytes > limits.psum_bank_bytes and limits.generation < 4:
        _one_bank(i, limits, dst)


def _one_bank(i: Instr, limits: Limits, dst: NkiTensor) -> None:
    """Before trn3 a matmul writes into one bank of PSUM."""
    first = dst.byte_offset % dst.storage.partition_bytes
    last = first + sum(s * (n - 1) for s, n in zip(dst.byte_strides[1:], dst.shape[1:]) if s > 0)
    bank = limits.psum_bank_bytes
    if first // bank != last // bank:
        checks.refuse(i, "dst", f"lies in PSUM banks {first // bank} and {last // bank}; a matmul writes into "
                                f"one bank of {bank} bytes")


def _double_row(i: Instr, limits: Limits, stationary: NkiTensor, moving: NkiTensor) -> tuple[int, int]:
    """double_row splits K between partitions and a first free dimension of 2. The columns and the N that remain."""
    checks.member(i, "perf_mode", PerfMode)
    checks.generation(i, limits, 3, "perf_mode.double_row")
    for name, t in (("stationary", stationary), ("moving", moving)):
        if t.ndim < 3 or t.shape[1] != 2:
            checks.refuse(i, name, f"has shape {list(t.shape)}; with perf_mode.double_row it is [K, 2, …]")
        checks.dtype_in(i, name, limits.double_row_inputs)
    tile_size = i.args["tile_size"]
    if tile_size and len(tile_size) == 2 and tile_size[1] != 128:
        checks.refuse(i, "tile_size", f"= {tile_size}: perf_mode.double_row does not combine with column tiling")
    return math.prod(stationary.shape[2:]), math.prod(moving.shape[2:])


def _tiling(i: Instr, limits: Limits, stationary: NkiTensor, columns_tiled: bool = True) -> None:
    """tile_position and tile_size cut the 128 × 128 array of processing elements."""
    position, size = i.args["tile_position"], i.args["tile_size"]
    for name, value in (("tile_position", position), ("tile_size", size)):
        if not isinstance(value, (tuple, list)) or len(value) != 2:
            checks.refuse(i, name, f"= {value!r}: tile_position and tile_size are both given, as (row, column)")
    for n, what in enumerate(("row", "column")):
        allowed = limits.matmul_row_tiles if n == 0 or columns_tiled else (128,)
        if size[n] not in allowed:
            checks.refuse(i, "tile_size", f"= {tuple(size)}: the {what} size must be {' or '.join(map(str, allowed))}")
        if position[n] % size[n] or not 0 <= position[n] < 128:
            checks.refuse(i, "tile_position", f"= {tuple(position)}: the start {what} must be a multiple of {size[n]} "
                                              "below 128")
    if stationary.shape[0] > size[0]:
        checks.refuse(i, "stationary", f"has {stationary.shape[0]} partitions; tile_size allows {size[0]}")
    if i.args["dst"].shape[0] > size[1]:
        checks.refuse(i, "stationary", f"has {i.args['dst'].shape[0]} columns; tile_size allows {size[1]}")


def nc_transpose(dst: NkiTensor, data: NkiTensor, engine: Engine = Engine.unknown, name: str | None = None) -> Instr:
    """dst [F, P] = transpose of data [P, F], free dimensions flattened, bits unchanged (equal dtypes).

    Tensor engine: SBUF to PSUM, at most 128 × 128. Vector engine: SBUF or PSUM, at most 32 × 32. Without `engine`, the
    Vector engine where it can and the Tensor engine cannot, else the Tensor engine.
    """
    machine, i = begin("nc_transpose", ("dst",), ("data",), "tensor",
                       {"dst": dst, "data": data, "engine": engine, "name": name})
    if engine is Engine.unknown and machine.checks:
        checks.tiles(i, "dst", "data")
    chosen = engine
    if engine is Engine.unknown:
        on_tensor = dst.storage.buffer is checks.psum and data.storage.buffer is checks.sbuf
        chosen = Engine.tensor if on_tensor else Engine.vector
    if machine.checks:
        checks.member(i, "engine", Engine, Engine.unknown, Engine.tensor, Engine.vector)
        _transpose(i, chosen, dst, data)
    choose(i, chosen)
    return machine.issue(i)


def _transpose(i: Instr, engine: Engine, dst: NkiTensor, data: NkiTensor) -> None:
    checks.tiles(i, "dst", "data")
    checks.same_dtype(i, "data", "dst")
    rows, columns = data.shape[0], checks.free(data)
    if engine is Engine.tensor:
        checks.in_sbuf(i, "data")
        checks.in_psum(i, "dst")
        if columns > 128:
            checks.refuse(i, "data", f"has {columns} elements per partition; the Tensor engine transposes at most 128")
    elif max(rows, columns) > chip.VECTOR_TRANSPOSE:
        checks.refuse(i, "data", f"is {rows} × {columns}; the Vector engine transposes at most 32 × 32. For the Tensor "
                                 "engine, data is in SBUF and dst in PSUM")
    if dst.shape[0] != columns or checks.free(dst) != rows:
        checks.refuse(i, "dst", f"is {dst.shape[0]} × {checks.free(dst)}; the transpose is {columns} × {rows}")

