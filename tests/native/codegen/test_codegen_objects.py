"""Objects: compiled once, found again in memory and in a store, loaded by a process that has no compiler."""
from __future__ import annotations

import ctypes
import subprocess
import sys
import threading

import pytest

from neuron_eager.native import objects
from neuron_eager.native.target import current

TEXT = """
declare float @sinf(float)
define float @sine(float %x) nounwind {
  %y = call float @sinf(float %x)
  ret float %y
}
"""


@pytest.fixture
def store():
    before, store = objects._store, objects.MemoryStore()
    objects.set_store(store)
    yield store
    objects.set_store(before)


def sine(loaded):
    return ctypes.CFUNCTYPE(ctypes.c_float, ctypes.c_float)(loaded.symbols["sine"])(0.5)


def test_compiled_once_then_from_memory_then_from_the_store(store):
    calls = []

    def make():
        calls.append(1)
        return TEXT
    first = objects.obtain("sine", "sine once", make)
    assert abs(sine(first) - 0.4794255) < 1e-6 and not first.hit
    assert set(first.times) == {"build", "parse", "codegen", "load"}
    assert store.entries == {first.key: first.data}
    assert objects.obtain("sine", "sine once", make) is first
    del objects._loaded[first.key]
    again = objects.obtain("sine", "sine once", make)
    assert again.hit and sine(again) == sine(first) and len(calls) == 1 and set(again.times) == {"load"}


def test_threads_compile_a_key_once(store):
    calls, found = [], []

    def make():
        calls.append(1)
        return TEXT

    def work():
        found.append(objects.obtain("sine", "sine threads", make))
    workers = [threading.Thread(target=work) for _ in range(8)]
    for w in workers:
        w.start()
    for w in workers:
        w.join()
    assert len(calls) == 1 and all(f is found[0] for f in found)


def test_objects_are_the_same_bytes_every_time():
    assert objects.compile_object(TEXT, current()) == objects.compile_object(TEXT, current())


def test_symbols_of_an_object():
    imports, exports = objects.elf_symbols(objects.compile_object(TEXT, current()))
    assert (imports, exports) == (["sinf"], ["sine"])
    assert objects.elf_symbols(b"something else") == ([], [])


def test_a_failed_build_leaves_nothing(store):
    with pytest.raises(RuntimeError, match="parsing"):
        objects.obtain("broken", "broken", lambda: "define nonsense")
    assert not store.entries


def test_a_warm_process_imports_no_compiler(tmp_path):
    path = tmp_path / "object"
    loaded = objects.obtain("sine", "sine warm", lambda: TEXT)
    path.write_bytes(loaded.data)
    code = f"""
import ctypes, sys
from neuron_eager.native import library, objects, target, threads
assert target.host().key_text
class Store(objects.Store):
    def get(self, key): return open({str(path)!r}, "rb").read()
    def put(self, key, data): raise AssertionError
objects.set_store(Store())
found = objects.obtain("sine", "sine warm", lambda: 1 / 0)
f = ctypes.CFUNCTYPE(ctypes.c_float, ctypes.c_float)(found.symbols["sine"])
assert found.hit and abs(f(0.5) - 0.4794255) < 1e-6 and "llvmlite" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)
