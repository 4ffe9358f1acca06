"""The enumerations of `nki.isa`, importable as `nki.isa.constants` too."""
from __future__ import annotations

from enum import Enum
from functools import total_ordering


class engine(Enum):
    """An engine of a NeuronCore. `unknown` lets the tool chain choose."""

    tensor = 1
    vector = 5
    scalar = 2
    gpsimd = 3
    dma = 4
    sync = 6
    unknown = 0


class dma_engine(Enum):
    """Who moves the tiles of a sendrecv: the shared DMA engines, or the one inside GpSimd."""

    dma = 1
    gpsimd_dma = 2


class reduce_cmd(Enum):
    """What an instruction does with the accumulators of its engine.

    idle: leave them. reset: set them to the identity. reduce: accumulate onto them. reset_reduce: both in turn.
    load_reduce: load a given value, then accumulate.
    """

    idle = 0
    reset = 1
    reduce = 2
    reset_reduce = 3
    load_reduce = 4


class dge_mode(Enum):
    """Who makes DMA descriptors: the compiler's choice, GpSimd (swdge), hardware (hwdge), or nobody at run time."""

    unknown = 0
    swdge = 1
    hwdge = 2
    none = 3


class oob_mode(Enum):
    """A run-time index out of bounds: an error, or that element is left alone."""

    error = 0
    skip = 1


class matmul_perf_mode(Enum):
    """double_row: two rows of fp8 values in one pass of the Tensor engine."""

    none = "none"
    double_row = "double_row"


@total_ordering
class nc_version(Enum):
    """The NeuronCore generation: gen2 is Trn1 and Inf2, gen3 Trn2, gen4 Trn3. Later ones are greater."""

    gen2 = 2
    gen3 = 3
    gen4 = 4

    def __lt__(self, other: object) -> bool:
        return self.value < other.value if isinstance(other, nc_version) else NotImplemented


# The names before the engine enumeration, still in use.
tensor_engine = engine.tensor
vector_engine = engine.vector
scalar_engine = engine.scalar
gpsimd_engine = engine.gpsimd
unknown_engine = engine.unknown
