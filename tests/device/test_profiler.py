"""torch.profiler shows the ops that run on neuron, by name."""
import json

import torch
from torch.profiler import ProfilerActivity, profile


def test_ops_by_name(tmp_path):
    x = torch.randn(3, 3, device="neuron")
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as p:
        (x @ x + x).sum().item()
    names = {e.key for e in p.key_averages()}
    assert {"aten::mm", "aten::add", "aten::sum"} <= names
    shapes = {e.key: e.input_shapes for e in p.key_averages(group_by_input_shape=True)}
    assert shapes["aten::mm"][0] == [3, 3]
    p.export_chrome_trace(str(tmp_path / "trace.json"))
    assert any(e.get("name") == "aten::mm" for e in json.loads((tmp_path / "trace.json").read_text())["traceEvents"])


def test_the_device_activity_is_accepted():
    x = torch.randn(3, device="neuron")
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.PrivateUse1]) as p:
        x + x
    assert "aten::add" in {e.key for e in p.key_averages()}
    assert ProfilerActivity.PrivateUse1 == ProfilerActivity.NEURON


def test_backward_and_user_ranges():
    x = torch.randn(3, device="neuron", requires_grad=True)
    with profile(activities=[ProfilerActivity.CPU]) as p, torch.profiler.record_function("step"):
        (x * x).sum().backward()
    names = {e.key for e in p.key_averages()}
    assert {"step", "aten::mul"} <= names and any("Backward" in n for n in names)
