"""A `neuron` device for PyTorch that runs models eagerly, op by op, and explains itself.

Importing this package registers the device. See README.md for the ten lines to start with.
"""
import importlib
from typing import Any

from . import device as _device
from . import dispatch as _dispatch
from .config import config
from .dispatch import (
    clear_op_tracking,
    explain,
    get_executed_ops,
    get_fallback_ops,
    op_report,
    register_kernel,
    track_ops,
    unregister_kernel,
)
from .dispatch.modes import fallback
from .dispatch.reasons import Decline, Reason
from .nki.finder import install as _install_nki

__version__ = "0.1.0"

# Names that are imported at their first use, so that importing this package stays cheap.
_LATER = {
    "interpret": "neuron_eager.nki.debugging",
    "nki_op": "neuron_eager.custom_ops",
    "wrap_nki": "neuron_eager.custom_ops",
    "cache_info": "neuron_eager.opcache",
    "compile_report": "neuron_eager.opcache",
}

__all__ = [
    "Decline", "Reason", "cache_info", "clear_op_tracking", "compile_report", "config", "explain", "fallback",
    "get_executed_ops", "get_fallback_ops", "interpret", "nki_op", "op_report", "register_kernel", "track_ops",
    "unregister_kernel", "wrap_nki",
]


def __getattr__(name: str) -> Any:
    if name in _LATER:
        value = globals()[name] = getattr(importlib.import_module(_LATER[name]), name)
        return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


config.check_environment()
_install_nki()
_device.initialize()
_dispatch.register()
