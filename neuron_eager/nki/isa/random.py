"""Random numbers: Vector and GpSimd engines. Sequences differ from those of the chip."""
from __future__ import annotations

from typing import Any

from .. import dtypes
from ..program import Instr
from ..tensor import NkiTensor
from . import checks
from ._issue import begin
from .constants import engine as Engine

F32 = (dtypes.float32,)
_VECTOR, _GPSIMD = Engine.vector, Engine.gpsimd
_INTEGERS = ("int8", "int16", "int32", "uint8", "uint16", "uint32")
_STATE_WORDS = {_GPSIMD: 6, _VECTOR: 24}


def rng(dst: NkiTensor, engine: Engine = _VECTOR, name: str | None = None) -> Instr:
    """dst = random bits, 32 per element, cut to the integer dtype of dst. Vector engine, or GpSimd (trn2, SBUF)."""
    machine, i = begin("rng", ("dst",), (), engine.name, {"dst": dst, "engine": engine, "name": name})
    if machine.checks:
        checks.tile(i, "dst")
        checks.dtype_in(i, "dst", _INTEGERS)
        checks.member(i, "engine", Engine, _VECTOR, _GPSIMD)
        if engine is _GPSIMD:
            checks.generation(i, machine.limits, 3, "rng on GpSimd")
            checks.gpsimd_reach(i, "dst")
    return machine.issue(i)


def rand2(dst: NkiTensor, min: Any, max: Any, name: str | None = None) -> Instr:
    """dst = uniform numbers from min to max, float32 rounded to the dtype of dst. Vector engine of trn3.

    min, max: numbers, or float32 tiles [P, 1].
    """
    args = {"dst": dst, "min": min, "max": max, "name": name}
    reads = tuple(n for n in ("min", "max") if type(args[n]) is NkiTensor)
    machine, i = begin("rand2", ("dst",), reads, "vector", args)
    if machine.checks:
        checks.generation(i, machine.limits, 4)
        checks.tile(i, "dst")
        checks.dtype_in(i, "dst", checks.FLOATS.union(_INTEGERS) - {"float8_e4m3fn"})
        checks.column(i, "min", dst, F32)
        checks.column(i, "max", dst, F32)
        if not reads and not min < max:
            checks.refuse(i, "max", f"= {max} must be above min = {min}")
    return machine.issue(i)


def dropout(dst: NkiTensor, data: NkiTensor, prob: Any, name: str | None = None) -> Instr:
    """dst = data, with each element set to 0 with probability prob; the rest is not scaled. Vector engine.

    prob: a number, or a tile [P, 1]: float32 if data is an integer dtype, else any float. dst has the dtype of data.
    """
    machine, i = begin("dropout", ("dst",), ("data", "prob") if type(prob) is NkiTensor else ("data",), "vector",
                       {"dst": dst, "data": data, "prob": prob, "name": name})
    if machine.checks:
        checks.tiles(i, "dst", "data")
        checks.same_size(i, "data", "dst")
        checks.same_dtype(i, "data", "dst")
        checks.not_packed(i, "data")
        checks.column(i, "prob", data, checks.FLOATS if data.dtype.kind == "f" else F32)
    return machine.issue(i)


def set_rng_seed(src_seeds: NkiTensor, name: str | None = None) -> Instr:
    """Restart the random streams from one 32-bit value, a [1, 1] tile in SBUF or PSUM."""
    machine, i = begin("set_rng_seed", (), ("src_seeds",), "vector", {"src_seeds": src_seeds, "name": name})
    if machine.checks:
        checks.tile(i, "src_seeds")
        if src_seeds.size != 1:
            checks.refuse(i, "src_seeds", f"has {src_seeds.size} elements; it must be [1, 1]")
        if src_seeds.dtype.itemsize != 4:
            checks.refuse(i, "src_seeds", f"is {src_seeds.dtype}; it must be a 32-bit dtype")
    return machine.issue(i)


def _state_tile(i: Instr, name: str, engine: Engine, limits: Any) -> None:
    """A uint32 tile of generator states: 6 words per partition on GpSimd, 24 on the Vector engine (trn3)."""
    checks.generation(i, limits, 3)
    checks.member(i, "engine", Engine, _GPSIMD, _VECTOR)
    if engine is _VECTOR:
        checks.generation(i, limits, 4, "the generator state of the Vector engine")
    checks.tile(i, name)
    checks.dtype_in(i, name, ("uint32",))
    checks.elements(i, name, _STATE_WORDS[engine], f" for {engine}")


def rand_set_state(src_seeds: NkiTensor, engine: Engine = _GPSIMD, name: str | None = None) -> Instr:
    """Set the generator states of an engine: uint32 in SBUF, [P, 6] for GpSimd (trn2), [P, 24] for Vector (trn3)."""
    machine, i = begin("rand_set_state", (), ("src_seeds",), engine.name,
                       {"src_seeds": src_seeds, "engine": engine, "name": name})
    if machine.checks:
        _state_tile(i, "src_seeds", engine, machine.limits)
        checks.in_sbuf(i, "src_seeds")
    return machine.issue(i)


def rand_get_state(dst: NkiTensor, engine: Engine = _GPSIMD, name: str | None = None) -> Instr:
    """Read the generator states of an engine: a uint32 tile, [P, 6] for GpSimd (trn2), [P, 24] for Vector (trn3)."""
    machine, i = begin("rand_get_state", ("dst",), (), engine.name, {"dst": dst, "engine": engine, "name": name})
    if machine.checks:
        _state_tile(i, "dst", engine, machine.limits)
        if engine is _GPSIMD or not machine.limits.at_least(4):
            checks.in_sbuf(i, "dst")
    return machine.issue(i)
