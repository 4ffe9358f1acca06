"""Entries under threads, forks, finalisers, exceptions and interpreter exit, and where they are unavailable."""
from __future__ import annotations

import ctypes
import gc
import os
import subprocess
import sys
import threading

import pytest
import torch

from neuron_eager.config import config
from neuron_eager.errors import Unavailable
from neuron_eager.native import runtime as runtime_module
from neuron_eager.native import stored
from neuron_eager.native.entry import Argument, Entry, Output


@pytest.fixture
def adder(rt, kernels):
    """An entry that installs its plans by itself; it releases the GIL for tensors of 1000 elements and more."""
    def miss(x, y):
        out = Output(tuple(x.shape), x.stride(), x.dtype, x.device.index)
        entry.install((x, y), {}, kernels.add, 0, x.numel(), pointers=[Argument(0), Argument(1), out], results=[out],
                      nogil=x.numel() >= 1000)
        return rt.to_neuron(rt.to_cpu(x) + rt.to_cpu(y), 0)
    entry = Entry(rt, "adder", miss, max_plans=64)
    return entry


def test_exceptions_of_the_miss_function_arrive_as_they_are(rt, ints):
    def miss(*args):
        raise KeyError("from the slow path")
    e = Entry(rt, "raises", miss)
    with pytest.raises(KeyError, match="slow path") as caught:
        e.call(ints(1))
    assert caught.traceback[-1].name == "miss"


def test_the_miss_function_may_return_anything(rt, ints):
    e = Entry(rt, "returns", lambda *args: args)
    x = ints(1)
    assert e.call(x, 2)[0] is x and e.call() == ()


def test_as_a_kernel_of_torch_library(rt, kernels):
    library = torch.library.Library("entrytest", "FRAGMENT")
    library.define("add(Tensor x, Tensor y, *, int alpha=1) -> Tensor")
    x = rt.to_neuron(torch.arange(3), 0)
    seen = []

    def miss(x, y, *, alpha=1):
        seen.append(alpha)
        out = Output(tuple(x.shape), x.stride(), x.dtype, x.device.index)
        if alpha == 1:
            e.install((x, y), {}, kernels.add, 0, 3, pointers=[Argument(0), Argument(1), out], results=[out])
        else:
            e.install((x, y), {"alpha": alpha}, kernels.add_times, 0, 3, results=[out],
                      pointers=[Argument(0), Argument(1), Argument(2), out])
        return e.call(x, y) if alpha == 1 else e.call(x, y, alpha=alpha)

    e = Entry(rt, "entrytest::add", miss, operands={"alpha"}, keywords=("alpha",))
    library.impl("add", e.call, "PrivateUse1")
    op = torch.ops.entrytest.add
    for _ in range(2):
        assert op(x, x).tolist() == [0, 2, 4]
        assert op(x, x, alpha=3).tolist() == [0, 4, 8] and op(x, x, alpha=5).tolist() == [0, 6, 12]
    assert seen == [1, 3]
    library._destroy()


