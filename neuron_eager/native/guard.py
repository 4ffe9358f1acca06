"""The device guard's answers without Python.

PyTorch asks the registered guard for its device type and current stream at every op that autograd records and at every
indexing. A guard written in Python answers through Python: 0.6 to 1.6 µs each time. Here the registered object gets a
copy of its method table in which five methods are native.

This is C++ ABI that PyTorch does not promise: it is done only for versions whose table is known, only after the methods
to be replaced have answered as expected, and `native_guard=0` turns it off.
"""
from __future__ import annotations

import ctypes
import sys
from pathlib import Path

import torch

from ..config import config
from ..errors import Unavailable
from . import stored
from .runtime import Address, Runtime, Word, cells, resolve
from .words import Word as Value

PRIVATEUSE1 = 20                    # c10::DeviceType
VERSIONS = ("2.13.", "2.14.")       # of torch, whose DeviceGuardImplInterface has the methods in the order below
METHODS = {0: "guard_device", 1: "guard_device", 2: "guard_device", 5: "guard_stream", 9: "guard_stream"}
# 0 type, 1 exchangeDevice, 2 getDevice, 5 getStream, 9 exchangeStream
TABLE = 40                          # more words than the table has
REGISTRY = "_ZN3c104impl26device_guard_impl_registryE"


def guard_device(self: Value, device: Value) -> Value:
    """type(), getDevice(), exchangeDevice(): a Device is its type and its index in two bytes; the index is 0."""
    return PRIVATEUSE1


# A Stream comes back in two registers, which the word language does not have: (device, stream 0)
GUARD_STREAM = f"""
define {{ i64, i64 }} @guard_stream(i64 %self, i64 %device) {{
  ret {{ i64, i64 }} {{ i64 {PRIVATEUSE1}, i64 0 }}
}}
"""

_installed: list[int] = []


def install_guard(rt: Runtime, build: bool = True) -> None:
    """Give the registered device guard native methods, once. `Unavailable` comes before anything is changed."""
    if not config.native_guard:
        raise Unavailable(reason="NEURON_EAGER_NATIVE_GUARD=0")
    if not torch.__version__.startswith(VERSIONS):
        raise Unavailable(reason=f"the device guard's method table is known for torch {', '.join(VERSIONS)} only, "
                                 f"not {torch.__version__}")
    if _installed:
        return
    guard = _registered()
    own = sys.modules[__name__]
    symbols = stored.load("guard", (guard_device,), (own,), resolve, more=GUARD_STREAM, build=build)
    place = Word.from_address(guard)
    old = place.value
    table = cells(*(Word * TABLE).from_address(old - 16))       # two words come before the methods: offset and type
    ask = ctypes.CFUNCTYPE(ctypes.c_int16, Address, ctypes.c_uint16)
    for method, name in METHODS.items():
        if ask(table[method + 2])(guard, PRIVATEUSE1) & 0xFF != PRIVATEUSE1:
            raise Unavailable(reason=f"the device guard's method {method} does not answer as expected")
        table[method + 2] = symbols[name]
    place.value = ctypes.addressof(table) + 16
    _installed.append(old)


def uninstall_guard() -> None:
    """Give the guard its own methods back."""
    if _installed:
        Word.from_address(_registered()).value = _installed.pop()


def _registered() -> int:
    library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libc10.so"))
    try:
        guard = (Address * (PRIVATEUSE1 + 1)).in_dll(library, REGISTRY)[PRIVATEUSE1]
    except ValueError as e:
        raise Unavailable(reason=f"PyTorch's table of device guards is not found ({e})") from e
    if not guard:
        raise Unavailable(reason="no device guard is registered")
    return guard
