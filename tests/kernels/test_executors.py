"""Executors: what is kept between processes, under which keys, and what happens when it is not there."""
from __future__ import annotations

import json
import subprocess
import sys

import nki
import nki.isa as nisa
import nki.language as nl
import numpy as np
import pytest
import torch

from neuron_eager import config, opcache
from neuron_eager.executors import current, memo, source
from neuron_eager.executors.native import NativeExecutor
from neuron_eager.native.target import current as target
from neuron_eager.nki.program import TensorSpec

SCRIPT = """
import json, sys
import torch
import neuron_eager
from neuron_eager import opcache
with opcache.count_compiles() as count:
    x = torch.arange(24, device="neuron").reshape(4, 6)
    y = torch.softmax(x * 0.5 + 1, -1)
    z = torch.nn.functional.layer_norm(y @ y.t(), (4,))
    w = torch.nn.functional.embedding(x[0], torch.ones(30, 5, device="neuron")).sum(0)
    h = torch.cat([torch.nn.functional.gelu(z.bfloat16()).float(), z], 1).amax(1)
json.dump({"compiles": count.compiles, "value": [h.tolist(), w.tolist()], "report": str(opcache.compile_report()),
           "modules": [m for m in ("llvmlite", "diskcache", "neuron_eager.native.lift", "neuron_eager.nki.tracer",
                                   "torch._dynamo", "sympy") if m in sys.modules]}, sys.stdout)
"""


def _run(script):
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    return json.loads(done.stdout)


def test_a_second_process_neither_traces_nor_compiles(monkeypatch, tmp_path):
    monkeypatch.setenv("NEURON_EAGER_CACHE_DIR", str(tmp_path))
    cold, warm = _run(SCRIPT), _run(SCRIPT)
    assert cold["compiles"] > 0 and "aten::_softmax" in cold["report"]
    assert warm["compiles"] == 0 and warm["value"] == cold["value"]
    assert "llvmlite" not in warm["modules"] and "neuron_eager.native.lift" not in warm["modules"]
    assert "torch._dynamo" not in warm["modules"]


def test_without_a_cache_everything_still_runs(monkeypatch):
    monkeypatch.setenv("NEURON_EAGER_CACHE", "0")
    assert _run(SCRIPT)["compiles"] > 0


# ---- the memo's key

STEP = 2.0


def helper(t):
    nisa.tensor_scalar(dst=t, data=t, op0=nl.multiply, operand0=STEP)


@nki.jit
def scaled(x, power=1):
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    t = nl.ndarray(x.shape, x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=t, src=x)
    for _ in range(power):
        helper(t)
    nisa.dma_copy(dst=out, src=t)
    return out


SPECS = {"x": TensorSpec.contiguous((4, 8), "float32")}


def _key(kernel=scaled, specs=SPECS, **constants):
    source._texts.clear()
    key = memo.key_of(kernel, specs, constants, target())
    return key and key.text


def test_the_key_covers_what_the_kernel_calls_and_reads(monkeypatch):
    first = _key()
    assert _key() == first and _key(power=2) != first
    assert _key(specs={"x": TensorSpec.contiguous((4, 9), "float32")}) != first
    monkeypatch.setitem(globals(), "STEP", 3.0)
    assert _key() != first
    monkeypatch.undo()

    def other(t):
        nisa.tensor_scalar(dst=t, data=t, op0=nl.add, operand0=STEP)
    monkeypatch.setitem(globals(), "helper", other)
    assert _key() != first
    monkeypatch.undo()
    with config.override(checks=False):
        assert _key() != first
    monkeypatch.setenv("NEURON_PLATFORM_TARGET_OVERRIDE", "trn2")
    assert _key() != first


def test_closures_and_objects_are_part_of_the_key():
    def make(value):
        @nki.jit
        def kernel(x):
            return scaled(x, value if isinstance(value, int) else value.power)
        return kernel

    class Settings:
        def __init__(self, power):
            self.power = power
    assert _key(make(1)) == _key(make(1)) != _key(make(2))
    assert _key(make(Settings(1))) == _key(make(Settings(1))) != _key(make(Settings(2)))


