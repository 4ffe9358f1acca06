"""The native hot path, in the word language: one warm op from arguments to new tensors, without a Python frame.

    entry_call(self, args, nargs, kwnames)      a METH_FASTCALL|METH_KEYWORDS builtin
      1 describe: write everything a plan depends on into a key, word by word, and note where the data is
      2 look the key up in the entry's hash table (open addressing; the whole key is compared)
      3 hit: take output blocks, fill in the kernel's pointers, call it, wrap the blocks
        miss: call entry.miss(*args, **kwargs), a Python function, which may install a plan for the next such call

Tensors are read and made through DLPack's C exchange API, but for one word of PyTorch's own: a tensor's dispatch keys.
All of this runs with the GIL held, except kernels whose plan releases it. Between step 1 and the kernel no Python code
can run: the objects compared are of types whose `==` is C code.

The key. Each leaf of the arguments (lists expanded) writes words that begin with a type object, a device word or a
negative number, and say how many follow, so that different calls have different keys:

    tensor              device type and index; ndim and dtype; sizes; strides
    operand number      FLOAT or INT
    other number        its type; its value, exactly (a float's bits, so 0.0 and -0.0 differ, and NaN equals itself)
    None                its type
    str, torch.dtype …  its type; the objects are compared when the keys are equal
    list                its type; its length; its leaves
"""
from __future__ import annotations

from .allocator import (
    HEADER,
    M_DATA,
    NONE,
    RT_ENABLED,
    RT_IMPL,
    RT_KEYS,
    RT_PARAMETER,
    RT_READ,
    RT_REFUSED,
    RT_TENSOR,
    Py_DecRef,
    Py_IncRef,
    PyErr_Clear,
    PyLong_AsVoidPtr,
    PyObject_Vectorcall,
    block_free,
    block_wrap,
    take,
)
from .words import Word, call, call_int, extern, float_of_double, float_of_int, local

# Entry: one per op
E_RT, E_MISS, E_TABLE, E_ENABLED, E_OPERANDS, E_ACTIVE, E_MISSES, E_KEYWORDS = 0, 1, 2, 3, 4, 5, 6, 7
KEYWORDS = 6                                        # E_KEYWORDS: that many pairs of (length, C string)
OPERAND_KEYWORD = 32                                # E_OPERANDS: bit k for position k, bit 32 + k for keyword k

# Plan. The addresses are of parts of the plan's own memory
P_HASH, P_LENGTH, P_KEY, P_STATICS = 0, 1, 2, 3
P_KERNEL, P_R0, P_R1, P_NOGIL, P_HITS = 4, 5, 6, 7, 8
P_OUTPUTS, P_TEMPLATES = 9, 10
P_POINTERS, P_POINTER = 11, 12                      # per pointer: which source, byte offset
P_RESULTS, P_RESULT = 13, 14                        # per result: a leaf, or ~output
P_PAIRS, P_PAIR = 15, 16                            # per pair: leaf, bytes, leaf, bytes, 1 if the same start is allowed
P_FAULT, P_RAISE = 17, 18                           # 0 or a word by which the kernel reports a fault; a Python function
P_WORDS = 19
PAIR = 5

# Template of an output: size class, data bytes of the block, bytes counted, usage record, the DLPack struct (10 words)
T_CLASS, T_ROOM, T_COUNTED, T_USAGE, T_PROTO = 0, 1, 2, 3, 4
TEMPLATE = T_PROTO + 10

# Frame: what `describe` finds out about one call
LEAVES, OUTPUTS, STATICS, KEY = 64, 4, 16, 256
F_LENGTH, F_LEAVES, F_STATICS, F_HASH = 0, 1, 2, 3
F_SOURCES = 4                                       # per leaf: address of its data; then of the outputs; then 0
OUTPUT, ZERO = LEAVES, LEAVES + OUTPUTS
F_OBJECTS = F_SOURCES + ZERO + 1                    # per leaf: the object
F_SLOTS = F_OBJECTS + LEAVES                        # per leaf: an operand's float, then its 64 exact bits
F_STATIC = F_SLOTS + 2 * LEAVES                     # objects to compare
F_KEY = F_STATIC + STATICS
F_WORDS = F_KEY + KEY

FLOAT, INT = -1, -2
OB_TYPE = 1                                         # PyObject: reference count, type
MULTIPLIER = -7046029254386353131                   # 2**64 / golden ratio, odd

