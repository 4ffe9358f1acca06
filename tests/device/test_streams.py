"""Streams and events of a device on which every op has finished when it returns."""
import time

import pytest
import torch


def test_streams():
    default = torch.neuron.default_stream()
    assert torch.neuron.current_stream() == default and torch.neuron.current_stream() is default
    s = torch.neuron.Stream()
    assert isinstance(s, torch.Stream) and isinstance(s, torch.neuron.Stream) and s != default
    assert s.device == torch.device("neuron:0") and s.query() and hash(s) != hash(default)
    with torch.neuron.stream(s):
        assert torch.neuron.current_stream() is s is torch.accelerator.current_stream()
        x = torch.ones(3, device="neuron") + 1
        with torch.neuron.stream(None):
            assert torch.neuron.current_stream() is s
    assert torch.neuron.current_stream() is default and x.tolist() == [2, 2, 2]
    torch.neuron.set_stream(s)
    torch.neuron.set_stream(None)
    assert torch.neuron.current_stream() is s
    torch.accelerator.set_stream(default)
    assert torch.neuron.current_stream() is default
    s.synchronize()
    s.wait_stream(default)
    torch.neuron.wait_stream(s)
    assert torch.neuron.query()
    x.record_stream(s)
    assert "neuron:0" in repr(s)


def test_events():
    s = torch.neuron.Stream()
    a, b = torch.neuron.Event(enable_timing=True), torch.neuron.Event(enable_timing=True)
    assert a.query()
    a.record()
    time.sleep(0.01)
    b.record(s)
    assert a.elapsed_time(b) >= 10 and b.elapsed_time(a) < 0
    a.synchronize()
    a.wait()
    s.wait_event(a)
    torch.neuron.wait_event(a)
    assert isinstance(torch.neuron.record_event(), torch.Event) and s.record_event(a) is a
    assert a.device == torch.device("neuron:0")


def test_events_without_times():
    a, b = torch.neuron.Event(), torch.neuron.Event(enable_timing=True)
    with pytest.raises(ValueError, match="enable_timing"):
        a.elapsed_time(b)
    with pytest.raises(RuntimeError, match="recorded"):
        b.elapsed_time(torch.neuron.Event(enable_timing=True))


def test_the_names_of_torch_make_neuron_ones():
    for s in (torch.Stream("neuron"), torch.Stream(), torch.Stream(device="neuron:0")):
        assert type(s) is torch.neuron.Stream
    assert type(torch.Event()) is torch.neuron.Event is type(torch.Event("neuron", enable_timing=True))
    s = torch.Stream()
    with s:
        e = s.record_event()
    e.synchronize()
    assert e.query() and isinstance(s, torch.Stream) and not isinstance(3, torch.Event)
    same = torch.Stream(stream_id=s.stream_id, device_index=s.device_index, device_type=s.device_type)
    assert same == s


def test_accelerator_timing_recipe():
    start, end = torch.Event(enable_timing=True), torch.Event(enable_timing=True)
    start.record()
    torch.randn(100, device=torch.accelerator.current_accelerator()).sum()
    end.record()
    torch.accelerator.synchronize()
    assert start.elapsed_time(end) > 0
