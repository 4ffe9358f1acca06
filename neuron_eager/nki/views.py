"""The view methods of NkiTensor: arithmetic on shape, byte strides and byte offset. No data is touched."""
from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..errors import NkiTypeError
from .dtypes import DType
from .indexing import bad, check_index, move, out_of_range, to_int
from .location import here

if TYPE_CHECKING:
    from .tensor import NkiTensor

Ints = tuple[int, ...]


def contiguous(shape: Sequence[int], itemsize: int) -> Ints:
    """Row-major byte strides."""
    out, size = [], itemsize
    for n in reversed(shape):
        out.append(size)
        size *= n
    return tuple(reversed(out))


def is_contiguous(shape: Sequence[int], byte_strides: Sequence[int], itemsize: int) -> bool:
    return all(n == 1 or a == b for n, a, b in zip(shape, byte_strides, contiguous(shape, itemsize)))


def _dim(t: NkiTensor, dim: int) -> int:
    if not isinstance(dim, int):
        raise NkiTypeError(f"a dimension must be an int, not {type(dim).__name__}; tensor {t.describe()}", here())
    if not -len(t.shape) <= dim < len(t.shape):
        raise out_of_range(t, f"there is no dimension {dim}")
    return dim % len(t.shape)


def _keeps_rows(t: NkiTensor) -> bool:
    """Whether dimension 0 must stay where it is: the partition dimension, or rows chosen at run time."""
    return t.storage.buffer.on_chip or any(d.kind == "vector" for d in t.dynamic)


def _put(values: Ints, dim: int, *new: int) -> Ints:
    return values[:dim] + new + values[dim + 1:]


# ---- named views

