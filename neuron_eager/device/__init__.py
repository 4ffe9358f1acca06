"""The neuron device in PyTorch. `initialize()` registers it; everything else follows from PyTorch's own interfaces."""
from __future__ import annotations

import sys

import torch

_libraries: list[torch.library.Library] = []      # registrations last as long as their Library object


def initialize() -> None:
    """Register the device. Once per process.

    Raises:
        UnsupportedTorchError: this PyTorch lacks a name the device is built on.
        DeviceOwnedError: another package has PyTorch's one place for such a device.
    """
    from . import engine, registration
    if _libraries:
        return
    registration.refuse_other_owner()
    engine.start()      # before the guard is registered: see engine.py
    engine.stay_in_calling_thread()

    from . import api, plumbing, random, storage, usage, views
    registration.register(api)
    sys.modules["torch.neuron.memory"] = usage
    library = torch.library.Library("aten", "IMPL")
    _libraries.append(library)
    views.register(library)
    plumbing.register(library)
    storage.patch_untyped_storage()
    random.patch_generator()
    torch.__future__.set_swap_module_params_on_conversion(True)
