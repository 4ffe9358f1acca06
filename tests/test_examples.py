"""Every program in examples/ runs, and says what it is there to say."""
from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.fixture
def run(tmp_path):
    """Runs an example in a process of its own, with the cache of this test run; returns its completed process."""
    def start(name, *arguments):
        environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
        return subprocess.run([sys.executable, str(EXAMPLES / name), *arguments], env=environment, cwd=tmp_path,
                              capture_output=True, text=True, timeout=300, check=False)
    return start


def output(done):
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_debug_a_model(run):
    done = run("debug_a_model.py")
    text = output(done)
    assert "Attention returned NaN in rows [2]" in text
    assert "aten._softmax.default made a NaN" in text
    assert "weights = scores.softmax(-1)" in text
    assert "aten::_logcumsumexp ran on the CPU: no kernel" in text
    assert "forced to the CPU: rows with NaN: [2], so it is the model" in text
    assert "NaN: False" in text
    assert "aten::_logcumsumexp runs on the CPU, only this op: no kernel" in done.stderr


def test_coverage(run, tmp_path):
    text = output(run("coverage.py", "--json", "report.json"))
    reports = json.loads((tmp_path / "report.json").read_text())
    assert list(reports) == ["prefill", "generate", "train", "optimizer"]
    for name, report in reports.items():
        assert f"\n{name} " in f"\n{text}"
        assert report["summary"]["kernel_calls"] > 0
        assert {"op", "route", "calls", "dtypes", "shapes", "reason", "place"} <= set(report["rows"][0])


def test_coverage_in_strict_mode(run, tmp_path):
    """The exit code tells whether everything ran on kernels."""
    done = run("coverage.py", "--strict", "--json", "report.json")
    if done.returncode:
        assert re.search(r"^\w+ stops: aten::\w+(\.\w+)? would run on the CPU: ", done.stdout), done.stderr
    else:
        reports = json.loads((tmp_path / "report.json").read_text())
        assert not any(report["summary"]["fallback_calls"] for report in reports.values())


def test_write_a_kernel(run):
    text = output(run("write_a_kernel.py"))
    assert re.search(r"naive +differs by at most inf, first in row 1", text)
    assert re.search(r"logaddexp +differs by at most \d\.\de-0[67]\n", text)
    assert "float16: aten::logaddexp: fallback:" in text
    assert "dtype (it takes float32)" in text
    assert "the report has ['aten::logaddexp']" in text


def test_train(run):
    text = output(run("train.py"))
    first, last = map(float, re.search(r"^loss ([\d.]+) -> ([\d.]+)$", text, re.MULTILINE).groups())
    assert last < first / 2
    assert "after step 2: 0" in text
    assert "ops on the CPU: none" in text
