"""Memory of neuron tensors, in the word language: blocks, their free lists, and how they become tensors.

A block is one piece of memory: a 128-byte header that begins with the DLPack struct PyTorch imports, then the data.
When the last tensor on it dies, PyTorch calls the struct's deleter, and the block goes to the free list of its size
class. An adopted block is a header only: its data is a CPU tensor's, held through that tensor's own DLPack struct.

Free lists are lock-free, because the deleter runs in any thread, with or without the GIL, and because a lock could be
held by another thread across a fork. Only holders of the GIL pop, so there is one at a time and no ABA problem.
"""
from __future__ import annotations

from .words import Word, acquire, atomic_add, call, call_int, compare_swap, extern, local, swap

# Layouts: names of words.

# Runtime: what all entries share
RT_IMPORT, RT_READ, RT_EXPORT = 0, 1, 2             # functions of the DLPack exchange API
RT_TENSOR, RT_PARAMETER = 3, 4                      # torch.Tensor and torch.nn.Parameter, as type objects
RT_IMPL, RT_KEYS, RT_REFUSED = 5, 6, 7              # where a tensor's dispatch keys are; bits that no plan accepts
RT_ENABLED = 8                                      # 0 sends every call to its miss function
RT_CACHED, RT_LIMIT = 9, 10                         # bytes in the free lists, and their limit
RT_LISTS = 11                                       # one free list per size class
CLASSES = 64
RT_USAGE = RT_LISTS + CLASSES                       # one record per device
DEVICES, USAGE = 64, 8
RT_WORDS = RT_USAGE + DEVICES * USAGE
U_ALLOCATED, U_FREED, U_PEAK, U_ALLOCATIONS, U_FREES = 0, 1, 2, 3, 4     # since the start; the peak of live bytes
U_ELSEWHERE = 5                                     # live bytes that Python accounts for: part of the peak

# Block: DLManagedTensorVersioned (version, context, deleter, flags, then a DLTensor), then ours
M_VERSION, M_CONTEXT, M_DELETER, M_FLAGS, M_DATA, M_DEVICE, M_NDIM, M_SIZES, M_STRIDES, M_OFFSET = range(10)
B_CLASS, B_COUNTED, B_USAGE, B_NEXT, B_INNER = 10, 11, 12, 13, 14
HEADER = 128                                        # bytes
VERSION = 1                                         # major 1, minor 0: two 32-bit numbers
NEURON, CPU = 12, 1                                 # kDLExtDev, kDLCPU

# Size classes, of data bytes: 0 is an adopted block; 64-byte steps to 1 KiB; then four steps per power of two
STEP, SMALL = 64, 1024
LARGE = 1 << 18                                     # bytes; above it malloc is as fast, and blocks are not kept
UNCACHED = 63

NONE = extern("_Py_NoneStruct")
aligned_alloc = extern("aligned_alloc")
free = extern("free")
Py_IncRef = extern("Py_IncRef")
Py_DecRef = extern("Py_DecRef")
PyErr_NoMemory = extern("PyErr_NoMemory")
PyErr_Clear = extern("PyErr_Clear")
PyLong_AsVoidPtr = extern("PyLong_AsVoidPtr")
PyLong_AsLongLong = extern("PyLong_AsLongLong")
PyErr_Occurred = extern("PyErr_Occurred")
PyObject_Vectorcall = extern("PyObject_Vectorcall")
PySequence_Size = extern("PySequence_Size")
PySequence_GetItem = extern("PySequence_GetItem")


def size_class(n: Word) -> Word:
    if n > LARGE:
        return UNCACHED
    if n <= SMALL:
        return 1 if n == 0 else (n + STEP - 1) >> 6
    e = 10
    while n > 2 << e:                               # then 2**e < n <= 2**(e+1)
        e += 1
    return 17 + 4 * (e - 10) + ((n - (1 << e) - 1) >> (e - 2))


def class_bytes(c: Word, n: Word) -> Word:
    """How many data bytes a block of class c has that is to hold n."""
    if c == UNCACHED:
        return (n + STEP - 1) & -STEP
    if c <= 16:
        return c << 6
    e = 10 + ((c - 17) >> 2)
    return (1 << e) + ((((c - 17) & 3) + 1) << (e - 2))


