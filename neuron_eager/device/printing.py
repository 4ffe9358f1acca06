"""Printing a neuron tensor: PyTorch's formatter reads its memory through a CPU alias, so no op runs on the device."""
from __future__ import annotations

import functools
from typing import Any

import torch
import torch._tensor_str

from . import devices, memory


def patch_formatter() -> None:
    format_elements = torch._tensor_str._tensor_str

    @functools.wraps(format_elements)
    def on_cpu(self: torch.Tensor, indent: int) -> Any:
        if self.device.type == devices.NAME and type(self) in (torch.Tensor, torch.nn.Parameter):
            self = memory.to_cpu(self)
        return format_elements(self, indent)

    torch._tensor_str._tensor_str = on_cpu
