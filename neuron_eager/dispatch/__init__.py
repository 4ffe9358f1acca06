"""Which way an op takes on the neuron device, and the way itself."""
from .registry import register

__all__ = ["register"]
