"""Kernels on neuron beside PyTorch's own on the CPU: families × shapes × dtypes × threads.

    python bench/kernels.py [--family NAME ...] [--threads 1 2] [--rounds 15] [--small]

Each case runs in turns with its CPU counterpart in one process. `ratio` is the median over rounds of CPU time divided
by neuron time: above 1.0 neuron is faster. With one thread the time is this thread's CPU time, on which the machine's
other load has the least influence; with more it is wall time. `roof` is the share of the machine's peak that the kernel
reaches: its bytes over the bandwidth of a copy of that size, or its operations over the best rate of a matrix product,
whichever is the limit; both peaks are measured at the start, by PyTorch's own kernels, with the same threads.
"""
from __future__ import annotations

import argparse
import functools
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

import neuron_eager

F = torch.nn.functional
LARGE = 256 << 10       # bytes of data from which on the goal of 1.0 counts


@dataclass
class Case:
    family: str
    name: str
    make: Callable[[torch.dtype], tuple[Any, ...]]      # arguments on the CPU
    run: Callable[..., Any]
    flops: float = 0.0


def randn(*shape: int) -> Callable[[torch.dtype], torch.Tensor]:
    return lambda dtype: torch.randn(*shape).to(dtype)


def of(*makers: Callable[[torch.dtype], Any]) -> Callable[[torch.dtype], tuple[Any, ...]]:
    return lambda dtype: tuple(m(dtype) for m in makers)


def fixed(value: torch.Tensor) -> Callable[[torch.dtype], torch.Tensor]:
    return lambda dtype: value


