"""From a call of a nisa function to an instruction of the current machine."""
from __future__ import annotations

from typing import Any

from ..location import here
from ..machine import Machine, current
from ..program import Instr
from .constants import engine as Engine


def begin(op: str, writes: tuple[str, ...], reads: tuple[str, ...], engine: str,
          args: dict[str, Any]) -> tuple[Machine, Instr]:
    """The machine, and the instruction before its checks. Operands that are None are neither read nor written."""
    return current(), Instr(op, args, writes, reads, engine, here(4))


def present(args: dict[str, Any], *names: str) -> tuple[str, ...]:
    """Those of the names whose argument is given."""
    return tuple([n for n in names if args[n] is not None])


def choose(i: Instr, chosen: Engine) -> None:
    """Settle the engine of an instruction that leaves it open."""
    i.args["engine"] = chosen
    i.engine = chosen.name
