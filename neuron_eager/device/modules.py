"""`Module.to` keeps parameters: the same objects, so that tied weights stay tied and optimizers made before stay valid.

PyTorch can change a parameter in place only between devices it was built with; otherwise it puts a new parameter in its
place. Its own switch for this, swapping the contents of the two objects, forgets that a parameter of a lazy module has
no shape yet, on every device.
"""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn.modules.lazy import LazyModuleMixin
from torch.nn.parameter import UninitializedTensorMixin, is_lazy


def keep_parameters() -> None:
    torch.__future__.set_swap_module_params_on_conversion(True)
    UninitializedTensorMixin._allowed_methods.append(torch.Tensor.neuron)       # as .cuda()

    def _apply(self: Any, fn: Callable[..., Any], recurse: bool = True) -> Any:
        lazy = [(p, type(p)) for p in self._parameters.values() if is_lazy(p)]
        super(LazyModuleMixin, self)._apply(fn, recurse)
        for parameter, kind in lazy:
            parameter.__class__ = kind
        return self

    LazyModuleMixin._apply = _apply