PyFloat_Type = extern("PyFloat_Type")
PyLong_Type = extern("PyLong_Type")
PyBool_Type = extern("PyBool_Type")
PyList_Type = extern("PyList_Type")
PyFloat_AsDouble = extern("PyFloat_AsDouble", "double")
PyLong_AsLongLongAndOverflow = extern("PyLong_AsLongLongAndOverflow")
PyObject_RichCompareBool = extern("PyObject_RichCompareBool", "int")
PyUnicode_CompareWithASCIIString = extern("PyUnicode_CompareWithASCIIString", "int")
PyUnicode_GetLength = extern("PyUnicode_GetLength")
PyTuple_Size = extern("PyTuple_Size")
PyTuple_GetItem = extern("PyTuple_GetItem")
PyTuple_New = extern("PyTuple_New")
PyTuple_SetItem = extern("PyTuple_SetItem", "int")
PyList_Size = extern("PyList_Size")
PyList_GetItem = extern("PyList_GetItem")
PyList_New = extern("PyList_New")
PyList_SetItem = extern("PyList_SetItem", "int")
PyObject_CallNoArgs = extern("PyObject_CallNoArgs")
PyBytes_FromStringAndSize = extern("PyBytes_FromStringAndSize")
PyEval_SaveThread = extern("PyEval_SaveThread")
PyEval_RestoreThread = extern("PyEval_RestoreThread")
PY_EQ = 2


# ---- 1 describe

def describe_tensor(rt: Word, o: Word, f: Word, leaf: Word) -> Word:
    impl = o[rt[RT_IMPL]]
    if impl[rt[RT_KEYS]] & rt[RT_REFUSED] != 0:     # conjugated, negated, sparse …
        return 0
    data, device, ndim, sizes, strides, offset = 0, 1, 2, 3, 4, 5       # words of a DLTensor
    t, n = local(6), f[F_LENGTH]
    if call_int(rt[RT_READ], o, t) != 0:
        return 0
    rank, size, stride, k = t[ndim] & 0xFFFFFFFF, t[sizes], t[strides], f + 8 * (F_KEY + n)
    if n + 2 + 2 * rank > KEY:
        return 0
    k[0], k[1], missing = t[device], t[ndim], t[data] == 0
    for i in range(rank):
        k[2 + 2 * i], k[3 + 2 * i] = size[i], stride[i]
        if size[i] == 0:
            missing = 0
    if missing:                                     # elements without memory: its storage was resized to nothing
        return 0
    f[F_LENGTH] = n + 2 + 2 * rank
    f[F_SOURCES + leaf] = t[data] + t[offset]
    return 1


def describe_leaf(rt: Word, o: Word, operand: Word, f: Word) -> Word:
    """Add one argument, or element of a list, to the frame. 0: no plan can have it."""
    leaf, n, kind = f[F_LEAVES], f[F_LENGTH], o[OB_TYPE]
    if leaf == LEAVES or n + 2 > KEY:
        return 0
    f[F_LEAVES], f[F_OBJECTS + leaf] = leaf + 1, o
    if kind == rt[RT_TENSOR] or kind == rt[RT_PARAMETER]:
        return describe_tensor(rt, o, f, leaf)
    k, slot, overflow = f + 8 * (F_KEY + n), f + 8 * (F_SLOTS + 2 * leaf), local(1)
    k[0], f[F_SOURCES + leaf] = kind, slot
    if kind == PyFloat_Type:
        slot[1] = PyFloat_AsDouble(o)
        slot[0], number = float_of_double(slot[1]), FLOAT
    elif kind == PyLong_Type or kind == PyBool_Type:        # noqa: SIM109
        overflow[0] = 0
        slot[1] = PyLong_AsLongLongAndOverflow(o, overflow)
        if overflow[0] & 0xFFFFFFFF != 0:
            return 0
        slot[0], number = float_of_int(slot[1]), INT
        operand = operand if kind == PyLong_Type else 0
    else:
        if o != NONE:
            if f[F_STATICS] == STATICS:
                return 0
            f[F_STATIC + f[F_STATICS]] = o
            f[F_STATICS] += 1
        f[F_LENGTH] = n + 1
        return 1
    if operand:
        k[0], f[F_LENGTH] = number, n + 1
    else:
        k[1], f[F_LENGTH] = slot[1], n + 2
    return 1


def describe_argument(rt: Word, o: Word, operand: Word, f: Word) -> Word:
    if o[OB_TYPE] != PyList_Type:
        return describe_leaf(rt, o, operand, f)
    count, n = PyList_Size(o), f[F_LENGTH]
    if n + 2 > KEY:
        return 0
    f[F_KEY + n], f[F_KEY + n + 1], f[F_LENGTH] = PyList_Type, count, n + 2
    for i in range(count):
        item = PyList_GetItem(o, i)
        if item[OB_TYPE] == PyList_Type or not describe_leaf(rt, item, operand, f):
            return 0
    return 1


