"""Random numbers: one generator per device, apart from the CPU's, and `torch.Generator(device="neuron")`.

A neuron generator is a CPU generator (the Mersenne twister, so the same numbers as CPU from the same seed) that knows
its device. PyTorch's C++ `Generator` can be made for the devices it was built with only, and its class can not be
changed; so the name `torch.Generator` makes neuron's for neuron and PyTorch's own otherwise. Both are instances of it.
"""
from __future__ import annotations

from typing import Any

import torch

from . import devices
from .names import stand_in


class Generator(torch._C.Generator):
    """A generator of random numbers on a neuron device.

    Args:
        device: which neuron device; the current one by default.
    """

    _index: int

    def __new__(cls, device: Any = None) -> Generator:
        self = super().__new__(cls, "cpu")
        self._index = devices.index_of(device)
        return self

    def __init__(self, device: Any = None):
        pass

    @property
    def device(self) -> torch.device:
        return torch.device(devices.NAME, self._index)

    def __reduce__(self) -> Any:
        return _restore, (self._index, self.initial_seed(), self.get_state())


def _restore(index: int, seed: int, state: torch.Tensor) -> Generator:
    generator = Generator(index)
    generator.manual_seed(seed)
    generator.set_state(state)
    return generator


default_generators = tuple(Generator(i) for i in range(devices.count()))


def default_generator(index: int) -> Generator:
    return default_generators[index]


def manual_seed(seed: int) -> None:
    """Seed the generator of the current device."""
    default_generators[devices.current()].manual_seed(seed)


def manual_seed_all(seed: int) -> None:
    """Seed the generators of all devices."""
    for generator in default_generators:
        generator.manual_seed(seed)


def seed() -> int:
    """Seed the current device's generator with a random number, and return it."""
    return default_generators[devices.current()].seed()


def seed_all() -> None:
    """Seed all devices' generators with one random number."""
    manual_seed_all(seed())


def initial_seed() -> int:
    """The seed of the current device's generator."""
    return default_generators[devices.current()].initial_seed()


def get_rng_state(device: Any = None) -> torch.Tensor:
    """The state of a device's generator: a CPU uint8 tensor."""
    return default_generators[devices.index_of(device)].get_state()


def get_rng_state_all() -> list[torch.Tensor]:
    """The state of every device's generator."""
    return [generator.get_state() for generator in default_generators]


def set_rng_state(new_state: torch.Tensor, device: Any = None) -> None:
    """Set the state of a device's generator."""
    default_generators[devices.index_of(device)].set_state(new_state.cpu())


def set_rng_state_all(new_states: list[torch.Tensor]) -> None:
    """Set the state of every device's generator."""
    for index, state in enumerate(new_states):
        set_rng_state(state, index)


def patch_generator() -> None:
    torch.Generator = stand_in("Generator", torch._C.Generator, Generator, default="cpu")
