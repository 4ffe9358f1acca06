"""Registers and enumerations."""
import numpy as np
import pytest

import neuron_eager.nki.isa as nisa
import neuron_eager.nki.language as nl
from neuron_eager.errors import NkiTypeError, NkiValidationError
from neuron_eager.nki.isa.trial import Trial


@pytest.fixture
def t():
    with Trial() as trial:
        yield trial


def test_move_load_store(t):
    a, b = nisa.register_alloc(5), nisa.register_alloc()
    nisa.register_move(b, a)
    nisa.register_move(a, -7)
    nisa.register_store(out := t.empty((1, 2), nl.int32)[:, 0:1], b)
    assert out.numpy() == 5
    nisa.register_load(b, t.tile(np.int32([[123]]), "shared_hbm"))
    nisa.register_store(out, b)
    assert out.numpy() == 123
    nisa.register_store(wide := t.empty((1, 1), nl.float32), a)
    assert wide.numpy() == -7


def test_a_register_holds_32_bits(t):
    r = nisa.register_alloc()
    nisa.register_load(r, t.tile(np.uint32([[2 ** 32 - 1]])))
    nisa.register_store(out := t.empty((1, 1), nl.int32), r)
    assert out.numpy() == -1


def test_errors(t):
    r = nisa.register_alloc()
    with pytest.raises(NkiTypeError, match="has no value yet|before it has a value"):
        nisa.register_move(nisa.register_alloc(), r)
    with pytest.raises(NkiValidationError, match="has 2 elements; a register holds one"):
        nisa.register_load(r, t.tile(np.int32([[1, 2]])))
    with pytest.raises(NkiTypeError, match="dst must be a register"):
        nisa.register_move(3, r)
    with pytest.raises(NkiTypeError, match="x must be an int or None"):
        nisa.register_alloc(t.tile(np.int32([[1]])))
    with pytest.raises(NkiTypeError, match="condition of Python"):
        if r:
            pass


def test_enumerations_and_their_older_names():
    assert nisa.constants.engine is nisa.engine
    assert nisa.vector_engine is nisa.engine.vector
    assert nisa.unknown_engine is nisa.engine.unknown
    assert [e.name for e in nisa.reduce_cmd] == ["idle", "reset", "reduce", "reset_reduce", "load_reduce"]
    assert nisa.matmul_perf_mode.double_row.value == "double_row"


@pytest.mark.parametrize(("name", "version"), [("trn1", 2), ("inf2", 2), ("gen3", 3), ("trn3", 4)])
def test_nc_version_follows_the_target(monkeypatch, name, version):
    monkeypatch.setenv("NEURON_PLATFORM_TARGET_OVERRIDE", name)
    assert nisa.get_nc_version() is nisa.nc_version(version)
    assert nisa.get_nc_sub_version() == 0
    assert (nisa.get_nc_version() >= nisa.nc_version.gen3) == (version >= 3)


def test_the_target_defaults_to_trn3(monkeypatch):
    monkeypatch.delenv("NEURON_PLATFORM_TARGET_OVERRIDE", raising=False)
    assert nisa.get_nc_version() is nisa.nc_version.gen4
    with Trial("trn2"):
        assert nisa.get_nc_version() is nisa.nc_version.gen3


def test_handles_take_dependencies(t):
    a = nisa.memset(x := t.empty((1, 1)), 1.0)
    b = nisa.reciprocal(x, x)
    assert b.depends_on(a) is b
    assert isinstance(b, nisa.NkiInstruction)


def test_removed_instructions_say_what_replaces_them():
    with pytest.raises(AttributeError, match="removed in NKI 0.4; use tensor_copy"):
        nisa.tensor_copy_dynamic_src
    with pytest.raises(AttributeError, match="no instruction"):
        nisa.frobnicate


def test_a_call_outside_a_kernel_is_an_error():
    with pytest.raises(RuntimeError, match="only inside a kernel"):
        nisa.register_alloc(1)
