"""The tool that runs published examples, on a checkout of our own."""
from __future__ import annotations

import subprocess
import sys
import textwrap

KERNEL = """
    import torch
    import torch_xla
    import nki
    import nki.language as nl

    @nki.jit
    def add(x, y):
        out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
        nl.store(out, nl.add(nl.load(x), nl.load(y)))
        return out

    if __name__ == "__main__":
        x = torch.ones(4, 3).to(torch_xla.device())
        print("NKI and Torch", "match" if torch.equal(add(x, x), {reference}) else "differ")
"""
DRIVER = """
    import json, sys
    from pathlib import Path
    from neuron_eager.tools.nki_examples import Example, run_one
    root = Path(sys.argv[1])
    for example in (Example("right.py"), Example("wrong.py"), Example("none.py", broken="not there"),
                    Example("faulty.py", refused="256 partitions")):
        print(json.dumps(run_one(root, example, "cpu")["result"]))
"""


def test_results(tmp_path):
    (tmp_path / "right.py").write_text(textwrap.dedent(KERNEL).format(reference="x + x"))
    (tmp_path / "wrong.py").write_text(textwrap.dedent(KERNEL).format(reference="x"))
    (tmp_path / "faulty.py").write_text(textwrap.dedent(KERNEL).format(reference="x").replace("(4, 3)", "(256, 3)"))
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(DRIVER), str(tmp_path)], capture_output=True,
                          text=True, timeout=120, check=True)
    assert done.stdout.split("\n")[:4] == ['"equal"', '"FAILED"', '"broken upstream"', '"refused"']