def keyword_number(e: Word, name: Word) -> Word:
    """Which of the entry's keywords this is, from 1; 0: none."""
    length = PyUnicode_GetLength(name)
    for i in range(KEYWORDS):
        known = e + 8 * (E_KEYWORDS + 2 * i)        # an unused place has length -1
        if known[0] == length and PyUnicode_CompareWithASCIIString(name, known[1]) == 0:
            return i + 1
    return 0


def describe(e: Word, args: Word, nargs: Word, kwnames: Word, f: Word) -> Word:
    """Fill in the frame of a call, all but its hash. 0: no plan can serve it."""
    rt, signature, operands = e[E_RT], nargs, e[E_OPERANDS]
    f[F_LENGTH], f[F_LEAVES], f[F_STATICS] = 1, 0, 0
    if nargs >= OPERAND_KEYWORD:
        return 0
    for i in range(nargs):
        if not describe_argument(rt, args[i], operands >> i & 1, f):
            return 0
    if kwnames != 0:
        count = PyTuple_Size(kwnames)
        if count > KEYWORDS:
            return 0
        for i in range(count):
            k = keyword_number(e, PyTuple_GetItem(kwnames, i))
            if k == 0 or not describe_argument(rt, args[nargs + i], operands >> OPERAND_KEYWORD + k - 1 & 1, f):
                return 0
            signature = signature << 8 | k
    f[F_KEY] = signature
    return 1


def key_hash(f: Word) -> Word:
    h = 0
    for i in range(f[F_LENGTH]):
        h = (h ^ f[F_KEY + i]) * MULTIPLIER
        h = h ^ (h >> 32)
    return h


# ---- 2 look up

def matches(p: Word, f: Word) -> Word:
    """1 if plan p is for the call in frame f, 0 if not, -1 with a Python error from a comparison."""
    key, statics, pair = p[P_KEY], p[P_STATICS], p[P_PAIR]
    for i in range(f[F_LENGTH]):
        if f[F_KEY + i] != key[i]:
            return 0
    for i in range(f[F_STATICS]):
        if f[F_STATIC + i] != statics[i]:
            same = PyObject_RichCompareBool(f[F_STATIC + i], statics[i], PY_EQ)
            if same != 1:
                return same
    for _ in range(p[P_PAIRS]):
        a, b = f[F_SOURCES + pair[0]], f[F_SOURCES + pair[2]]
        if a < b + pair[3] and b < a + pair[1] and not (pair[4] and a == b):
            return 0
        pair += 8 * PAIR
    return 1


def find(e: Word, f: Word) -> Word:
    """The plan for the call in frame f; 0 if there is none, maybe with a Python error."""
    table, h = e[E_TABLE], f[F_HASH]                # the table: mask, then a plan or 0 per slot
    at = h & table[0]
    p = table[1 + at]
    while p != 0:
        if p[P_HASH] == h and p[P_LENGTH] == f[F_LENGTH]:
            same = matches(p, f)
            if same != 0:
                return p if same == 1 else 0
        at = (at + 1) & table[0]
        p = table[1 + at]
    return 0


# ---- 3 run

def result(rt: Word, which: Word, f: Word, blocks: Word) -> Word:
    """A new reference to what a plan returns: an argument, or an output, whose block is used up."""
    if which >= 0:
        Py_IncRef(f[F_OBJECTS + which])
        return f[F_OBJECTS + which]
    b = blocks[~which]
    blocks[~which] = 0
    return block_wrap(rt, b)


def results(rt: Word, p: Word, f: Word, blocks: Word) -> Word:
    n, which = p[P_RESULTS], p[P_RESULT]
    if n == 1:
        return result(rt, which[0], f, blocks)
    if n == 0:
        Py_IncRef(NONE)
        return NONE
    several = PyTuple_New(n)
    if several == 0:
        return 0
    for i in range(n):
        o = result(rt, which[i], f, blocks)
        if o == 0:
            Py_DecRef(several)
            return 0
        PyTuple_SetItem(several, i, o)
    return several


