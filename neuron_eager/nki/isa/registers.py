"""Registers: 32-bit values of the engines' sequencers, for loop bounds and dynamic addresses."""
from __future__ import annotations

from typing import Any

from ...errors import NkiTypeError
from ..buffers import psum
from ..program import Instr
from ..registers import VirtualRegister
from ..tensor import NkiTensor
from . import checks
from ._issue import begin
from .constants import engine as Engine

_SYNC = Engine.sync.name


def _register(i: Instr, name: str) -> None:
    value = i.args[name]
    if not isinstance(value, VirtualRegister):
        raise NkiTypeError(checks.explain(i, name, f"must be a register, not {type(value).__name__}"), i.loc)


def _one_element(i: Instr, name: str) -> NkiTensor:
    t = checks.tensor(i, name)
    if t.size != 1:
        checks.refuse(i, name, f"has {t.size} elements; a register holds one")
    if t.dtype.itemsize > 4 and t.dtype != "int64":
        checks.refuse(i, name, f"is {t.dtype}; a register holds 32 bits")
    if t.storage.buffer is psum:
        checks.refuse(i, name, "is in PSUM; registers load from and store to SBUF and HBM")
    return t


def register_alloc(x: int | None = None) -> VirtualRegister:
    """A new register, holding the int x, or nothing yet."""
    machine = begin("register_alloc", (), (), _SYNC, {})[0]
    value = None if x is None else _constant(x)
    register = machine.register(value)
    _, i = begin("register_alloc", ("dst",), (), _SYNC, {"dst": register, "x": value})
    if x is not None:
        checks.int32(i, "x")
    machine.issue(i)
    return register


def _constant(x: Any) -> int:
    if isinstance(x, (NkiTensor, VirtualRegister)) or not hasattr(x, "__index__"):
        i = begin("register_alloc", (), (), _SYNC, {"x": x})[1]
        raise NkiTypeError(checks.explain(i, "x", f"must be an int or None, not {type(x).__name__}; use "
                                                  "nisa.register_load or nisa.register_move"), i.loc)
    return int(x)


def register_move(dst: VirtualRegister, src: int | VirtualRegister) -> Instr:
    """dst = src, an int or another register."""
    machine, i = begin("register_move", ("dst",), ("src",) if isinstance(src, VirtualRegister) else (), _SYNC,
                       {"dst": dst, "src": src})
    _register(i, "dst")
    checks.int32(i, "src")
    return machine.issue(i)


def register_load(dst: VirtualRegister, src: NkiTensor) -> Instr:
    """dst = the one element of src, a tensor in SBUF or HBM."""
    machine, i = begin("register_load", ("dst",), ("src",), _SYNC, {"dst": dst, "src": src})
    _register(i, "dst")
    _one_element(i, "src")
    return machine.issue(i)


def register_store(dst: NkiTensor, src: VirtualRegister) -> Instr:
    """The one element of dst, a tensor in SBUF or HBM, = src."""
    machine, i = begin("register_store", ("dst",), ("src",), _SYNC, {"dst": dst, "src": src})
    _one_element(i, "dst")
    _register(i, "src")
    return machine.issue(i)
