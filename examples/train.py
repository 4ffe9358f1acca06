"""Train a small language model on neuron with AdamW and a learning-rate schedule, and count what is compiled.

    python examples/train.py

The rate changes at every step and the step number enters AdamW's bias correction. Both are data of the kernels, not
part of what they are compiled for, so nothing is compiled after the second step.
"""
from __future__ import annotations

import sys
import time

import torch
from torch import nn

import neuron_eager
from neuron_eager import opcache

TEXT = "the quick brown fox jumps over the lazy dog. pack my box with five dozen liquor jugs. " * 8
CONTEXT, WIDTH, BATCH, STEPS = 16, 32, 32, 25


class Model(nn.Module):
    """Predicts the next character from the last CONTEXT characters."""

    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, WIDTH)
        self.norm = nn.LayerNorm(CONTEXT * WIDTH)
        self.hidden = nn.Linear(CONTEXT * WIDTH, 2 * WIDTH)
        self.out = nn.Linear(2 * WIDTH, vocabulary)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """tokens: [batch, CONTEXT] integers. Returns logits [batch, vocabulary]."""
        x = self.norm(self.embed(tokens).flatten(1))
        return self.out(nn.functional.gelu(self.hidden(x)))


def batches() -> tuple[int, list[tuple[torch.Tensor, torch.Tensor]]]:
    """The size of the vocabulary, and (contexts, next characters) for each step."""
    letters = sorted(set(TEXT))
    data = torch.tensor([letters.index(c) for c in TEXT])
    windows = data.unfold(0, CONTEXT + 1, 1)
    generator = torch.Generator().manual_seed(0)
    chosen = [windows[torch.randint(len(windows), (BATCH,), generator=generator)] for _ in range(STEPS)]
    return len(letters), [(w[:, :-1], w[:, -1]) for w in chosen]


def main() -> int:
    torch.manual_seed(0)
    vocabulary, data = batches()
    model = Model(vocabulary).to("neuron")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=1e-2, total_steps=STEPS)

    def step(tokens: torch.Tensor, target: torch.Tensor) -> float:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(tokens.to("neuron")), target.to("neuron"))
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        return loss.item()

    compiles, losses = [], []
    for n, (tokens, target) in enumerate(data, 1):
        rate, start = schedule.get_last_lr()[0], time.perf_counter()
        with opcache.count_compiles() as count:
            losses.append(step(tokens, target))
        compiles.append(count.compiles)
        if n <= 3 or n % 5 == 0:
            print(f"step {n:2}  loss {losses[-1]:.3f}  rate {rate:.1e}  {1e3 * (time.perf_counter() - start):7.1f} ms  "
                  f"{count.compiles} compiles")
    print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f}")
    print(f"compiles in steps 1 and 2: {sum(compiles[:2])}; after step 2: {sum(compiles[2:])}")
    print(f"ops on the CPU: {', '.join(neuron_eager.get_fallback_ops()) or 'none'}")
    return int(sum(compiles[2:]) > 0)


if __name__ == "__main__":
    sys.exit(main())
