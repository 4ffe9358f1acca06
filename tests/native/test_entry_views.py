"""Native view kernels and the native device guard, each in a forked child, as both stay in a process for good."""
from __future__ import annotations

import gc
import os
import threading
import traceback

import pytest
import torch

from neuron_eager.config import config
from neuron_eager.errors import Unavailable
from neuron_eager.native import guard, views


def in_a_child(test):
    """The test as a function that runs in a forked child."""
    def wrapper(rt):
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                test(rt)
                code = 0
            except BaseException:
                traceback.print_exc()
            os._exit(code)
        assert os.waitpid(pid, 0)[1] == 0, "see the child's traceback above"
    wrapper.__name__ = test.__name__
    return wrapper


def resident():
    with open("/proc/self/statm") as f:
        return int(f.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def storage_uses(t):
    return torch._C._storage_Use_Count(t.untyped_storage()._cdata)




KINDS = [lambda t: t[1:3], lambda t: t.t(), lambda t: t.view(-1), lambda t: t.reshape(8, 5), lambda t: t[:, 2],
         lambda t: t.unsqueeze(1).expand(5, 3, 8), lambda t: t.flatten(), lambda t: t.as_strided((2, 2), (1, 2), 3),
         lambda t: t.as_strided((2, 2), (1, 2)), lambda t: t[2].view(2, 4), lambda t: t.view([1] * 70 + [40]),
         lambda t: t.as_strided([1] * 80, [1] * 80, 5)]
WRONG = [lambda t: t.view(3, 3), lambda t: t.t().view(40), lambda t: t.as_strided((100,), (1,)),
         lambda t: t.view(-1, -1), lambda t: t.as_strided((2,), (1, 1)), lambda t: t.view([2] * 70)]


@in_a_child
def test_views_are_pytorch_s(rt):
    c = torch.arange(40.).view(5, 8)
    x = rt.to_neuron(c.clone(), 0)
    assert views.register_views(rt) == views.register_views(rt) == {"as_strided", "view", "_reshape_alias"}
    for kind in KINDS:
        v, e = kind(x), kind(c)
        assert v._base is x and v.shape == e.shape and v.stride() == e.stride()
        assert v.storage_offset() == e.storage_offset() and torch.equal(rt.to_cpu(v), e)
    views.clear_calls()
    x[0], x.view(-1)
    assert views.calls() == {"aten::as_strided": 1, "aten::view": 1, "aten::_reshape_alias": 0}
    v = x[1:3]
    version = x._version
    v.zero_()
    assert x._version == version + 1 and not rt.to_cpu(x)[1:3].any()
    with torch.inference_mode():
        assert not x[0:2].is_inference()
    w = rt.to_neuron(torch.ones(4), 0).requires_grad_()
    (w[1:3].view(2, 1) * 2).sum().backward()
    assert w.grad.cpu().tolist() == [0, 2, 2, 0]


@in_a_child
def test_a_view_that_raises_leaks_nothing(rt):
    views.register_views(rt)
    c = torch.arange(40.).view(5, 8)
    x = rt.to_neuron(c.clone(), 0)
    gc.collect()
    uses, live = storage_uses(x), rt.memory()["allocated"]
    for _ in range(100):
        for wrong in WRONG:
            messages = []
            for t in (x, c):
                with pytest.raises(RuntimeError) as caught:
                    wrong(t)
                messages.append(str(caught.value).split("\n")[0])
            assert messages[0] == messages[1]
    for _ in range(2):                          # the first brings all pages in
        before = resident()
        for _ in range(3000):
            try:
                x.view(3, 3)
            except RuntimeError:
                pass
        for _ in range(20000):
            x[1:3], x.view(-1)
        gc.collect()
    assert resident() - before < 1 << 20
    assert storage_uses(x) == uses and rt.memory()["allocated"] == live


@in_a_child
def test_views_in_threads(rt):
    views.register_views(rt)
    views.clear_calls()
    x = rt.to_neuron(torch.arange(40.).view(5, 8), 0)

    def work():
        for i in range(3000):
            assert x.view(-1)[i % 40] is not None
    threads = [threading.Thread(target=work) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert views.calls()["aten::view"] == 12000


@pytest.mark.skipif(not torch.__version__.startswith(guard.VERSIONS), reason="the guard is for other versions of torch")
@in_a_child
def test_the_native_guard(rt):
    guard.install_guard(rt)
    guard.install_guard(rt)
    w = rt.to_neuron(torch.ones(4), 0).requires_grad_()
    (w * w + w)[1:3].sum().backward()
    assert w.grad.cpu().tolist() == [0, 3, 3, 0] and w.grad.device == w.device
    assert torch.neuron.current_device() == 0
    results = []

    def work():
        v = rt.to_neuron(torch.ones(3), 0).requires_grad_()
        (v * 2).sum().backward()
        results.append(v.grad.cpu().tolist())
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    pid = os.fork()
    if pid == 0:
        work()
        os._exit(0 if len(results) == 2 else 1)
    assert os.waitpid(pid, 0)[1] == 0
    guard.uninstall_guard()
    work()
    assert results == [[2, 2, 2]] * 2


def test_where_the_guard_is_unavailable(rt, monkeypatch):
    with config.override(native_guard=False), pytest.raises(Unavailable, match="NATIVE_GUARD=0"):
        guard.install_guard(rt)
    monkeypatch.setattr(torch, "__version__", "2.99.0")
    with pytest.raises(Unavailable, match="known for torch"):
        guard.install_guard(rt)
    monkeypatch.undo()
    if torch.__version__.startswith(guard.VERSIONS):
        monkeypatch.setattr(guard, "_installed", [])
        monkeypatch.setattr(guard, "REGISTRY", "_ZN3c10nothing")
        with pytest.raises(Unavailable, match="not found"):
            guard.install_guard(rt)