def cases(small: bool) -> Iterator[Case]:
    sizes = [(64, 64)] if small else [(256, 512), (1024, 1024), (8192, 384)]
    for r, c in sizes:
        x, y = randn(r, c), randn(r, c)
        shape = f"{r}x{c}"
        for name, run in (("add", torch.add), ("mul", torch.mul), ("div", torch.div), ("maximum", torch.maximum),
                          ("where", lambda a, b: torch.where(a > 0, a, b)), ("lt", torch.lt)):
            yield Case("binary", f"{name} {shape}", of(x, y), run)
        for name, run in (("exp", torch.exp), ("tanh", torch.tanh), ("gelu", F.gelu), ("silu", F.silu),
                          ("gelu tanh", lambda a: F.gelu(a, approximate="tanh")), ("neg", torch.neg),
                          ("sqrt", lambda a: torch.sqrt(a)), ("mul number", lambda a: a * 0.3)):
            yield Case("unary", f"{name} {shape}", of(x), run)
        yield Case("binary", f"add row {shape}", of(x, randn(c)), torch.add)
        yield Case("softmax", f"softmax {shape}", of(x), lambda a: torch.softmax(a, -1))
        yield Case("softmax", f"log_softmax {shape}", of(x), lambda a: torch.log_softmax(a, -1))
        yield Case("norm", f"layer_norm {shape}", of(x, randn(c), randn(c)),
                   lambda a, w, b: F.layer_norm(a, (a.shape[1],), w, b))
        yield Case("reduce", f"sum -1 {shape}", of(x), lambda a: a.sum(-1))
        yield Case("reduce", f"sum 0 {shape}", of(x), lambda a: a.sum(0))
        yield Case("reduce", f"mean -1 {shape}", of(x), lambda a: a.mean(-1))
        yield Case("reduce", f"amax -1 {shape}", of(x), lambda a: a.amax(-1))
        yield Case("reduce", f"sum {shape}", of(x), torch.sum)
        yield Case("copy", f"transpose {shape}", of(x), lambda a: a.t().contiguous())
        yield Case("copy", f"columns {shape}", of(x), lambda a: a[:, : a.shape[1] // 2].contiguous())
        yield Case("copy", f"to int64 {shape}", of(x), lambda a: a.long())
        yield Case("copy", f"to other float {shape}", of(x),
                   lambda a: a.bfloat16() if a.dtype is torch.float32 else a.float())
        yield Case("copy", f"fill {shape}", of(x), lambda a: a.fill_(1.0))
    heads = (8, 16, 12, 32) if small else (8, 128, 12, 32)
    yield Case("copy", "heads " + "x".join(map(str, heads)), of(randn(*heads)),
               lambda a: a.transpose(1, 2).contiguous())
    for m, k, n in [(32, 64, 64)] if small else [(512, 512, 512), (1024, 384, 1536), (2048, 384, 384), (4, 1024, 1024),
                                                 (1, 2048, 2048)]:
        yield Case("matmul", f"mm {m}x{k}x{n}", of(randn(m, k), randn(k, n)), torch.mm, 2.0 * m * k * n)
        yield Case("matmul", f"linear {m}x{k}x{n}", of(randn(m, k), randn(n, k), randn(n)), F.linear, 2.0 * m * k * n)
    for b, h, s, d in [(1, 2, 16, 16)] if small else [(8, 12, 128, 32), (2, 8, 512, 64)]:
        q = randn(b, h, s, d)
        yield Case("attention", f"attention {b}x{h}x{s}x{d}", of(q, q, q), F.scaled_dot_product_attention,
                   4.0 * b * h * s * s * d)
        yield Case("matmul", f"bmm {b * h}x{s}x{d}", of(randn(b * h, s, d), randn(b * h, d, s)), torch.bmm,
                   2.0 * b * h * s * s * d)
    rows = 64 if small else 8192
    yield Case("gather", f"embedding {rows}x384", of(fixed(torch.randint(0, 30000, (rows,))), randn(30000, 384)),
               F.embedding)


def seconds(function: Callable[[], Any], calls: int, clock: Callable[[], float]) -> float:
    start = clock()
    for _ in range(calls):
        function()
    return (clock() - start) / calls


def in_turns(functions: list[Callable[[], Any]], rounds: int, clock: Callable[[], float]) -> list[list[float]]:
    """Seconds a call of each function, round by round."""
    for f in functions:
        f()
        f()
    calls = max(1, min(500, int(2e-3 / max(seconds(functions[0], 1, clock), 1e-7))))
    return [[seconds(f, calls, clock) for f in functions] for _ in range(rounds)]


class Peaks:
    """What this machine reaches with some threads: bytes a second of a copy by size, operations a second by dtype."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock

    @functools.cached_property
    def operations(self) -> dict[torch.dtype, float]:
        found = {}
        for dtype in (torch.float32, torch.bfloat16):
            a = torch.randn(768, 768).to(dtype)
            best = min(t for t, in in_turns([lambda a=a: torch.mm(a, a)], 9, self.clock))
            found[dtype] = 2 * 768 ** 3 / best
        return found

    @functools.cache        # noqa: B019      # lives as long as the run
    def bandwidth(self, power: int) -> float:
        """Of a copy that reads and writes 2 ** power bytes in all."""
        a = torch.empty(1 << (power - 3), dtype=torch.float32)
        b = torch.empty_like(a)
        return (1 << power) / min(t for t, in in_turns([lambda: b.copy_(a)], 9, self.clock))

    def limit(self, bytes_moved: int, flops: float, dtype: torch.dtype) -> float:
        """Seconds that the work takes at the peaks."""
        power = max(12, min(28, bytes_moved.bit_length()))
        return max(bytes_moved / self.bandwidth(power), flops / self.operations[dtype])


def tensors(values: Any) -> list[torch.Tensor]:
    return [t for v in (values if isinstance(values, (tuple, list)) else (values,)) if isinstance(t := v, torch.Tensor)]


def measure(case: Case, dtype: torch.dtype, rounds: int, clock: Callable[[], float], peaks: Peaks
            ) -> tuple[float, float, float, float, int]:
    """(neuron µs, CPU µs, ratio, share of the roof, bytes moved)."""
    args = case.make(dtype)
    on_neuron = [a.to("neuron") for a in args]
    neuron, cpu = functools.partial(case.run, *on_neuron), functools.partial(case.run, *args)
    moved = sum(t.numel() * t.itemsize for t in (*tensors(args), *tensors(cpu())))
    times = in_turns([neuron, cpu], rounds, clock)
    mine, theirs = (statistics.median(t[i] for t in times) for i in (0, 1))
    ratio = statistics.median(c / n for n, c in times)
    return 1e6 * mine, 1e6 * theirs, ratio, peaks.limit(moved, case.flops, dtype) / mine, moved


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--family", nargs="*", default=[])
    parser.add_argument("--threads", nargs="*", type=int, default=[1, 2])
    parser.add_argument("--dtypes", nargs="*", default=["float32", "bfloat16"])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--small", action="store_true", help="small tensors only: a quick look at overheads")
    chosen = parser.parse_args()
    below: dict[str, list[float]] = {}
    for threads in chosen.threads:
        torch.set_num_threads(threads)
        clock = time.thread_time if threads == 1 else time.perf_counter
        peaks = Peaks(clock)
        rates = ", ".join(f"{rate / 1e9:.0f} GFLOP/s {dtype}" for dtype, rate in peaks.operations.items())
        print(f"\ntorch {torch.__version__}, {threads} thread(s); peaks: {rates}; copies "
              + ", ".join(f"{peaks.bandwidth(p) / 1e9:.0f} GB/s at {2 ** p >> 10} KiB" for p in (18, 21, 25)))
        print(f"{'family':10} {'case':26} {'dtype':9} {'neuron us':>10} {'cpu us':>10} {'ratio':>6} {'roof':>5}")
        for case in cases(chosen.small):
            if chosen.family and case.family not in chosen.family:
                continue
            for name in chosen.dtypes:
                mine, theirs, ratio, roof, moved = measure(case, getattr(torch, name), chosen.rounds, clock, peaks)
                print(f"{case.family:10} {case.name:26} {name:9} {mine:10.1f} {theirs:10.1f} {ratio:6.2f} {roof:5.0%}",
                      flush=True)
                if moved >= LARGE:
                    below.setdefault(f"{case.family} {name} {threads}", []).append(ratio)
    print("\nratios at 256 KiB and more, by family, dtype and threads: least, median")
    for group, ratios in sorted(below.items()):
        print(f"{group:32} {min(ratios):5.2f} {statistics.median(ratios):5.2f}")
    fallbacks = neuron_eager.get_fallback_ops()
    print("on the CPU: " + (", ".join(sorted(set(fallbacks))) or "nothing"))


if __name__ == "__main__":
    main()
