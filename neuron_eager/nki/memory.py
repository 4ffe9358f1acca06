"""Bytes behind tensors in the interpreter: poison, foreign memory, and which elements have been written."""
from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import NkiUninitializedError
from . import access
from .dtypes import DType, bool_

if TYPE_CHECKING:
    from .location import Loc
    from .tensor import NkiTensor, Storage

_POISON: dict[tuple[str, np.dtype[Any]], bytes] = {}


def poison(dtype: DType) -> bytes:
    """The bytes of one uninitialised element: NaN for floats, all ones for packed types, 4 for integers."""
    key = (dtype, dtype.numpy)
    found = _POISON.get(key)
    if found is None:
        if dtype.packed > 1:
            found = b"\xff" * dtype.itemsize
        elif dtype.kind == "f":
            found = np.array(np.nan).astype(dtype.numpy).tobytes()
        else:
            found = np.array(1 if dtype is bool_ else 4).astype(dtype.numpy).tobytes()
        _POISON[key] = found
    return found


def poisoned(storage: Storage) -> np.ndarray:
    """Fresh bytes for a storage, full of poison."""
    pattern = np.frombuffer(poison(storage.dtype), storage.dtype.numpy)
    return np.full(storage.nbytes // storage.dtype.itemsize, pattern[0]).view(np.uint8)


def bytes_at(address: int, nbytes: int) -> np.ndarray:
    """The process's memory as a byte array; the caller keeps its owner alive."""
    if nbytes == 0:
        return np.empty(0, np.uint8)
    owner: Any = (ctypes.c_ubyte * nbytes).from_address(address)
    return np.frombuffer(owner, np.uint8)


def span(shape: tuple[int, ...], byte_strides: tuple[int, ...], itemsize: int) -> tuple[int, int]:
    """(lowest, end) byte offsets relative to element 0 of a strided tensor."""
    if 0 in shape:
        return 0, 0
    reach = [s * (n - 1) for n, s in zip(shape, byte_strides)]
    return sum(min(0, r) for r in reach), sum(max(0, r) for r in reach) + itemsize


def bytes_from(array: np.ndarray, byte_offset: int) -> np.ndarray:
    """The bytes from `byte_offset` before element 0 of an array to its end."""
    _, end = span(array.shape, array.strides, array.itemsize)
    return bytes_at(array.ctypes.data - byte_offset, byte_offset + end)


# ---- which elements were written

def _flags(t: NkiTensor) -> np.ndarray:
    """One bool per element: an element is written as a whole, so its first byte tells."""
    return access.static_view(t, t.storage.written, bool)       # type: ignore[arg-type]


def mark_written(t: NkiTensor) -> None:
    written = t.storage.written
    assert written is not None
    if t.dynamic:
        for byte in range(t.dtype.itemsize):
            addresses, valid = access.addresses(t)
            written[(addresses + byte) if valid is None else addresses[valid] + byte] = True
        return
    for byte in range(t.dtype.itemsize):
        access.static_view(t, written, bool, byte)[...] = True


def check_written(t: NkiTensor, what: str, loc: Loc | None) -> None:
    if t.storage.written is None:
        return
    if t.dynamic:
        if isinstance(t.dynamic[0].index, type(t)):
            check_written(t.dynamic[0].index, f"{what}: its index", loc)
        addresses, valid = access.addresses(t)
        flags = t.storage.written[addresses if valid is None else np.where(valid, addresses, 0)]
        if valid is not None:
            flags = flags | ~valid
    else:
        flags = _flags(t)
    if not flags.all():
        index = tuple(int(i) for i in np.argwhere(~flags)[0])
        raise NkiUninitializedError(
            f"{what} reads {t.describe()}, where {int((~flags).sum())} of {t.size} elements were never written, the "
            f"first at index {list(index)}", loc)


def first_unwritten(t: NkiTensor) -> tuple[tuple[int, ...], int] | None:
    """(index of the first element never written, how many there are), or None."""
    flags: Any = _flags(t)
    if flags.all():
        return None
    return tuple(int(i) for i in np.argwhere(~flags)[0]), int((~flags).sum())
