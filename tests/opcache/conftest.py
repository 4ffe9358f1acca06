"""Each test has a cache directory of its own, and helpers to run code in other processes that share it.

The other processes import `neuron_eager.opcache` without `neuron_eager` itself, which would load torch and take a
second each.
"""
from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
import warnings
from collections.abc import Iterator
from pathlib import Path

import pexpect
import pytest

import neuron_eager
from neuron_eager import config, opcache

_PRELUDE = f"""
import os, signal, sys, threading, time, types
package = types.ModuleType("neuron_eager")
package.__path__ = {list(neuron_eager.__path__)!r}
sys.modules["neuron_eager"] = package
from neuron_eager import opcache
from neuron_eager.config import config
from neuron_eager.opcache import Key
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cache directory; not there yet."""
    path = tmp_path / "cache"
    monkeypatch.setenv("NEURON_EAGER_CACHE_DIR", str(path))
    return path


@pytest.fixture
def cache(folder: Path) -> Iterator[opcache.Cache]:
    """A cache of its own, as another process would have it. A warning is an error unless the test expects it."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        cache = opcache.Cache()
        yield cache
        cache.close()


@pytest.fixture
def fresh(folder: Path) -> Iterator:
    """Makes caches that share the directory and nothing else: fresh memory, like a new process."""
    made = []

    def make() -> opcache.Cache:
        made.append(opcache.Cache())
        return made[-1]
    yield make
    for cache in made:
        cache.close()


@pytest.fixture
def strict() -> Iterator[None]:
    with config.override(cache_strict=True):
        yield


class Processes:
    """Python processes on one cache directory; killed at the end of the test, whatever happens."""

    def __init__(self, folder: Path):
        self.folder, self.running = folder, []

    def start(self, code: str, *arguments: object, **environment: str) -> subprocess.Popen:
        env = {**os.environ, "NEURON_EAGER_CACHE_DIR": str(self.folder), **environment}
        process = subprocess.Popen(
            [sys.executable, "-c", _PRELUDE + textwrap.dedent(code), *map(str, arguments)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)
        self.running.append(process)
        return process

    def run(self, code: str, *arguments: object, **environment: str) -> str:
        """The standard output of a process that must succeed."""
        return self.finish(self.start(code, *arguments, **environment))

    def finish(self, process: subprocess.Popen, timeout: float = 120) -> str:
        out, err = process.communicate(timeout=timeout)
        assert process.returncode == 0, f"exit {process.returncode}\n{out}\n{err}"
        process.errors = err
        return out

    def stop_all(self) -> None:
        for process in self.running:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGCONT)
                process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout, process.stderr):
                with contextlib.suppress(OSError):
                    pipe.close()


@pytest.fixture
def terminal(folder: Path, tmp_path: Path) -> Iterator:
    """Starts Python code on a pseudo-terminal."""
    started = []

    def start(code: str) -> pexpect.spawn:
        script = tmp_path / "script.py"
        script.write_text(_PRELUDE + textwrap.dedent(code))
        env = {**os.environ, "NEURON_EAGER_CACHE_DIR": str(folder), "TERM": "xterm"}
        started.append(pexpect.spawn(sys.executable, [str(script)], env=env, timeout=60, encoding="utf-8"))
        return started[-1]
    yield start
    for process in started:
        process.close(force=True)


@pytest.fixture
def processes(folder: Path) -> Iterator[Processes]:
    processes = Processes(folder)
    yield processes
    processes.stop_all()
