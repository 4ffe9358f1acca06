"""What a fallback does: one log line per op and reason, nothing, or an error; and the log settings."""
import logging
import os
import subprocess
import sys

import pytest
import torch

import neuron_eager
from neuron_eager import logs
from neuron_eager.config import config
from neuron_eager.errors import FallbackError, SettingError

pytestmark = pytest.mark.usefixtures("without_kernels")
LOGGER = "neuron_eager.dispatch.fallback"


def lines(caplog):
    return [r.getMessage() for r in caplog.records if r.name == LOGGER]


def test_one_line_per_op_and_reason(caplog):
    x = torch.ones(2, 3).to("neuron")
    for _ in range(3):
        _ = x * x, x[:1] * x[:1]
    said = lines(caplog)
    assert len(said) == 1
    for part in ("aten::mul.Tensor", "only this op", "no kernel", "float32[2,3], float32[2,3]", f"{__file__}:",
                 "neuron_eager.register_kernel('aten::mul.Tensor', kernel)"):
        assert part in said[0]
    with config.override(force_cpu=frozenset({"aten.mul"})):
        neuron_eager.register_kernel("aten::mul.Tensor", lambda self, other: self.clone())
        _ = x * x
    assert len(lines(caplog)) == 2 and "NEURON_EAGER_FORCE_CPU" in lines(caplog)[1]


def test_silent(caplog):
    x = torch.ones(3).to("neuron")
    with neuron_eager.fallback("silent"):
        _ = x * x
    assert not lines(caplog)
    assert neuron_eager.get_fallback_ops() == ["aten::mul.Tensor"]      # recorded all the same


def test_error_in_a_block():
    x = torch.ones(2, 3).to("neuron")
    _ = x * x                                       # warm
    with neuron_eager.fallback("error"):
        for run in (lambda: x * x, lambda: x @ x.t()):      # warm and cold
            with pytest.raises(FallbackError) as caught:
                run()
            text = str(caught.value)
            assert "no kernel" in text and "float32[2,3]" in text and __file__ in text and "register_kernel" in text
        x.view(6), x.t()                            # views are none
    assert (x * x).sum().item() == 6


def test_a_refused_fallback_is_not_counted_and_changes_nothing():
    x = torch.ones(3).to("neuron")
    neuron_eager.clear_op_tracking()
    with neuron_eager.fallback("error"), pytest.raises(FallbackError):
        x.mul_(2)
    assert neuron_eager.get_fallback_ops() == [] and x.tolist() == [1, 1, 1]


def test_the_environment_is_read_at_each_use(monkeypatch):
    x = torch.ones(3).to("neuron")
    _ = x * x
    monkeypatch.setenv("NEURON_EAGER_FALLBACK", "error")
    with pytest.raises(FallbackError):
        _ = x * x
    monkeypatch.setenv("NEURON_EAGER_FALLBACK", "silent")
    _ = x * x
    monkeypatch.setenv("NEURON_EAGER_FALLBACK", "maybe")
    with pytest.raises(SettingError, match=r"NEURON_EAGER_FALLBACK=maybe is not a valid setting; allowed: warn \|"):
        _ = x * x
    monkeypatch.delenv("NEURON_EAGER_FALLBACK")
    _ = x * x


def test_a_bad_mode_is_an_error():
    with pytest.raises(SettingError, match="warn"), neuron_eager.fallback("loud"):
        pass


def test_overlap_in_a_warm_kernel_call_is_a_fallback_too():
    neuron_eager.register_kernel("aten::relu", lambda self: self.clone())
    with neuron_eager.fallback("error"):
        assert torch.ones(2).to("neuron").relu().tolist() == [1, 1]


# ---- logs

@pytest.mark.parametrize("text, expected", [
    ("", {}), ("dispatch", {"neuron_eager.dispatch": logging.INFO}),
    ("+fallback,-cache", {LOGGER: logging.DEBUG, "neuron_eager.opcache": logging.ERROR}),
    ("+all", {"neuron_eager": logging.DEBUG}), ("neuron_eager.nki.jit", {"neuron_eager.nki.jit": logging.INFO})])
def test_log_levels(text, expected):
    assert logs.levels(text) == expected


def test_unknown_log_names_are_an_error():
    with pytest.raises(SettingError, match="fallback"):
        logs.levels("+fallbacks")


def test_levels_follow_the_setting():
    logger = logging.getLogger("neuron_eager.native")
    config.logs = "+native"
    assert logger.level == logging.DEBUG
    config.logs = ""
    assert logger.level == logging.NOTSET


@pytest.mark.parametrize("environment", [{"TORCH_LOGS": "+neuron_eager"}, {"NEURON_EAGER_LOGS": "+dispatch"}])
def test_log_settings_from_the_environment(environment):
    code = "import torch, neuron_eager; torch.ones(2).to('neuron').digamma()"
    done = subprocess.run([sys.executable, "-c", code], env={**os.environ, **environment}, capture_output=True,
                          text=True)
    assert done.returncode == 0, done.stderr
    assert "aten::digamma runs on the CPU" in done.stderr
