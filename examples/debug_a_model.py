"""Find where a model's NaN comes from: by module, by op, and by ruling out the kernels.

    python examples/debug_a_model.py

Every op on neuron has finished when it returns. So a hook or a dispatch mode that looks at results stops at the module
or op that made the first NaN, with the line of the program in the traceback; a breakpoint there shows the values.
"""
from __future__ import annotations

import sys
import traceback
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import neuron_eager


class Attention(nn.Module):
    """Attention over padded sentences, with the fault to be found: a sentence of padding only masks every score."""

    def __init__(self, width: int, safe: bool) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.safe = safe

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """x: [batch, tokens, width]. mask: [batch, tokens], True at tokens that are not padding."""
        scores = self.query(x) @ self.key(x).transpose(-1, -2) / x.shape[-1] ** 0.5
        scores = scores.masked_fill(~mask[:, None], torch.finfo(x.dtype).min if self.safe else float("-inf"))
        weights = scores.softmax(-1)
        return weights @ self.value(x)


class Model(nn.Module):
    def __init__(self, safe: bool = False, width: int = 32) -> None:
        super().__init__()
        self.embed = nn.Embedding(100, width)
        self.attention = Attention(width, safe)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 2)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """tokens: [batch, tokens], 0 is padding. Returns [batch, 2]."""
        x = self.embed(tokens)
        x = self.norm(x + self.attention(x, tokens != 0))
        return torch.special.expit(self.head(x.logcumsumexp(1)[:, -1]))


class NanError(ArithmeticError):
    pass


def rows_with_nan(t: torch.Tensor) -> list[int]:
    return [i for i, row in enumerate(t.isnan().flatten(1).any(1).tolist()) if row]


def refuse_nan(module: nn.Module, _: Any, output: torch.Tensor) -> None:
    """A forward hook: raises in the first module whose output has a NaN."""
    if output.isnan().any():
        raise NanError(f"{type(module).__name__} returned NaN in rows {rows_with_nan(output)}")


class FirstNan(TorchDispatchMode):
    """Raises at the first op that makes a NaN of arguments that have none."""

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = op(*args, **(kwargs or {}))
        if self._has_nan(result) and not any(map(self._has_nan, args)):
            raise NanError(f"{op} made a NaN of arguments without one; its first argument goes from "
                           f"{args[0].min().item():.3g} to {args[0].max().item():.3g}, and one row of it is "
                           f"{args[0].flatten(0, -2)[self._row(result), :3].tolist()}...")
        return result

    @staticmethod
    def _has_nan(value: Any) -> bool:
        return isinstance(value, torch.Tensor) and value.is_floating_point() and bool(value.isnan().any())

    @staticmethod
    def _row(t: torch.Tensor) -> int:
        return rows_with_nan(t.flatten(0, -2))[0]


def where(error: BaseException) -> str:
    """The innermost line of this file in a traceback that is not one of the checks themselves."""
    frames = [f for f in traceback.extract_tb(error.__traceback__)
              if f.filename == __file__ and f.name not in ("refuse_nan", "__torch_dispatch__", "main")]
    return f"line {frames[-1].lineno}: {frames[-1].line}"


def main() -> int:
    torch.manual_seed(0)
    model = Model().to("neuron").eval()
    tokens = torch.randint(1, 100, (4, 10)).to("neuron")
    tokens[0, 6:] = 0
    tokens[2] = 0

    print("1. The fault")
    with torch.no_grad(), neuron_eager.track_ops() as ops:
        result = model(tokens)
    print(f"   rows with NaN: {rows_with_nan(result)}")

    print("2. Which module: forward hooks")
    hooks = [m.register_forward_hook(refuse_nan) for m in model.modules()]
    try:
        model(tokens)
    except NanError as error:
        print(f"   {error}")
        print(f"   called at {where(error)}")
    for hook in hooks:
        hook.remove()

    print("3. Which op: a dispatch mode")
    try:
        with torch.no_grad(), FirstNan():
            model(tokens)
    except NanError as error:
        print(f"   {error}")
        print(f"   at {where(error)}")

    print("4. Is it a kernel? What ran on the CPU, and the same with every suspect there")
    for row in ops:
        if row.route == "fallback":
            print(f"   {row.op} ran on the CPU: {row.reason}")
    suspects = frozenset(row.op for row in ops if row.route == "kernel")
    with torch.no_grad(), neuron_eager.config.override(force_cpu=suspects, fallback="silent"):
        on_cpu = model(tokens)
    print(f"   {len(suspects)} ops forced to the CPU: rows with NaN: {rows_with_nan(on_cpu)}, so it is the model")

    print("5. Repaired: the lowest finite score in place of -inf")
    repaired = Model(safe=True).eval()
    repaired.load_state_dict({name: t.cpu() for name, t in model.state_dict().items()})
    with torch.no_grad():
        expected = repaired(tokens.cpu())
        got = repaired.to("neuron")(tokens).cpu()
    difference = (got - expected).abs().max().item()
    print(f"   NaN: {bool(got.isnan().any())}; largest difference to the CPU {difference:.0e}")
    return int(not difference < 1e-5)


if __name__ == "__main__":
    sys.exit(main())
