"""What each generation of the chip allows: one table, read by every instruction check and by `nl.tile_size`.

Sizes are bytes unless a name says elements; clocks are GHz. Sources: the Trainium/Inferentia2, Trainium2 and Trainium3
architecture guides and the instruction pages of the NKI 0.6 documentation. What a kernel may use of an SBUF partition
is not documented as a number; it is the physical partition less the 16 KiB that the tool chain keeps.
"""
from __future__ import annotations

import math
import os
from dataclasses import dataclass
from types import MappingProxyType

from ..errors import SettingError

TARGET_VARIABLE = "NEURON_PLATFORM_TARGET_OVERRIDE"
DEFAULT_TARGET = "trn3"    # what the official simulator assumes where it detects no chip

KIB = 1024

# Bounds that no generation changes.
PARTITIONS = 128
DIMENSIONS = 5             # of an operand, with the partition dimension
QUADRANT = 32              # partitions; the unit of start partitions and of nc_stream_shuffle
PARTITIONS_PER_GPSIMD_CORE = 16         # of each of its 8 cores
BN_STATS_ELEMENTS = 512
VECTOR8_ELEMENTS = (8, 16384)           # max8, nc_find_index8, nc_match_replace8: elements per partition
LOCAL_GATHER_INDICES = 4096             # per GpSimd core
LOCAL_GATHER_ELEMENTS = (1, 2, 4, 8, 16, 32)
TOPK_ELEMENTS = (8, 65535)
TOPK_RESULTS = 32767
DMA_COMPUTE_SOURCES = 16
VECTOR_TRANSPOSE = 32                   # rows and columns of a transpose on the Vector engine
AFFINE_DIMENSIONS = 4                   # of the patterns of iota and affine_select
FP32_MIN = -3.4028234663852886e38
INT32_MIN, INT32_MAX = -(1 << 31), (1 << 31) - 1

# Start partitions by the number of partitions an operand spans: (most partitions, allowed starts).
START_PARTITIONS = ((32, (0, 32, 64, 96)), (64, (0, 64)), (128, (0,)))

# Operators that the embedded implementation has beside those of the chip, as it has int64 and float64.
EXTENSION_OPS = frozenset({"divide", "mod", "fmod", "trunc", "floor", "ceil", "cos", "tan", "negative"})

# Inputs of an activation function outside these bounds give invalid results on the chip; bounds of a magnitude for all
# but sin and arctan.
ACTIVATION_RANGES = MappingProxyType({
    "log": (2.0 ** -64, 2.0 ** 64),
    "sin": (-math.pi, math.pi),
    "arctan": (-math.pi / 2, math.pi / 2),
    "sqrt": (2.0 ** -116, 2.0 ** 118),
    "rsqrt": (2.0 ** -87, 2.0 ** 97),
    "reciprocal": (2.0 ** -42, 2.0 ** 42),
})


@dataclass(frozen=True)
class Limits:
    """The limits of one target. `generation` is the NeuronCore version: 2, 3 or 4."""

    target: str
    generation: int
    sbuf_physical_bytes: int                    # of one partition
    matmul_moving: MappingProxyType[str, int]   # dtype of dst -> most elements per partition of dst and moving
    matmul_inputs: frozenset[str]
    double_row_inputs: frozenset[str]
    matmul_row_tiles: tuple[int, ...]           # row and column tile sizes in tiling mode
    clocks: MappingProxyType[str, float]
    dtypes: frozenset[str]
    pmax: int = PARTITIONS
    psum_banks: int = 8
    psum_bank_bytes: int = 2 * KIB
    matmul_stationary: int = 128                # free size of the stationary tile
    reserved_sbuf_bytes: int = 16 * KIB

    @property
    def sbuf_partition_bytes(self) -> int:
        """What a kernel may allocate in one partition of SBUF."""
        return self.sbuf_physical_bytes - self.reserved_sbuf_bytes

    @property
    def psum_partition_bytes(self) -> int:
        return self.psum_banks * self.psum_bank_bytes

    @property
    def sbuf_bytes(self) -> int:
        """All of SBUF."""
        return self.sbuf_physical_bytes * self.pmax

    def at_least(self, generation: int) -> bool:
        return self.generation >= generation


_INTEGERS = frozenset({"bool", "int8", "int16", "int32", "uint8", "uint16", "uint32", "int64"})
_FLOATS = frozenset({"float32", "tfloat32", "bfloat16", "float16", "float8_e4m3", "float8_e5m2", "float64"})
_MX = frozenset({"float8_e8m0fnu", "float8_e5m2_x4", "float8_e4m3fn_x4", "float4_e2m1fn_x4"})
_MATMUL = frozenset({"float8_e4m3", "float8_e5m2", "bfloat16", "float16", "tfloat32", "float32"})


def _clocks(tensor: float, vector: float, scalar: float, gpsimd: float) -> MappingProxyType[str, float]:
    return MappingProxyType({"tensor": tensor, "vector": vector, "scalar": scalar, "gpsimd": gpsimd})


TARGETS = MappingProxyType({
    "trn1": Limits(
        "trn1", 2, 192 * KIB, MappingProxyType({"float32": 512}), _MATMUL, frozenset(), (64, 128),
        _clocks(2.8, 1.12, 1.4, 1.4), _INTEGERS | _FLOATS),
    "trn2": Limits(
        "trn2", 3, 224 * KIB, MappingProxyType({"float32": 512}), _MATMUL,
        frozenset({"float8_e4m3", "float8_e5m2"}), (32, 64, 128),
        _clocks(2.4, 0.96, 1.2, 1.2), _INTEGERS | _FLOATS),
    "trn3": Limits(
        "trn3", 4, 256 * KIB, MappingProxyType({"float32": 4096, "bfloat16": 8192}), _MATMUL | {"float8_e4m3fn"},
        frozenset({"float8_e4m3", "float8_e5m2", "float8_e4m3fn"}), (32, 64, 128),
        _clocks(2.4, 1.2, 1.2, 1.2), _INTEGERS | _FLOATS | _MX | {"float8_e4m3fn"}),
})

ALIASES = MappingProxyType({
    "trn1": "trn1", "inf2": "trn1", "gen2": "trn1",
    "trn2": "trn2", "gen3": "trn2",
    "trn3": "trn3", "gen4": "trn3",
})


def for_target(name: str) -> Limits:
    """The limits of a target by any of its names (trn2, gen3, ...). A `SettingError` for any other name."""
    try:
        return TARGETS[ALIASES[name.strip().lower()]]
    except KeyError:
        raise SettingError(variable=TARGET_VARIABLE, value=name, allowed=" | ".join(ALIASES)) from None


def current_target() -> str:
    """The target in force: NEURON_PLATFORM_TARGET_OVERRIDE, else trn3. One of trn1, trn2, trn3."""
    return for_target(os.environ.get(TARGET_VARIABLE) or DEFAULT_TARGET).target


def allowed_starts(partitions: int) -> tuple[int, ...]:
    """The partitions at which an operand of so many partitions may start."""
    for most, starts in START_PARTITIONS:
        if partitions <= most:
            return starts
    return ()
