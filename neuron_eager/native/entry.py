"""Entries: native kernels for torch.library, one per op, that run plans and send everything else to a Python function.

    rt = runtime()
    entry = Entry(rt, "add.Tensor", miss, operands={1, "alpha"}, keywords=("alpha",))
    library.impl("add.Tensor", entry.call, "PrivateUse1")

    def miss(x, y, *, alpha=1):                 # what `entry.call` does when no plan fits; may install one
        out = Output(x.shape, x.stride(), x.dtype, x.device.index)
        entry.install((x, y), {}, kernel.address, 0, n, pointers=[out, Argument(0), Argument(1)], results=[out])
        ...

A plan holds what a call must look like and what to do then. It is found by its key in a hash table; see `hot`.
"""
from __future__ import annotations

import ctypes
import math
import os
import struct
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from . import allocator, hot
from .runtime import FASTCALL, KEYWORDS, Runtime, Word, builtin, cells, immortal, runtime

__all__ = ["Argument", "Constant", "Entry", "Foreach", "Output", "Plan", "constant", "runtime"]

STATIC_TYPES = (str, torch.dtype, torch.device, torch.layout, torch.memory_format)     # their == is C code
DESCRIBED = (torch.Tensor, torch.nn.Parameter, int, float, bool, type(None))            # these are in the key by value


@dataclass(frozen=True)
class Argument:
    """A leaf of the arguments, counted with every list expanded: positional ones, then keyword values in call order.

    As a pointer: the address of a tensor's data plus `offset` bytes, or of an operand number as {float32, 4 bytes, then
    its exact 64 bits: double or int64}. As a result: the argument itself.
    """

    leaf: int
    offset: int = 0


