"""Microscaling formats: quantize_mx (Vector engine) and nc_matmul_mx (Tensor engine), trn3."""
from __future__ import annotations

from ..limits import QUADRANT
from ..program import Instr
from ..semantics.mx import scale_partitions
from ..tensor import NkiTensor
from . import checks
from ._issue import begin
from .matmul import _tiling, onto_no_product

_PACKED = ("float8_e5m2_x4", "float8_e4m3fn_x4", "float4_e2m1fn_x4")
_SCALES = ("float8_e8m0fnu", "uint8")
_PACKED_STARTS = (0, 4, 8, 12)      # up to four scale tensors share the 32 partitions of a quadrant


def _scale(i: Instr, name: str, data: NkiTensor, columns: int) -> None:
    """A scale tile: one value per 8 partitions and packed element, at the start of each 32-partition quadrant."""
    checks.tensor(i, name)
    checks.in_sbuf(i, name)
    checks.dtype_in(i, name, _SCALES)
    first = checks.start_partition(i.args[name]) % QUADRANT
    if first not in _PACKED_STARTS:
        checks.refuse(i, name, f"starts at partition {first} of a quadrant; scales start at 0, 4, 8 or 12")
    scale, blocks = i.args[name], data.shape[0] // 8
    needed = blocks if data.shape[0] <= QUADRANT else int(scale_partitions(data.shape[0])[-1]) + 1
    if scale.shape[0] < needed:
        checks.refuse(i, name, f"has {scale.shape[0]} partitions; {data.shape[0]} partitions of data have {blocks} "
                               f"scales, four in each quadrant: at least {needed} partitions")
    checks.elements(i, name, columns)


def quantize_mx(dst: NkiTensor, src: NkiTensor, dst_scale: NkiTensor, name: str | None = None) -> Instr:
    """Quantize blocks of 8 partitions × 4 elements to fp8 values with a shared power-of-two scale. Vector engine, SBUF.

    src [P, F]: float16 or bfloat16, P a multiple of 32, F of 4. dst [P, F / 4]: float8_e4m3fn_x4 or float8_e5m2_x4.
    dst_scale [≥ P, F / 4]: float8_e8m0fnu or uint8; the scales of quadrant q lie in its partitions 32 q … 32 q + 3.
    Scale: 2 ** (floor(log2(max |v|)) - (Emax - 1)), 2 ** -127 for a block of zeros.
    """
    machine, i = begin("quantize_mx", ("dst", "dst_scale"), ("src",), "vector",
                       {"dst": dst, "src": src, "dst_scale": dst_scale, "name": name})
    if machine.checks:
        checks.generation(i, machine.limits, 4)
        checks.tiles(i, "dst", "src")
        checks.in_sbuf(i, "dst", "src")
        checks.dtype_in(i, "src", ("float16", "bfloat16"))
        checks.dtype_in(i, "dst", ("float8_e4m3fn_x4", "float8_e5m2_x4"))
        checks.same_partitions(i, "src", "dst")
        count = checks.free(src)
        if src.shape[0] % QUADRANT:
            checks.refuse(i, "src", f"has {src.shape[0]} partitions; they must be a multiple of 32")
        if count % 4:
            checks.refuse(i, "src", f"has {count} elements per partition; they must be a multiple of 4")
        checks.elements(i, "dst", count // 4, ", a quarter of src's")
        _scale(i, "dst_scale", src, count // 4)
    return machine.issue(i)


def nc_matmul_mx(dst: NkiTensor, stationary: NkiTensor, moving: NkiTensor, stationary_scale: NkiTensor,
                 moving_scale: NkiTensor, tile_position: tuple[int, ...] | None = None,
                 tile_size: tuple[int, ...] | None = None, accumulate: bool | None = None,
                 name: str | None = None) -> Instr:
    """dst [M, N] (+)= dequantized stationary [K, M].T @ dequantized moving [K, N]; K: partitions of 4 packed values.

    stationary, moving: float8_e5m2_x4, float8_e4m3fn_x4 or float4_e2m1fn_x4 in SBUF; K a multiple of 32, M even and at
    most 128, N at most 4096 (float32 dst) or 8192 (bfloat16). Scales as quantize_mx writes them. dst in PSUM.
    """
    if accumulate is not None:
        accumulate = bool(accumulate)
    machine, i = begin("nc_matmul_mx", ("dst",), ("stationary", "moving", "stationary_scale", "moving_scale"), "tensor",
                       {"dst": dst, "stationary": stationary, "moving": moving, "stationary_scale": stationary_scale,
                        "moving_scale": moving_scale, "tile_position": tile_position, "tile_size": tile_size,
                        "accumulate": accumulate, "name": name})
    if machine.checks:
        limits = machine.limits
        checks.generation(i, limits, 4)
        checks.tiles(i, "dst", "stationary", "moving")
        checks.in_psum(i, "dst")
        checks.in_sbuf(i, "stationary", "moving")
        checks.dtype_in(i, "stationary", _PACKED)
        checks.dtype_in(i, "moving", _PACKED)
        checks.dtype_in(i, "dst", ("float32", "bfloat16"))
        checks.same_partitions(i, "stationary", "moving")
        if stationary.shape[0] % QUADRANT:
            checks.refuse(i, "stationary", f"has {stationary.shape[0]} partitions; they must be a multiple of 32")
        columns, count = checks.free(stationary), checks.free(moving)
        if columns > limits.matmul_stationary or columns % 2:
            checks.refuse(i, "stationary", f"has {columns} elements per partition; it must be an even number up to "
                                           f"{limits.matmul_stationary}")
        most = limits.matmul_moving[dst.dtype]
        if count > most:
            checks.refuse(i, "moving", f"has {count} elements per partition; the limit is {most} for a dst of "
                                       f"{dst.dtype}")
        if dst.shape[0] != columns:
            checks.refuse(i, "dst", f"has {dst.shape[0]} partitions; stationary has {columns} elements per partition "
                                    "(M)")
        checks.elements(i, "dst", count, " (N), as moving")
        _scale(i, "stationary_scale", stationary, columns)
        _scale(i, "moving_scale", moving, count)
        if tile_position or tile_size:
            _tiling(i, limits, stationary, columns_tiled=False)
        if accumulate and dst.storage.psum_state is None and not dst.dynamic:
            onto_no_product(i, limits, dst)
    return machine.issue(i)

