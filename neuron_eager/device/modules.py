"""`Module.to` keeps parameters: the same objects, so that tied weights stay tied and optimizers made before stay valid.

PyTorch changes a parameter in place only between the devices it was built with (`param.data = moved`); for others it
puts new Parameters into the module, and two modules that shared one share it no longer. Here a parameter that moves
between neuron and another device keeps its Python object, with class, attributes and hooks, and gets another tensor
inside.
"""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn.parameter import UninitializedTensorMixin
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from .devices import NAME

_HOOKS = ("_backward_hooks", "_post_accumulate_grad_hooks")


def keep_parameters() -> None:
    """Let `Module._apply`, which `to`, `neuron`, `cpu` and others call, move parameters in place."""
    apply_to_all = torch.nn.Module._apply

    def _apply(self: torch.nn.Module, fn: Callable[..., Any], recurse: bool = True) -> torch.nn.Module:
        def in_place(tensor: torch.Tensor) -> torch.Tensor:
            applied = fn(tensor)
            if isinstance(tensor, torch.nn.Parameter) and _crosses(tensor, applied):
                _move(tensor, applied, fn)
            return applied

        if recurse:
            for child in self.children():
                child._apply(fn)
        return apply_to_all(self, in_place, recurse=False)

    torch.nn.Module._apply = _apply
    # parameters of lazy modules may be moved before they have a shape, as by .cuda()
    UninitializedTensorMixin._allowed_methods.append(torch.Tensor.neuron)


def _crosses(before: torch.Tensor, after: torch.Tensor) -> bool:
    kinds = {before.device.type, after.device.type}
    return (len(kinds) == 2 and NAME in kinds and not isinstance(before, FakeTensor)
            and not is_traceable_wrapper_subclass(after))


def _move(parameter: torch.nn.Parameter, moved: torch.Tensor, fn: Callable[..., Any]) -> None:
    """Put `moved` into the Python object `parameter`; its gradient follows."""
    grad = parameter.grad
    if parameter.requires_grad and parameter._use_count() > 1:
        torch.autograd.graph.get_gradient_edge(parameter).node.register_prehook(_refuse)
    torch._C._swap_tensor_impl(parameter, torch.nn.Parameter(moved, parameter.requires_grad))
    for name in _HOOKS:
        hooks = getattr(parameter, name)
        if hooks:
            setattr(parameter, name, hooks)     # registers them with the tensor that is inside now
    if grad is not None:
        parameter.grad = fn(grad)


def _refuse(*args: Any) -> None:
    raise RuntimeError("backward reached a parameter that was moved to another device after the forward pass: the "
                       "graph holds the parameter as it was. Run forward again")
