"""`nki.isa`: the instructions of a NeuronCore, one function each. Every function checks its operands against the limits
of the target and hands one instruction to the current machine; it returns the instruction's handle.

Destination operands come first; all arguments go by keyword or position.
"""
from ...errors import NkiValidationError
from ..program import Instr as NkiInstruction
from ..registers import VirtualRegister
from . import constants
from .activation import activate2, activation, activation_reduce, exponential
from .constants import (
    dge_mode,
    dma_engine,
    engine,
    gpsimd_engine,
    matmul_perf_mode,
    nc_version,
    oob_mode,
    reduce_cmd,
    scalar_engine,
    tensor_engine,
    unknown_engine,
    vector_engine,
)
from .dma import dma_compute, dma_copy, dma_transpose
from .elementwise import (
    memset,
    reciprocal,
    scalar_tensor_tensor,
    tensor_copy,
    tensor_copy_predicated,
    tensor_scalar,
    tensor_tensor,
)
from .gather import (
    local_gather,
    max8,
    nc_find_index8,
    nc_match_replace8,
    nc_n_gather,
    nc_stream_shuffle,
    nonzero_with_count,
    sequence_bounds,
    topk,
)
from .matmul import nc_matmul, nc_transpose
from .mx import nc_matmul_mx, quantize_mx
from .random import dropout, rand2, rand_get_state, rand_set_state, rng, set_rng_seed
from .reduce import (
    bn_aggr,
    bn_stats,
    tensor_partition_reduce,
    tensor_reduce,
    tensor_scalar_cumulative,
    tensor_scalar_reduce,
    tensor_tensor_scan,
)
from .registers import register_alloc, register_load, register_move, register_store
from .select import affine_select, iota, range_select, select_reduce
from .sync import core_barrier, get_nc_sub_version, get_nc_version, sendrecv

__all__ = [
    "NkiInstruction", "NkiValidationError", "VirtualRegister", "activate2", "activation", "activation_reduce",
    "affine_select", "bn_aggr", "bn_stats", "constants", "core_barrier", "dge_mode", "dma_compute", "dma_copy",
    "dma_engine", "dma_transpose", "dropout", "engine", "exponential", "get_nc_sub_version", "get_nc_version",
    "gpsimd_engine", "iota", "local_gather", "matmul_perf_mode", "max8", "memset", "nc_find_index8",
    "nc_match_replace8", "nc_matmul", "nc_matmul_mx", "nc_n_gather", "nc_stream_shuffle", "nc_transpose",
    "nc_version", "nonzero_with_count", "oob_mode", "quantize_mx", "rand2", "rand_get_state", "rand_set_state",
    "range_select", "reciprocal", "reduce_cmd", "register_alloc", "register_load", "register_move", "register_store",
    "rng", "scalar_engine", "scalar_tensor_tensor", "select_reduce", "sendrecv", "sequence_bounds", "set_rng_seed",
    "tensor_copy", "tensor_copy_predicated", "tensor_engine", "tensor_partition_reduce", "tensor_reduce",
    "tensor_scalar", "tensor_scalar_cumulative", "tensor_scalar_reduce", "tensor_tensor", "tensor_tensor_scan",
    "topk", "unknown_engine", "vector_engine",
]


def __getattr__(name: str) -> object:
    removed = {"tensor_copy_dynamic_src": "use tensor_copy with .ap(scalar_offset=…) on src",
               "tensor_copy_dynamic_dst": "use tensor_copy with .ap(scalar_offset=…) on dst"}
    if name in removed:
        raise AttributeError(f"nki.isa.{name} was removed in NKI 0.4; {removed[name]}")
    raise AttributeError(f"module 'nki.isa' has no instruction {name!r}")