def run(rt: Word, p: Word, f: Word) -> Word:
    outputs, blocks, argv = p[P_OUTPUTS], local(4), local(80)
    t, o = p[P_TEMPLATES], 0
    while o < outputs:
        b = take(rt, t[T_CLASS], t[T_ROOM], t[T_USAGE], t[T_COUNTED])
        if b == 0:
            break
        for i in range(10):
            b[i] = t[T_PROTO + i]
        b[M_DATA] = b + HEADER
        blocks[o], f[F_SOURCES + OUTPUT + o] = b, b + HEADER
        t += 8 * TEMPLATE
        o += 1
    made, value = o, 0
    if made == outputs:
        pointer = p[P_POINTER]
        for i in range(p[P_POINTERS]):
            argv[i] = f[F_SOURCES + pointer[0]] + pointer[1]
            pointer += 16
        if p[P_NOGIL]:                              # the caller holds the arguments, E_ACTIVE the plan
            state = PyEval_SaveThread()
            call(p[P_KERNEL], argv, p[P_R0], p[P_R1])
            PyEval_RestoreThread(state)
        else:
            call(p[P_KERNEL], argv, p[P_R0], p[P_R1])
        fault = p[P_FAULT]
        if fault != 0 and fault[0] != 0:
            value = PyObject_CallNoArgs(p[P_RAISE])
        else:
            value = results(rt, p, f, blocks)
    for i in range(made):
        if blocks[i] != 0:                          # scratch, or not reached because of an error
            block_free(blocks[i])
    return value


def miss(e: Word, args: Word, nargs: Word, kwnames: Word) -> Word:
    PyErr_Clear()
    e[E_MISSES] += 1
    return PyObject_Vectorcall(e[E_MISS], args, nargs, kwnames)


def serve(e: Word, args: Word, nargs: Word, kwnames: Word) -> Word:
    rt, f = e[E_RT], local(F_WORDS)
    if not (rt[RT_ENABLED] and e[E_ENABLED]) or not describe(e, args, nargs, kwnames, f):
        return miss(e, args, nargs, kwnames)
    f[F_HASH], f[F_SOURCES + ZERO] = key_hash(f), 0
    e[E_ACTIVE] += 1                                # plans and tables in use are not freed
    p, value = find(e, f), 0
    if p != 0:
        p[P_HITS] += 1
        value = run(rt, p, f)
    e[E_ACTIVE] -= 1
    if p == 0:
        return miss(e, args, nargs, kwnames)
    return value


def entry_call(self: Word, args: Word, nargs: Word, kwnames: Word) -> Word:
    return serve(PyLong_AsVoidPtr(self), args, nargs, kwnames)


def describe_call(self: Word, args: Word, nargs: Word, kwnames: Word) -> Word:
    """The frame of a call as bytes, for `Entry.install`; None if no plan can serve such a call."""
    f = local(F_WORDS)
    if not describe(PyLong_AsVoidPtr(self), args, nargs, kwnames, f):
        PyErr_Clear()
        Py_IncRef(NONE)
        return NONE
    f[F_HASH] = key_hash(f)
    return PyBytes_FromStringAndSize(f, 8 * F_WORDS)


# ---- tensor lists: element i of every list argument goes through the entry of the op on one tensor

X_SLOW, X_ENTRY, X_LISTS, X_RETURNS = 1, 2, 3, 4    # after S_RT: a Python function; entry; bit k: argument k is a list


def foreach_call(self: Word, args: Word, nargs: Word, kwnames: Word) -> Word:
    x = PyLong_AsVoidPtr(self)
    lists, n, several, one, value = x[X_LISTS], -1, 0, local(40), 0
    given = nargs if kwnames == 0 else nargs + PyTuple_Size(kwnames)
    for k in range(nargs):
        if lists >> k & 1:
            o = args[k]
            count = PyList_Size(o) if o[OB_TYPE] == PyList_Type else -2
            n = count if n == -1 else n
            if count != n:
                n = -2
    if n < 0 or given > 38:
        return PyObject_Vectorcall(x[X_SLOW], args, nargs, kwnames)
    if x[X_RETURNS]:
        several = PyList_New(n)
        if several == 0:
            return 0
    i, done = 0, 1
    while i < n and done:
        for k in range(given):
            one[k] = args[k]
            if k < nargs and lists >> k & 1:
                one[k] = PyList_GetItem(args[k], i) if i < PyList_Size(args[k]) else NONE
            Py_IncRef(one[k])                       # a miss runs Python code, which may change the lists
        value = serve(x[X_ENTRY], one, nargs, kwnames)
        for k in range(given):
            Py_DecRef(one[k])
        if value == 0:
            done = 0
        elif several:
            PyList_SetItem(several, i, value)
        else:
            Py_DecRef(value)
        i += 1
    if not done:
        if several:
            Py_DecRef(several)
        return 0
    if several == 0:
        Py_IncRef(NONE)
        return NONE
    return several


EXPORTED = (entry_call, describe_call, foreach_call)
