"""Run the NKI examples that AWS publishes, unmodified, on the embedded NKI, each against its reference.

    git clone https://github.com/aws-neuron/aws-neuron-sdk
    git clone https://github.com/aws-neuron/nki-samples
    python -m neuron_eager.tools.nki_examples aws-neuron-sdk nki-samples

Each file runs in a process of its own, as a script. Modules that a machine without the chip does not have are replaced
where examples import them only to name a device or to make arrays: torch_xla gives the CPU, jax is NumPy. An example
passes when it ends without an error, prints no mismatch, and its kernels equal the NumPy references below.
"""
from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import runpy
import subprocess
import sys
import tempfile
import time
import traceback
import types
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

Names = dict[str, Any]


@dataclass(frozen=True)
class Example:
    """A file below a checkout; `check` compares kernels of its namespace with references of our own. `refused` is part
    of the error message that the example is there to show; `broken` says why it cannot run anywhere."""

    path: str
    check: Callable[[Names], None] | None = None
    refused: str = ""
    broken: str = ""


# ---- references

def _close(a: Any, b: Any, tolerance: float = 1e-5) -> None:
    np.testing.assert_allclose(np.asarray(a, np.float32), np.asarray(b, np.float32), rtol=tolerance, atol=tolerance)


def _random(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def _addition(kernel: str, *shape: int) -> Callable[[Names], None]:
    def check(names: Names) -> None:
        a, b = _random(*shape), _random(*shape, seed=1)
        _close(names[kernel](a, b), a + b)
    return check


def _split(names: Names) -> None:
    x = _random(4, 5)
    even, odd = names["tensor_split_kernel_"](x)
    _close(even, x[:, 0::2])
    _close(odd, x[:, 1::2])


def _maxpool(names: Names) -> None:
    x = _random(3, 8, 6)
    _close(names["tensor_maxpool_kernel_"](x, 2), x.reshape(3, 4, 2, 3, 2).max((2, 4)))


def _exp(names: Names) -> None:
    x = _random(128, 512)
    _close(names["tensor_exp_kernel_"](x), np.exp(x))


def _average_pool(names: Names) -> None:
    x = _random(3, 8, 6)
    _close(names["tensor_avgpool_kernel"](x, 2), x.reshape(3, 4, 2, 3, 2).mean((2, 4)))


def _transpose(names: Names) -> None:
    x = _random(5, 12)
    _close(names["tensor_transpose2D_kernel_"](x, (3, 4)), x.reshape(5, 3, 4).transpose(0, 2, 1).reshape(5, 12))


def _mamba(names: Names) -> None:
    channels, length, states = 128, 512, 4
    delta, u = np.abs(_random(1, channels, length)), _random(1, channels, length, seed=1)
    a = -np.abs(_random(channels, states, seed=2))
    b, c = _random(1, states, length, seed=3), _random(1, states, length, seed=4)
    decay = np.exp(delta[:, :, None] * a[None, :, :, None])
    drive = delta[:, :, None] * b[:, None] * u[:, :, None]
    state, out = np.zeros((1, channels, states)), np.empty((1, channels, length))
    for t in range(length):
        state = decay[..., t] * state + drive[..., t]
        out[..., t] = (c[:, None, :, t] * state).sum(2)
    for kernel in ("mamba_v1", "mamba_v2", "mamba_v3"):
        _close(names[kernel](delta, u, a, b, c), out, 1e-3)


def _matmul(names: Names) -> None:
    a, b = _random(128, 64), _random(128, 512, seed=1)
    _close(names["nki_matmul_basic_"](a, b), a.T @ b, 1e-4)
    a, b = _random(1024, 2048), _random(1024, 1024, seed=1)
    for kernel in ("nki_matmul_tiled_", "nki_matmul_hoist_load_", "nki_matmul_block_free_dimension_",
                   "nki_matmul_fully_optimized_"):
        _close(names[kernel](a, b), a.T @ b, 1e-3)


def _mx_prints(names: Names) -> None:
    """mx_toplevel.py prints np.allclose for each of its tests; a False shows in the output."""


SDK = (
    Example("nki/examples/getting_started_baremetal.py", _addition("nki_tensor_add_kernel", 4, 3)),
    Example("nki/examples/getting_started_torch.py", _addition("nki_tensor_add_kernel", 4, 3)),
    Example("nki/examples/getting_started_jax.py", _addition("nki_tensor_add_kernel", 4, 3)),
    Example("nki/examples/simulate/nki_simulate_example.py", _addition("add_kernel", 128, 512)),
    Example("nki/examples/tensor_addition/tensor_addition_nki_kernels.py", _addition("nki_tensor_add", 256, 1024)),
    Example("nki/examples/index-case-1.py", _split),
    Example("nki/examples/index-case-3.py", _maxpool),
    Example("nki/examples/layout-pass.py", _exp),
    Example("nki/examples/layout-violation.py", refused="256 partitions"),
    Example("nki/examples/layout-loop.py", broken="not Python: an unclosed parenthesis"),
    Example("nki/examples/layout-dynamic-loop.py", broken="imports nki_jit, which torch_neuronx no longer has"),
    Example("nki/examples/average_pool2d/average_pool2d_nki_kernels.py", _average_pool),
    Example("nki/examples/average_pool2d/average_pool2d_torch.py", _average_pool),
    Example("nki/examples/average_pool2d/average_pool2d_jax.py", _average_pool),
    Example("nki/examples/transpose2d/transpose2d_nki_kernels.py", _transpose),
    Example("nki/examples/transpose2d/transpose2d_torch.py", _transpose),
    Example("nki/examples/transpose2d/transpose2d_jax.py", _transpose),
    Example("nki/examples/matrix_multiplication/matrix_multiplication_nki_kernels.py", _matmul),
    Example("nki/examples/matrix_multiplication/matrix_multiplication_torch.py"),
    Example("nki/examples/fused_mamba/mamba_nki_kernels.py", _mamba),
    Example("nki/examples/fused_mamba/mamba_torch.py"),
    Example("nki/deep-dives/src/mxfp-matmul/mx_toplevel.py", _mx_prints),
)
SAMPLES = (
    # Written for NKI 0.2, and refused by NKI since 0.3 too. The SDK has the same tutorials for 0.6.
    Example("src/nki_samples/tutorials/matrix_multiplication/matrix_multiplication_nki_kernels.py", _matmul,
            refused="unexpected keyword argument 'dtype'"),
    Example("src/nki_samples/tutorials/matrix_multiplication/matrix_multiplication_torch.py",
            refused="unexpected keyword argument 'dtype'"),
    Example("src/nki_samples/tutorials/mxfp-matmul/mx_toplevel.py", refused="platform_target"),
)
MISMATCH = ("differ", "allclose pass? False", "matches? False")


# ---- stand-ins for modules of machines that have the chip, or JAX

def install_stand_ins(device: str) -> None:
    torch_xla: Any = types.ModuleType("torch_xla")
    torch_xla.device = lambda *_: device
    torch_xla.sync = lambda *_, **__: None
    core: Any = types.ModuleType("torch_xla.core")
    core.xla_model = types.SimpleNamespace(xla_device=torch_xla.device)
    sys.modules.update({"torch_xla": torch_xla, "torch_xla.core": core})
    jax: Any = types.ModuleType("jax")
    jax.numpy = np
    jax.random = types.SimpleNamespace(PRNGKey=np.random.default_rng,
                                       uniform=lambda rng, shape: rng.random(shape, np.float32))
    sys.modules["jax"], sys.modules["jax.numpy"] = jax, np


# ---- running

def run_one(root: Path, example: Example, device: str) -> dict[str, str]:
    """Run an example in this process: {"result": ..., "detail": ...}."""
    import neuron_eager  # noqa: F401 - makes `import nki` work
    install_stand_ins(device)
    path = root / example.path
    sys.path.insert(0, str(path.parent))
    sys.argv = [str(path)]
    output = io.StringIO()
    try:
        with tempfile.TemporaryDirectory() as directory, contextlib.redirect_stdout(output):
            os.chdir(directory)
            names = runpy.run_path(str(path), run_name="__main__")
            if example.check is not None:
                example.check(names)
            os.chdir("/")
    except (Exception, SystemExit) as error:
        if example.refused and example.refused in str(error):
            return {"result": "refused", "detail": str(error).splitlines()[0]}
        if example.broken:
            return {"result": "broken upstream", "detail": example.broken}
        traceback.print_exc()
        return {"result": "FAILED", "detail": f"{type(error).__name__}: {error}".splitlines()[0]}
    wrong = [line for line in output.getvalue().splitlines() if any(m in line for m in MISMATCH)]
    if wrong:
        return {"result": "FAILED", "detail": wrong[0]}
    if example.refused or example.broken:
        return {"result": "FAILED", "detail": "ran, but an error was expected"}
    return {"result": "equal", "detail": ""}


def run_in_process(root: Path, index: int, kind: str, device: str) -> dict[str, str]:
    command = [sys.executable, "-m", "neuron_eager.tools.nki_examples", "--one", f"{kind}:{index}", str(root),
               "--device", device]
    start = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
    lines = done.stdout.strip().splitlines()
    try:
        result = json.loads(lines[-1])
    except (IndexError, ValueError):
        result = {"result": "FAILED", "detail": (done.stderr.strip().splitlines() or ["no output"])[-1]}
    result["seconds"] = f"{time.perf_counter() - start:.1f}"
    result["log"] = done.stderr
    return result


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkouts", nargs="+", type=Path, help="checkouts of aws-neuron-sdk and nki-samples")
    parser.add_argument("--device", default="cpu", help="where torch examples put their tensors (cpu or neuron)")
    parser.add_argument("--only", default="", help="run examples whose path contains this")
    parser.add_argument("--verbose", action="store_true", help="print the traceback of each failure")
    parser.add_argument("--one", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    kinds = {"sdk": SDK, "samples": SAMPLES}
    if options.one:
        kind, index = options.one.split(":")
        print(json.dumps(run_one(options.checkouts[0].resolve(), kinds[kind][int(index)], options.device)))
        return 0
    counts: dict[str, int] = {}
    for root in options.checkouts:
        kind = "samples" if (root / "src" / "nki_samples").exists() else "sdk"
        for index, example in enumerate(kinds[kind]):
            if options.only not in example.path:
                continue
            result = run_in_process(root.resolve(), index, kind, options.device)
            counts[result["result"]] = counts.get(result["result"], 0) + 1
            print(f"{result['result']:16} {result['seconds']:>6} s  {example.path}  {result['detail']}", flush=True)
            if options.verbose and result["result"] == "FAILED":
                print(result["log"])
    print(", ".join(f"{n} {what}" for what, n in sorted(counts.items())))
    return 1 if counts.get("FAILED") else 0


if __name__ == "__main__":
    raise SystemExit(main())
