"""Indexing of tensors: `t[...]` with ints, slices, Ellipsis, nl.ds and registers."""
from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..errors import NkiIndexError, NkiShapeError, NkiTypeError
from .location import here

if TYPE_CHECKING:
    from .tensor import Dynamic, NkiTensor


def bad(t: NkiTensor, detail: str) -> NkiShapeError:
    return NkiShapeError(f"{detail}; tensor {t.describe()}", here())


def out_of_range(t: NkiTensor, detail: str) -> NkiIndexError:
    return NkiIndexError(f"{detail}; tensor {t.describe()}", here())


def index(t: NkiTensor, key: Any) -> NkiTensor:
    """`t[key]`: ints, slices with step, Ellipsis, negative indices, nl.ds, registers.

    On chip an int on dimension 0 keeps that dimension with size 1, and the result has at least two dimensions; in HBM
    an int removes its dimension, and the result has at least one.
    """
    if type(key) is not tuple:
        key = (key,)
    rank = len(t.shape)
    for position, entry in enumerate(key):
        if entry is Ellipsis:
            key = key[:position] + (slice(None),) * (rank - len(key) + 1) + key[position + 1:]
            break
    if len(key) > rank:
        raise out_of_range(t, f"{len(key)} indices for {rank} dimensions")
    chip = t.storage.buffer.on_chip
    offset, dynamic = t.byte_offset, t.dynamic
    shape: list[int] = []
    strides: list[int] = []
    for d, (n, stride) in enumerate(zip(t.shape, t.byte_strides)):
        part: Any = key[d] if d < len(key) else _ALL
        kind = type(part)
        if kind is slice:
            if part == _ALL:
                shape.append(n)
                strides.append(stride)
                continue
            start, count, step = _slice(t, d, part, n)
            offset += start * stride
            shape.append(count)
            strides.append(stride * step)
        elif kind is int:
            if not -n <= part < n:
                raise out_of_range(t, f"index {part} is outside dimension {d} of size {n}")
            offset += (part % n) * stride
            if chip and d == 0:
                shape.append(1)
                strides.append(stride)
        else:
            offset, dynamic, size = _special(t, d, part, offset, dynamic)
            if size is not None or (chip and d == 0):
                shape.append(1 if size is None else size)
                strides.append(stride)
    minimum = 2 if chip else 1
    while len(shape) < minimum:
        shape.append(1)
        strides.append(t.dtype.itemsize)
    return t._view(offset, tuple(shape), tuple(strides), dynamic)


_ALL = slice(None)


def _slice(t: NkiTensor, d: int, part: slice, n: int) -> tuple[int, int, int]:
    """(start, count, step) of a slice; bounds beyond the dimension are errors, not clipped."""
    start, stop, step = part.start, part.stop, part.step
    if step is None and type(start) is int and type(stop) is int and 0 <= start < stop <= n:
        return start, stop - start, 1
    step = 1 if step is None else to_int(t, step)
    start = 0 if start is None else to_int(t, start)
    stop = n if stop is None else to_int(t, stop)
    if step < 1:
        raise out_of_range(t, f"slice step {step} on dimension {d}; steps are positive")
    start, stop = start + n if start < 0 else start, stop + n if stop < 0 else stop
    if stop > n or start < 0 or start > n:
        raise out_of_range(t, f"slice {_slice_text(part)} goes beyond dimension {d} of size {n}; clip it with "
                              f"min(..., {n})")
    count = max(0, -(-(stop - start) // step))
    if count == 0:
        raise out_of_range(t, f"slice {_slice_text(part)} of dimension {d} of size {n} is empty")
    return start, count, step


def _slice_text(part: slice) -> str:
    text = ":".join("" if v is None else str(v) for v in (part.start, part.stop))
    return text if part.step is None else f"{text}:{part.step}"


def to_int(t: NkiTensor, value: Any) -> int:
    from .registers import VirtualRegister
    if isinstance(value, VirtualRegister):
        raise NkiTypeError("a register cannot bound a slice; use nl.ds(register, size); tensor " + t.describe(), here())
    try:
        return int(value.__index__())
    except AttributeError:
        raise NkiTypeError(f"a slice bound must be an int, not {type(value).__name__}; tensor {t.describe()}",
                           here()) from None


def _special(t: NkiTensor, d: int, part: Any, offset: int,
             dynamic: tuple[Dynamic, ...]) -> tuple[int, tuple[Dynamic, ...], int | None]:
    """An index that is neither slice nor int: nl.ds, a register, a one-element tensor, an integer-like object."""
    from .registers import VirtualRegister
    from .tensor import DynamicSlice, NkiTensor
    n, stride = t.shape[d], t.byte_strides[d]
    start, size = (part.start, part.size) if isinstance(part, DynamicSlice) else (part, None)
    count = 1 if size is None else size
    if isinstance(start, (VirtualRegister, NkiTensor)):
        limit = n - count + 1
        if limit < 1:
            raise out_of_range(t, f"nl.ds of {count} elements is longer than dimension {d} of size {n}")
        offset, dynamic = move(t, start, stride, limit, offset, dynamic, d)
        return offset, dynamic, size
    if part is None:
        raise NkiTypeError(f"None is not an index; use .expand_dim({d}); tensor {t.describe()}", here())
    start = to_int(t, start)
    if size is None:
        if not -n <= start < n:
            raise out_of_range(t, f"index {start} is outside dimension {d} of size {n}")
        return offset + (start % n) * stride, dynamic, None
    if start < 0 or start + size > n or size < 1:
        raise out_of_range(t, f"nl.ds({start}, {size}) goes beyond dimension {d} of size {n}")
    return offset + start * stride, dynamic, size


def move(t: NkiTensor, by: Any, byte_stride: int, size: int, offset: int, dynamic: tuple[Dynamic, ...],
          d: int) -> tuple[int, tuple[Dynamic, ...]]:
    """Move an address by a register or a one-element tensor. A register whose value is known moves it at once."""
    from .registers import VirtualRegister
    from .tensor import Dynamic
    if isinstance(by, VirtualRegister):
        known = by.known
        if known is not None:
            if not 0 <= known < size:
                raise out_of_range(t, f"register value {known} is outside 0..{size - 1} on dimension {d}")
            return offset + known * byte_stride, dynamic
    else:
        check_index(t, by)
        if by.size != 1:
            raise bad(t, f"a scalar index needs one element, not {by.describe()}")
    if dynamic:
        raise bad(t, "an address has one run-time index only, and this view already has one")
    return offset, (*dynamic, Dynamic(by, byte_stride, "scalar", size))


def check_index(t: NkiTensor, by: NkiTensor) -> None:
    if by.dtype.kind not in "iu":
        raise NkiTypeError(f"an index tensor must hold integers, not {by.describe()}; tensor {t.describe()}", here())
