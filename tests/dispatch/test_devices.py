"""Several neuron devices: results stay on their device, and mixes are refused. The count is read at import."""
import os
import subprocess
import sys

import pytest

PROGRAM = """
import torch, neuron_eager
neuron_eager.config.fallback = "silent"
x, y = torch.ones(3, 4, device="neuron:1"), torch.ones(3, 4, device="neuron:0")
made = [x + x, x @ x.t(), x.digamma(), torch.randperm(4, device="neuron:1"), x.sort()[0], torch.cat([x, x]),
        x + torch.tensor(2.0), torch.mul(x, 2, out=torch.empty(0, device="neuron:1")), x.add_(1)]
assert {str(t.device) for t in made} == {"neuron:1"}, [t.device for t in made]
for name, run in {"other": lambda: x + y, "mat2": lambda: x @ y.t(), "tensors": lambda: torch.cat([x, y]),
                  "end": lambda: x.lerp_(y, 0.5), "0-dim": lambda: x + y.sum()}.items():
    try:
        run()
    except RuntimeError as error:
        assert "at least two devices, neuron:1 and neuron:0" in str(error), error
    else:
        raise AssertionError(name)
z = x.clone().requires_grad_()
(z * z).sum().backward()
assert str(z.grad.device) == "neuron:1"
"""


@pytest.mark.parametrize("hot_path", ["0", "1"])
def test_two_devices(hot_path):
    environment = {**os.environ, "NEURON_EAGER_DEVICE_COUNT": "2", "NEURON_EAGER_HOT_PATH": hot_path}
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