def count_new(usage: Word, n: Word) -> Word:
    usage[U_ALLOCATED] += n
    usage[U_ALLOCATIONS] += 1
    live = usage[U_ALLOCATED] - usage[U_FREED] + usage[U_ELSEWHERE]
    if live > usage[U_PEAK]:
        usage[U_PEAK] = live


def take(rt: Word, c: Word, room: Word, usage: Word, counted: Word) -> Word:
    """A block of class c, its own words filled in but not the DLPack part; 0 with MemoryError set if there is none."""
    free_list = rt + 8 * (RT_LISTS + c)
    b = acquire(free_list)
    while b != 0 and not compare_swap(free_list, b, b[B_NEXT]):
        b = acquire(free_list)
    if b != 0:
        atomic_add(rt + 8 * RT_CACHED, -(HEADER + room))
    else:
        b = aligned_alloc(64, HEADER + room)
        if b == 0:
            return PyErr_NoMemory()
    b[B_CLASS], b[B_COUNTED], b[B_USAGE], b[B_INNER] = c, counted, usage, 0
    count_new(usage, counted)
    return b


def block_free(b: Word) -> Word:
    """The DLPack deleter of every block."""
    rt, usage, c = b[M_CONTEXT], b[B_USAGE], b[B_CLASS]
    atomic_add(usage + 8 * U_FREED, b[B_COUNTED])
    atomic_add(usage + 8 * U_FREES, 1)
    if b[B_INNER] != 0:
        inner = b[B_INNER]
        call(inner[M_DELETER], inner)
    n = HEADER + class_bytes(c, 0)
    if c == UNCACHED or rt[RT_CACHED] + n > rt[RT_LIMIT]:
        free(b)
    else:
        atomic_add(rt + 8 * RT_CACHED, n)
        free_list = rt + 8 * (RT_LISTS + c)
        b[B_NEXT] = acquire(free_list)
        while not compare_swap(free_list, b[B_NEXT], b):
            b[B_NEXT] = acquire(free_list)


def block_wrap(rt: Word, b: Word) -> Word:
    """Block -> a new tensor reference; 0 with a Python error, and the block freed, if PyTorch refuses it."""
    out = local(1)
    if call_int(rt[RT_IMPORT], b, out) != 0:
        block_free(b)
        return 0
    return out[0]


def read_ints(sequence: Word, out: Word) -> Word:
    """The integers of a sequence of at most 64; returns how many, or -1 with a Python error."""
    n = PySequence_Size(sequence)
    if n > 64:
        return -1
    for i in range(n):
        item = PySequence_GetItem(sequence, i)
        if item == 0:
            return -1
        out[i] = PyLong_AsLongLong(item)
        Py_DecRef(item)
        if out[i] == -1 and PyErr_Occurred() != 0:
            return -1
    return n


# Builtins. `self` is a Python int, the address of these words:
S_RT, S_SLOW = 0, 1                                 # the runtime; a Python function for what native code leaves alone


def slow(s: Word, args: Word, nargs: Word) -> Word:
    PyErr_Clear()
    return PyObject_Vectorcall(s[S_SLOW], args, nargs, 0)


