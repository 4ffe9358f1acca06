"""inspect, lint, collectives, debugger detection."""
from __future__ import annotations

import bdb
import sys
import threading

import numpy as np
import pytest
import torch

from neuron_eager import nki
from neuron_eager.errors import NkiNotImplementedError, NkiTypeError
from neuron_eager.nki import collectives
from neuron_eager.nki import isa as nisa
from neuron_eager.nki import language as nl
from neuron_eager.nki.debugging import stops_in


@nki.jit
def matmul(x, y):
    p = nl.ndarray((x.shape[1], y.shape[1]), nl.float32, buffer=nl.psum)
    for k in range(0, x.shape[0], 128):
        nisa.nc_matmul(dst=p, stationary=nl.load(x[k:k + 128]), moving=nl.load(y[k:k + 128]), accumulate=k > 0)
    out = nl.ndarray(p.shape, nl.float32, buffer=nl.shared_hbm, name="out")
    nl.store(out, nl.copy(p))
    return out


# ---- inspect

def test_inspect_counts_and_accounts():
    report = nki.inspect(matmul, ((256, 64), "bfloat16"), ((256, 512), "bfloat16"), target="trn2")
    assert report.ops == {"dma_copy": 5, "nc_matmul": 2, "tensor_copy": 1}
    assert report.engines == {"dma": 5, "tensor": 2, "vector": 1}
    assert report.hbm_read == 256 * (64 + 512) * 2 and report.hbm_written == 64 * 512 * 4
    assert report.psum.nbytes == 2048 and report.sbuf.nbytes == 2048
    assert report.busy["tensor"] == pytest.approx(2 * 512 / 2400)
    assert 0 < report.least_microseconds <= report.most_microseconds
    text = str(report)
    assert "matmul on trn2" in text and "PSUM peak" in text and f"{__file__}:" in text and "nc_matmul(" in text
    assert "<table>" in report._repr_html_() and "nc_matmul" in report._repr_html_()
    assert repr(report)


def test_inspect_takes_arrays_and_fake_tensors():
    a, b = np.zeros((128, 64), np.float32), np.zeros((128, 32), np.float32)
    for args in ((a, b), (torch.from_numpy(a), torch.from_numpy(b)),
                 (torch.empty(128, 64, device="meta"), torch.empty(128, 32, device="meta"))):
        assert nki.inspect(matmul, *args).ops["nc_matmul"] == 1
    with pytest.raises(NkiTypeError, match="missing a required argument"):
        nki.inspect(matmul, a)


# ---- lint

def helper(t):
    return {1: t}


@nki.jit
def doubtful(x, *, scale=1, items=[]):  # noqa: B006
    if x is None:
        return None
    total = {i for i in range(3)}
    try:
        big = 1 << 40
        big = 1099511627776
    except ValueError:
        pass

    class Config:
        pass

    for i in nl.affine_range(2):
        np.zeros(3)
        helper(i)
    return total, big, Config


def test_lint():
    found = nki.lint(doubtful)
    text = "\n".join(map(str, found))
    for problem in ("`is` is not part", "keyword-only parameters of doubtful", "a set comprehension", "try is not part",
                    "1099511627776 does not fit 32 bits", "class Config does not derive",
                    "nl.affine_range is deprecated", "np.zeros inside a kernel", "a dict key that is not a string"):
        assert problem in text, problem
    with open(__file__) as source:
        line = next(i for i, text in enumerate(source, 1) if "if x is None" in text and "next" not in text)
    assert any(f.line == line and f.file == __file__ for f in found)
    assert nki.lint(matmul) == []


# ---- collectives of one rank

