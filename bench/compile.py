"""What a kernel costs before it runs: tracing, lowering, code, and what the cache saves of it.

    python bench/compile.py [--process]      --process: also a first and a second process that run a small program

Each kernel is compiled with an empty cache, in milliseconds: trace (the kernel's Python on symbolic tensors), lift (the
tile program as value graphs), build (LLVM IR), code (LLVM, parsing and machine code), load, and their sum; store is the
rest of a cold call of the executor: keys, the disk, and what the kernel needs of the runtime library; warm is the same
call in a process that has nothing in memory.
"""
from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import Any

import torch

import neuron_eager
from neuron_eager import nki, opcache
from neuron_eager.dispatch import routes
from neuron_eager.dispatch.plan import Call
from neuron_eager.executors import native
from neuron_eager.native import objects
from neuron_eager.native.compile import compile_program
from neuron_eager.nki import isa as nisa
from neuron_eager.nki import language as nl
from neuron_eager.nki.jit import trace
from neuron_eager.nki.program import TensorSpec

aten = torch.ops.aten


def ops() -> Iterator[tuple[str, Any, dict[str, Any]]]:
    """(name, op, its arguments)"""
    x, w = torch.empty(512, 384), torch.empty(384)
    low = x.bfloat16()
    yield "add", aten.add.Tensor, {"self": x, "other": x}
    yield "add bf16", aten.add.Tensor, {"self": low, "other": low}
    yield "where", aten.where.self, {"condition": x > 0, "self": x, "other": x}
    yield "exp", aten.exp.default, {"self": x}
    yield "gelu", aten.gelu.default, {"self": x}
    yield "tanh bf16", aten.tanh.default, {"self": low}
    yield "add int64", aten.add.Tensor, {"self": x.long(), "other": x.long()}
    yield "sum -1", aten.sum.dim_IntList, {"self": x, "dim": [1]}
    yield "sum 0", aten.sum.dim_IntList, {"self": x, "dim": [0]}
    yield "softmax", aten._softmax.default, {"self": x, "dim": 1, "half_to_float": False}
    yield "layer_norm", aten.native_layer_norm.default, {
        "input": x, "normalized_shape": [384], "weight": w, "bias": w, "eps": 1e-5}
    yield "transpose", aten._copy_from.default, {"self": x.t(), "dst": torch.empty(384, 512)}
    yield "mm", aten.mm.default, {"self": x, "mat2": torch.empty(384, 1536)}
    yield "addmm bf16", aten.addmm.default, {
        "self": w.bfloat16(), "mat1": low, "mat2": torch.empty(384, 384).bfloat16()}
    q = torch.empty(2, 12, 128, 32)
    yield "attention", aten.scaled_dot_product_attention.default, {"query": q, "key": q, "value": q}
    yield "embedding", aten.embedding.default, {"weight": x, "indices": torch.zeros(64, dtype=torch.long)}
    yield "arange", aten.arange.start_out, {"start": 0, "end": 1000, "out": torch.empty(1000)}


def lowered(op: Any, given: dict[str, Any]) -> tuple[Any, dict[str, Any], dict[str, Any]]:
    """(kernel, specs, constants) of an op's call, as dispatch makes them."""
    from neuron_eager.dispatch import build
    from neuron_eager.dispatch.schema import signature
    rule = routes.route(op).rule
    values = {p.name: given.get(p.name, p.default) for p in signature(op).parameters}
    found = rule.lower(Call(op, values, rule.operands))
    outputs, _ = build._outputs(Call(op, values, rule.operands), found)
    _, specs = build._items(found, outputs)
    return found.kernel, specs, dict(found.constants)


