"""Try instructions one at a time, outside any kernel: for tests, notebooks and a look at what an instruction does.

    with Trial("trn2") as t:
        x, out = t.tile(numpy_array), t.empty((128, 512), "bfloat16")
        nisa.activation(out, nl.exp, x)
        print(out.numpy())
"""
from __future__ import annotations

from typing import Any

import numpy as np

from ... import config
from .. import access
from ..buffers import as_buffer
from ..dtypes import as_dtype
from ..interpreter import Interpreter
from ..machine import use
from ..tensor import NkiTensor


class Trial:
    """One core of a target, current inside a `with` block. Tiles hold values; reading an unwritten one is an error."""

    def __init__(self, target: str = "trn3", checks: bool = True) -> None:
        with config.override(checks=checks):
            self.machine = Interpreter("trial", target, follow_writes=True)

    def __enter__(self) -> Trial:
        self.use = use(self.machine)
        self.use.__enter__()
        return self

    def __exit__(self, *exc: object) -> None:
        self.use.__exit__(*exc)

    def empty(self, shape: tuple[int, ...], dtype: Any = "float32", buffer: Any = "sbuf", name: str = "") -> NkiTensor:
        """An uninitialised tensor."""
        return self.machine.allocate(tuple(shape), as_dtype(dtype), as_buffer(buffer), name)

    def tile(self, values: Any, buffer: Any = "sbuf", dtype: Any = None, name: str = "") -> NkiTensor:
        """A tensor with these values; `dtype` names one that NumPy does not tell apart (tfloat32, the packed types)."""
        values = np.asarray(values)
        t = self.empty(values.shape, values.dtype if dtype is None else dtype, buffer, name)
        access.write(t, values)
        if t.storage.written is not None:
            t.storage.written[...] = True
        return t