def test_collectives_of_one_rank():
    @nki.jit
    def kernel(x):
        group = collectives.ReplicaGroup([[0]])
        outs = [nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm) for _ in range(6)]
        collectives.all_reduce([x], [outs[0]], group, nl.add)
        collectives.all_gather([x], [outs[1]], group, 0)
        collectives.reduce_scatter([x], [outs[2]], group, 0, nl.maximum)
        collectives.all_to_all([x], [outs[3]], group, 0)
        collectives.collective_permute([x], [outs[4]], [(0, 0)])
        collectives.collective_permute_implicit_reduce([[x]], [[x]], [[outs[5]]], group, nl.add)
        rank = nl.ndarray((1, 1), nl.int32)
        nisa.register_store(rank, collectives.rank_id())
        nisa.register_store(rank, collectives.collective_permute_implicit_current_processing_rank_id(0, group))
        ranks = nl.ndarray((1, 1), nl.int32, buffer=nl.shared_hbm)
        nl.store(ranks, rank)
        return (*outs, ranks)

    x = np.arange(600, dtype=np.float32).reshape(200, 3)
    *results, doubled, rank = nki.simulate(kernel)(x)
    assert all(np.array_equal(r, x) for r in results) and np.array_equal(doubled, 2 * x) and rank[0, 0] == 0


def test_collectives_of_several_ranks_are_refused():
    @nki.jit
    def kernel(x):
        out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
        collectives.all_reduce([x], [out], collectives.ReplicaGroup([[0, 1]]), nl.add)
        return out

    with pytest.raises(NkiNotImplementedError, match=r"all_reduce over ranks \[0, 1\]: this machine has one rank"):
        nki.simulate(kernel)(np.ones((4, 4), np.float32))


def test_variable_length_collective():
    @nki.jit
    def kernel(x, metadata):
        out = nl.zeros(x.shape, x.dtype, buffer=nl.shared_hbm)
        counts = nl.ndarray((3, 1), metadata.dtype, buffer=nl.shared_hbm)
        nisa.dma_copy(dst=counts, src=metadata)
        collectives.all_gather_v([x], [out], collectives.ReplicaGroup([[0]]), counts)
        return out, counts

    x = np.arange(10, dtype=np.float32).reshape(10, 1)
    out, counts = nki.simulate(kernel)(x, np.array([[4], [3], [0]], np.uint32))
    assert out[:, 0].tolist() == [3, 4, 5, 6, 0, 0, 0, 0, 0, 0] and counts[:, 0].tolist() == [4, 3, 4]


# ---- who wants to stop inside a kernel

def stopping_helper(t):
    breakpoint()
    return t


@nki.jit
def stops_in_helper(x):
    return stopping_helper(x)


@nki.jit
def stops_itself(x):
    breakpoint()
    return x


def test_breakpoints_are_found_in_the_source():
    assert stops_in(stops_itself) == "it calls breakpoint()"
    assert stops_in(stops_in_helper) == "it calls breakpoint()"
    assert stops_in(matmul) is None


def test_breakpoints_of_a_debugger_are_found(monkeypatch):
    monkeypatch.setattr(bdb.Breakpoint, "bplist", {})
    monkeypatch.setattr(bdb.Breakpoint, "bpbynumber", [None])
    monkeypatch.setattr(bdb.Breakpoint, "next", 1)
    bdb.Breakpoint(__file__, matmul.func.__code__.co_firstlineno + 2)
    assert stops_in(matmul) == "a debugger has a breakpoint in its source"


def test_tracing_does_not_stop(monkeypatch):
    monkeypatch.setattr("sys.breakpointhook", lambda *a: pytest.fail("stopped"))
    assert nki.trace(stops_itself, [nki.TensorSpec.contiguous((2, 2), "float32")]).instrs == []


def test_threads_that_trace_leave_the_hooks_as_they_were():
    before = sys.breakpointhook, bdb.Bdb.set_trace, bdb.Bdb.break_here
    spec = [nki.TensorSpec.contiguous((2, 2), "float32")]
    threads = [threading.Thread(target=lambda: [nki.trace(stops_itself, spec) for _ in range(20)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (sys.breakpointhook, bdb.Bdb.set_trace, bdb.Bdb.break_here) == before
