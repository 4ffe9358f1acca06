"""What a warm op costs on neuron through native entries, beside plain CPU torch in the same run; and where time goes.

Medians of interleaved repeats, in CPU time of the process: busy neighbours disturb it less than the clock on the wall.
"""
from __future__ import annotations

import os
import statistics
import time
import timeit
from collections.abc import Sequence
from typing import Any

import torch

import neuron_eager
from neuron_eager.errors import Unavailable
from neuron_eager.native import elf, words
from neuron_eager.native.entry import Argument, Entry, Output, runtime
from neuron_eager.native.runtime import resolve
from neuron_eager.native.words import Word

REPEATS, NUMBER = 40, 1000
Case = tuple[str, str, dict[str, Any], dict[str, Any] | None]      # title, statement, names on neuron, names on CPU


def nothing(pointers: Word, r0: Word, r1: Word) -> Word:
    """A kernel that does nothing."""


def measure(cases: Sequence[Case]) -> list[tuple[float, float | None]]:
    """Median µs per call of each case, on neuron and on CPU."""
    timers = [[None if names is None else timeit.Timer(s, timer=time.process_time, globals=names) for names in (n, c)]
              for _, s, n, c in cases]
    times: list[list[list[float]]] = [[[], []] for _ in cases]
    for _ in range(REPEATS):
        for pair, kept in zip(timers, times):
            for timer, figures in zip(pair, kept):
                if timer is not None:
                    figures.append(timer.timeit(NUMBER) / NUMBER * 1e6)
    return [(statistics.median(n), statistics.median(c) if c else None) for n, c in times]


def table(title: str, cases: Sequence[Case]) -> None:
    print(f"\n{title:46} neuron     CPU   above CPU")
    for (name, *_), (neuron, cpu) in zip(cases, measure(cases)):
        beside = "" if cpu is None else f"{cpu:8.2f} {neuron - cpu:+10.2f}"
        print(f"  {name:42} {neuron:8.2f}{beside}", flush=True)


def ops() -> None:
    c = torch.randn(8)
    m = torch.randn(4, 6)
    both: list[dict[str, Any]] = []
    for device in ("neuron", "cpu"):
        x = c.to(device)
        both.append({"torch": torch, "x": x, "m": m.to(device), "o": torch.empty(8, device=device),
                     "w": x.clone().requires_grad_()})
    neuron, cpu = both

    def rows(*statements: str) -> list[Case]:
        return [(s, s, neuron, cpu) for s in statements]
    with torch.no_grad():
        table("8 floats, no autograd, µs", rows(
            "-x", "x + x", "m + m", "x * 2.0", "x.add_(x)", "torch.mul(x, x, out=o)", "torch.add(x, x, alpha=2)"))
    table("recorded by autograd", rows("w + w", "w * w", "w * 2.0"))
    table("views", rows(
        "x[0:4]", "x[2]", "x.view(2, 4)", "m.t()", "x.unsqueeze(0)", "m.reshape(6, 4)", "w[0:4]", "x.detach()"))


def pieces() -> None:
    rt = runtime()
    kernel = elf.load_object(words.compile_object(words.Module([nothing]).text), resolve)["nothing"]
    x = torch.randn(8).to("neuron")
    c = torch.randn(8)

    def entry(count: int, fresh: bool) -> Any:
        e = Entry(rt, "bench", lambda *args: None)
        result = Output((8,), (1,), torch.float32) if fresh else Argument(0)
        e.install((x,) * count, {}, kernel, 0, 8, pointers=[*map(Argument, range(count)), result], results=[result])
        return e.call

    crowded = Entry(rt, "bench", lambda *args: None, max_plans=1 << 20)
    for n in range(10_000):
        crowded.install((x, n), {}, kernel, 0, 8, pointers=[], results=[Argument(0)])
    missing = Entry(rt, "bench", lambda *args: None)
    names = {f"in{n}": entry(n, False) for n in (1, 2, 3)} | {f"new{n}": entry(n, True) for n in (1, 2, 3)}
    names |= {"x": x, "c": c, "rt": rt, "f32": torch.float32, "crowded": crowded.call, "missing": missing.call,
              "torch": torch}
    table("a builtin called directly, an empty kernel", [
        ("1, 2, 3 tensors, returns the first: 1", "in1(x)", names, None), ("2", "in2(x, x)", names, None),
        ("3", "in3(x, x, x)", names, None), ("1, 2, 3 tensors, a new tensor: 1", "new1(x)", names, None),
        ("2", "new2(x, x)", names, None), ("3", "new3(x, x, x)", names, None),
        ("one of 10,000 plans", "crowded(x, 7)", names, None), ("a miss", "missing(x)", names, None),
        ("rt.empty", "rt.empty((8,), None, f32)", names, None), ("rt.to_neuron", "rt.to_neuron(c, 0)", names, None),
        ("rt.to_cpu", "rt.to_cpu(x)", names, None)])


def optimizer() -> None:
    def step(device: str) -> Any:
        torch.manual_seed(0)
        parameters = [torch.randn(8, 8).to(device).requires_grad_() for _ in range(100)]
        for p in parameters:
            p.grad = torch.randn(8, 8).to(device)
        adam = torch.optim.AdamW(parameters, foreach=True)
        for _ in range(3):
            adam.step()
        return adam.step
    steps = {d: step(d) for d in ("neuron", "cpu")}
    times: dict[str, list[float]] = {d: [] for d in steps}
    for _ in range(30):
        for d, f in steps.items():
            times[d].append(timeit.timeit(f, number=1, timer=time.process_time) * 1e3)
    neuron, cpu = (statistics.median(times[d]) for d in ("neuron", "cpu"))
    print("\nAdamW, foreach, 100 parameters of 64 floats, ms:"
          f" neuron {neuron:.2f}, CPU {cpu:.2f}, ratio {neuron / cpu:.2f}")


def main() -> None:
    torch.set_num_threads(1)
    neuron_eager.config.fallback = "error"
    print(f"torch {torch.__version__}, {torch.get_num_threads()} thread, load {os.getloadavg()[0]:.1f}")
    ops()
    try:
        pieces()
    except Unavailable as e:
        print(e)
    optimizer()


if __name__ == "__main__":
    main()
