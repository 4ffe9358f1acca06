"""A `neuron` device for PyTorch that runs models eagerly, op by op, and explains itself."""
from . import device as _device
from . import dispatch as _dispatch
from .config import config
from .nki.finder import install as _install_nki

__all__ = ["config"]
__version__ = "0.1.0"

config.check_environment()
_install_nki()
_device.initialize()
_dispatch.register()
