"""The neuron device in PyTorch. `initialize()` registers it; everything else follows from PyTorch's own interfaces."""
from __future__ import annotations

import sys

import torch

from . import selftest

selftest.check_names()      # before the other modules use them

_libraries: list[torch.library.Library] = []      # registrations last as long as their Library object


def initialize() -> None:
    """Register the device. Once per process; later calls do nothing.

    Raises:
        UnsupportedTorchError: this PyTorch does not do what the device is built on.
        DeviceOwnedError: another package has PyTorch's one place for such a device.
    """
    if _libraries:
        return
    from . import engine, registration
    registration.refuse_other_owner()
    engine.start()      # before the guard is registered: see engine.py
    engine.stay_in_calling_thread()

    from . import (
        accelerator,
        api,
        kernels,
        modules,
        pinning,
        plumbing,
        printing,
        random,
        sharing,
        storage,
        streams,
        tensor_methods,
        usage,
        views,
    )
    registration.register(api)
    sys.modules["torch.neuron.memory"] = usage
    selftest.check_memory()

    library = kernels.KernelLibrary("aten", "IMPL")
    _libraries.append(library)
    views.register(library)
    plumbing.register(library)
    pinning.register(library)

    storage.patch_untyped_storage()
    tensor_methods.patch_data()
    tensor_methods.patch_dlpack()
    printing.patch_formatter()
    random.patch_generator()
    streams.patch_names()
    accelerator.patch_accelerator()
    sharing.register()
    modules.keep_parameters()
