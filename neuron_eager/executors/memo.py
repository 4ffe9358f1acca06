"""What a kernel compiled to, remembered on disk: a later process neither traces nor lowers it.

An entry of kind "memo" holds the table of calls (`neuron_eager.native.table`), which names its objects by their keys,
and what the kernel returns. Its key is everything that the tile program and its lowering depend on: the code of the
kernel and of all it reaches, the tensors' specs, the compile-time constants, NKI, the lowering, chip and checks.
"""
from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .. import opcache
from ..config import config
from ..native.loaded import Compiled, load
from ..native.table import Table
from ..native.target import Target
from ..nki.dtypes import as_dtype
from ..nki.jit import Kernel
from ..nki.limits import current_target
from ..nki.program import TensorSpec
from .base import Specs, flat
from .source import NoTextError, describe, text_of
from .store import parts_of

FORMAT = 1


@dataclass
class Memo:
    """A kernel's native form, and what it returns: specs of fresh outputs, pointer numbers of its results."""

    compiled: Compiled
    outputs: tuple[TensorSpec, ...]
    results: tuple[int, ...]
    returns_tuple: bool


def key_of(kernel: Kernel, specs: Specs, constants: Mapping[str, Any], target: Target) -> opcache.Key | None:
    """The key of a kernel's memo; None for a kernel that depends on something without a text."""
    try:
        source = text_of(kernel.func)
        fixed = {name: describe(value) for name, value in constants.items()}
    except NoTextError:
        return None
    return opcache.Key(
        "memo", kernel=kernel.name, source=source, constants=fixed,
        specs={name: f"{s.dtype}{list(s.shape)} strides {list(s.strides)} + {s.offset_bytes}"
               for name, s in flat(specs)},
        chip=current_target(), checks=config.checks, python=str(sys.implementation.cache_tag),
        environment={n: v for n, v in sorted(os.environ.items()) if n.startswith("NKI_")},
        nki=opcache.source_digest("neuron_eager.nki"), memo=FORMAT, **parts_of(target))


def find(key: opcache.Key, target: Target) -> Memo | None:
    """The remembered form of a kernel, loaded; None if it, or one of its objects, is not there."""
    body = opcache.get(key)
    if body is None:
        return None
    try:
        found = json.loads(body)
        compiled = load(Table.from_json(found["table"]), target)
        outputs = tuple(TensorSpec(tuple(shape), tuple(strides), as_dtype(dtype))
                        for shape, strides, dtype in found["outputs"])
        return Memo(compiled, outputs, tuple(found["results"]), bool(found["tuple"]))
    except (ValueError, KeyError, TypeError):       # of another format, or an object was evicted: compile again
        return None


def remember(key: opcache.Key, memo: Memo, op: str) -> None:
    outputs = [(s.shape, s.strides, str(s.dtype)) for s in memo.outputs]
    body = json.dumps({"table": memo.compiled.table.to_json(), "outputs": outputs, "results": memo.results,
                       "tuple": memo.returns_tuple})
    opcache.put(key, body.encode(), op=op)
