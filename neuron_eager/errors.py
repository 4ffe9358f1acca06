"""Every error a user can meet. Each class says what is wrong, where, and what to do next.

A class holds a message template; its fields are keyword arguments of the constructor and stay readable as attributes of
the error.
"""
from __future__ import annotations

from typing import Any


class NeuronEagerError(RuntimeError):
    """Base class of all errors raised by neuron_eager itself."""

    template = "{detail}"

    def __init__(self, **fields: Any):
        self.fields = fields
        super().__init__(self.template.format(**fields))

    def __getattr__(self, name: str) -> Any:
        try:
            return self.__dict__["fields"][name]
        except KeyError:
            raise AttributeError(name) from None

    def __reduce__(self) -> Any:
        return _rebuild, (type(self), self.fields)


def _rebuild(cls: type[NeuronEagerError], fields: dict[str, Any]) -> NeuronEagerError:
    return cls(**fields)


# ---- settings

class SettingError(NeuronEagerError, ValueError):
    template = "{variable}={value} is not a valid setting; allowed: {allowed}"
