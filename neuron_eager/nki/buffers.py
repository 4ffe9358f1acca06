"""The memories of a NeuronCore that a tensor can live in."""
from __future__ import annotations

from enum import Enum
from typing import Any


class MemoryRegion(Enum):
    """sbuf and psum are on chip, with a partition dimension; the HBM kinds are linear memory."""

    sbuf = "sbuf"
    psum = "psum"
    private_hbm = "private_hbm"
    shared_hbm = "shared_hbm"

    def __init__(self, name: str) -> None:
        self.on_chip = name in ("sbuf", "psum")

    def __str__(self) -> str:
        return self.value

    __repr__ = __str__
    __hash__ = object.__hash__      # Enum hashes its name in Python code; buffers are looked up for each instruction


sbuf, psum, private_hbm, shared_hbm = MemoryRegion
hbm = private_hbm


def as_buffer(value: Any) -> MemoryRegion:
    """The region of a MemoryRegion or of its name; "hbm" is private_hbm. Raises TypeError for anything else."""
    if isinstance(value, MemoryRegion):
        return value
    if value == "hbm":
        return hbm
    try:
        return MemoryRegion(value)
    except ValueError:
        raise TypeError(f"{value!r} is not a buffer; use nl.sbuf, nl.psum, nl.private_hbm or nl.shared_hbm") from None


def is_sbuf(buffer: Any) -> bool:
    """Whether a buffer is SBUF."""
    return as_buffer(buffer) is sbuf


def is_psum(buffer: Any) -> bool:
    """Whether a buffer is PSUM."""
    return as_buffer(buffer) is psum


def is_hbm(buffer: Any) -> bool:
    """Whether a buffer is HBM of either kind."""
    return not as_buffer(buffer).on_chip


def is_on_chip(buffer: Any) -> bool:
    """Whether a buffer is SBUF or PSUM."""
    return as_buffer(buffer).on_chip
