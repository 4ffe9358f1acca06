"""The device in PyTorch: the name, the Python device guard, the hooks, and the methods on tensors and modules."""
from __future__ import annotations

from types import ModuleType
from typing import Any

import torch
from torch.utils import backend_registration

from ..errors import DeviceOwnedError
from . import devices


class _Hooks(torch._C._acc.PrivateUse1Hooks):
    def is_available(self) -> bool:
        return True

    def has_primary_context(self, dev_id: int) -> bool:
        return True

    def is_built(self) -> bool:
        return True


class _Guard(torch._C._acc.DeviceGuard):
    def type_(self) -> object:
        return torch._C._autograd.DeviceType.PrivateUse1


def refuse_other_owner() -> None:
    """Raise DeviceOwnedError if PyTorch's one place for an out-of-tree device is taken already."""
    name = torch._C._get_privateuse1_backend_name()
    module = getattr(torch, devices.NAME, None)
    if name == "privateuseone" and module is None:
        return
    module = getattr(torch, name, module)
    owner = getattr(module, "__name__", None) or type(module).__module__
    raise DeviceOwnedError(owner=owner, name=name if name != "privateuseone" else devices.NAME)


def register(device_module: ModuleType) -> None:
    """Rename PrivateUse1 to neuron, make `device_module` `torch.neuron`, give tensors and modules their methods, and
    let `torch.distributed.init_process_group("neuron")` find its process group."""
    backend_registration._setup_privateuseone_for_python_backend(
        rename=devices.NAME, backend_module=device_module, hook=_Hooks(), device_guard=_Guard())
    torch.utils.generate_methods_for_privateuse1_backend(
        for_tensor=False, for_module=False, for_packed_sequence=False, for_storage=True)
    if torch.distributed.is_available():
        torch.distributed.Backend.register_backend(devices.NAME, _process_group, devices=[devices.NAME])


def _process_group(store: Any, rank: int, size: int, timeout: Any) -> Any:
    from .distributed import ProcessGroup  # when it is asked for: most programs have one process
    return ProcessGroup(store, rank, size, timeout)
