"""The values of tensors in the interpreter: NumPy views of a storage's bytes, and gathers where indices are dynamic."""
from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import NkiOutOfBoundsError, NkiTypeError
from .location import here

if TYPE_CHECKING:
    from .tensor import NkiTensor


def static_view(t: NkiTensor, data: np.ndarray, dtype: Any = None, shift: int = 0) -> np.ndarray:
    """The elements of a static access pattern as a strided NumPy view of `data`, one byte array per storage."""
    return np.ndarray(t.shape, t.dtype.numpy if dtype is None else dtype, data, t.byte_offset + shift, t.byte_strides)


def read(t: NkiTensor) -> np.ndarray:
    """The values, shaped like `t`, in its NumPy dtype: a view of the storage where the address is static.

    Raises NkiOutOfBoundsError for a run-time index outside its tensor.
    """
    if not t.dynamic:
        return np.ndarray(t.shape, t.dtype.numpy, t.storage.data, t.byte_offset, t.byte_strides)
    values, valid = read_valid(t)
    if valid is not None:
        raise out_of_bounds(t)
    return values


def read_valid(t: NkiTensor) -> tuple[np.ndarray, np.ndarray | None]:
    """(values, valid): `valid` is None when every index is inside, else a bool array shaped like `t`; values are zero
    where it is False."""
    view, addresses, valid = _locate(t)
    if view is not None:
        return view, None
    assert addresses is not None
    data = t.storage.data
    item = t.dtype.itemsize
    if valid is not None:
        addresses = np.where(valid, addresses, 0)
    found = data[addresses[..., None] + np.arange(item)].view(t.dtype.numpy)[..., 0]    # type: ignore[index]
    if valid is not None:
        found = np.where(valid, found, np.zeros((), found.dtype))
    return found.reshape(t.shape), valid


def write(t: NkiTensor, values: np.ndarray, skip: bool = False, valid: np.ndarray | None = None) -> None:
    """Store values that have `t`'s NumPy dtype and element count, in row-major order.

    skip: elements whose run-time index is outside stay untouched, where otherwise NkiOutOfBoundsError is raised.
    valid: a bool array of as many elements; where False nothing is stored.
    """
    values = np.asarray(values)
    if not t.dynamic and valid is None:
        view = np.ndarray(t.shape, t.dtype.numpy, t.storage.data, t.byte_offset, t.byte_strides)
        view[...] = values if values.shape == t.shape else values.reshape(t.shape)
        return
    view_, addresses, inside = _locate(t)
    values = values.reshape(t.shape)
    mask = None if valid is None else np.broadcast_to(valid, t.shape) if valid.ndim == len(t.shape) and \
        valid.shape != t.shape else valid.reshape(t.shape)
    if view_ is not None:
        if mask is None:
            view_[...] = values
        else:
            view_[mask] = values[mask]
        return
    if inside is not None:
        if not skip:
            raise out_of_bounds(t)
        mask = inside if mask is None else mask & inside
    assert addresses is not None
    item = t.dtype.itemsize
    cells = np.ascontiguousarray(values)[..., None].view(np.uint8).reshape(*t.shape, item)
    where = addresses[..., None] + np.arange(item)
    if mask is None:
        t.storage.data[where] = cells                   # type: ignore[index]
    else:
        t.storage.data[where[mask]] = cells[mask]       # type: ignore[index]


def dynamic_index(t: NkiTensor) -> np.ndarray:
    """The run-time indices of the first dynamic part of an address, as int64."""
    index = t.dynamic[0].index
    from .tensor import NkiTensor
    if isinstance(index, NkiTensor):
        return read(index).astype(np.int64)
    if index.value is None:
        raise NkiTypeError(f"register {index.id} is used as an index before it has a value", here())
    return np.asarray(index.value, np.int64)


def _locate(t: NkiTensor) -> tuple[np.ndarray | None, np.ndarray | None, np.ndarray | None]:
    """(view, None, None) when the address is one strided pattern, else (None, byte addresses, validity or None)."""
    if not t.dynamic:
        return static_view(t, t.storage.data), None, None    # type: ignore[arg-type]
    part = t.dynamic[0]
    index = dynamic_index(t)
    shape = t.shape
    if part.kind == "scalar":
        value = int(index.reshape(-1)[0])
        if 0 <= value < part.size:
            return static_view(t, t.storage.data, shift=value * part.byte_stride), None, None   # type: ignore[arg-type]
        return None, np.zeros(shape, np.int64), np.zeros(shape, bool)
    addresses = np.full(shape, t.byte_offset, np.int64)
    for d, (n, stride) in enumerate(zip(shape, t.byte_strides)):
        addresses += (np.arange(n) * stride).reshape([-1 if i == d else 1 for i in range(len(shape))])
    if part.kind == "vector":
        rows = index.T.reshape(-1)[:shape[0]].reshape([-1] + [1] * (len(shape) - 1))
    else:
        group = 16
        flat = index.reshape(index.shape[0], -1)
        j = np.arange(shape[1])
        base = (np.arange(shape[0]) // group * group).reshape(-1, 1)
        # The Tensor engine reads indices in groups of 32 (semantics/matmul.py); here that must only stay inside.
        rows = flat[np.minimum(base + j % group, flat.shape[0] - 1), np.minimum(j // group, flat.shape[1] - 1)]
    addresses = addresses + rows * part.byte_stride
    inside = np.broadcast_to((rows >= 0) & (rows < part.size), shape)
    return None, addresses, None if inside.all() else inside


def addresses(t: NkiTensor) -> tuple[np.ndarray, np.ndarray | None]:
    """(byte address of each element, validity or None), shaped like `t`."""
    part = t.dynamic[0]
    if part.kind == "scalar":
        value = int(dynamic_index(t).reshape(-1)[0])
        out = np.full(t.shape, t.byte_offset + value * part.byte_stride, np.int64)
        for d, (n, stride) in enumerate(zip(t.shape, t.byte_strides)):
            out += (np.arange(n) * stride).reshape([-1 if i == d else 1 for i in range(len(t.shape))])
        return out, None if 0 <= value < part.size else np.zeros(t.shape, bool)
    _, found, valid = _locate(t)
    assert found is not None
    return found, valid


def out_of_bounds(t: NkiTensor) -> NkiOutOfBoundsError:
    part = t.dynamic[0]
    index = dynamic_index(t).reshape(-1)
    bad = index[(index < 0) | (index >= part.size)]
    shown = int(bad[0]) if len(bad) else "?"
    return NkiOutOfBoundsError(
        f"run-time index {shown} is outside 0..{part.size - 1} of {t.describe()}; oob_mode.skip leaves such elements "
        "untouched", here())


def values_text(t: NkiTensor) -> str:
    """The values for a repr, shortened as NumPy does."""
    try:
        values = read(t)
    except NkiOutOfBoundsError as error:
        return str(error)
    if values.dtype.kind not in "biufc":
        values = values.astype(np.float32)
    with np.printoptions(threshold=200, edgeitems=3, linewidth=110, precision=5):
        return str(values)
