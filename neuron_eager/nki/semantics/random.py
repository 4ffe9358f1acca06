"""Random numbers. The sequences are this implementation's own; the chip's differ."""
from __future__ import annotations

import numpy as np

from .elementwise import Args
from .operands import load, rows, scalar_f32, store, write
from .state import State
from .xorwow import WORDS


def rng(a: Args, state: State) -> None:
    dst = a["dst"]
    bits = state.random[a["engine"].name].integers(dst.shape[0], dst.size // dst.shape[0])
    write(dst, bits.astype(f"u{dst.dtype.itemsize}").view(dst.dtype.numpy))


def rand2(a: Args, state: State) -> None:
    dst = a["dst"]
    unit = state.random["vector"].uniform(dst.shape[0], dst.size // dst.shape[0])
    low, high = scalar_f32(a["min"]), scalar_f32(a["max"])
    store(dst, low + unit * (high - low))


def set_rng_seed(a: Args, state: State) -> None:
    word = np.ascontiguousarray(load(a["src_seeds"])).reshape(-1).view(np.uint32)[0]
    for generator in state.random.values():
        generator.seed(int(word))


def rand_set_state(a: Args, state: State) -> None:
    """The first six words of a partition are the state of its first lane; a Vector engine state has 24."""
    state.random[a["engine"].name].set_words(rows(a["src_seeds"])[:, :WORDS])


def rand_get_state(a: Args, state: State) -> None:
    dst = a["dst"]
    words = state.random[a["engine"].name].get_words(dst.shape[0])
    write(dst, np.tile(words, (1, dst.size // dst.shape[0] // WORDS)))
