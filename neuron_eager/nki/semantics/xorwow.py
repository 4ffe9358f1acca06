"""XORWOW, the random generator that the rand instructions name, with one stream per partition.

G. Marsaglia, "Xorshift RNGs", Journal of Statistical Software 8(14), 2003. The state of a lane is five xorshift words
and a Weyl counter: six 32-bit words. The sequences of the chip differ; only distributions are promised.
"""
from __future__ import annotations

from typing import Any

import numpy as np

from ..limits import PARTITIONS

Array = np.ndarray[Any, np.dtype[Any]]
WORDS = 6
LANES = 64             # streams advanced together within a partition, so that one step of NumPy makes many numbers
_U32 = np.uint32
_WEYL = 362437


def _mix(x: Array) -> Array:
    """A 32-bit finalizer (the xor-shift-multiply of MurmurHash3), to spread seeds over the state space."""
    x = x.astype(_U32)
    x ^= x >> _U32(16)
    x *= _U32(0x85EBCA6B)
    x ^= x >> _U32(13)
    x *= _U32(0xC2B2AE35)
    x ^= x >> _U32(16)
    return x


class Xorwow:
    """128 partitions of 64 lanes. `seeds` given to `set_words` start lane 0 of a partition; the others derive."""

    def __init__(self, seed: int) -> None:
        self.words = np.zeros((PARTITIONS, WORDS), _U32)
        self.seed(seed)

    def seed(self, seed: int) -> None:
        """Restart every partition from one 32-bit seed."""
        index = np.arange(PARTITIONS * WORDS, dtype=_U32).reshape(PARTITIONS, WORDS)
        self.set_words(_mix(index * _U32(0x9E3779B9) + _mix(np.full_like(index, seed & 0xFFFFFFFF))))

    def set_words(self, words: Array) -> None:
        """The six state words of the first partitions; [n, 6] uint32."""
        n = len(words)
        self.words[:n] = words
        lanes = np.arange(LANES, dtype=_U32)
        state = _mix(self.words[:, :, None] + _mix(lanes * _U32(0x9E3779B9) + _U32(1)))
        state[:, :, 0] = self.words
        state[:, 0] |= _U32(1)                  # the xorshift part must not be all zeros
        self.state = np.ascontiguousarray(state.transpose(1, 0, 2))     # [word, partition, lane]

    def get_words(self, partitions: int) -> Array:
        return np.ascontiguousarray(self.state[:, :partitions, 0].T)

    def integers(self, partitions: int, count: int) -> Array:
        """[partitions, count] uint32, uniform over all values."""
        steps = -(-count // LANES)
        out = np.empty((partitions, steps, LANES), _U32)
        x, y, z, w, v, d = (self.state[i, :partitions] for i in range(WORDS))
        for step in range(steps):
            t = x ^ (x >> _U32(2))
            x, y, z, w = y, z, w, v
            v = (v ^ (v << _U32(4))) ^ (t ^ (t << _U32(1)))
            d = d + _U32(_WEYL)
            out[:, step] = v + d
        self.state[:, :partitions] = np.stack([x, y, z, w, v, d])
        return out.reshape(partitions, -1)[:, :count]

    def uniform(self, partitions: int, count: int) -> Array:
        """[partitions, count] float32 in [0, 1), on a grid of 2**-24."""
        return (self.integers(partitions, count) >> _U32(8)).astype(np.float32) * np.float32(2.0 ** -24)
