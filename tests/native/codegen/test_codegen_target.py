"""Targets: detection, keys, pretended CPUs, and which of them generate code."""
from __future__ import annotations

import struct

import pytest

from neuron_eager.config import config
from neuron_eager.errors import Unavailable
from neuron_eager.native import library, objects, target
from neuron_eager.native.build import Build, function, new_module
from neuron_eager.native.irtypes import I64, PTR
from neuron_eager.native.vmath import UNARY


def test_key_names_everything_an_object_depends_on():
    text = target.host().key_text
    assert f"llvmlite {target.llvmlite_version()}" in text and target.source_digest() in text
    assert target.host().identity in text and target.host().triple in text
    keys = {objects.key_of("program", t) for t in (target.host(), *target.PRETEND.values())}
    assert len(keys) == 1 + len(target.PRETEND)
    assert objects.key_of("program", target.host()) != objects.key_of("programme", target.host())


def test_pretend_is_for_a_block():
    before = target.current()
    with target.pretend("x86-64-v3") as v3:
        assert target.current() is v3 and v3.lanes == 8 and not v3.bf16_dot
        with target.pretend("x86-64-v4"):
            assert target.current().lanes == 16
        assert target.current() is v3
    assert target.current() is before


def test_the_setting_is_for_the_process():
    with config.override(cpu="x86-64-v3"):
        assert target.current().lanes == 8
        with target.pretend("x86-64-v4"):
            assert target.current().lanes == 16
    assert target.current() is target.host()


def test_cpus_without_fma_are_refused_by_name():
    old = target.PRETEND["x86-64"]
    assert "avx2" in old.lacking and "fma" in old.lacking
    with pytest.raises(Unavailable, match="x86-64-v3 is needed"):
        objects.obtain("test", "refused", lambda: "", old)


def every_function(t):
    """A module with all float functions, conversions and masked accesses."""
    module = new_module("all", t)
    build = Build(function(module, "all", PTR, PTR, I64), t)
    source, to, n = build.fn.args

    def turn(i, _):
        mask = build.below(i, n)
        v = build.vload(build.at(source, (i, 4)), "float32", mask)
        for name in UNARY:
            v = getattr(build.m, name)(v)
        for k, dtype in enumerate(("float32", "bfloat16", "float16", "float8_e4m3fn", "float64", "int8", "bool")):
            build.vstore(v, build.at(to, (i, 8), 4096 * k), dtype, mask)
    build.loop(0, n, build.W, turn)
    build.b.ret_void()
    return module


@pytest.mark.parametrize("name", ["x86-64-v3", "x86-64-v4", "aarch64"])
def test_compiles_for(name):
    """Only compiled, not run: aarch64, and whatever this machine is not."""
    t = target.PRETEND[name]
    machine = {"x86_64": 62, "aarch64": 183}[t.arch]
    for make in (lambda: every_function(t), *(lambda n=n: library.make(n, t) for n in (
            "mm_float32_float32_xn", "mm_bfloat16_bfloat16_rt", "gv_float16_float16_n", "tr_b4", "tr_f_bfloat16",
            "ne_parts"))):
        data = objects.compile_object(make, t)
        assert data[:4] == b"\x7fELF" and struct.unpack_from("<H", data, 18)[0] == machine
    imports = objects.elf_symbols(objects.compile_object(lambda: every_function(t), t))[0]
    assert set(imports) <= {"sinf", "cosf", "tanf"}, imports


def test_every_import_of_the_library_resolves():
    for name in ("mm_float32_float32_xn", "gv_float32_float32_t", "tr_b1", "ne_parallel"):
        assert library.address(name)
    assert library.resolve("sinf", target.host()) and library.resolve("fmodf", target.host())
    with pytest.raises(Unavailable, match="no_such_function"):
        library.resolve("no_such_function", target.host())