@dataclass(frozen=True, eq=False)
class Output:
    """A fresh tensor: strides in elements, device index. One that is no result is scratch, freed after the call."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype
    index: int = 0


@dataclass(frozen=True)
class Constant:
    """A fixed address of memory that is never freed; see `constant`."""

    address: int


def constant(value: float) -> Constant:
    """A number in the form in which a kernel sees an operand."""
    try:
        narrow = struct.pack("<f4x", value)
    except OverflowError:                   # a finite double beyond float32
        narrow = struct.pack("<f4x", math.copysign(math.inf, value))
    slot = narrow + struct.pack("<d" if isinstance(value, float) else "<q", value)
    if slot not in _constants:
        _constants[slot] = Constant(ctypes.addressof(cells(*struct.unpack("<QQ", slot))))
    return _constants[slot]


_constants: dict[bytes, Constant] = {}


Pointer = Argument | Output | Constant


class Plan:
    """What one kind of call runs. `hits`: how often it did. `user`: anything its maker wants to find again."""

    __slots__ = ("memory", "statics", "user", "seen")

    def __init__(self, memory: ctypes.Array[ctypes.c_uint64], statics: list[Any], user: Any):
        self.memory, self.statics, self.user, self.seen = memory, statics, user, 0

    @property
    def hits(self) -> int:
        return self.memory[hot.P_HITS]

    @property
    def address(self) -> int:
        return ctypes.addressof(self.memory)


class Entry:
    """One op: `call` is its kernel for torch.library.

    miss: called with the same arguments when no plan fits; its result, or exception, is the call's. operands: positions
    and keyword names where a Python float or int is data, not part of the key. keywords: at most 6 names that plans may
    have. max_plans: when there are that many, the half that was used least since the last time is evicted.
    """

    def __init__(self, rt: Runtime, name: str, miss: Callable[..., Any], operands: Iterable[int | str] = (),
                 keywords: Sequence[str] = (), max_plans: int = 4096):
        if len(keywords) > hot.KEYWORDS:
            raise ValueError(f"{name}: at most {hot.KEYWORDS} keywords, not {len(keywords)}")
        self.rt, self.name, self.max_plans = rt, name, max_plans
        self.plans: list[Plan] = []
        self.table: ctypes.Array[ctypes.c_uint64]
        self.on_evict: Callable[[Plan], None] | None = None
        self._unfreed: list[Any] = []
        names = [(len(k), ctypes.addressof(_text(k))) for k in keywords] + [(-1, 0)] * (hot.KEYWORDS - len(keywords))
        mask = sum(1 << (k if isinstance(k, int) else hot.OPERAND_KEYWORD + keywords.index(k)) for k in set(operands))
        immortal(self)
        self.words = cells(rt.address, id(immortal(miss)), 0, 1, mask, 0, 0, *(w for pair in names for w in pair))
        self._rebuild([])
        self.call = builtin(rt.symbols["entry_call"], self.words, name, FASTCALL | KEYWORDS)
        self._describe = builtin(rt.symbols["describe_call"], self.words, name, FASTCALL | KEYWORDS)

    @property
    def hits(self) -> int:
        """Calls that plans still in the table served."""
        return sum(p.hits for p in self.plans)

    @property
    def misses(self) -> int:
        return self.words[hot.E_MISSES]

    @property
    def enabled(self) -> bool:
        """False sends every call to the miss function."""
        return bool(self.words[hot.E_ENABLED])

    @enabled.setter
    def enabled(self, value: bool) -> None:
        self.words[hot.E_ENABLED] = bool(value)

    def install(self, args: Sequence[Any], kwargs: Mapping[str, Any], kernel: int, r0: int, r1: int, *,
                pointers: Sequence[Pointer], results: Sequence[Argument | Output],
                disjoint: Iterable[tuple[int, int, bool]] = (), nogil: bool = False,
                fault: tuple[int, Callable[[], Any]] | None = None, user: Any = None) -> Plan | None:
        """Have calls like `(*args, **kwargs)` run `kernel(void** pointers, int64 r0, int64 r1)` from now on.

        Like: the same device, dtype, sizes and strides of each tensor, kinds of operands, and values of all other
        arguments. results: one is returned as it is, several as a tuple, none as None. disjoint: pairs of tensor leaves
        (a, b, same) whose memory must not overlap; `same` allows them to start at the same address. nogil: release the
        GIL around the kernel; worth it from about a millisecond. fault: the address of a word that the kernel sets to
        report a fault (an index out of range), and the function that is called then, which clears it and raises.

        Returns None if such a call can not have a plan, or if another thread is installing one at this moment.
        """
        frame, lock = self._describe(*args, **kwargs), _lock
        if frame is None or not lock.acquire(blocking=False):
            return None
        try:
            values = struct.unpack(f"<{hot.F_WORDS}q", frame)
            leaves = [leaf for a in (*args, *kwargs.values()) for leaf in (a if type(a) is list else [a])]
            statics = [a for a in leaves if type(a) not in DESCRIBED]
            if any(type(a) not in STATIC_TYPES for a in statics):
                return None
            outputs = list(dict.fromkeys(p for p in (*pointers, *results) if isinstance(p, Output)))
            if len(outputs) > hot.OUTPUTS or len(pointers) > hot.LEAVES:
                return None
            memory = self._encode(values, statics, leaves, kernel, r0, r1, pointers, results, outputs, disjoint, nogil)
            if fault is not None:
                memory[hot.P_FAULT], memory[hot.P_RAISE] = fault[0], id(fault[1])
            plan = Plan(memory, [*statics, fault], user)
            self._add(plan)
            return plan
        finally:
            lock.release()

    def _encode(self, frame: Sequence[int], statics: list[Any], leaves: list[Any], kernel: int, r0: int, r1: int,
                pointers: Sequence[Pointer], results: Sequence[Argument | Output], outputs: list[Output],
                disjoint: Iterable[tuple[int, int, bool]], nogil: bool) -> ctypes.Array[ctypes.c_uint64]:
        length = frame[hot.F_LENGTH]
        parts: dict[int, list[int]] = {
            hot.P_KEY: list(frame[hot.F_KEY:hot.F_KEY + length]),
            hot.P_STATICS: [id(o) for o in statics],
            hot.P_TEMPLATES: [w for o in outputs for w in self._template(o)],
            hot.P_POINTER: [w for p in pointers for w in _source(p, outputs)],
            hot.P_RESULT: [r.leaf if isinstance(r, Argument) else ~outputs.index(r) for r in results],
            hot.P_PAIR: [w for a, b, same in disjoint for w in (a, _extent(leaves[a]), b, _extent(leaves[b]), same)],
        }
        head = [0] * hot.P_WORDS
        head[hot.P_HASH], head[hot.P_LENGTH] = frame[hot.F_HASH], length
        head[hot.P_KERNEL], head[hot.P_R0], head[hot.P_R1], head[hot.P_NOGIL] = kernel, r0, r1, nogil
        head[hot.P_OUTPUTS], head[hot.P_POINTERS], head[hot.P_RESULTS] = len(outputs), len(pointers), len(results)
        head[hot.P_PAIRS] = len(parts[hot.P_PAIR]) // hot.PAIR
        dims = [w for o in outputs for w in (*o.shape, *o.strides)]
        body = [w for part in parts.values() for w in part]
        memory = (Word * (len(head) + len(body) + len(dims)))(*(w % 2**64 for w in (*head, *body, *dims)))
        at = ctypes.addressof(memory) + 8 * len(head)
        for place, part in parts.items():
            memory[place] = at
            at += 8 * len(part)
        template = memory[hot.P_TEMPLATES]
        for o in outputs:                       # PyTorch copies sizes and strides when it imports a block
            made = (Word * hot.TEMPLATE).from_address(template)
            made[hot.T_PROTO + allocator.M_SIZES], made[hot.T_PROTO + allocator.M_STRIDES] = at, at + 8 * len(o.shape)
            at, template = at + 16 * len(o.shape), template + 8 * hot.TEMPLATE
        return memory

    def _template(self, o: Output) -> list[int]:
        code, itemsize = self.rt.dtypes[o.dtype]
        counted = itemsize * _span(o.shape, o.strides)
        c = size_class(counted)
        usage = self.rt.address + 8 * (allocator.RT_USAGE + allocator.USAGE * o.index)
        return [c, class_bytes(c, counted), counted, usage,
                allocator.VERSION, self.rt.address, self.rt.symbols["block_free"], 0,
                0, allocator.NEURON | o.index << 32, code << 32 | len(o.shape), 0, 0, 0]

    # ---- the table
    def clear(self) -> None:
        """Evict all plans."""
        with _lock:
            gone = self.plans
            self._unfreed += gone
            self._rebuild([])
        self._report(gone)

    def _report(self, gone: list[Plan]) -> None:
        if self.on_evict is not None:
            for plan in gone:
                self.on_evict(plan)

    def _add(self, plan: Plan) -> None:
        if len(self.plans) >= self.max_plans:
            self._evict()
        if 2 * len(self.plans) >= self.table[0]:
            self._rebuild([*self.plans, plan])
        else:
            self.plans.append(plan)
            _place(self.table, plan)

    def _rebuild(self, plans: list[Plan]) -> None:
        slots = 8
        while slots < 4 * len(plans):
            slots *= 2
        table = (Word * (slots + 1))(slots - 1)
        for plan in plans:
            _place(table, plan)
        if self.words[hot.E_TABLE]:
            self._unfreed.append(self.table)
        self.table, self.plans = table, plans
        self.words[hot.E_TABLE] = ctypes.addressof(table)       # one store: a reader sees the old table or this one
        if self.words[hot.E_ACTIVE] == 0:                       # calls that start from here on know this table only
            self._unfreed.clear()

    def _evict(self) -> None:
        ranked = sorted(self.plans, key=lambda p: p.hits - p.seen, reverse=True)
        kept, gone = ranked[:self.max_plans // 2], ranked[self.max_plans // 2:]
        self._unfreed += gone                                   # a call in another thread may still be running one
        self._rebuild(kept)
        for plan in kept:
            plan.seen = plan.hits
        self._report(gone)


class Foreach:
    """An op on lists of tensors: element i of every list argument goes through `entry`, natively.

    lists: positions of the list arguments. returns: collect the results in a list; otherwise None is returned. Lists of
    unequal length, or an argument there that is no list, go to `slow(*args, **kwargs)`.
    """

    def __init__(self, rt: Runtime, name: str, entry: Entry, lists: Iterable[int], returns: bool,
                 slow: Callable[..., Any]):
        self.entry = entry
        mask = sum(1 << k for k in set(lists))
        own = cells(rt.address, id(immortal(slow)), ctypes.addressof(entry.words), mask, returns)
        self.call = builtin(rt.symbols["foreach_call"], own, name, FASTCALL | KEYWORDS)


# A plan is placed, and a table replaced, by one thread at a time. Nobody waits: a finaliser may run inside install, and
# a plan that is not installed now is installed at the next such call.
_lock = threading.Lock()


def _fresh_lock() -> None:
    global _lock
    _lock = threading.Lock()        # the thread that held it does not exist in a forked child


os.register_at_fork(after_in_child=_fresh_lock)


def _place(table: ctypes.Array[ctypes.c_uint64], plan: Plan) -> None:
    mask = table[0]
    at = plan.memory[hot.P_HASH] & mask
    while table[1 + at]:
        at = (at + 1) & mask
    table[1 + at] = plan.address


def _source(p: Pointer, outputs: list[Output]) -> tuple[int, int]:
    if isinstance(p, Argument):
        return p.leaf, p.offset
    return (hot.ZERO, p.address) if isinstance(p, Constant) else (hot.OUTPUT + outputs.index(p), 0)


def _span(shape: Sequence[int], strides: Sequence[int]) -> int:
    """Elements from the first to the last, both included."""
    return 1 + sum((n - 1) * s for n, s in zip(shape, strides)) if all(shape) else 0


def _extent(t: torch.Tensor) -> int:
    """Bytes from the first element's first to the last element's last."""
    return t.element_size() * _span(t.shape, t.stride())


def _text(s: str) -> ctypes.Array[ctypes.c_char]:
    return immortal(ctypes.create_string_buffer(s.encode("ascii")))


def size_class(n: int) -> int:
    """As `allocator.size_class`, which is native code."""
    if n > allocator.LARGE:
        return allocator.UNCACHED
    if n <= allocator.SMALL:
        return max(1, -(-n // allocator.STEP))
    e = (n - 1).bit_length() - 1
    return 17 + 4 * (e - 10) + ((n - (1 << e) - 1) >> (e - 2))


def class_bytes(c: int, n: int) -> int:
    """As `allocator.class_bytes`, which is native code."""
    if c == allocator.UNCACHED:
        return -(-n // allocator.STEP) * allocator.STEP
    if c <= 16:
        return c << 6
    e = 10 + (c - 17) // 4
    return (1 << e) + ((c - 17) % 4 + 1 << (e - 2))
