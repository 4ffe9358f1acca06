"""What the device needs of PyTorch beyond its documented interface, checked at import.

PyTorch promises nothing for these names, so a version without one must fail here, by name, and not in the middle of a
program.
"""
from __future__ import annotations

import operator

import torch

from ..errors import UnsupportedTorchError

SUPPORTED = "2.13 and 2.14"

_NAMES = (
    "_C._to_dlpack", "_C._from_dlpack", "_C._acc.PrivateUse1Hooks", "_C._acc.DeviceGuard",
    "_C._get_privateuse1_backend_name", "_C.DispatchKeySet", "_C._ExcludeDispatchKeyGuard", "_C.Generator",
    "_C.Stream", "_C.Event", "_C.TensorBase.data", "_C.TensorType", "_neg_view",
    "utils.backend_registration._setup_privateuseone_for_python_backend", "autograd._engine_run_backward",
    "autograd.graph._engine_run_backward", "_tensor_str._tensor_str", "UntypedStorage._swap_data_ptr_",
    "UntypedStorage.resize_", "Tensor.__dlpack_device__", "_C._swap_tensor_impl", "Tensor._use_count",
    "nn.Module._apply",
    "library.fallthrough_kernel", "library.Library.fallback", "_C._dynamo.eval_frame.set_code_exec_strategy",
    "_C._dynamo.eval_frame._FrameExecStrategy", "_C._dynamo.eval_frame._FrameAction",
    "nn.parameter.UninitializedTensorMixin._allowed_methods", "nn.modules.lazy.LazyModuleMixin",
    "_ops.OpOverload.redispatch", "_C._autograd.DeviceType.PrivateUse1",
)


def check_names() -> None:
    """Raise UnsupportedTorchError if PyTorch lacks a private name in use."""
    missing = []
    for name in _NAMES:
        try:
            operator.attrgetter(name)(torch)
        except AttributeError:
            missing.append("torch." + name)
    if missing:
        _refuse(", ".join(missing))


def check_memory() -> None:
    """Raise UnsupportedTorchError if a tensor does not pass through DLPack to the device and back as it was."""
    from . import memory
    cpu = torch.arange(6, dtype=torch.float32, device="cpu").view(2, 3)[:, 1:]
    there = memory.retag(cpu, memory.NEURON)
    back = memory.retag(there, memory.CPU)
    for tensor, kind in ((there, "neuron"), (back, "cpu")):
        seen = (tensor.device.type, type(tensor), tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype)
        if seen != (kind, torch.Tensor, cpu.data_ptr(), cpu.shape, cpu.stride(), cpu.dtype):
            _refuse(f"DLPack with device type 12 as a zero-copy way to the device (got {seen})")


def _refuse(missing: str) -> None:
    raise UnsupportedTorchError(version=torch.__version__, missing=missing, supported=SUPPORTED)
