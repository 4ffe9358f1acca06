"""Native view kernels and the native device guard, in a process of their own, as both stay for good."""
from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import pytest
import torch

from neuron_eager.config import config
from neuron_eager.errors import Unavailable
from neuron_eager.native import guard

PRELUDE = """
import gc, os, sys, threading
import torch, neuron_eager
from neuron_eager.native import views, guard
from neuron_eager.native.entry import runtime
rt = runtime()
c = torch.arange(40.).view(5, 8)
x = rt.to_neuron(c.clone(), 0)

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

def refcount(t):
    return torch._C._storage_Use_Count(t.untyped_storage()._cdata)
"""


def run(code):
    done = subprocess.run([sys.executable, "-W", "error::UserWarning", "-c", PRELUDE + textwrap.dedent(code)],
                          capture_output=True, text=True, timeout=300,
                          env={**os.environ, "NEURON_EAGER_CACHE_DIR": str(config.cache_path)})
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_views_are_pytorch_s(rt):
    run("""
    assert views.register_views(rt) == views.register_views(rt) == {"as_strided", "view", "_reshape_alias"}
    kinds = [lambda t: t[1:3], lambda t: t.t(), lambda t: t.view(-1), lambda t: t.reshape(8, 5), lambda t: t[:, 2],
             lambda t: t.unsqueeze(1).expand(5, 3, 8), lambda t: t.flatten(), lambda t: t.as_strided((2, 2), (1, 2), 3),
             lambda t: t.as_strided((2, 2), (1, 2)), lambda t: t[2].view(2, 4), lambda t: t.view([1] * 70 + [40]),
             lambda t: t.as_strided([1] * 80, [1] * 80, 5)]
    for kind in kinds:
        v, e = kind(x), kind(c)
        assert v._base is x and v.shape == e.shape and v.stride() == e.stride()
        assert v.storage_offset() == e.storage_offset() and torch.equal(rt.to_cpu(v), e)
    assert set(views.calls()) == {"aten::as_strided", "aten::view", "aten::_reshape_alias"}
    before = views.calls()
    x[0], x.view(-1)
    assert [n - before[op] for op, n in views.calls().items()] == [1, 1, 0]
    v = x[1:3]
    version = x._version
    v.zero_()
    assert x._version == version + 1 and not rt.to_cpu(x)[1:3].any()
    with torch.inference_mode():
        assert not x[0:2].is_inference()
    w = rt.to_neuron(torch.ones(4), 0).requires_grad_()
    (w[1:3].view(2, 1) * 2).sum().backward()
    assert w.grad.cpu().tolist() == [0, 2, 2, 0]
    """)


def test_a_view_that_raises_leaks_nothing(rt):
    run("""
    views.register_views(rt)
    bad = [lambda t: t.view(3, 3), lambda t: t.t().view(40), lambda t: t.as_strided((100,), (1,)),
           lambda t: t.view(-1, -1), lambda t: t.as_strided((2,), (1, 1)), lambda t: t.view([2] * 70)]
    uses, live = refcount(x), rt.memory()["allocated"]
    def once():
        for b in bad:
            messages = []
            for t in (x, c):
                try:
                    b(t)
                except RuntimeError as e:
                    messages.append(str(e).split("\\n")[0])
            assert len(messages) == 2 and messages[0] == messages[1], messages
    for _ in range(200):
        once()
    before = resident()
    for _ in range(2000):
        try:
            x.view(3, 3)
        except RuntimeError:
            pass
    gc.collect()
    assert refcount(x) == uses and rt.memory()["allocated"] == live
    assert resident() - before < 1 << 20
    y = x[0]
    del y
    before = resident()
    for _ in range(50000):
        x[1:3], x.view(-1)
    assert resident() - before < 1 << 20 and refcount(x) == uses
    """)


def test_views_in_threads(rt):
    run("""
    views.register_views(rt)
    before = views.calls()["aten::view"]
    def work():
        for i in range(3000):
            assert x.view(-1)[i % 40] is not None
    threads = [threading.Thread(target=work) for _ in range(4)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert views.calls()["aten::view"] - before == 12000
    """)


@pytest.mark.skipif(not torch.__version__.startswith(guard.VERSIONS), reason="the guard is for other versions of torch")
def test_the_native_guard(rt):
    run("""
    guard.install_guard(rt)
    guard.install_guard(rt)
    for index in (0,):
        w = rt.to_neuron(torch.ones(4), index).requires_grad_()
        y = (w * w + w)[1:3]
        y.sum().backward()
        assert w.grad.cpu().tolist() == [0, 3, 3, 0] and w.grad.device == w.device
    assert torch.neuron.current_device() == 0
    def work():
        v = rt.to_neuron(torch.ones(3), 0).requires_grad_()
        (v * 2).sum().backward()
        results.append(v.grad.cpu().tolist())
    results = []
    t = threading.Thread(target=work)
    t.start(); t.join()
    assert results == [[2, 2, 2]]
    pid = os.fork()
    if pid == 0:
        work()
        os._exit(0 if len(results) == 2 else 1)
    assert os.waitpid(pid, 0)[1] == 0
    guard.uninstall_guard()
    work()
    assert len(results) == 2
    """)


def test_where_the_guard_is_unavailable(rt, monkeypatch):
    with config.override(native_guard=False), pytest.raises(Unavailable, match="NATIVE_GUARD=0"):
        guard.install_guard(rt)
    monkeypatch.setattr(torch, "__version__", "2.99.0")
    with pytest.raises(Unavailable, match="known for torch"):
        guard.install_guard(rt)
    monkeypatch.undo()
    monkeypatch.setattr(guard, "REGISTRY", "_ZN3c10nothing")
    if torch.__version__.startswith(guard.VERSIONS):
        with pytest.raises(Unavailable, match="not found"):
            guard.install_guard(rt)
