"""DMA: copies, transposes and sums between HBM and SBUF. Elements match in row-major order."""
from __future__ import annotations

from typing import Any

import numpy as np

from .. import access
from ..tensor import NkiTensor
from .alu import Array
from .elementwise import Args
from .operands import cast, convert, load, to_f32
from .state import State

DEFAULT_AXES = {2: (1, 0), 3: (2, 1, 0), 4: (3, 1, 2, 0)}


def dma_copy(a: Args, state: State) -> None:
    dst, src = a["dst"], a["src"]
    values, valid, skip = _read(src, a["oob_mode"])
    access.write(dst, convert(values, src.dtype, dst.dtype), skip, valid)


def _read(src: NkiTensor, oob_mode: Any) -> tuple[Array, Array | None, bool]:
    """Values, which of them are inside, and whether indices outside are skipped."""
    if oob_mode is not None and oob_mode.name == "skip":
        return (*access.read_valid(src), True)
    return load(src), None, False


def dma_transpose(a: Args, state: State) -> None:
    dst, src = a["dst"], a["src"]
    axes = a["axes"] or DEFAULT_AXES[src.ndim]
    values, valid, skip = _read(src, a["oob_mode"])
    access.write(dst, values.transpose(axes), skip,
                 None if valid is None else np.broadcast_to(valid, src.shape).transpose(axes))


def dma_compute(a: Args, state: State) -> None:
    dst = a["dst"]
    total, valid, skip = np.zeros(dst.shape, np.float32), None, False
    for src in a["srcs"]:
        values, inside, skip = _read(src, a["oob_mode"])
        total += to_f32(values, src.dtype).reshape(dst.shape)
        if inside is not None:
            valid = np.broadcast_to(inside, src.shape).reshape(dst.shape)
    access.write(dst, cast(total, dst.dtype), skip, valid)
