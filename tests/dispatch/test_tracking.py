"""What ran: TorchNeuron's three functions, the op report, scopes."""
import io
import json
import threading

import pytest
import torch

import neuron_eager
from neuron_eager import clear_op_tracking, get_executed_ops, get_fallback_ops, op_report, track_ops
from neuron_eager.dispatch import tracking

pytestmark = pytest.mark.usefixtures("without_kernels")


def test_names_are_those_of_torchneuron():
    x = torch.ones(2, 2).to("neuron")
    _ = x @ x, x + x, x + x, x.view(4), x.t()
    assert get_fallback_ops() == ["aten::add.Tensor", "aten::mm"]
    assert get_executed_ops() == ["aten::as_strided", "aten::view"]
    clear_op_tracking()
    assert get_fallback_ops() == [] and get_executed_ops() == []
    _ = x @ x
    assert get_fallback_ops() == ["aten::mm"]


def test_kernels_are_executed_ops():
    neuron_eager.register_kernel("aten::relu", lambda self: self.clone())
    torch.ones(2).to("neuron").relu()
    assert "aten::relu" in get_executed_ops() and "aten::relu" not in get_fallback_ops()


def test_printing_records_nothing():
    x = torch.randn(3, 4).to("neuron")
    clear_op_tracking()
    assert "device='neuron:0'" in repr(x)
    f"{x[0, 0]}", x.tolist()
    clear_op_tracking() if get_executed_ops() == ["aten::as_strided"] else None
    repr(x)
    assert get_fallback_ops() == [] and get_executed_ops() == []


def test_the_report_has_shapes_calls_reason_and_the_line():
    x = torch.ones(2, 17).to("neuron")
    for _ in range(4):
        _ = x * x
    _ = x[:1] * x[:1]
    rows = [r for r in op_report() if r.op == "aten::mul.Tensor"]
    assert {(r.shapes, r.calls) for r in rows} == {(((2, 17), (2, 17)), 4), (((1, 17), (1, 17)), 1)}
    for row in rows:
        assert row.route == "fallback" and row.reason == "no kernel" and row.dtypes == ("float32", "float32")
        assert row.place.startswith(__file__) and row.seconds is None
    assert next(r for r in rows if r.calls == 4).nbytes == 4 * 2 * 136


def test_forms_of_the_report():
    x = torch.ones(2, 3).to("neuron")
    _ = x * x, x[:1] * x[:1], x.view(6)
    report = op_report()
    text = repr(report)
    assert text.startswith("5 ops: 0 kernels, 3 views, 2 CPU fallbacks (40.0% of the calls")
    assert "aten::mul.Tensor" in text and "various" in text and "no kernel" in text
    assert "<td>aten::mul.Tensor</td>" in report._repr_html_()
    data = json.loads(report.to_json())
    assert data["summary"] == {"kernel_calls": 0, "view_calls": 3, "fallback_calls": 2}
    assert {tuple(map(tuple, r["shapes"])) for r in data["rows"] if r["op"] == "aten::mul.Tensor"} == {
        ((2, 3), (2, 3)), ((1, 3), (1, 3))}
    assert len(report.by_op()) == 3
    from rich.console import Console
    console = Console(width=160, record=True, file=io.StringIO())
    console.print(report)
    assert "aten::mul.Tensor" in console.export_text()
    clear_op_tracking()
    assert op_report().summary() == "no op ran on neuron"
    assert repr(report) == text                     # a report does not change


def test_a_scope_times_and_counts_its_own_ops():
    x = torch.ones(2, 3).to("neuron")
    _ = x * x
    with track_ops() as ops:
        _ = x * x, x * x, x.view(6)
        assert sum(r.calls for r in ops) == 3       # it follows while it is open
    _ = x * x
    rows = {r.op: r for r in ops}
    assert rows["aten::mul.Tensor"].calls == 2 and rows["aten::mul.Tensor"].seconds > 0
    assert rows["aten::view"].calls == 1
    assert next(r for r in op_report() if r.op == "aten::mul.Tensor").calls == 4


def test_scopes_nest_and_survive_errors():
    x = torch.ones(2).to("neuron")
    with track_ops() as outer:
        with pytest.raises(RuntimeError), track_ops() as inner:
            _ = x * x
            _ = x @ torch.ones(3).to("neuron")
        _ = x * x
    assert sum(r.calls for r in inner if r.op == "aten::mul.Tensor") == 1
    assert sum(r.calls for r in outer if r.op == "aten::mul.Tensor") == 2
    before = [r.seconds for r in op_report()]
    _ = x * x
    assert [r.seconds for r in op_report()] == before       # no timing outside


def test_threads_are_counted_together():
    x = torch.ones(2).to("neuron")

    def work():
        for _ in range(500):
            x.mul(2.0)
            x.add(x)
    threads = [threading.Thread(target=work) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    calls = {}
    for r in op_report():
        calls[r.op] = calls.get(r.op, 0) + r.calls
    assert calls["aten::mul.Tensor"] == calls["aten::add.Tensor"] == 2000


def test_the_backward_pass_is_tracked():
    x = torch.ones(2, 2).to("neuron").requires_grad_()
    y = (x @ x).sum()
    clear_op_tracking()
    y.backward()
    assert "aten::mm" in get_fallback_ops()


def test_many_shapes_are_folded(monkeypatch):
    monkeypatch.setattr(tracking, "LIMIT", 16)
    before = len(tracking.records)
    for n in range(1, 101):
        torch.ones(n, device="cpu").to("neuron").erfinv()
    assert len(tracking.records) - before <= 20
    assert sum(r.calls for r in op_report() if r.op == "aten::erfinv") == 100


def test_a_call_that_fails_is_not_counted():
    with pytest.raises(RuntimeError):
        torch.ones(2, 3).to("neuron") @ torch.ones(2, 3).to("neuron")
    assert get_fallback_ops() == []
