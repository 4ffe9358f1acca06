"""Which ops of a Hugging Face model run as kernels on neuron, phase by phase.

    python examples/coverage.py                     a tiny Llama with random weights
    python examples/coverage.py --json report.json  the same as JSON, for a comparison in CI
    python examples/coverage.py --strict            a CPU fallback is an error

Nothing is downloaded: the model is made from its configuration.
"""
from __future__ import annotations

import argparse
import json
import os
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch

import neuron_eager


def tiny_llama() -> torch.nn.Module:
    """Two layers of width 64 with random weights."""
    from transformers import LlamaConfig, LlamaForCausalLM
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(
        vocab_size=256, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64, bos_token_id=1, eos_token_id=2, pad_token_id=0))


def phases(model: torch.nn.Module) -> dict[str, Callable[[], object]]:
    """What a user does with a model, in order."""
    prompt = torch.randint(3, 256, (2, 16), generator=torch.Generator().manual_seed(0)).to("neuron")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def prefill() -> object:
        with torch.no_grad():
            return model(prompt)

    def generate() -> object:
        return model.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=3, do_sample=False)

    def train() -> object:
        return model(prompt, labels=prompt).loss.backward()

    return {"prefill": prefill, "generate": generate, "train": train, "optimizer": optimizer.step}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the report of every phase to a file")
    parser.add_argument("--strict", action="store_true", help="raise at the first CPU fallback")
    given = parser.parse_args(arguments)

    model = tiny_llama().to("neuron")
    reports = {}
    with neuron_eager.fallback("error" if given.strict else "silent"):
        for name, run in phases(model).items():
            try:
                with neuron_eager.track_ops() as reports[name]:
                    run()
            except neuron_eager.errors.FallbackError as error:
                print(f"{name} stops: {error}")
                return 1

    for name, report in reports.items():
        rows = report.by_op()
        ops = {route: {row.op for row in rows if row.route == route} for route in ("kernel", "view", "fallback")}
        print(f"{name:10} {report.summary()}")
        print(f"{'':10} different ops: {len(ops['kernel'])} with a kernel, {len(ops['view'])} views, "
              f"{len(ops['fallback'])} on the CPU")
    missing: Counter[tuple[str, str, str]] = Counter()
    for report in reports.values():
        for row in report.by_op():
            if row.route == "fallback":
                missing[row.op, row.reason, "/".join(row.place.split("/")[-2:])] += row.calls
    print(f"\nTo do, most calls first: {'nothing' if not missing else ''}")
    for (op, reason, place), calls in missing.most_common():
        print(f"  {calls:4} x {op}: {reason}, first at {place}")
    if given.json:
        given.json.write_text(json.dumps({name: json.loads(report.to_json()) for name, report in reports.items()}))
        print(f"wrote {given.json}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
