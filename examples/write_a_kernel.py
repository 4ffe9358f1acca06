"""Write an NKI kernel, check it in the interpreter, and let it serve an aten op.

    python examples/write_a_kernel.py

The op is aten::logaddexp, log(exp(x) + exp(y)), for which this package has no kernel: calls run on the CPU until one is
registered.
"""
from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch

import neuron_eager
from neuron_eager import Decline, Reason

# isort: split
# neuron_eager comes first: it makes `import nki` work where that is not installed
import nki
import nki.isa as nisa
import nki.language as nl


@nki.jit
def naive(x, y):
    """log(exp(x) + exp(y)) as it is written."""
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    for row in range(0, x.shape[0], nl.tile_size.pmax):
        rows = slice(row, min(row + nl.tile_size.pmax, x.shape[0]))
        a, b = nl.load(x[rows]), nl.load(y[rows])
        nisa.activation(dst=a, op=nl.exp, data=a)
        nisa.activation(dst=b, op=nl.exp, data=b)
        nisa.tensor_tensor(dst=a, data1=a, data2=b, op=nl.add)
        nisa.activation(dst=a, op=nl.log, data=a)
        nl.store(out[rows], a)
    return out


@nki.jit
def logaddexp(x, y):
    """log(exp(x) + exp(y)) = high + log(1 + exp(low - high)), where no exponential overflows.

    Dimensions:
        x, y: [rows, columns], any number of rows; columns as far as SBUF holds six tiles of them
    Pseudocode:
        for each 128 rows:
            high, low = max(x, y), min(x, y)
            difference = 0 where high = low (they may be infinite), else low - high
            out = high + log(1 + exp(difference))
    """
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    for row in range(0, x.shape[0], nl.tile_size.pmax):
        rows = slice(row, min(row + nl.tile_size.pmax, x.shape[0]))
        a, b = nl.load(x[rows]), nl.load(y[rows])
        high, low, difference, zero = (nl.ndarray(a.shape, nl.float32, buffer=nl.sbuf) for _ in range(4))
        equal = nl.ndarray(a.shape, nl.uint8, buffer=nl.sbuf)
        nisa.tensor_tensor(dst=high, data1=a, data2=b, op=nl.maximum)
        nisa.tensor_tensor(dst=low, data1=a, data2=b, op=nl.minimum)
        nisa.tensor_tensor(dst=equal, data1=a, data2=b, op=nl.equal)
        nisa.tensor_tensor(dst=difference, data1=low, data2=high, op=nl.subtract)
        nisa.memset(dst=zero, value=0.0)
        nisa.tensor_copy_predicated(dst=difference, src=zero, predicate=equal)
        nisa.activation(dst=difference, op=nl.exp, data=difference)
        nisa.tensor_scalar(dst=difference, data=difference, op0=nl.add, operand0=1.0)
        nisa.activation(dst=difference, op=nl.log, data=difference)
        nisa.tensor_tensor(dst=a, data1=high, data2=difference, op=nl.add)
        nl.store(out[rows], a)
    return out


def can_run(x: torch.Tensor, y: torch.Tensor) -> bool | str | Decline:
    """Which calls the kernel takes: only metadata may be looked at. The report shows the answer of a refused call."""
    if not x.dtype == y.dtype == torch.float32:
        return Decline(Reason.DTYPE, "it takes float32")
    if x.shape != y.shape or x.dim() != 2:
        return "it takes two matrices of one shape"         # a text: Reason.SHAPE
    return x.shape[1] <= 4096 or "a row must fit into SBUF"


def samples() -> tuple[torch.Tensor, torch.Tensor]:
    """Ordinary values, large ones, equal ones and infinities; 200 rows, so that the second tile is not full."""
    generator = torch.Generator().manual_seed(0)
    x, y = (torch.randn(200, 512, generator=generator) * 4 for _ in range(2))
    x[1], y[1] = 100.0, 99.0
    x[2], y[2] = float("-inf"), float("-inf")
    x[3], y[3] = float("inf"), 1.0
    return x, y


def worst(got: torch.Tensor, expected: torch.Tensor) -> tuple[float, int]:
    """The largest difference, and its row; equal infinities differ by nothing."""
    difference = torch.where(got == expected, 0.0, (got - expected).abs()).nan_to_num(float("inf"), float("inf"))
    return difference.max().item(), int(difference.max(1).values.argmax())


def median_us(functions: dict[str, Callable[[], Any]], rounds: int = 30) -> dict[str, float]:
    """Microseconds of each, measured in turns."""
    times: dict[str, list[float]] = {name: [] for name in functions}
    for _ in range(rounds):
        for name, function in functions.items():
            start = time.perf_counter()
            function()
            times[name].append(time.perf_counter() - start)
    return {name: 1e6 * statistics.median(t) for name, t in times.items()}


def main() -> int:
    op = torch.ops.aten.logaddexp.default
    x, y = samples()
    expected = torch.logaddexp(x, y)

    print("1. In the interpreter, on CPU tensors, beside torch")
    for kernel in (naive, logaddexp):
        with neuron_eager.interpret(check_uninitialized=True):
            error, row = worst(kernel(x, y), expected)
        print(f"   {kernel.name:10} differs by at most {error:.1e}" + (f", first in row {row}" if error > 1e-5 else ""))

    print("2. What it costs")
    report = nki.inspect(logaddexp, x, y)
    print(f"   {len(report.lines)} instructions on {dict(report.engines)}; SBUF peak {report.sbuf.nbytes} bytes of a "
          f"partition; {report.hbm_read + report.hbm_written} bytes to and from HBM")

    print("3. Serving the op")
    print(f"   before: {neuron_eager.explain(op)}")
    neuron_eager.register_kernel(op, logaddexp, can_run=can_run, reference=torch.logaddexp)
    print(f"   after:  {neuron_eager.explain(op)}")
    a, b = x.to("neuron"), y.to("neuron")
    print(f"   float16: {neuron_eager.explain(op, a.half(), b.half())}")
    neuron_eager.clear_op_tracking()
    with neuron_eager.fallback("error"):
        error, _ = worst(torch.logaddexp(a, b).cpu(), expected)
    print(f"   native code differs by at most {error:.1e}; the report has "
          f"{[row.op for row in neuron_eager.op_report() if row.route == 'kernel' and 'logaddexp' in row.op]}")

    print("4. Beside torch, medians of 30 rounds")
    times = median_us({"neuron": lambda: torch.logaddexp(a, b), "cpu": lambda: torch.logaddexp(x, y)})
    print(f"   neuron {times['neuron']:.0f} us, cpu {times['cpu']:.0f} us ({torch.get_num_threads()} threads)")
    return int(error > 1e-5)


if __name__ == "__main__":
    sys.exit(main())
