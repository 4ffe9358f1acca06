"""Tensors of NKI: byte-addressed storage, and views of it as access patterns. All views alias."""
from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from ..errors import NkiTypeError, NkiValueNeededError
from . import views
from .buffers import MemoryRegion
from .dtypes import DType, as_dtype, float32
from .indexing import index
from .location import Loc, here

if TYPE_CHECKING:
    import numpy as np

    from .registers import VirtualRegister


class Storage:
    """One allocation.

    On chip, byte `b` of partition `p` is at `p * partition_bytes + b`; in HBM partition_bytes is 0 and bytes are
    linear. `data` is a flat uint8 array in the interpreter and None while tracing; `written` has one bool per byte when
    writes are followed. `address` is the (partition, byte) the author asked for, if any.
    """

    __slots__ = ("id", "name", "shape", "dtype", "buffer", "nbytes", "partition_bytes", "loc", "data", "written",
                 "address", "base_strides", "first_use", "last_use", "owner", "is_argument", "psum_state",
                 "__weakref__")

    def __init__(self, id: int, name: str, shape: tuple[int, ...], dtype: DType, buffer: MemoryRegion, nbytes: int,
                 partition_bytes: int, loc: Loc | None, data: np.ndarray | None = None) -> None:
        self.id, self.name, self.shape, self.dtype, self.buffer = id, name, shape, dtype, buffer
        self.nbytes, self.partition_bytes, self.loc, self.data = nbytes, partition_bytes, loc, data
        self.written: np.ndarray | None = None
        self.address: tuple[int, int] | None = None
        self.base_strides = views.contiguous(shape, dtype.itemsize)     # bytes
        self.first_use = self.last_use = -1                             # instruction numbers
        self.owner: Any = None                                          # keeps foreign memory alive
        self.is_argument = False
        self.psum_state: Any = None                                     # what matmuls have written, see psum.py

    @property
    def is_contiguous(self) -> bool:
        return views.is_contiguous(self.shape, self.base_strides, self.dtype.itemsize)

    @property
    def label(self) -> str:
        """What to call it in messages: its name, else the author's variable, else its number."""
        return self.name or (self.loc is not None and self.loc.target) or f"tensor {self.id}"

    def __repr__(self) -> str:
        return f"<{self.buffer} storage {self.label}: {self.dtype}{list(self.shape)}>"


class Dynamic(NamedTuple):
    """A part of an address that is known only at run time.

    kind "scalar": the address moves by index * byte_stride. kind "vector": row p of dimension 0 starts at
    index[p] * byte_stride (dimension 0 has stride 0). kind "indirect": column j of the view starts at the free offset
    index[j % group, j // group]. A valid index is in 0 ≤ index < size.
    """

    index: VirtualRegister | NkiTensor      # type: ignore[assignment]
    byte_stride: int
    kind: str
    size: int


class DynamicSlice(NamedTuple):
    """`nl.ds(start, size)`: `size` elements from `start`, which may be a register."""

    start: Any
    size: int


