"""The object loader: what it loads, and that damage is an error, never a crash."""
from __future__ import annotations

import ctypes
import os
import platform
import random
import struct
import sys
import threading

import pytest

from neuron_eager.errors import ObjectFileError, Unavailable
from neuron_eager.native import elf, words
from neuron_eager.native.runtime import resolve

pytestmark = pytest.mark.skipif(sys.platform != "linux" or platform.machine() != "x86_64", reason="ELF on x86-64")

IR = """
declare i64 @outside(i64)
@shared = external global i64
@table = constant [3 x i64] [i64 5, i64 6, i64 7]
@pointers = constant [2 x ptr] [ptr @table, ptr @twice]
@counter = global i64 40
@space = global [100 x i64] zeroinitializer
define i64 @twice(i64 %x) uwtable {
  %y = mul i64 %x, 2
  ret i64 %y
}
define i64 @ask(i64 %x) uwtable {
  %y = call i64 @outside(i64 %x)
  ret i64 %y
}
define i64 @read_shared() uwtable {
  %y = load i64, ptr @shared
  ret i64 %y
}
define i64 @count(i64 %i) uwtable {
  %y = load i64, ptr @counter
  %z = add i64 %y, 1
  store i64 %z, ptr @counter
  %p = getelementptr i64, ptr @space, i64 %i
  %q = load i64, ptr %p
  %s = add i64 %q, %z
  store i64 %s, ptr %p
  ret i64 %s
}
define i64 @pick(i64 %i) uwtable {
  %p = getelementptr i64, ptr @table, i64 %i
  %y = load i64, ptr %p
  ret i64 %y
}
define ptr @table_address() uwtable {
  %y = load ptr, ptr @pointers
  ret ptr %y
}
"""
UNARY = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)
shared = ctypes.c_int64(12345)
outside = UNARY(lambda x: x + 1000)


def symbol(name):
    return {"outside": ctypes.cast(outside, ctypes.c_void_p).value, "shared": ctypes.addressof(shared)}[name]


@pytest.fixture(scope="module")
def obj():
    return words.compile_object(IR)


def check(symbols):
    def f(name, x=0):
        return UNARY(symbols[name])(x)
    assert f("twice", 21) == 42 and f("pick", 2) == 7
    assert f("ask", 5) == 1005                      # far away: through a stub
    assert f("read_shared") == 12345                # far away: through the table of addresses
    assert f("count", 3) == 41 and f("count", 3) == 41 + 42 and f("count", 99) == 43
    assert ctypes.c_int64.from_address(f("table_address")).value == 5


def test_load(obj):
    symbols = elf.load_elf(obj, symbol)
    check(symbols)
    assert set(symbols) == {"table", "pointers", "counter", "space", "twice", "ask", "read_shared", "count", "pick",
                            "table_address"}


def test_two_loads_are_independent(obj):
    check(elf.load_elf(obj, symbol))
    check(elf.load_elf(obj, symbol))


def test_load_by_llvm(obj):
    exports = ["twice", "ask", "read_shared", "count", "pick", "table_address"]
    check(elf.load_by_llvm(obj, symbol, ["outside", "shared"], exports))


def test_memory_is_never_writable_and_executable(obj):
    symbols = elf.load_elf(obj, symbol)
    with open("/proc/self/maps") as f:
        maps = [line.split(None, 2) for line in f]

    def rights(address):
        return next(m[1] for m in maps if int(m[0].split("-")[0], 16) <= address < int(m[0].split("-")[1], 16))
    assert rights(symbols["twice"]).startswith("r-x") and rights(symbols["table"]).startswith("r-x")
    assert rights(symbols["counter"]).startswith("rw-")


def test_threads(obj):
    errors = []

    def work():
        try:
            for _ in range(20):
                check(elf.load_elf(obj, symbol))
        except BaseException as e:
            errors.append(e)
    threads = [threading.Thread(target=work) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not errors


def test_an_unknown_symbol(obj):
    with pytest.raises(KeyError, match="outside"):
        elf.load_elf(obj, {"shared": 0}.__getitem__)


def test_executable_memory_refused(obj, monkeypatch):
    class Refusing:
        def mprotect(self, *args):
            ctypes.set_errno(13)
            return -1
    monkeypatch.setattr(elf, "_libc", Refusing)
    with pytest.raises(Unavailable, match="refuses to make memory executable"):
        elf.load_elf(obj, symbol)


@pytest.mark.parametrize("data", [b"", b"\x7fELF", b"\x7fELF\x01\x01" + bytes(200), b"MZ" + bytes(500), bytes(64)])
def test_other_files(data):
    with pytest.raises(ObjectFileError):
        elf.load_elf(data, symbol)


def test_another_machine(obj):
    data = bytearray(obj)
    struct.pack_into("<H", data, 18, 183)           # aarch64
    with pytest.raises(ObjectFileError, match="machine 183"):
        elf.load_elf(bytes(data), symbol)
    struct.pack_into("<HH", data, 16, 3, 62)        # a shared library
    with pytest.raises(ObjectFileError, match="type 3"):
        elf.load_elf(bytes(data), symbol)


def test_every_truncation_is_an_error(obj):
    for n in range(0, len(obj), 7):
        with pytest.raises(ObjectFileError):
            elf.load_elf(obj[:n], symbol)


def damage(obj, seed, rounds):
    """Load many damaged copies. What loads in spite of it (damaged code, say) is not run."""
    rng, loaded = random.Random(seed), 0
    for _ in range(rounds):
        data = bytearray(obj)
        for _ in range(rng.choice((1, 1, 2, 8))):
            data[rng.randrange(len(data))] = rng.choice((0, 0xFF, 0x80, rng.randrange(256)))
        try:
            elf.load_elf(bytes(data), lambda name: 4096)
            loaded += 1
        except (ObjectFileError, Unavailable):
            pass
    return loaded


@pytest.mark.parametrize("rounds", [600, pytest.param(20_000, marks=pytest.mark.slow)])
def test_damage_is_an_error(obj, rounds):
    """In a process of its own, as a crash would end this one."""
    pid = os.fork()
    if pid == 0:
        try:
            code = 0 if damage(obj, rounds, rounds) < rounds else 2
        except BaseException:
            import traceback
            traceback.print_exc()
            code = 1
        os._exit(code)
    assert os.waitpid(pid, 0)[1] == 0




def test_resolve_knows_python_libc_and_libtorch():
    assert resolve("PyFloat_Type") and resolve("free") and resolve("torch_library_impl")
    with pytest.raises(Unavailable, match="no_such_symbol"):
        resolve("no_such_symbol")
