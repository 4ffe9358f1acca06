"""Bad starts and bad input end in one message that says what to do."""
import pytest
import torch

from neuron_eager import errors
from neuron_eager.device import memory, selftest


def test_data_across_devices():
    p = torch.nn.Parameter(torch.ones(2))
    with pytest.raises(errors.DataAssignmentError, match="on cpu can not be set to a tensor on neuron:0.*module.to"):
        p.data = torch.ones(2, device="neuron")
    with pytest.raises(errors.DataAssignmentError, match="tensor on neuron:0 can not be set to a tensor on cpu"):
        torch.ones(2, device="neuron").data = torch.ones(2)
    p.data = torch.zeros(3)
    assert p.shape == (3,)
    with pytest.raises(TypeError):
        p.data = 3


def test_a_second_owner_of_the_device(python):
    for register, name in (("torch.utils.rename_privateuse1_backend('neuron')", "neuron"),
                           ("torch.utils.rename_privateuse1_backend('foo')", "foo")):
        error = python(f"""
import sys, types, torch
{register}
module = types.ModuleType("torch_neuronx.neuron")
torch._register_device_module({name!r}, module)
import neuron_eager
""", fails=True)
        assert "DeviceOwnedError" in error and "torch_neuronx.neuron" in error
        assert "TORCH_DEVICE_BACKEND_AUTOLOAD=0" in error
        assert error.count("Traceback") == 1


def test_a_missing_private_name_is_named(monkeypatch):
    monkeypatch.delattr(torch._C, "_to_dlpack")
    with pytest.raises(errors.UnsupportedTorchError, match=r"torch\._C\._to_dlpack.*2\.13 and 2\.14"):
        selftest.check_names()


def test_a_torch_without_them_is_refused_at_import(python):
    error = python("import torch; del torch._C._to_dlpack; import neuron_eager", fails=True)
    assert "UnsupportedTorchError" in error and "torch._C._to_dlpack" in error and error.count("Traceback") == 1


def test_dlpack_that_copies_is_noticed(monkeypatch):
    plain = memory.retag
    monkeypatch.setattr(memory, "retag", lambda t, *rest: plain(t.contiguous() if t.is_cpu else t, *rest))
    with pytest.raises(errors.UnsupportedTorchError, match="zero-copy"):
        selftest.check_memory()


def test_import_is_light(python):
    out = python("""
import sys, torch
before = set(sys.modules)
import neuron_eager
new = set(sys.modules) - before
print([m for m in ("torch._dynamo", "llvmlite", "diskcache", "rich", "transformers", "sympy") if m in new])
""")
    assert out == "[]\n"


def test_importing_torch_does_not_load_the_device(python):
    assert python("import sys, torch; print('neuron_eager' in sys.modules)") == "False\n"
    loaded = python("import torch; print(torch.ones(2, device='neuron').device)", NEURON_EAGER_AUTOLOAD="1")
    assert loaded == "neuron:0\n"


def test_sparse_tensors_are_refused():
    with pytest.raises(NotImplementedError, match="sparse"):
        torch.eye(3).to_sparse().to("neuron")
    with pytest.raises(NotImplementedError, match="sparse"):
        torch.eye(3, device="neuron").to_sparse()