def test_a_constant_may_be_a_function():
    def double(x):
        return 2 * x

    def triple(x):
        return 3 * x
    keys = {_key(power=p) for p in (double, triple, nl.add, nl.multiply, 1, 1.0, True, "1", None, (1, 2), [1, 2])}
    assert len(keys) == 11


def test_what_has_no_text_is_not_remembered():
    stream = open("/dev/null")      # noqa: SIM115

    @nki.jit
    def reading(x):
        return scaled(x, 1 if stream else 2)

    @nki.jit
    def importing(x):
        import math
        return scaled(x, int(math.pi))
    with stream:
        assert _key(reading) is None and _key(importing) is None


def test_recursion_is_part_of_the_key_once():
    def again(n):
        return again(n - 1) if n else 0

    @nki.jit
    def kernel(x):
        return scaled(x, again(2))
    assert _key(kernel) == _key(kernel)


# ---- the memo

def _run_scaled(executable, power):
    x, out = np.arange(32, dtype=np.float32).reshape(4, 8), np.zeros((4, 8), np.float32)
    executable([x.ctypes.data, out.ctypes.data])
    np.testing.assert_array_equal(out, x * STEP ** power)


def test_a_remembered_kernel_is_not_traced(monkeypatch):
    _run_scaled(NativeExecutor().compile(scaled, SPECS, {"power": 3}), 3)
    monkeypatch.setattr("neuron_eager.executors.native.trace", lambda *a: pytest.fail("traced"))
    found = NativeExecutor().compile(scaled, SPECS, {"power": 3})
    _run_scaled(found, 3)
    assert found.outputs == (TensorSpec.contiguous((4, 8), "float32"),) and found.results == (1,)


def test_a_memo_whose_object_is_gone_is_made_again(monkeypatch):
    from neuron_eager.native import objects
    NativeExecutor().compile(scaled, SPECS, {"power": 4})
    monkeypatch.setattr(objects, "_loaded", {})
    opcache.purge(kind="object")
    opcache.forget()
    _run_scaled(NativeExecutor().compile(scaled, SPECS, {"power": 4}), 4)


@pytest.mark.parametrize("body", (b"", b"{}", b"[]", b"\xff", b'{"table": "{}", "outputs": [], "results": []}'))
def test_a_memo_of_another_format_is_made_again(body):
    key = memo.key_of(scaled, SPECS, {"power": 5}, target())
    opcache.put(key, body)
    _run_scaled(NativeExecutor().compile(scaled, SPECS, {"power": 5}), 5)


def test_equal_programs_share_one_object():
    executor = NativeExecutor()
    wide = {"x": TensorSpec.contiguous((8, 16), "float32")}
    executor.compile(scaled, SPECS, {"power": 2})
    with opcache.count_compiles() as count:
        executor.compile(scaled, wide, {"power": 2})
        executor.compile(scaled, {"x": TensorSpec.contiguous((100, 16), "float32")}, {"power": 2})
    assert count.compiles == 0


def test_the_report_names_op_and_kernel(kernels_only):
    torch.erf(torch.ones(7, 3, device="neuron"))
    assert any(r.op == "aten::erf elementwise" for r in opcache.compile_report().records)


# ---- interpreted kernels

@nki.jit
def stopping(x):
    breakpoint()
    return scaled(x)


def test_a_kernel_with_a_breakpoint_is_interpreted():
    assert "breakpoint" in NativeExecutor().compile(stopping, SPECS, {}).note


def test_the_setting_chooses():
    with config.override(executor="interpreter"):
        assert current().name == "interpreter"
    with config.override(executor="native"):
        assert current().name == "native"
    with config.override(executor="neuron"), pytest.raises(Exception, match="neuron"):
        current()




def test_other_row_counts_compile_nothing(kernels_only):
    def step(rows):
        x = torch.ones(rows, 24, device="neuron")
        y = torch.softmax(torch.nn.functional.gelu(x + 1) * 0.5, -1)
        return torch.nn.functional.layer_norm(y @ y.t()[:, :3], (3,)).sum(1)
    for rows in (4, 100, 300):
        step(rows)
    with opcache.count_compiles() as count:
        for rows in (7, 90, 260, 301, 515):
            step(rows)
    assert count.compiles == 0, [r.op for r in count.records]
