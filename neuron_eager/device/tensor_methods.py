"""The two attributes of `torch.Tensor` that need to know the device: `data` and `__dlpack_device__`."""
from __future__ import annotations

from typing import Any

import torch

from ..errors import DataAssignmentError
from . import devices, memory


def patch_data() -> None:
    """Explain why `cpu_tensor.data = neuron_tensor` fails: PyTorch changes a tensor's device in place only between the
    devices it was built with."""
    plain = torch._C.TensorBase.data

    def assign(self: torch.Tensor, value: Any) -> None:
        try:
            plain.__set__(self, value)
        except RuntimeError as error:
            kinds = {self.device.type, value.device.type} if isinstance(value, torch.Tensor) else set()
            if len(kinds) < 2 or devices.NAME not in kinds:
                raise
            raise DataAssignmentError(source=value.device, target=self.device) from error

    torch.Tensor.data = property(plain.__get__, assign, doc=plain.__doc__)


def patch_dlpack() -> None:
    """Let `torch.from_dlpack(neuron_tensor)` and other DLPack readers see the device as kDLExtDev."""
    plain = torch.Tensor.__dlpack_device__

    def dlpack_device(self: torch.Tensor) -> Any:
        if self.device.type == devices.NAME:
            return memory.NEURON, self.device.index
        return plain(self)

    torch.Tensor.__dlpack_device__ = dlpack_device
