"""The native runtime of this process: the compiled hot path loaded, checked, and its memory functions for Python.

`runtime()` gives it, or raises `Unavailable` with the reason, before anything has been registered anywhere: whoever
asked takes the Python path then.
"""
from __future__ import annotations

import ctypes
import platform
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from ..config import config
from ..errors import Unavailable
from . import allocator, hot, stored

Address = ctypes.c_void_p
Word = ctypes.c_uint64
NOARGS, FASTCALL, KEYWORDS = 0x04, 0x80, 0x02       # METH_ flags of a builtin

_libc = ctypes.CDLL(None)
_libc.calloc.restype, _libc.calloc.argtypes = Address, [ctypes.c_size_t, ctypes.c_size_t]


def cells(*values: int, size: int = 0) -> ctypes.Array[ctypes.c_uint64]:
    """Words that live until the process ends: tensors, and so what their deleters read, outlive the interpreter."""
    count = max(size, len(values), 1)
    array = (Word * count).from_address(_libc.calloc(count, 8))
    array[:len(values)] = [v % 2**64 for v in values]
    return array


def immortal(obj: Any) -> Any:
    """`obj`, with a reference that is never given back: native code holds its address."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(obj))
    return obj


class _MethodDef(ctypes.Structure):
    _fields_ = [("name", ctypes.c_char_p), ("function", Address), ("flags", ctypes.c_int), ("doc", ctypes.c_char_p)]


def builtin(function: int, words_of_self: ctypes.Array[Any], name: str, flags: int) -> Callable[..., Any]:
    """A Python builtin that runs native code; its self is the address of `words_of_self`, as an int."""
    definition = _MethodDef.from_address(ctypes.addressof(cells(size=ctypes.sizeof(_MethodDef) // 8)))
    definition.name, definition.function, definition.flags = immortal(name.encode()), function, flags
    new = ctypes.pythonapi.PyCFunction_NewEx
    new.restype, new.argtypes = ctypes.py_object, [Address, ctypes.py_object, ctypes.py_object]
    return new(ctypes.addressof(definition), ctypes.addressof(words_of_self), "neuron_eager")


def exchange_api() -> tuple[int, int, int]:
    """Addresses of (import, read, export) in PyTorch's DLPack exchange table, checked to be the one known here.

    import: managed_tensor_to_py_object_no_sync; read: dltensor_from_py_object_no_sync; export:
    managed_tensor_from_py_object_no_sync; see DLPackExchangeAPI in dlpack.h.
    """
    make = getattr(torch._C, "_dlpack_exchange_api", None)
    if make is None:
        raise Unavailable(reason="this PyTorch has no torch._C._dlpack_exchange_api")
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = Address, [ctypes.py_object, ctypes.c_char_p]
    table = get(make(), b"dlpack_exchange_api")
    major, minor = (ctypes.c_uint32 * 2).from_address(table)
    if major != 1 or minor < 2:
        raise Unavailable(reason=f"DLPack exchange API version {major}.{minor}; 1.2 or a later 1.x is needed")
    _, export, import_, read, _ = (Word * 5).from_address(table + 16)       # allocator, ..., stream
    if not (export and import_ and read):
        raise Unavailable(reason="the DLPack exchange API lacks a function")
    return import_, read, export


def resolve(name: str) -> int:
    """The address of a C or C++ symbol that native code uses."""
    for library in (ctypes.pythonapi, _libc, libtorch()):
        try:
            return ctypes.cast(getattr(library, name), Address).value or 0
        except AttributeError:
            continue
    raise Unavailable(reason=f"no symbol {name} in Python, libc or libtorch")


def libtorch() -> ctypes.CDLL:
    return ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))


# ---- the runtime

class Runtime:
    """The loaded hot path: memory functions, statistics, and the words that all entries share.

    Use `runtime()`; there is one per process.
    """

    def __init__(self, build: bool = True, limit: int = 1 << 30):
        if sys.platform != "linux" or platform.machine() != "x86_64" or ctypes.sizeof(Address) != 8:
            raise Unavailable(reason=f"entries are for x86-64 Linux, not {sys.platform} on {platform.machine()}")
        if not getattr(sys, "_is_gil_enabled", lambda: True)():
            raise Unavailable(reason="entries rely on the GIL, and this Python runs without it")
        import_, read, export = exchange_api()
        self.symbols = stored.load("hot", hot.EXPORTED + allocator.EXPORTED, (hot, allocator), resolve, build=build)
        self.words = cells(import_, read, export, id(torch.Tensor), id(torch.nn.Parameter), size=allocator.RT_WORDS)
        self.words[allocator.RT_IMPL] = hot.OB_TYPE         # reads something harmless until the place is known
        self.words[allocator.RT_LIMIT] = limit
        self.words[allocator.RT_ENABLED] = 1
        self.address = ctypes.addressof(self.words)
        self.read = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, Address)(read)
        self._empty = self._builtin("empty_call", self._empty_slow)
        self.to_neuron: Callable[[torch.Tensor, int], torch.Tensor] = self._builtin("to_neuron_call", self._neuron_slow)
        self.to_cpu: Callable[[torch.Tensor], torch.Tensor] = self._builtin("to_cpu_call", self._cpu_slow)
        self.empty_cache: Callable[[], None] = self._builtin("empty_cache", None, NOARGS)
        self.dtypes = _Dtypes(self)
        with torch.inference_mode(False):       # tensors made in inference mode lack keys that plain ones have
            self._check()

    def _builtin(self, symbol: str, slow: Callable[..., Any] | None, flags: int = FASTCALL) -> Callable[..., Any]:
        own = cells(self.address, id(immortal(slow)))
        return builtin(self.symbols[symbol], own, symbol.removesuffix("_call"), flags)

    # ---- memory
    def empty(self, shape: Sequence[int], strides: Sequence[int] | None, dtype: torch.dtype, index: int = 0
              ) -> torch.Tensor:
        """An uninitialised neuron tensor. strides in elements, or None for contiguous."""
        code, itemsize = self.dtypes[dtype]
        return self._empty(shape, strides, code, itemsize, index)

    def _empty_slow(self, shape: Any, strides: Any, code: int, itemsize: int, index: int) -> torch.Tensor:
        """What native code leaves alone: wrong arguments, for PyTorch's own message, and more than 2**32 elements."""
        dtype = next(d for d, known in self.dtypes.items() if known == (code, itemsize))
        cpu = (torch.empty(shape, dtype=dtype, device="cpu") if strides is None
               else torch.empty_strided(shape, strides, dtype=dtype, device="cpu"))
        return self.to_neuron(cpu, index)

    def _neuron_slow(self, tensor: torch.Tensor, index: int) -> torch.Tensor:
        return self.to_neuron(_plain(tensor), index)

    def _cpu_slow(self, tensor: torch.Tensor) -> torch.Tensor:
        """Conjugated and negated views: the physical values, seen through the same bit."""
        if isinstance(tensor, torch.Tensor) and tensor.is_conj():
            return self.to_cpu(tensor.detach().conj()).conj()
        if isinstance(tensor, torch.Tensor) and tensor.is_neg():
            return torch._neg_view(self.to_cpu(torch._neg_view(tensor.detach())))
        return self.to_cpu(_plain(tensor))

    @property
    def cached(self) -> int:
        """Bytes in free blocks, of all devices."""
        return self.words[allocator.RT_CACHED]

    def memory(self, index: int = 0) -> dict[str, int]:
        """Bytes that tensors of a device hold, and held at most; how many allocations and frees there were."""
        allocated, freed, peak, allocations, frees = self.usage(index)[:5]
        return {"allocated": allocated - freed, "peak": peak, "total_allocated": allocated, "total_freed": freed,
                "allocations": allocations, "frees": frees}

    def reset_peak(self, index: int = 0) -> None:
        u = self.usage(index)
        u[allocator.U_PEAK] = u[allocator.U_ALLOCATED] - u[allocator.U_FREED] + u[allocator.U_ELSEWHERE]

    def usage(self, index: int) -> ctypes.Array[ctypes.c_uint64]:
        """The words (allocator.U_...) in which native code counts a device's memory."""
        if not 0 <= index < allocator.DEVICES:
            raise IndexError(f"device index {index}")
        at = allocator.RT_USAGE + allocator.USAGE * index
        return (Word * allocator.USAGE).from_address(self.address + 8 * at)

    # ---- state
    @property
    def enabled(self) -> bool:
        """False sends every call of every entry to its miss function."""
        return bool(self.words[allocator.RT_ENABLED])

    @enabled.setter
    def enabled(self, value: bool) -> None:
        self.words[allocator.RT_ENABLED] = bool(value)

    # ---- self-test
    def _check(self) -> None:
        """Make, read and convert tensors, and compare with what was asked for, before anybody relies on it."""
        t, seen = self.empty((2, 3), (3, 1), torch.float32), (Word * 6)()
        if (Word.from_address(id(t) + 8).value != id(torch.Tensor) or t.shape != (2, 3) or t.stride() != (3, 1)
                or t.device.type != torch._C._get_privateuse1_backend_name() or t.dtype is not torch.float32
                or self.read(t, seen) or seen[0] != t.data_ptr() or seen[1] != allocator.NEURON):
            raise Unavailable(reason="tensors made through the DLPack exchange API are not what was asked for")
        cpu = self.to_cpu(t)
        if cpu.device.type != "cpu" or cpu.data_ptr() != t.data_ptr() or self.to_neuron(cpu, 0).device != t.device:
            raise Unavailable(reason="the DLPack exchange API does not keep a tensor's memory")
        self._find_dispatch_keys([t, cpu, t.detach().requires_grad_()])

    def _find_dispatch_keys(self, plain: list[torch.Tensor]) -> None:
        """Find where a tensor keeps its dispatch keys, by looking for their known value, and the bits of plain tensors.

        Conjugated, negated, sparse and other special tensors have further bits; no plan is for them.
        """
        bits = torch.zeros(1, dtype=torch.complex64).conj()
        samples = [*plain, bits, bits.imag, torch.zeros(0, dtype=torch.int8)]
        objects = [(Word * 8).from_address(id(s)) for s in samples]
        at = [w for w in range(2, 8) if all(o[w] == s._cdata for o, s in zip(objects, samples))]
        if not at:
            raise Unavailable(reason="a tensor object does not hold its implementation's address")
        impls = [(Word * 26).from_address(s._cdata) for s in samples]       # TensorImpl has 208 bytes at most
        sets = [torch._C._dispatch_keys(s).raw_repr() for s in samples]
        keys = [w for w in range(26) if all(i[w] == known for i, known in zip(impls, sets))]
        if len(keys) != 1:
            raise Unavailable(reason="a tensor's dispatch keys are not where they can be read")
        allowed = sets[0] | sets[1] | sets[2]
        w = self.words
        w[allocator.RT_IMPL], w[allocator.RT_KEYS], w[allocator.RT_REFUSED] = at[0], keys[0], ~allowed % 2**64


