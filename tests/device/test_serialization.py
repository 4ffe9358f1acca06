"""torch.save and torch.load with every form of map_location; pickle; copies."""
import copy
import io
import pickle

import pytest
import torch
from torch import nn


def saved(obj):
    buffer = io.BytesIO()
    torch.save(obj, buffer)
    buffer.seek(0)
    return buffer


@pytest.mark.parametrize(("where", "device"), [
    (None, "neuron"), ("neuron", "neuron"), ("neuron:0", "neuron"), (torch.device("neuron"), "neuron"), ("cpu", "cpu"),
    (torch.device("cpu"), "cpu"), ({"neuron:0": "cpu"}, "cpu"), ({"cpu": "neuron:0"}, "neuron"),
    (lambda storage, location: storage, "cpu"), (lambda storage, location: storage.neuron(), "neuron"),
    (lambda storage, location: None, "neuron"),
])
def test_map_location_of_a_neuron_tensor(where, device):
    x = torch.randn(4, device="neuron")
    y = torch.load(saved(x), map_location=where)
    assert y.device.type == device and torch.equal(y.cpu(), x.cpu())


@pytest.mark.parametrize(("where", "device"), [
    (None, "cpu"), ("neuron", "neuron"), (torch.device("neuron:0"), "neuron"), ({"cpu": "neuron:0"}, "neuron"),
    (lambda storage, location: storage.neuron(), "neuron"),
])
def test_map_location_of_a_cpu_tensor(where, device):
    x = torch.arange(3.0)
    y = torch.load(saved(x), map_location=where)
    assert y.device.type == device and torch.equal(y.cpu(), x)


def test_shared_storage_is_kept():
    x = torch.randn(4, device="neuron")
    d = torch.load(saved({"x": x, "tail": x[1:], "state": nn.Linear(3, 3).neuron().state_dict()}))
    d["x"][1] = 99.0
    assert d["tail"][0].item() == 99.0 and d["state"]["weight"].is_neuron


@pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.bfloat16, torch.float16, torch.float64, torch.cfloat,
                                   torch.float8_e4m3fn, torch.uint16])
def test_dtypes(dtype):
    x = torch.tensor([0, 1, 1]).to(dtype).neuron()
    y = torch.load(saved(x))
    assert y.dtype == dtype and torch.equal(y.cpu().float() if dtype != torch.cfloat else y.cpu(),
                                            x.cpu().float() if dtype != torch.cfloat else x.cpu())


def test_non_contiguous_and_parameters():
    x = torch.randn(3, 4, device="neuron").t()[1:]
    y = torch.load(saved(x))
    assert y.stride() == x.stride() and torch.equal(y.cpu(), x.cpu())
    p = torch.load(saved(nn.Parameter(x)))
    assert type(p) is nn.Parameter and p.requires_grad and p.is_neuron


def test_legacy_format_and_mmap(tmp_path):
    x = torch.randn(4, device="neuron")
    buffer = io.BytesIO()
    torch.save(x, buffer, _use_new_zipfile_serialization=False)
    buffer.seek(0)
    assert torch.equal(torch.load(buffer).cpu(), x.cpu())
    torch.save(x, tmp_path / "x.pt")
    assert torch.equal(torch.load(tmp_path / "x.pt", mmap=True).cpu(), x.cpu())
    assert torch.equal(torch.load(tmp_path / "x.pt", mmap=True, map_location="cpu"), x.cpu())


def test_optimizer_and_generator_states():
    m = nn.Linear(2, 2).neuron()
    o = torch.optim.AdamW(m.parameters())
    m(torch.ones(1, 2, device="neuron")).sum().backward()
    o.step()
    state = torch.load(saved(o.state_dict()))
    torch.optim.AdamW(m.parameters()).load_state_dict(state)
    g = torch.Generator(device="neuron").manual_seed(5)
    again = pickle.loads(pickle.dumps(g))
    assert again.device == g.device and torch.equal(again.get_state(), g.get_state())


def test_loading_where_the_device_is_absent(python, tmp_path):
    torch.save({"x": torch.arange(3.0, device="neuron")}, tmp_path / "x.pt")
    assert "[0.0, 1.0, 2.0]" in python("""
import torch
print(torch.load("x.pt", map_location="cpu")["x"].tolist())
print(torch.load("x.pt", map_location={"neuron:0": "cpu"})["x"].tolist())
""")
    error = python("import torch; torch.load('x.pt')", fails=True)
    assert "don't know how to restore data location of torch.storage.UntypedStorage (tagged with neuron:0)" in error


def test_pickle():
    x = torch.randn(3, 4).neuron()[1:]
    y = pickle.loads(pickle.dumps(x))
    assert y.is_neuron and torch.equal(x.cpu(), y.cpu())
    whole, part = pickle.loads(pickle.dumps([x, x[0]]))
    assert torch.equal(part.cpu(), whole[0].cpu())


def test_deepcopy():
    x = torch.randn(3).neuron()
    y = copy.deepcopy(x)
    assert y.is_neuron and y.data_ptr() != x.data_ptr() and torch.equal(x.cpu(), y.cpu())
    m = copy.deepcopy(nn.Linear(2, 2).neuron())
    assert type(m.weight) is nn.Parameter and m.weight.is_neuron and m.weight.requires_grad
    both = copy.deepcopy([x, x[1:]])
    both[0][1] = 5
    assert both[1][0].item() == 5
    assert copy.copy(x).data_ptr() == x.data_ptr()


def test_state_dict_between_devices():
    a, b = nn.Linear(2, 2), nn.Linear(2, 2).neuron()
    b.load_state_dict(a.state_dict())
    assert torch.equal(b.weight.cpu(), a.weight) and b.weight.is_neuron
    c = nn.Linear(2, 2)
    c.load_state_dict(b.state_dict(), assign=True)
    assert c.weight.is_neuron


def test_numpy_is_refused_and_dlpack_is_not():
    x = torch.randn(3, device="neuron")
    with pytest.raises(TypeError, match=r"can't convert neuron:0 device type tensor to numpy"):
        x.numpy()
    assert x.__dlpack_device__() == (12, 0)
    y = torch.from_dlpack(x)
    assert y.is_neuron and y.data_ptr() == x.data_ptr()
