import os
import signal
import subprocess
import sys
import time
import traceback

import pytest
import torch

import neuron_eager


@pytest.fixture(autouse=True)
def quiet_and_isolated(tmp_path, monkeypatch):
    """No log lines for fallbacks, and a cache of this test's own, in child processes too."""
    monkeypatch.setenv("NEURON_EAGER_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("NEURON_EAGER_FALLBACK", "silent")
    with neuron_eager.config.override(fallback="silent"):
        yield


def same(actual, expected, **tolerance):
    """`actual` (on neuron) equals `expected` (on CPU), recursively; also in what is not a tensor."""
    if isinstance(expected, torch.Tensor):
        assert actual.device.type == "neuron"
        assert actual.dtype == expected.dtype and actual.shape == expected.shape
        torch.testing.assert_close(actual.detach().cpu(), expected.detach(), equal_nan=True, **tolerance)
    elif isinstance(expected, (list, tuple)):
        assert len(actual) == len(expected)
        for a, e in zip(actual, expected):
            same(a, e, **tolerance)
    else:
        assert actual == expected


@pytest.fixture
def check():
    """check(program, *tensors): the program gives the same on neuron as on CPU, and changes its arguments alike."""
    def run(program, *tensors, **tolerance):
        cpu = [t.clone() if isinstance(t, torch.Tensor) else t for t in tensors]
        neuron = [t.to("neuron", copy=True) if isinstance(t, torch.Tensor) else t for t in tensors]
        expected, actual = program(*cpu), program(*neuron)
        same(actual, expected, **tolerance)
        for a, e in zip(neuron, cpu):
            if isinstance(e, torch.Tensor):
                same(a, e, **tolerance)
        return actual
    return run


@pytest.fixture
def equal():
    return same


@pytest.fixture
def python(tmp_path):
    """python(source, **env): run a program in a process of its own; its standard output. Fails on a non-zero exit."""
    def run(source, *, timeout=120, fails=False, **env):
        script = tmp_path / "program.py"
        script.write_text(source)
        done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=timeout,
                              env={**os.environ, **env}, cwd=tmp_path)
        assert (done.returncode != 0) == fails, f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stderr if fails else done.stdout
    return run


@pytest.fixture
def in_fork():
    """in_fork(f): run f in a forked child, with a deadline of 30 s; fails if f does."""
    def run(function):
        pid = os.fork()
        if pid == 0:
            try:
                function()
            except BaseException:
                traceback.print_exc()
                os._exit(1)
            os._exit(0)
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                assert status == 0, f"the child ended with status {status}"
                return
            time.sleep(0.02)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        pytest.fail("the child did not end within 30 s")
    return run