def slice_dim(t: NkiTensor, dim: int, start: int, end: int, step: int = 1) -> NkiTensor:
    dim = _dim(t, dim)
    start, end, step = to_int(t, start), to_int(t, end), to_int(t, step)
    n, stride = t.shape[dim], t.byte_strides[dim]
    if step < 1 or not 0 <= start < end <= n:
        raise out_of_range(t, f"slice(dim={dim}, start={start}, end={end}, step={step}) needs 0 <= start < end <= {n} "
                              "and step >= 1")
    _not_indirect(t, dim, "sliced")
    return t._view(t.byte_offset + start * stride, _put(t.shape, dim, -(-(end - start) // step)),
                   _put(t.byte_strides, dim, stride * step))


def _not_indirect(t: NkiTensor, dim: int, what: str) -> None:
    if any((d.kind == "vector" and dim == 0) or (d.kind == "indirect" and dim == 1) for d in t.dynamic):
        raise bad(t, f"dimension {dim} is indexed at run time and cannot be {what}")


def select(t: NkiTensor, dim: int, index: Any) -> NkiTensor:
    from .registers import VirtualRegister
    from .tensor import NkiTensor
    dim = _dim(t, dim)
    n, stride = t.shape[dim], t.byte_strides[dim]
    offset, dynamic = t.byte_offset, t.dynamic
    if isinstance(index, (NkiTensor, VirtualRegister)):
        if t.dynamic:
            raise bad(t, "only one run-time select per tensor; this view already has one")
        if t.storage.buffer.on_chip and dim == 0:
            raise bad(t, "the partition dimension cannot be selected at run time")
        offset, dynamic = move(t, index, stride, n, offset, dynamic, dim)
    else:
        i = to_int(t, index)
        if not 0 <= i < n:
            raise out_of_range(t, f"select(dim={dim}, index={i}) is outside dimension {dim} of size {n}")
        _not_indirect(t, dim, "selected")
        offset += i * stride
    if t.storage.buffer.on_chip and dim == 0:
        return t._view(offset, _put(t.shape, 0, 1), t.byte_strides, dynamic)
    shape, strides = _put(t.shape, dim), _put(t.byte_strides, dim)
    minimum = 2 if t.storage.buffer.on_chip else 1
    while len(shape) < minimum:
        shape, strides = (*shape, 1), (*strides, t.dtype.itemsize)
    return t._view(offset, shape, strides, dynamic)


def vector_select(t: NkiTensor, dim: int, vector_offset: NkiTensor) -> NkiTensor:
    from .tensor import Dynamic
    if _dim(t, dim) != 0:
        raise bad(t, f"vector_select works on dimension 0, not {dim}")
    if t.storage.buffer.on_chip:
        raise bad(t, "vector_select needs a tensor in HBM")
    if t.dynamic:
        raise bad(t, "only one run-time select per tensor; this view already has one")
    check_index(t, vector_offset)
    return t._view(t.byte_offset, _put(t.shape, 0, vector_offset.shape[0]), _put(t.byte_strides, 0, 0),
                   (Dynamic(vector_offset, t.byte_strides[0], "vector", t.shape[0]),))


def permute(t: NkiTensor, dims: Sequence[int]) -> NkiTensor:
    dims = tuple(dims)
    if sorted(dims) != list(range(len(t.shape))):
        raise bad(t, f"permute{dims} is not a permutation of {tuple(range(len(t.shape)))}")
    if dims and dims[0] != 0 and _keeps_rows(t):
        raise bad(t, f"permute{dims} moves dimension 0; the partition dimension stays first")
    return t._view(t.byte_offset, tuple(t.shape[d] for d in dims), tuple(t.byte_strides[d] for d in dims))


def broadcast(t: NkiTensor, dim: int, size: int) -> NkiTensor:
    dim = _dim(t, dim)
    if t.shape[dim] != 1:
        raise bad(t, f"broadcast(dim={dim}) needs a dimension of size 1, not {t.shape[dim]}")
    if dim == 0 and _keeps_rows(t):
        raise bad(t, "the partition dimension cannot be broadcast by a view; use nl.broadcast_to or a matmul with "
                      "ones")
    return t._view(t.byte_offset, _put(t.shape, dim, size), _put(t.byte_strides, dim, 0))


def expand_dim(t: NkiTensor, dim: int) -> NkiTensor:
    rank = len(t.shape)
    if not -rank - 1 <= dim <= rank:
        raise out_of_range(t, f"expand_dim({dim}) of {rank} dimensions")
    dim %= rank + 1
    if dim == 0 and _keeps_rows(t):
        raise bad(t, "a dimension cannot be put before the partition dimension")
    stride = t.byte_strides[dim] * t.shape[dim] if dim < rank else t.dtype.itemsize
    return t._view(t.byte_offset, t.shape[:dim] + (1,) + t.shape[dim:],
                   t.byte_strides[:dim] + (stride,) + t.byte_strides[dim:])


def squeeze_dim(t: NkiTensor, dim: int) -> NkiTensor:
    dim = _dim(t, dim)
    if t.shape[dim] != 1:
        raise bad(t, f"squeeze_dim({dim}) needs a dimension of size 1, not {t.shape[dim]}")
    if dim == 0 and _keeps_rows(t):
        raise bad(t, "the partition dimension cannot be squeezed")
    return t._view(t.byte_offset, _put(t.shape, dim), _put(t.byte_strides, dim))


def infer(t: NkiTensor, shape: Sequence[int], size: int) -> Ints:
    """`shape` with one -1 replaced so that the product is `size`; an error if it cannot be."""
    out = tuple(to_int(t, n) for n in shape)
    unknown = out.count(-1)
    if unknown == 1:
        known = -math.prod(out)
        if known and size % known == 0:
            return tuple(size // known if n == -1 else n for n in out)
    if unknown or math.prod(out) != size or any(n < 0 for n in out):
        raise bad(t, f"{list(out)} does not have {size} elements")
    return out


def reshape_dim(t: NkiTensor, dim: int, shape: Sequence[int]) -> NkiTensor:
    dim = _dim(t, dim)
    sizes = infer(t, shape, t.shape[dim])
    if dim == 0 and len(sizes) > 1 and _keeps_rows(t):
        raise bad(t, "the partition dimension cannot be split")
    strides, stride = [], t.byte_strides[dim]
    for n in reversed(sizes):
        strides.append(stride)
        stride *= n
    return t._view(t.byte_offset, _put(t.shape, dim, *sizes), _put(t.byte_strides, dim, *reversed(strides)))


def flatten_dims(t: NkiTensor, start_dim: int, end_dim: int) -> NkiTensor:
    start, end = _dim(t, start_dim), _dim(t, end_dim)
    if start > end:
        raise bad(t, f"flatten_dims({start_dim}, {end_dim}) is empty")
    if start == 0 and end > 0 and _keeps_rows(t):
        raise bad(t, "the partition dimension cannot be merged with free dimensions")
    size = math.prod(t.shape[start:end + 1])
    strides = view_strides(t.shape[start:end + 1], t.byte_strides[start:end + 1], (size,))
    if strides is None:
        raise bad(t, f"dimensions {start}..{end} are not contiguous in memory (strides {t.strides})")
    return t._view(t.byte_offset, t.shape[:start] + (size,) + t.shape[end + 1:],
                   t.byte_strides[:start] + strides + t.byte_strides[end + 1:])


def reshape(t: NkiTensor, shape: Sequence[int]) -> NkiTensor:
    sizes = infer(t, shape, t.size)
    if _keeps_rows(t) and (not sizes or sizes[0] != t.shape[0]):
        raise bad(t, f"reshape to {list(sizes)} changes the partition dimension from {t.shape[0]}")
    if t.storage.buffer.on_chip and len(sizes) < 2:
        sizes = (*sizes, 1)
    strides = view_strides(t.shape, t.byte_strides, sizes)
    if strides is None:
        raise bad(t, f"a reshape to {list(sizes)} would have to copy (strides {t.strides})")
    return t._view(t.byte_offset, sizes, strides)


def view_strides(old: Ints, strides: Ints, new: Ints) -> Ints | None:
    """Strides of the shape `new` over the elements of (`old`, `strides`) in row-major order, or None if a copy is
    needed. Runs of old dimensions that are contiguous with each other are matched with runs of new ones from the end.
    """
    out = [0] * len(new)
    j = len(new) - 1
    if not old or 0 in old:
        return contiguous(new, strides[-1] if strides else 1)
    run, base = 1, strides[-1]
    for i in range(len(old) - 1, -1, -1):
        run *= old[i]
        if i == 0 or (old[i - 1] != 1 and strides[i - 1] != run * base):
            filled = 1
            while j >= 0 and (filled < run or new[j] == 1):
                out[j] = base * filled
                filled *= new[j]
                j -= 1
            if filled != run:
                return None
            if i > 0:
                run, base = 1, strides[i - 1]
    return tuple(out) if j < 0 else None


def rearrange(t: NkiTensor, src_pattern: Sequence[Any], dst_pattern: Sequence[Any],
              fixed_sizes: dict[str, int] | None) -> NkiTensor:
    """Split the dimensions of `src_pattern`, put the names in the order of `dst_pattern`, merge its groups."""
    src = [(p,) if isinstance(p, str) else tuple(p) for p in src_pattern]
    dst = [(p,) if isinstance(p, str) else tuple(p) for p in dst_pattern]
    names = [n for group in src for n in group]
    if len(src) != len(t.shape) or len(set(names)) != len(names) or sorted(names) != sorted(n for g in dst for n in g):
        raise bad(t, f"rearrange {tuple(src_pattern)} -> {tuple(dst_pattern)}: both sides must name each of "
                      f"{len(t.shape)} dimensions or its parts once")
    sizes = fixed_sizes or {}
    for d in range(len(src) - 1, -1, -1):
        if len(src[d]) != 1:
            t = reshape_dim(t, d, [sizes.get(n, -1) for n in src[d]])
        elif src[d][0] in sizes and sizes[src[d][0]] != t.shape[d]:
            raise bad(t, f"dimension {d} ({src[d][0]!r}) has size {t.shape[d]}, not {sizes[src[d][0]]}")
    order = [n for group in dst for n in group]
    t = permute(t, [names.index(n) for n in order])
    for position, group in enumerate(dst):
        if len(group) == 0:
            t = expand_dim(t, position)
        elif len(group) > 1:
            t = flatten_dims(t, position, position + len(group) - 1)
    return t


def view_dtype(t: NkiTensor, dtype: DType) -> NkiTensor:
    from .tensor import NkiTensor
    old, new = t.dtype.itemsize, dtype.itemsize
    if t.dynamic:
        raise bad(t, "a view with a run-time index cannot change its dtype")
    if old == new:
        return NkiTensor(t.storage, t.byte_offset, t.shape, t.byte_strides, dtype)
    if t.shape[-1] != 1 and t.byte_strides[-1] != old:
        raise bad(t, f"view({dtype}) needs a contiguous last dimension (strides {t.strides})")
    nbytes = t.shape[-1] * old
    if nbytes % new:
        raise bad(t, f"view({dtype}): the {nbytes} bytes of the last dimension are not a multiple of {new}")
    if t.byte_offset % new or any(s % new for s in t.byte_strides[:-1]):
        raise bad(t, f"view({dtype}): offset or strides are not a multiple of {new} bytes")
    return NkiTensor(t.storage, t.byte_offset, _put(t.shape, len(t.shape) - 1, nbytes // new),
                     _put(t.byte_strides, len(t.shape) - 1, new), dtype)


# ---- access patterns

def ap(t: NkiTensor, pattern: Sequence[Sequence[int]], offset: int | None, scalar_offset: Any,
       vector_offset: NkiTensor | None, indirect_dim: int, dtype: DType) -> NkiTensor:
    """Strides and counts in elements of `dtype` over the storage as one flat array; the shape and strides of `t` are
    ignored, its offset is the base to which `offset` adds.

    A scalar_offset moves the start by its value times the stride of `t`'s dimension indirect_dim; a vector_offset
    gives row p its own start.
    """
    from .tensor import Dynamic, NkiTensor
    storage, item = t.storage, dtype.itemsize
    if not storage.is_contiguous:
        raise bad(t, f".ap addresses memory as it lies, and argument {storage.name!r} is not contiguous "
                      f"(byte strides {storage.base_strides}); pass a contiguous tensor or use slices")
    if not pattern or any(not isinstance(pair, (list, tuple)) or len(pair) != 2 for pair in pattern):
        raise bad(t, f"an access pattern is [[stride, count], ...], not {pattern!r}")
    start = t.byte_offset + (0 if offset is None else to_int(t, offset) * item)
    shape = tuple(to_int(t, pair[1]) for pair in pattern)
    strides = tuple(to_int(t, pair[0]) * item for pair in pattern)
    if any(n < 1 for n in shape):
        raise bad(t, f"access pattern {_list(pattern)} has a count below 1")
    chip = storage.buffer.on_chip
    if chip and shape[0] > 1 and strides[0] != storage.partition_bytes:
        raise bad(t, "the first pair of an on-chip access pattern steps from partition to partition: its stride must "
                      f"be {storage.partition_bytes // item} {dtype} elements, not {pattern[0][0]}")
    if chip and len(shape) < 2:
        shape, strides = (*shape, 1), (*strides, item)
    dynamic = () if offset is not None or scalar_offset is not None or vector_offset is not None else t.dynamic
    if scalar_offset is not None and vector_offset is not None:
        raise bad(t, "an access pattern takes scalar_offset or vector_offset, not both")
    low = start + sum(min(0, s * (n - 1)) for s, n in zip(strides, shape))
    high = start + sum(max(0, s * (n - 1)) for s, n in zip(strides, shape)) + item
    if scalar_offset is not None:
        step = t.byte_strides[_dim(t, indirect_dim)]
        room = (storage.nbytes - high) // step + 1 if step > 0 else 0
        if room < 1:
            raise out_of_range(t, f"access pattern {_list(pattern)} does not fit into {storage.nbytes // item} "
                                  "elements at any scalar_offset")
        start, dynamic = move(t, scalar_offset, step, room, start, (), indirect_dim)
        return NkiTensor(storage, start, shape, strides, dtype, dynamic)
    if vector_offset is not None:
        if indirect_dim != 0:
            raise bad(t, f"vector_offset works on dimension 0, not {indirect_dim}")
        check_index(t, vector_offset)
        step = contiguous(t.shape, t.dtype.itemsize)[0]
        inner = high - max(0, strides[0] * (shape[0] - 1))
        dynamic = (Dynamic(vector_offset, step, "vector", (storage.nbytes - inner) // step + 1),)
        return NkiTensor(storage, start, shape, (0, *strides[1:]), dtype, dynamic)
    if low < 0 or high > storage.nbytes:
        raise out_of_range(t, f"access pattern {_list(pattern)} with offset {start // item} reaches element "
                      f"{(high - item) // item if high > storage.nbytes else low // item} of "
                      f"{storage.nbytes // item}")
    if chip:
        within = start % storage.partition_bytes
        last = within + sum(max(0, s * (n - 1)) for s, n in zip(strides[1:], shape[1:])) + item
        if last > storage.partition_bytes:
            raise out_of_range(t, f"access pattern {_list(pattern)} with offset {start // item} runs beyond the "
                          f"{storage.partition_bytes // item} elements of a partition")
    return NkiTensor(storage, start, shape, strides, dtype, dynamic)


def _list(pattern: Sequence[Sequence[int]]) -> list[list[int]]:
    return [list(pair) for pair in pattern]


def indirect(t: NkiTensor, index: NkiTensor, num_elem: int | None) -> NkiTensor:
    from .tensor import Dynamic
    if not t.storage.buffer.on_chip or len(t.shape) != 2:
        raise bad(t, "indirect needs a two-dimensional on-chip tensor")
    if t.dynamic:
        raise bad(t, "only one run-time index per tensor; this view already has one")
    check_index(t, index)
    if index.shape[0] != t.shape[0]:
        raise bad(t, f"the index of indirect needs {t.shape[0]} partitions, not {index.describe()}")
    count = index.size if num_elem is None else num_elem
    return t._view(t.byte_offset, (t.shape[0], count), (t.byte_strides[0], 0),
                   (Dynamic(index, t.byte_strides[1], "indirect", t.shape[1]),))
