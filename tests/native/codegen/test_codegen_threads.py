"""Parallel sections: how many threads, what they run, and what happens in a forked child."""
from __future__ import annotations

import ctypes
import os
import signal
import threading

import numpy as np
import pytest
import torch

from neuron_eager.native import library, threads
from neuron_eager.native.build import Build, function
from neuron_eager.native.irtypes import I64, PTR
from neuron_eager.native.target import host

LARGE = 100 * threads.GRAIN

pytestmark = pytest.mark.skipif(threads.openmp() is None, reason="torch brings no libgomp")


@pytest.fixture
def parts():
    return ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)(library.address("ne_parts", host()))


@pytest.fixture
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def test_small_work_takes_one_thread(parts, two_threads):
    assert parts(0, 10) == parts(threads.GRAIN, 10) == parts(2 * threads.GRAIN - 1, 10) == 1
    assert parts(LARGE, 1) == 1
    assert parts(2 * threads.GRAIN, 10) == parts(LARGE, 10) == 2 == threads.max_threads()


def test_torch_decides(parts, two_threads):
    torch.set_num_threads(1)
    assert parts(LARGE, 10) == 1 == threads.max_threads()
    seen = []
    other = threading.Thread(target=lambda: seen.append(parts(LARGE, 10)))
    other.start()
    other.join()
    assert seen == [1], "a Python thread that has run nothing of torch's"
    torch.set_num_threads(2)
    assert parts(LARGE, 10) == 2


def test_own_limit(parts, two_threads):
    threads.set_limit(1)
    try:
        assert parts(LARGE, 10) == 1
    finally:
        threads.set_limit(None)
    assert parts(LARGE, 10) == 2


def shared_rows(build, pointers, n):
    """Each row of the output gets 1000 * its part + parts, through a section over all rows."""
    body = function(build.module, "body", PTR, I64, I64, internal=True)
    inner = Build(body, build.target)
    data, part, parts = body.args
    r0, r1 = threads.emit_share(inner, inner.b.load(inner.at(data, 8), typ=I64), part, parts)
    out = inner.b.load(data, typ=PTR)
    value = inner.b.add(inner.b.mul(part, inner.i64(1000)), parts)
    inner.loop(r0, r1, 1, lambda r, _: inner.store_bits(value, inner.at(out, (r, 8))))
    inner.b.ret_void()
    job = build.stack(16)
    build.store_bits(build.b.ptrtoint(pointers[0], I64), job)
    build.store_bits(n, build.at(job, 8))
    count = threads.emit_parts(build, build.b.mul(n, build.i64(threads.GRAIN)), n)
    threads.emit_parallel(build, body, job, count)


@pytest.mark.parametrize("rows", [1, 2, 3, 7, 100])
def test_rows_are_shared_out(rows, run, two_threads):
    out = np.zeros(rows, np.int64)
    run(shared_rows, out)
    parts = min(2, rows)
    assert (out % 1000 == parts).all()
    assert (out // 1000).tolist() == [next(p for p in range(parts) if r < rows * (p + 1) // parts) for r in range(rows)]


def test_a_forked_child_runs_alone(run, parts, two_threads):
    """The parent has used the pool; the child must not touch it (it would hang)."""
    torch.randn(1 << 22).add_(1)
    assert parts(LARGE, 10) == 2
    out = np.zeros(50, np.int64)
    run(shared_rows, out)
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        run(shared_rows, out)
        alone = bool((out == 1).all()) and parts(LARGE, 10) == 1 and threads.max_threads() == 1
        os._exit(0 if alone else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert parts(LARGE, 10) == 2


def test_without_openmp_everything_runs_on_one_thread(monkeypatch):
    monkeypatch.setattr(threads, "openmp", lambda: None)
    assert threads.max_threads() == 1
    one = library.resolve("omp_get_num_threads", host())
    assert ctypes.CFUNCTYPE(ctypes.c_int)(one)() == 1
    assert library.resolve("ne_pool_size", host()) == one
