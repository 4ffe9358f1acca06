"""View ops without Python: kernels of as_strided, view and _reshape_alias through PyTorch's stable C ABI.

They call PyTorch's own code for CPU tensors on the same tensor (it reads and writes metadata only), so that checks,
messages, `_base` and version counters are PyTorch's. The other view ops (slice, select, transpose, expand …) decompose
into these three. The functions called are C++ symbols of libtorch; where one is missing, `Unavailable` is raised and
the Python kernels serve.
"""
from __future__ import annotations

import ctypes
import sys
from typing import Any

from ..errors import Unavailable
from . import stored
from .runtime import Runtime, cells, libtorch, resolve
from .words import Word, atomic_add, extern, local

OPS = ("as_strided", "view", "_reshape_alias")
ABI = 2 << 56 | 13 << 48        # the version of the stable ABI this is written for: 2.13

view_counts = extern("view_counts")
malloc = extern("malloc")
free = extern("free")
operator_new = extern("_Znwm")
torch_list_size = extern("torch_list_size", "int")
torch_list_get_item = extern("torch_list_get_item", "int")
torch_delete_list = extern("torch_delete_list", "int")
torch_delete_stable_ivalue = extern("torch_delete_stable_ivalue", "int")
aoti_torch_delete_tensor_object = extern("aoti_torch_delete_tensor_object", "int")
# Tensor at::cpu::f(const Tensor& self, IntArrayRef …): the result's address comes first; an IntArrayRef is two words
at_view = extern("_ZN2at3cpu4viewERKNS_6TensorEN3c108ArrayRefIlEE")
at_reshape_alias = extern("_ZN2at3cpu14_reshape_aliasERKNS_6TensorEN3c108ArrayRefIlEES6_")
at_as_strided = extern("_ZN2at3cpu10as_stridedERKNS_6TensorEN3c108ArrayRefIlEES6_St8optionalIlE")

# A list of ints on the stack: count, address of the items, room for a few
LIST = 66


def take_list(handle: Word, out: Word) -> Word:
    """Read and delete a list argument."""
    torch_list_size(handle, out)
    n = out[0]
    out[1] = out + 16 if n <= LIST - 2 else malloc(8 * n)
    for i in range(n):
        torch_list_get_item(handle, i, out[1] + 8 * i)
    torch_delete_list(handle)


def free_list(items: Word) -> Word:
    if items[0] > LIST - 2:
        free(items[1])


def give(stack: Word, result: Word) -> Word:
    """Put a tensor, which is one word, in the result's place, where PyTorch expects it on the heap."""
    heap = operator_new(8)
    heap[0] = result[0]
    stack[0] = heap


# Boxed kernels of the stable ABI: the arguments on the stack are theirs to delete, also when the op raises


def as_strided(stack: Word, arguments: Word, returns: Word) -> Word:
    sizes, strides, result, offset, given = local(LIST), local(LIST), local(1), 0, stack[3]
    take_list(stack[1], sizes)
    take_list(stack[2], strides)
    if given != 0:                                  # an optional: 0, or the address of the value
        offset = given[0]
        torch_delete_stable_ivalue(given)
    atomic_add(view_counts, 1)
    try:
        at_as_strided(result, stack[0], sizes[1], sizes[0], strides[1], strides[0], offset, given != 0)
    finally:
        aoti_torch_delete_tensor_object(stack[0])
        free_list(sizes)
        free_list(strides)
    give(stack, result)


def view(stack: Word, arguments: Word, returns: Word) -> Word:
    sizes, result = local(LIST), local(1)
    take_list(stack[1], sizes)
    atomic_add(view_counts + 8, 1)
    try:
        at_view(result, stack[0], sizes[1], sizes[0])
    finally:
        aoti_torch_delete_tensor_object(stack[0])
        free_list(sizes)
    give(stack, result)


def reshape_alias(stack: Word, arguments: Word, returns: Word) -> Word:
    sizes, strides, result = local(LIST), local(LIST), local(1)
    take_list(stack[1], sizes)
    take_list(stack[2], strides)
    atomic_add(view_counts + 16, 1)
    try:
        at_reshape_alias(result, stack[0], sizes[1], sizes[0], strides[1], strides[0])
    finally:
        aoti_torch_delete_tensor_object(stack[0])
        free_list(sizes)
        free_list(strides)
    give(stack, result)


KERNELS = (as_strided, view, reshape_alias)
counts = cells(size=len(OPS))


def calls() -> dict[str, int]:
    """How often each natively registered view op ran in this process."""
    return {f"aten::{op}": counts[i] for i, op in enumerate(OPS)}


def clear_calls() -> None:
    for i in range(len(OPS)):
        counts[i] = 0


_library: list[Any] = []


def register_views(rt: Runtime, build: bool = True) -> frozenset[str]:
    """Register the three view ops natively, once. Returns their names; `Unavailable` comes before anything is done."""
    if not _library:
        torch = libtorch()
        own = {"view_counts": ctypes.addressof(counts)}
        this = sys.modules[__name__]
        symbols = stored.load("views", KERNELS, (this,), lambda n: own.get(n) or resolve(n), build=build)
        handle = ctypes.c_void_p()
        resolve("aoti_torch_library_init_impl")
        resolve("torch_library_impl")
        if torch.aoti_torch_library_init_impl(b"aten", b"PrivateUse1", b"neuron_eager", 0, ctypes.byref(handle)):
            raise Unavailable(reason="PyTorch's stable ABI gives no library for aten")
        _library.append(handle)                     # closing it would unregister the kernels
        for op, kernel in zip(OPS, KERNELS):
            address = ctypes.c_void_p(symbols[kernel.__name__])
            if torch.torch_library_impl(handle, op.encode(), address, ctypes.c_uint64(ABI)):
                raise Unavailable(reason=f"PyTorch's stable ABI does not take a kernel for aten::{op}")
    return frozenset(OPS)
