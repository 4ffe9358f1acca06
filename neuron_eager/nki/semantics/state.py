"""State that instructions leave behind in a core, beside its memories."""
from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from ...config import config
from .. import limits
from .xorwow import Xorwow

Array = np.ndarray[Any, np.dtype[Any]]


def _registers() -> Array:
    return np.zeros((limits.PARTITIONS, 1), np.float32)


@dataclass
class State:
    """One NeuronCore: the accumulators of the Vector and Scalar engines ([128, 1] float32) and the random streams.

    ranges: warn where an activation function gets inputs that the chip does not compute.
    """

    vector: Array = field(default_factory=_registers)
    scalar: Array = field(default_factory=_registers)

    @cached_property
    def random(self) -> dict[str, Xorwow]:
        """The generators by engine. Seeding them takes longer than most kernels, so it waits for the first use."""
        return {"vector": Xorwow(1), "gpsimd": Xorwow(2)}
    ranges: bool = field(default_factory=lambda: config.checks)
