"""The README tells the truth: its example runs, and its table of settings is that of config.py."""
import re
import subprocess
import sys
from pathlib import Path

from neuron_eager import config
from neuron_eager.config import Config

README = Path(__file__).parents[1] / "README.md"


def test_the_example_runs(tmp_path):
    code = re.search(r"```python\n(.*?)```", README.read_text(), re.S)[1]
    script = tmp_path / "example.py"
    script.write_text(code)
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert "tensor(" in done.stdout
    assert "aten::addmm" in done.stdout


def test_every_setting_is_in_the_table():
    rows = dict(re.findall(r"^\| `(NEURON_EAGER_\w+)` \| (.*) \|$", README.read_text(), re.M))
    settings = {s.variable: s for s in Config.settings().values()}
    assert set(rows) == set(settings)
    for variable, setting in settings.items():
        assert setting.__doc__ in rows[variable], variable


def test_a_setting_in_code_wins_over_the_environment(monkeypatch):
    monkeypatch.setenv("NEURON_EAGER_FALLBACK", "silent")
    assert config.fallback == "silent"
    with config.override(fallback="error"):
        assert config.fallback == "error"
        assert config.origin("fallback") == "code"
    assert config.origin("fallback") == "environment"