class _Dtypes(dict[torch.dtype, tuple[int, int]]):
    """dtype -> (its DLPack word: code, bits and lanes; bytes per element), asked of PyTorch itself."""

    def __init__(self, rt: Runtime):
        self.rt = rt

    def __missing__(self, dtype: torch.dtype) -> tuple[int, int]:
        seen, t = (Word * 6)(), torch.empty(0, dtype=dtype, device="cpu")
        if self.rt.read(t, seen):
            raise TypeError(f"{dtype} has no DLPack form")
        self[dtype] = found = seen[2] >> 32, t.element_size()
        return found


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    """The same values as a plain strided torch.Tensor."""
    if not isinstance(tensor, torch.Tensor) or tensor.layout is not torch.strided:
        raise TypeError(f"expected a dense tensor, not {getattr(tensor, 'layout', type(tensor).__name__)}")
    if type(tensor) is torch.Tensor and not tensor.is_conj() and not tensor.is_neg():
        raise TypeError(f"a {tensor.dtype} tensor on {tensor.device} has no DLPack form")
    return tensor.detach().resolve_conj().resolve_neg().as_subclass(torch.Tensor)


_lock = threading.Lock()
_state: dict[str, Runtime | Unavailable] = {}


def runtime(build: bool = True) -> Runtime:
    """The runtime of this process. Call it after the neuron device is registered.

    build: compile the hot path if it is not stored (0.3 s, once per machine and version); if False, that is a reason
    for `Unavailable` too, and a later call may succeed. The setting hot_path=0 makes it unavailable.
    """
    if not config.hot_path:
        raise Unavailable(reason="NEURON_EAGER_HOT_PATH=0")
    with _lock:
        state = _state.get("runtime")
        if state is None:
            try:
                state = Runtime(build)
            except Unavailable as e:
                if stored.NOT_COMPILED in str(e):
                    raise
                state = e
            _state["runtime"] = state
    if isinstance(state, Unavailable):
        raise state.with_traceback(None)
    return state
