"""The `torch.backends` entry point. A module of its own, because PyTorch loads it at every `import torch`.

It loads the device only where NEURON_EAGER_AUTOLOAD=1 asks for it: importing PyTorch stays free of side effects.
"""
import os


def autoload() -> None:
    if os.environ.get("NEURON_EAGER_AUTOLOAD") == "1":
        import neuron_eager  # noqa: F401