class NkiTensor:
    """A view: storage, byte offset, shape, byte strides, dtype. Made by `nl.ndarray` and by the methods below.

    strides and offset are in elements. On chip, dimension 0 is the partition dimension.
    """

    __slots__ = ("storage", "byte_offset", "shape", "byte_strides", "dtype", "dynamic")

    def __init__(self, storage: Storage, byte_offset: int, shape: tuple[int, ...], byte_strides: tuple[int, ...],
                 dtype: DType, dynamic: tuple[Dynamic, ...] = ()) -> None:
        self.storage, self.byte_offset, self.shape, self.byte_strides = storage, byte_offset, shape, byte_strides
        self.dtype, self.dynamic = dtype, dynamic

    @property
    def buffer(self) -> MemoryRegion:
        return self.storage.buffer

    @property
    def name(self) -> str:
        return self.storage.name

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def strides(self) -> tuple[int, ...]:
        n = self.dtype.itemsize
        return tuple(s // n for s in self.byte_strides)

    @property
    def offset(self) -> int:
        return self.byte_offset // self.dtype.itemsize

    @property
    def itemsize(self) -> int:
        return self.dtype.itemsize

    # ---- views

    def _view(self, byte_offset: int, shape: tuple[int, ...], byte_strides: tuple[int, ...],
              dynamic: tuple[Dynamic, ...] | None = None) -> NkiTensor:
        return NkiTensor(self.storage, byte_offset, shape, byte_strides, self.dtype,
                         self.dynamic if dynamic is None else dynamic)

    def __getitem__(self, key: Any) -> NkiTensor:
        return index(self, key)

    def __setitem__(self, key: Any, value: Any) -> None:
        """Copy `value` (a tensor of as many elements, or a number) into the view; on chip or DMA, as it needs."""
        from .language.move import assign
        assign(self[key], value)

    def slice(self, dim: int, start: int, end: int, step: int = 1) -> NkiTensor:
        """Elements start ≤ i < end of one dimension, every step-th."""
        return views.slice_dim(self, dim, start, end, step)

    def select(self, dim: int, index: Any) -> NkiTensor:
        """One index of a dimension, which goes away. A tensor of one element or a register selects at run time."""
        return views.select(self, dim, index)

    def vector_select(self, dim: int, vector_offset: NkiTensor) -> NkiTensor:
        """Row p of the result is row vector_offset[p] of this HBM tensor; `dim` must be 0."""
        return views.vector_select(self, dim, vector_offset)

    def permute(self, dims: Sequence[int]) -> NkiTensor:
        """Dimensions in a new order; on chip dims[0] stays 0."""
        return views.permute(self, dims)

    def broadcast(self, dim: int, size: int) -> NkiTensor:
        """Repeat a dimension of size 1 with stride 0; on chip not the partition dimension."""
        return views.broadcast(self, dim, size)

    def expand_dim(self, dim: int) -> NkiTensor:
        """A dimension of size 1 before `dim`."""
        return views.expand_dim(self, dim)

    def squeeze_dim(self, dim: int) -> NkiTensor:
        """Without the dimension `dim`, which has size 1."""
        return views.squeeze_dim(self, dim)

    def reshape_dim(self, dim: int, shape: Sequence[int]) -> NkiTensor:
        """One dimension as several, whose product is its size; one of them may be -1."""
        return views.reshape_dim(self, dim, shape)

    def flatten_dims(self, start_dim: int, end_dim: int) -> NkiTensor:
        """Dimensions start_dim to end_dim (both included), contiguous in memory, as one."""
        return views.flatten_dims(self, start_dim, end_dim)

    def reshape(self, *shape: Any) -> NkiTensor:
        """As many elements in another shape, without a copy; on chip dimension 0 keeps its size."""
        return views.reshape(self, shape[0] if len(shape) == 1 and not isinstance(shape[0], int) else shape)

    def rearrange(self, src_pattern: Sequence[Any], dst_pattern: Sequence[Any],
                  fixed_sizes: dict[str, int] | None = None) -> NkiTensor:
        """Split, reorder and merge named dimensions: `t.rearrange(("b", ("h", "w")), ("b", "w", "h"), {"h": 4})`."""
        return views.rearrange(self, src_pattern, dst_pattern, fixed_sizes)

    def view(self, dtype: Any) -> NkiTensor:
        """The same bytes as another dtype; the last dimension is rescaled."""
        return views.view_dtype(self, self._same(as_dtype(dtype)))

    reinterpret_cast = view

    def ap(self, pattern: Sequence[Sequence[int]], offset: int | None = None, scalar_offset: Any = None,
           vector_offset: NkiTensor | None = None, indirect_dim: int = 0, dtype: Any = None) -> NkiTensor:
        """An access pattern `[[stride, count], ...]` in elements of the underlying storage; see `views.ap`."""
        return views.ap(self, pattern, offset, scalar_offset, vector_offset, indirect_dim,
                        self.dtype if dtype is None else self._same(as_dtype(dtype)))

    def _same(self, dtype: DType) -> DType:
        """`dtype`, or the storage's own where that has the same name and keeps its values in float32."""
        return self.storage.dtype if dtype == self.storage.dtype else dtype

    def indirect(self, index: NkiTensor, num_elem: int | None = None) -> NkiTensor:
        """Columns at run-time free offsets (trn3): column j is at index[j % 16, j // 16] (32 for the tensor engine)."""
        return views.indirect(self, index, num_elem)

    # ---- questions

    def is_contiguous(self) -> bool:
        """Whether the view covers its storage in row-major order; on chip, within each partition."""
        first = 1 if self.storage.buffer.on_chip else 0
        return views.is_contiguous(self.shape[first:], self.byte_strides[first:], self.dtype.itemsize)

    def is_indirect(self) -> bool:
        """Whether part of the address is known only at run time."""
        return bool(self.dynamic)

    def get_pattern(self) -> list[list[int]]:
        """`[[stride, count], ...]` in elements."""
        return [[s, n] for s, n in zip(self.strides, self.shape)]

    def describe(self) -> str:
        """Name, buffer, dtype and shape, for messages: `x (sbuf float32[128, 512])`."""
        return f"{self.storage.label} ({self.storage.buffer} {self.dtype}{list(self.shape)})"

    # ---- values

    def numpy(self) -> np.ndarray:
        """A copy of the values, for a look in the debugger. Raises NkiValueNeededError while tracing."""
        from .access import read
        if self.storage.data is None:
            raise NkiValueNeededError(f"the values of {self.describe()} are not known while the kernel is traced; run "
                                      "it under `with neuron_eager.interpret():`", here())
        return read(self).copy()

    def __repr__(self) -> str:
        head = f"{self.storage.buffer} {self.storage.label}: {self.dtype}{list(self.shape)}"
        if self.storage.data is None:
            return f"<{head}>"
        from .access import values_text
        return f"<{head}\n{values_text(self)}>"

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        values = self.numpy()
        return values if dtype is None else values.astype(dtype)

    def __bool__(self) -> bool:
        """In the interpreter: whether all elements are true, so that `assert nl.equal(a, b)` works."""
        return bool((self.numpy().astype(float32.numpy) != 0).all())

    def __len__(self) -> int:
        return self.shape[0]

    def __iter__(self) -> Any:
        raise NkiTypeError(f"a tensor cannot be iterated: {self.describe()}; use range() and slices", here())

    def _scalar(self) -> Any:
        if self.size != 1:
            raise NkiTypeError(f"{self.describe()} has {self.size} elements; only one element converts to a number",
                               here())
        return self.numpy().reshape(-1)[0]

    def __int__(self) -> int:
        return int(self._scalar())

    def __float__(self) -> float:
        return float(self._scalar())

    def __index__(self) -> int:
        raise NkiTypeError(f"{self.describe()} cannot be an index in Python; use .select(dim, tensor) or "
                           ".ap(scalar_offset=tensor)", here())

    def __deepcopy__(self, memo: dict[int, Any]) -> NkiTensor:
        return self


def _refuse(symbol: str, name: str) -> Any:
    def operator(self: NkiTensor, *other: Any) -> Any:
        raise NkiTypeError(f"operators on tensors are not part of NKI: `{symbol}` on {self.describe()}; use "
                           f"nl.{name}(...) or an instruction of nki.isa", here())
    return operator


for _symbol, _name, _methods in (
        ("+", "add", "__add__ __radd__ __iadd__"), ("-", "subtract", "__sub__ __rsub__ __isub__"),
        ("*", "multiply", "__mul__ __rmul__ __imul__"), ("/", "multiply", "__truediv__ __rtruediv__ __itruediv__"),
        ("@", "matmul", "__matmul__ __rmatmul__ __imatmul__"), ("**", "power", "__pow__ __rpow__ __ipow__"),
        ("//", "floor", "__floordiv__ __rfloordiv__"), ("%", "fmod", "__mod__ __rmod__"),
        ("&", "bitwise_and", "__and__ __rand__"), ("|", "bitwise_or", "__or__ __ror__"),
        ("^", "bitwise_xor", "__xor__ __rxor__"), ("<<", "left_shift", "__lshift__ __rlshift__"),
        (">>", "right_shift", "__rshift__ __rrshift__"), ("<", "less", "__lt__"), ("<=", "less_equal", "__le__"),
        (">", "greater", "__gt__"), (">=", "greater_equal", "__ge__"), ("-", "negative", "__neg__"),
        ("~", "invert", "__invert__"), ("abs", "abs", "__abs__")):
    for _method in _methods.split():
        setattr(NkiTensor, _method, _refuse(_symbol, _name))


def allocate_storage(id: int, name: str, shape: tuple[int, ...], dtype: DType, buffer: MemoryRegion,
                     loc: Loc | None) -> Storage:
    """A storage without data; sizes follow from the shape. The caller has checked the shape."""
    nbytes = math.prod(shape) * dtype.itemsize
    partition_bytes = nbytes // shape[0] if buffer.on_chip and shape[0] else 0
    return Storage(id, name, shape, dtype, buffer, nbytes, partition_bytes, loc)


def whole(storage: Storage) -> NkiTensor:
    """The tensor that covers a storage."""
    return NkiTensor(storage, 0, storage.shape, storage.base_strides, storage.dtype)