def test_threads(adder, rt):
    errors = []
    long = rt.to_neuron(torch.ones(5000, dtype=torch.int64), 0)

    def work(seed):
        try:
            for i in range(1500):
                n = (seed * 31 + i) % 100 + 1
                t = rt.to_neuron(torch.full((n,), i), 0)
                assert rt.to_cpu(adder.call(t, t))[-1] == 2 * i
                if i % 50 == 0:
                    assert rt.to_cpu(adder.call(long, long)).eq(2).all()
        except BaseException as e:
            errors.append(e)

    threads = [threading.Thread(target=work, args=(s,)) for s in range(6)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not errors and len(adder.plans) <= 64


def test_a_plan_evicted_while_its_kernel_runs(rt, kernels, ints):
    e = Entry(rt, "evicted", lambda t: "missed", max_plans=2)
    x = ints(1, 2)
    out = Output((2,), (1,), torch.int64)
    e.install((x, x), {}, kernels.sleepy_add, 0, 2, pointers=[Argument(0), Argument(1), out], results=[out], nogil=True)
    results = []
    thread = threading.Thread(target=lambda: results.extend(e.call(x, x).tolist() for _ in range(3)))
    thread.start()
    for n in range(3, 40):                          # while it sleeps without the GIL
        e.install((ints(*range(n)),), {}, kernels.negate, 0, 0, pointers=[], results=[])
        gc.collect(0)
    thread.join()
    assert results[0] == [2, 4]


def test_finalisers_that_call_the_same_entry(adder, ints):
    class Finaliser:
        def __del__(self):
            self.result = adder.call(x, x)

    x = ints(1, 2, 3)
    for i in range(500):
        f = Finaliser()
        f.self = f
        t = ints(*range(i % 20 + 1))
        adder.call(t, t)
    gc.collect()
    assert adder.call(x, x).tolist() == [2, 4, 6]


def test_freed_by_another_thread(rt):
    tensors = [rt.empty((10,), None, torch.float32) for _ in range(1000)]
    before = rt.memory()["allocated"]
    thread = threading.Thread(target=tensors.clear)
    thread.start()
    thread.join()
    assert rt.memory()["allocated"] == before - 40_000


def test_backward_frees_blocks(rt):
    w = rt.to_neuron(torch.randn(5), 0).requires_grad_()
    for _ in range(30):
        ((w * w) * (w * 2)).sum().backward()
    assert torch.isfinite(w.grad.cpu()).all()


def test_a_forked_child(adder, rt, ints):
    x = ints(1, 2, 3)
    adder.call(x, x)
    pid = os.fork()
    if pid == 0:
        ok = adder.call(x, x).tolist() == [2, 4, 6]
        y = ints(*range(50))
        ok = ok and adder.call(y, y) is not None and adder.call(y, y)[49].item() == 98 and len(adder.plans) == 2
        rt.empty_cache()
        os._exit(0 if ok else 1)
    assert os.waitpid(pid, 0)[1] == 0


def run(code, **environment):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120,
                          env={**os.environ, **environment})


def test_interpreter_exit_with_live_tensors(rt, tmp_path):
    code = """
import torch, neuron_eager
from neuron_eager.native.entry import runtime, Entry, Argument, Output
rt = runtime()
tensors = [rt.empty((n,), None, torch.float32) for n in range(1000)]
adopted = [rt.to_neuron(torch.ones(3), 0) for _ in range(100)]
e = Entry(rt, "exit", lambda t: e.install((t,), {}, 0, 0, 0, pointers=[], results=[Argument(0)]))
class Late:
    def __del__(self):
        tensors.clear()
late = Late()
cycle = [late, tensors]; cycle.append(cycle)
print("done")
"""
    done = run(code, NEURON_EAGER_CACHE_DIR=str(config.cache_path))
    assert done.returncode == 0 and done.stdout == "done\n", done.stderr


def test_a_warm_process_does_not_import_llvm(rt, tmp_path):
    code = """
import sys, neuron_eager
from neuron_eager.native.entry import runtime
runtime()
print("llvmlite" in sys.modules, "diskcache" in sys.modules)
"""
    first = run(code, NEURON_EAGER_CACHE_DIR=str(tmp_path))
    second = run(code, NEURON_EAGER_CACHE_DIR=str(tmp_path))
    assert first.returncode == 0, first.stderr
    assert second.stdout.split()[0] == "False", second.stderr


# ---- where it is unavailable

def test_the_setting_turns_it_off(rt):
    with config.override(hot_path=False), pytest.raises(Unavailable, match="HOT_PATH=0"):
        runtime_module.runtime()
    assert runtime_module.runtime() is rt


def test_a_runtime_made_in_inference_mode_takes_ordinary_tensors(rt):
    with torch.inference_mode():
        made = runtime_module.Runtime()
    assert made.to_cpu(torch.ones(3, device="neuron")).tolist() == [1, 1, 1]


def test_no_exchange_api(monkeypatch):
    monkeypatch.delattr(torch._C, "_dlpack_exchange_api")
    with pytest.raises(Unavailable, match="_dlpack_exchange_api"):
        runtime_module.Runtime()


