"""What `import neuron_eager` brings with it, and what it does not."""
import subprocess
import sys

HEAVY = ("llvmlite", "diskcache", "rich", "transformers", "numba", "hypothesis", "torch._dynamo", "sympy", "IPython")


def test_importing_is_light():
    code = f"""
import torch, sys
before = set(sys.modules)
import neuron_eager
print(sorted(m for m in {HEAVY!r} if m in set(sys.modules) - before))
print(len([m for m in set(sys.modules) - before if m.startswith("neuron_eager.native")]))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["[]", "1"] or done.stdout.split() == ["[]", "0"]


def test_a_fallback_needs_no_compiler():
    code = """
import sys, torch, neuron_eager
neuron_eager.config.hot_path = False
torch.ones(3).to("neuron").digamma()
print([m for m in ("llvmlite", "diskcache", "rich") if m in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