def empty_call(self: Word, args: Word, nargs: Word) -> Word:
    """(sizes, strides or None, dtype word, bytes per element, device index) -> an uninitialised tensor."""
    s = PyLong_AsVoidPtr(self)
    if nargs != 5:
        return slow(s, args, nargs)
    rt, sizes, strides = s[S_RT], local(64), local(64)
    rank, contiguous = read_ints(args[0], sizes), args[1] == NONE
    if rank < 0 or not contiguous and read_ints(args[1], strides) != rank:
        return slow(s, args, nargs)
    span, elements = 1, 1                           # span: elements from the first to the last one, both included
    for i in range(rank):
        k = rank - 1 - i
        if contiguous:
            strides[k] = elements
        n, stride = sizes[k], strides[k]
        elements *= n if n > 1 else 1
        if n < 0 or stride < 0 or n > 1 << 30 or stride > 1 << 32 or elements > 1 << 32 or span > 1 << 32:
            return slow(s, args, nargs)             # so large, or so wrong, that a product might overflow
        span = 0 if n == 0 or span == 0 else span + (n - 1) * stride
    bytes, index = span * PyLong_AsLongLong(args[3]), PyLong_AsLongLong(args[4])
    if index < 0 or index >= DEVICES:
        return slow(s, args, nargs)
    c = size_class(bytes)
    b = take(rt, c, class_bytes(c, bytes), rt + 8 * (RT_USAGE + USAGE * index), bytes)
    if b == 0:
        return 0
    b[M_VERSION], b[M_CONTEXT], b[M_DELETER], b[M_FLAGS] = VERSION, rt, block_free, 0
    b[M_DATA], b[M_DEVICE], b[M_NDIM] = b + HEADER, NEURON | index << 32, PyLong_AsLongLong(args[2]) << 32 | rank
    b[M_SIZES], b[M_STRIDES], b[M_OFFSET] = sizes, strides, 0
    return block_wrap(rt, b)


def exported(rt: Word, o: Word) -> Word:
    """A plain tensor's DLPack struct, which keeps the memory alive; 0, maybe with an error, for any other object."""
    out, kind = local(1), o[1]
    if kind != rt[RT_TENSOR] and kind != rt[RT_PARAMETER]:
        return 0
    impl = o[rt[RT_IMPL]]
    if impl[rt[RT_KEYS]] & rt[RT_REFUSED] != 0:
        return 0
    if call_int(rt[RT_EXPORT], o, out) != 0:
        return 0
    return out[0]


def to_neuron_call(self: Word, args: Word, nargs: Word) -> Word:
    """(plain CPU tensor, device index) -> a neuron tensor on its memory."""
    s = PyLong_AsVoidPtr(self)
    rt = s[S_RT]
    if nargs != 2:
        return slow(s, args, nargs)
    index = PyLong_AsLongLong(args[1])
    m: Word = exported(rt, args[0]) if index >= 0 and index < DEVICES else 0
    if m == 0:
        return slow(s, args, nargs)
    span, sizes, strides = 1, m[M_SIZES], m[M_STRIDES]
    for i in range(m[M_NDIM] & 0xFFFFFFFF):
        span = 0 if sizes[i] == 0 or span == 0 else span + (sizes[i] - 1) * strides[i]
    b = take(rt, 0, 0, rt + 8 * (RT_USAGE + USAGE * index), span * (m[M_NDIM] >> 40 & 0xFF) >> 3)
    if b == 0:
        call(m[M_DELETER], m)
        return 0
    for i in range(10):
        b[i] = m[i]
    b[M_CONTEXT], b[M_DELETER], b[M_DEVICE], b[B_INNER] = rt, block_free, NEURON | index << 32, m
    return block_wrap(rt, b)


def to_cpu_call(self: Word, args: Word, nargs: Word) -> Word:
    """(plain neuron tensor) -> a CPU tensor on its memory."""
    s = PyLong_AsVoidPtr(self)
    rt, out = s[S_RT], local(1)
    m: Word = exported(rt, args[0]) if nargs == 1 else 0
    if m == 0:
        return slow(s, args, nargs)
    m[M_DEVICE] = CPU
    if call_int(rt[RT_IMPORT], m, out) != 0:
        call(m[M_DELETER], m)
        return 0
    return out[0]


def empty_cache(self: Word, unused: Word) -> Word:
    """() -> None: give the memory of all free blocks back to the system."""
    s = PyLong_AsVoidPtr(self)
    rt = s[S_RT]
    for c in range(CLASSES):
        b = swap(rt + 8 * (RT_LISTS + c), 0)
        while b != 0:
            rest = b[B_NEXT]
            atomic_add(rt + 8 * RT_CACHED, -(HEADER + class_bytes(c, 0)))
            free(b)
            b = rest
    Py_IncRef(NONE)
    return NONE


EXPORTED = (block_free, empty_call, to_neuron_call, to_cpu_call, empty_cache)