def test_exchange_api_of_another_version(monkeypatch):
    new = ctypes.pythonapi.PyCapsule_New
    new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
    for words, message in (((2,), "2.0"), ((1 | 1 << 32,), "1.1"), ((1 | 3 << 32,), "lacks a function")):
        table = (ctypes.c_uint64 * 8)(*words)
        monkeypatch.setattr(torch._C, "_dlpack_exchange_api",
                            lambda t=table: new(ctypes.addressof(t), b"dlpack_exchange_api", None))
        with pytest.raises(Unavailable, match=message):
            runtime_module.Runtime()


@pytest.mark.parametrize("module, name, value, message", [
    (runtime_module.sys, "platform", "darwin", "x86-64 Linux"),
    (runtime_module.platform, "machine", lambda: "aarch64", "x86-64 Linux"),
    (runtime_module.sys, "_is_gil_enabled", lambda: False, "GIL"),
])
def test_other_platforms(monkeypatch, module, name, value, message):
    monkeypatch.setattr(module, name, value, raising=False)
    with pytest.raises(Unavailable, match=message):
        runtime_module.Runtime()


def test_a_missing_symbol(monkeypatch):
    known = runtime_module.resolve
    monkeypatch.setattr(runtime_module, "resolve", lambda n: known("nothing_of_this_name" if n == "free" else n))
    with pytest.raises(Unavailable, match="no symbol nothing_of_this_name"):
        runtime_module.Runtime()


def test_a_failing_self_test(monkeypatch):
    monkeypatch.setattr(torch._C, "_get_privateuse1_backend_name", lambda: "other")
    with pytest.raises(Unavailable, match="not what was asked for"):
        runtime_module.Runtime()


def test_executable_memory_refused(monkeypatch):
    from neuron_eager.native import elf

    class Refusing:
        def mprotect(self, *args):
            ctypes.set_errno(13)
            return -1
    monkeypatch.setattr(elf, "_libc", Refusing)
    with pytest.raises(Unavailable, match="refuses to make memory executable .Permission denied"):
        runtime_module.Runtime()


def test_llvmlite_missing_or_unlike_itself(monkeypatch, tmp_path):
    monkeypatch.setenv("NEURON_EAGER_CACHE_DIR", str(tmp_path))
    for error in (ImportError("no llvmlite"), RuntimeError("LLVM IR parsing error")):
        def fail(text, error=error):
            raise error
        monkeypatch.setattr(stored.words, "compile_object", fail)
        with pytest.raises(Unavailable, match=str(error)):
            runtime_module.Runtime()
    monkeypatch.setattr(stored.words, "compile_object", lambda text: b"an object of a form that is not known")
    with pytest.raises(Unavailable, match="can not be loaded"):
        runtime_module.Runtime()
    assert not list(tmp_path.rglob("*.o"))


def test_the_store(rt, monkeypatch, tmp_path):
    monkeypatch.setenv("NEURON_EAGER_CACHE_DIR", str(tmp_path))
    with pytest.raises(Unavailable, match="not compiled yet"):
        runtime_module.Runtime(build=False)
    compiled = []
    real = stored.words.compile_object
    monkeypatch.setattr(stored.words, "compile_object", lambda text: compiled.append(1) or real(text))
    runtime_module.Runtime()
    runtime_module.Runtime(build=False)
    file, = (tmp_path / "native").iterdir()
    assert compiled == [1] and (tmp_path / "native").stat().st_mode & 0o77 == 0
    good = file.read_bytes()
    for bad in (b"", good[:100], good[:-1], good[:500] + b"\0" + good[501:]):
        file.write_bytes(bad)
        with pytest.raises(Unavailable):
            runtime_module.Runtime(build=False)
        runtime_module.Runtime()                    # compiles and stores it again
        assert file.read_bytes() == good
    file.chmod(0o666)                               # anybody may have written it
    with pytest.raises(Unavailable):
        runtime_module.Runtime(build=False)
    monkeypatch.setenv("NEURON_EAGER_CACHE", "0")
    with pytest.raises(Unavailable):
        runtime_module.Runtime(build=False)
