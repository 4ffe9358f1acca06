"""Storages: making, resizing, bytes, pointers."""
import copy

import pytest
import torch


def test_construction():
    s = torch.UntypedStorage(16, device="neuron")
    assert s.nbytes() == 16 and s.device == torch.device("neuron:0") and s.is_neuron
    assert torch.UntypedStorage(device="neuron").nbytes() == 0
    assert bytes(torch.UntypedStorage([1, 2, 3], device="neuron").cpu()) == b"\x01\x02\x03"
    assert torch.UntypedStorage(4).device.type == "cpu"
    assert torch.TypedStorage(3, dtype=torch.float32, device="neuron").device.type == "neuron"


def test_a_tensor_on_a_storage():
    s = torch.UntypedStorage([0] * 12, device="neuron")
    x = torch.empty(0, device="neuron").set_(s, 0, (3,))
    x.fill_(2.0)
    assert x.data_ptr() == s.data_ptr()
    assert torch.frombuffer(bytearray(bytes(s.cpu())), dtype=torch.float32).tolist() == [2.0] * 3


def test_resize_keeps_bytes_and_views():
    x = torch.arange(4.0, device="neuron")
    view = x[1:]
    s = x.untyped_storage()
    s.resize_(32)
    assert s.nbytes() == 32 and view.data_ptr() == s.data_ptr() + 4
    assert x.tolist() == [0, 1, 2, 3]
    s.resize_(8)
    assert s.nbytes() == 8
    s.resize_(0)
    assert s.nbytes() == 0 and x.untyped_storage().data_ptr() == 0
    s.resize_(16)
    x.fill_(3.0)
    assert view.tolist() == [3, 3, 3]


def test_copy_clone_fill():
    a = torch.UntypedStorage([1, 2, 3, 4], device="neuron")
    b = torch.UntypedStorage(4, device="neuron").copy_(a)
    assert bytes(b.cpu()) == b"\x01\x02\x03\x04"
    assert bytes(a.clone().cpu()) == bytes(b.cpu())
    b.fill_(7)
    assert bytes(b.cpu()) == b"\x07" * 4
    c = torch.UntypedStorage(4).copy_(b)
    assert bytes(c) == b"\x07" * 4 and a.tolist() == [1, 2, 3, 4]
    assert copy.deepcopy(a).data_ptr() != a.data_ptr()


def test_items():
    s = torch.UntypedStorage([5, 6], device="neuron")
    assert s[1] == 6
    s[0] = 9
    assert s.tolist() == [9, 6]


def test_move_to():
    s = torch.UntypedStorage([1, 2])
    assert s.to(device="neuron").device.type == "neuron"
    assert s.neuron().neuron() is not None


def test_identity_of_a_storage():
    x = torch.ones(3, device="neuron")
    assert x.untyped_storage() is x[1:].untyped_storage()
    assert x.storage().dtype == torch.float32


def test_set_across_devices_is_refused():
    with pytest.raises(RuntimeError):
        torch.ones(3, device="neuron").set_(torch.ones(3).untyped_storage())
