"""What each instruction does, on real tiles: one function per nisa function, all in NumPy.

Arithmetic is in float32 with one rounding at the destination (to nearest even; integers also saturate), except where
the instruction set works on integers. `execute` runs one instruction of a program.
"""
from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from ...errors import NkiNotImplementedError
from . import activation, dma, elementwise, gather, matmul, mx, random, reduce, registers
from .state import State

if TYPE_CHECKING:
    from ..program import Instr

Semantics = Callable[[dict[str, Any], State], None]

TABLE: dict[str, Semantics] = {f.__name__: f for f in (
    dma.dma_copy, dma.dma_transpose, dma.dma_compute,
    elementwise.memset, elementwise.tensor_copy, elementwise.tensor_copy_predicated, elementwise.tensor_tensor,
    elementwise.tensor_scalar, elementwise.scalar_tensor_tensor, elementwise.reciprocal, elementwise.iota,
    elementwise.affine_select, elementwise.select_reduce, elementwise.range_select, elementwise.dropout,
    activation.activation, activation.activation_reduce, activation.activate2, activation.exponential,
    reduce.tensor_reduce, reduce.tensor_partition_reduce, reduce.tensor_scalar_reduce,
    reduce.tensor_scalar_cumulative, reduce.tensor_tensor_scan, reduce.bn_stats, reduce.bn_aggr,
    matmul.nc_matmul, matmul.nc_transpose, mx.nc_matmul_mx, mx.quantize_mx,
    gather.nc_stream_shuffle, gather.local_gather, gather.nc_n_gather, gather.max8, gather.nc_find_index8,
    gather.nc_match_replace8, gather.nonzero_with_count, gather.topk, gather.sequence_bounds,
    random.rng, random.rand2, random.set_rng_seed, random.rand_set_state, random.rand_get_state,
    registers.register_alloc, registers.register_load, registers.register_move, registers.register_store,
)}



def execute(instr: Instr, state: State) -> None:
    """Run one instruction on the storages of its operands. Raises NkiNotImplementedError for an unknown one."""
    function = TABLE.get(instr.op)
    if function is None:
        raise NkiNotImplementedError(f"the interpreter does not have nisa.{instr.op}", instr.loc)
    with np.errstate(all="ignore"):     # NaN and infinity are results here, not events
        function(instr.args, state)


__all__ = ["TABLE", "State", "execute"]
