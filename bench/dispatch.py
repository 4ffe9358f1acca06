"""Overhead of one warm op on neuron beside plain CPU torch, in µs.

    python bench/dispatch.py [--python]       --python: the pure Python path, without native code

Every case is measured in turns with its CPU counterpart, in one process; figures are medians of `REPEATS` rounds of CPU
time of this thread, on which the machine's other load has the least influence.
"""
from __future__ import annotations

import argparse
import ctypes
import logging
import statistics
import time
from collections.abc import Callable

import torch

import neuron_eager
from neuron_eager.config import config
from neuron_eager.dispatch import call, routes
from neuron_eager.dispatch.plan import Arg, KernelCall, Operand
from neuron_eager.executors.base import Executable

REPEATS, CALLS = 41, 1000


class EmptyExecutable(Executable):
    """A kernel that does nothing, at the address of a C function that does nothing to speak of."""

    address = ctypes.cast(ctypes.CDLL(None).labs, ctypes.c_void_p).value or 0


class EmptyExecutor:
    name = "empty"

    def compile(self, kernel: object, specs: object, constants: object) -> Executable:
        return EmptyExecutable()


class EmptyKernel:
    name = "empty"

    def __init__(self) -> None:
        import inspect
        self.signature = inspect.signature(lambda out, ins: None)


class EmptyRule:
    """Dispatch of an elementwise op down to the call of its kernel."""

    operands = ("other", "alpha", "value")

    def lower(self, seen: object) -> KernelCall:
        out = seen.outputs[0]       # type: ignore[attr-defined]
        values = [v for v in seen.args.values() if v is not None]       # type: ignore[attr-defined]
        items = tuple(v.broadcast(out.shape) if isinstance(v, Arg) else Operand(v) for v in values)
        return KernelCall(EmptyKernel(), {"ins": items}, [out], same_view=True)


def median_of_turns(*functions: Callable[[], object], calls: int = CALLS) -> list[float]:
    """Median µs a call of each function, measured in turns."""
    times: list[list[float]] = [[] for _ in functions]
    for function in functions:
        for _ in range(calls // 10 + 3):
            function()
    for _ in range(REPEATS):
        for function, found in zip(functions, times):
            start = time.thread_time()
            for _ in range(calls):
                function()
            found.append((time.thread_time() - start) / calls * 1e6)
    return [statistics.median(t) for t in times]


def row(name: str, on_neuron: Callable[[], object], on_cpu: Callable[[], object], calls: int = CALLS) -> None:
    neuron, cpu = median_of_turns(on_neuron, on_cpu, calls=calls)
    print(f"{name:44} {neuron:9.2f} {cpu:9.2f} {neuron - cpu:+9.2f}", flush=True)


def adamw(device: str) -> Callable[[], object]:
    torch.manual_seed(0)
    parameters = [torch.randn(16, 16).to(device).requires_grad_() for _ in range(100)]
    for p in parameters:
        p.grad = torch.randn(16, 16).to(device)
    return torch.optim.AdamW(parameters, lr=1e-3).step


def main() -> None:
    arguments = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    arguments.add_argument("--python", action="store_true", help="without native code")
    native = not arguments.parse_args().python
    torch.set_num_threads(1)
    config.hot_path, config.fallback = native, "silent"
    logging.getLogger("neuron_eager").setLevel(logging.ERROR)
    torch.ones(1, device="neuron").relu()       # loads what the first op loads
    for op in routes.registered():
        neuron_eager.unregister_kernel(op)

    c, cm = torch.randn(8), torch.randn(8, 8)
    x, xm = c.to("neuron"), cm.to("neuron")
    y, d = torch.empty_like(x), torch.empty_like(c)
    cg, xg = c.clone().requires_grad_(), c.to("neuron").requires_grad_()
    print(f"torch {torch.__version__}, {torch.get_num_threads()} thread, "
          f"{'native entries' if native else 'pure Python path'}; 8 floats, matrices 8 x 8; µs")
    print(f"{'':44} {'neuron':>9} {'cpu':>9} {'more':>9}")
    print("CPU fallback")
    row("x + x", lambda: x + x, lambda: c + c)
    row("x * 2.0", lambda: x * 2.0, lambda: c * 2.0)
    row("mm", lambda: torch.mm(xm, xm), lambda: torch.mm(cm, cm))
    row("tanh", lambda: x.tanh(), lambda: c.tanh())
    row("x.mul_(y)", lambda: x.mul_(xm[0]), lambda: c.mul_(cm[0]))
    row("x + x, requires_grad", lambda: xg + xg, lambda: cg + cg)
    row("mul(x, x, out=y)", lambda: torch.mul(x, x, out=y), lambda: torch.mul(c, c, out=d))
    print("views")
    row("x[0:4]", lambda: x[0:4], lambda: c[0:4])
    row("x.view(2, 4)", lambda: x.view(2, 4), lambda: c.view(2, 4))
    row("m.t()", lambda: xm.t(), lambda: cm.t())
    print("training")
    row("AdamW step, 100 parameters of 16 x 16", adamw("neuron"), adamw("cpu"), calls=5)

    call._executor = lambda: EmptyExecutor()
    for name in ("aten::add.Tensor", "aten::add_.Tensor", "aten::mul.Tensor", "aten::neg", "aten::mul.out"):
        neuron_eager.register_kernel(name, EmptyRule())
    print("kernel route, empty kernel")
    row("x + x", lambda: x + x, lambda: c + c)
    row("-x", lambda: -x, lambda: -c)
    row("x * 2.0", lambda: x * 2.0, lambda: c * 2.0)
    row("add(x, x, alpha=2)", lambda: torch.add(x, x, alpha=2), lambda: torch.add(c, c, alpha=2))
    row("x.add_(x)", lambda: x.add_(x), lambda: c.add_(c))
    row("mul(x, x, out=y)", lambda: torch.mul(x, x, out=y), lambda: torch.mul(c, c, out=d))
    row("x + x, requires_grad", lambda: xg + xg, lambda: cg + cg)


if __name__ == "__main__":
    main()
