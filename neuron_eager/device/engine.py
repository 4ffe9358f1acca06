"""Backward without device threads.

Autograd starts one thread per device that has a device guard, and a process with such threads can not run backward
after a fork. The engine counts devices once, when it starts: started before our guard is registered it finds none.
Backward then runs in the calling thread, which also is what a debugger wants: a breakpoint in a backward function
stops where `backward()` was called.
"""
from __future__ import annotations

import functools
from typing import Any

import torch
import torch.autograd.graph


def start() -> None:
    """Start the autograd engine. To be called before a device guard is registered."""
    with torch.enable_grad(), torch.inference_mode(False):
        torch.ones(1, device="cpu", requires_grad=True).sum().backward()


def stay_in_calling_thread() -> None:
    """Make every backward run in the thread that asks for it; the engine asserts on a device it has no thread for."""
    run_backward = torch.autograd.graph._engine_run_backward

    @functools.wraps(run_backward)
    def in_calling_thread(*args: Any, **kwargs: Any) -> Any:
        with torch.autograd.set_multithreading_enabled(False):
            return run_backward(*args, **kwargs)

    torch.autograd.graph._engine_run_backward = in_calling_thread
    torch.autograd._engine_run_backward = in_calling_thread
