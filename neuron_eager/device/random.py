"""Random numbers: one generator per device, apart from the CPU's, and `torch.Generator(device="neuron")`.

A neuron generator is a CPU generator (the Mersenne twister, so the same numbers as CPU from the same seed) that knows
its device. PyTorch's C++ `Generator` can be made for the devices it was built with only, and the class can not be
changed; `torch.Generator` is therefore replaced by a subclass of it. Objects of either class are instances of both.
"""
from __future__ import annotations

from typing import Any

import torch

from . import devices

_Base = torch._C.Generator


class _Meta(type(_Base)):     # type: ignore[misc]
    def __instancecheck__(cls, obj: object) -> bool:
        # default generators are made in C++ and are plain base objects
        return isinstance(obj, _Base)


class Generator(_Base, metaclass=_Meta):
    __doc__ = _Base.__doc__

    def __new__(cls, device: Any = "cpu") -> Generator:
        device = torch.device(device) if not isinstance(device, torch.device) else device
        if device.type != devices.NAME:
            return super().__new__(cls, device)
        return cls.on(devices.index_of(device))

    def __init__(self, device: Any = "cpu"):
        pass

    _index: int | None = None       # of the neuron device; None: a generator of another device

    @classmethod
    def on(cls, index: int) -> Generator:
        """A generator of neuron device `index`."""
        self = _Base.__new__(cls, "cpu")
        self._index = index
        return self

    @property
    def device(self) -> torch.device:
        return _Base.device.__get__(self) if self._index is None else torch.device(devices.NAME, self._index)

    def clone_state(self) -> Generator:
        return self.graphsafe_get_state()

    def __reduce__(self) -> Any:
        return _restore, (str(self.device), self.initial_seed(), self.get_state())


def _restore(device: str, seed: int, state: torch.Tensor) -> Generator:
    generator = Generator(device)
    generator.manual_seed(seed)
    generator.set_state(state)
    return generator


Generator.__module__, Generator.__qualname__ = "torch", "Generator"

default_generators = tuple(Generator.on(i) for i in range(devices.count()))


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
    torch.Generator = Generator     # type: ignore[misc]
