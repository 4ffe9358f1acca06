"""`nl.tile_size`: the sizes that kernels read to cut their tiles, for the target in force."""
from __future__ import annotations

import os

from .. import limits
from ..machine import active


def _limits() -> limits.Limits:
    running = active.machine
    return limits.for_target(limits.current_target() if running is None else running.target)


class TileSize:
    """Sizes of the target's memories and engines."""

    pmax = 128
    psum_fmax = 512
    psum_bank_fmax = 512
    psum_bank_fmax_bytes = 2048
    gemm_stationary_fmax = 128
    gemm_moving_fmax = 512
    bn_stats_fmax = 512
    psum_min_align = 4
    sbuf_min_align = 1

    @property
    def psum_num_banks(self) -> int:
        """Banks of PSUM that a kernel may use."""
        return 7 if os.environ.get("NKI_DMA_TRANSPOSE_AS_PE_TRANSPOSE", "0") not in ("", "0") else 8

    @property
    def sbuf_size_bytes(self) -> int:
        """All of SBUF, in bytes."""
        return _limits().sbuf_bytes

    @property
    def sbuf_fmax_bytes(self) -> int:
        """What a kernel may use of one partition of SBUF, in bytes."""
        return _limits().sbuf_partition_bytes

    @property
    def sbuf_fmax(self) -> int:
        """The same in float32 elements."""
        return self.sbuf_fmax_bytes // 4

    total_available_sbuf_size = sbuf_fmax_bytes


tile_size = TileSize()