@nki.jit
def long_kernel(x, steps):
    """A chain of `steps` instructions on one tile, of a kind that does not shrink to a few."""
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    t, u = (nl.ndarray(x.shape, x.dtype, buffer=nl.sbuf) for _ in range(2))
    nisa.dma_copy(dst=t, src=x)
    nisa.dma_copy(dst=u, src=x)
    for i in range(steps // 2):
        nisa.tensor_tensor(dst=t, data1=t, data2=u, op=nl.add if i % 3 else nl.multiply)
        nisa.tensor_scalar(dst=u, data=t, op0=nl.multiply, operand0=1.0 + i % 7)
    nisa.dma_copy(dst=out, src=t)
    return out


def milliseconds(function: Any) -> tuple[float, Any]:
    start = time.perf_counter()
    result = function()
    return 1e3 * (time.perf_counter() - start), result


def forget() -> None:
    """What a process that has just started has in memory: nothing."""
    objects._loaded.clear()
    opcache.forget()


def measure(kernel: Any, specs: dict[str, Any], constants: dict[str, Any]) -> dict[str, float]:
    executor = native.NativeExecutor()
    one, _ = native.walked(kernel, specs)
    forget()
    opcache.purge()
    whole, _ = milliseconds(lambda: executor.compile(kernel, specs, constants))
    forget()
    warm, _ = milliseconds(lambda: native.NativeExecutor().compile(kernel, specs, constants))
    objects.set_store(objects.MemoryStore())
    forget()
    traced, program = milliseconds(lambda: trace(kernel, one, constants))
    compiled = compile_program(program)
    times = compiled.times
    parts = {"trace": traced, "lift": times["lift"], "build": times.get("build", 0.0),
             "code": times.get("parse", 0.0) + times.get("codegen", 0.0), "load": times.get("load", 0.0)}
    total = sum(parts.values())
    return {**parts, "sum": total, "store": max(0.0, whole - total), "cold": whole, "warm": warm,
            "instructions": len(program.instrs)}


PROGRAM = """
import json, sys, time
start = time.perf_counter()
import torch
ready = time.perf_counter()
import neuron_eager
from neuron_eager import opcache
imported = time.perf_counter()
with opcache.count_compiles() as count:
    x = torch.ones(64, 384, device="neuron")
    first = time.perf_counter()
    y = torch.softmax(torch.nn.functional.gelu(x @ x.t()) + x[:, :64], -1)
    torch.nn.functional.layer_norm(y, (64,)).sum(0).cpu()
done = time.perf_counter()
json.dump({"import torch": ready - start, "import neuron_eager": imported - ready, "first op": first - imported,
           "seven more": done - first, "compiles": count.compiles, "llvmlite": "llvmlite" in sys.modules}, sys.stdout)
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--process", action="store_true")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as cache:
        os.environ["NEURON_EAGER_CACHE_DIR"] = cache
        report(chosen.process)


def report(processes: bool) -> None:
    native.NativeExecutor().compile(*lowered(aten.neg.default, {"self": torch.empty(8)}))       # imports, driver
    columns = ("trace", "lift", "build", "code", "load", "sum", "store", "cold", "warm")
    print(f"torch {torch.__version__}, neuron_eager {neuron_eager.__version__}; ms")
    print(f"{'kernel':14} {'instr':>6} " + " ".join(f"{c:>7}" for c in columns))
    every = []
    for name, op, given in ops():
        found = measure(*lowered(op, given))
        every.append(found)
        print(f"{name:14} {found['instructions']:6.0f} " + " ".join(f"{found[c]:7.1f}" for c in columns), flush=True)
    print(f"{'median':14} {'':6} " + " ".join(f"{statistics.median(f[c] for f in every):7.1f}" for c in columns))
    found = measure(long_kernel, {"x": TensorSpec.contiguous((128, 64), "float32")}, {"steps": 10_000})
    print(f"{'10^4 in a row':14} {found['instructions']:6.0f} "
          + " ".join(f"{found[c]:7.1f}" for c in columns))
    if processes:
        with tempfile.TemporaryDirectory() as place:
            for which in ("first process", "second process"):
                done = subprocess.run([sys.executable, "-c", PROGRAM], check=True, capture_output=True, text=True,
                                      env={**os.environ, "NEURON_EAGER_CACHE_DIR": place})
                print(which + ": " + ", ".join(f"{k} {v:.2f} s" if isinstance(v, float) else f"{k} {v}"
                                               for k, v in json.loads(done.stdout).items()))


if __name__ == "__main__":
    main()
