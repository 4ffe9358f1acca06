"""`import nki`: the embedded implementation where there is none, the installed one where there is."""
from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import neuron_eager

REAL = {"__init__.py": "REAL = True\n", "language.py": "REAL = True\n"}
PLACEHOLDER = {"__init__.py": "raise ImportError('WRONG PACKAGE: install nki from the Neuron index')\n"}


def run(tmp_path, code, package=None, **environment):
    """Run code in a fresh process, with an `nki` package of these files on its path. The device, which takes seconds to
    import, is left out: the finder needs none of it."""
    (tmp_path / "neuron_eager").mkdir()
    (tmp_path / "neuron_eager" / "__init__.py").write_text(
        f"__path__ = {list(neuron_eager.__path__)}\nfrom .config import config\n")
    if package is not None:
        (tmp_path / "nki").mkdir()
        for name, text in package.items():
            (tmp_path / "nki" / name).write_text(text)
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=120,
                          cwd=tmp_path,
                          env={**os.environ, "PYTHONPATH": str(tmp_path), **environment})
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


EVERYTHING = """
    import neuron_eager.nki.finder as finder
    finder.install()
    import nki, nki.language as nl, nki.isa as nisa
    import nki.typing as nt
    from nki.typing import tensor
    from nki.isa.constants import engine
    from nki import collectives
    import nki.collectives, nki.dtype, nki.simulator, nki.meta
    from nki.dtype import bfloat16
    import neuron_eager.nki.language, neuron_eager.nki.isa
    assert nl is neuron_eager.nki.language and nisa is neuron_eager.nki.isa and engine is nisa.engine
    assert nki is neuron_eager.nki and nki.language is nl and nki.__spec__.name == "neuron_eager.nki"
    assert nl.bfloat16 is bfloat16 and callable(nki.jit) and callable(nki.simulate)
    import nki.simulate
    from nki.simulate import simulate

    @nki.jit
    def kernel(x: nt.tensor[128, 512]):
        return x
    assert nki.simulate(kernel).name == "kernel"
    print("embedded")
"""


def test_embedded_where_there_is_none(tmp_path):
    assert run(tmp_path, EVERYTHING) == ["embedded"]


def test_the_placeholder_of_pypi_counts_as_absent(tmp_path):
    assert run(tmp_path, EVERYTHING, PLACEHOLDER) == ["embedded"]


def test_an_installed_one_is_never_shadowed(tmp_path):
    code = """
        import neuron_eager.nki.finder as finder
        finder.install()
        import nki, nki.language
        print(nki.REAL, nki.language.REAL)
        try:
            import nki.isa
        except ImportError:
            print("absent")
    """
    assert run(tmp_path, code, REAL) == ["True", "True", "absent"]


def test_the_setting_forces(tmp_path):
    assert run(tmp_path, EVERYTHING, REAL, NEURON_EAGER_NKI="embedded") == ["embedded"]


def test_installed_is_an_error_where_there_is_none(tmp_path):
    code = """
        import neuron_eager.nki.finder as finder
        finder.install()
        try:
            import nki
        except ModuleNotFoundError as error:
            print(error.name)
    """
    assert run(tmp_path, code, NEURON_EAGER_NKI="installed") == ["nki"]


def test_installing_the_finder_loads_no_part_of_nki(tmp_path):
    code = """
        import neuron_eager.nki.finder as finder
        finder.install()
        finder.install()
        import sys
        loaded = [m for m in sys.modules if m.startswith("neuron_eager.nki.") and not m.endswith("finder")]
        print(len(loaded), "numpy" in sys.modules, sum(isinstance(f, finder.NkiFinder) for f in sys.meta_path))
    """
    assert run(tmp_path, code) == ["0", "False", "1"]
