"""The word language: what it computes, and what it refuses."""
from __future__ import annotations

import ctypes
import random
import struct

import pytest

from neuron_eager.errors import WordLanguageError
from neuron_eager.native import elf, words
from neuron_eager.native.runtime import resolve
from neuron_eager.native.words import (
    Word,
    acquire,
    atomic_add,
    call,
    call_int,
    compare_swap,
    extern,
    float_of_double,
    float_of_int,
    local,
    swap,
)

strlen = extern("strlen")
labs = extern("labs")
atoi = extern("atoi", "int")
strtod = extern("strtod", "double")
stdout = extern("stdout")
TEN = 10
nothing = None
other = 1.5


def native(*functions):
    """Compile and load; Python callables on signed words."""
    module = words.Module(functions)
    symbols = elf.load_object(words.compile_object(module.text), resolve)
    loaded = []
    for f in functions:
        n = f.__code__.co_argcount
        loaded.append(ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_int64] * n)(symbols[f.__name__]))
    return loaded[0] if len(loaded) == 1 else loaded


def arithmetic(a: Word, b: Word) -> Word:
    c = a * b + TEN - (a & b) | (a ^ 7)
    c += b << 3
    c -= ~a
    return c ^ (a >> 60) - -b


def logic(a: Word, b: Word) -> Word:
    both = a > 0 and b > 0
    neither = not (a > 0 or b > 0)
    order = 1 if a < b else 2 if a == b else 3
    return both + 10 * neither + 100 * order + 1000 * (a != b) + 10000 * (a <= b) + 100000 * (a >= b)


def loops(n: Word) -> Word:
    total, i = 0, 0
    while 1:
        if i == n:
            break
        i += 1
        if i & 1:
            continue
        for j in range(i):
            if j == 3:
                continue
            total += j
    return total


def memory(p: Word) -> Word:
    q = local(4)
    q[0], q[1] = p[0], p[1]
    q[0], q[1] = q[1], q[0]
    p[2] = q[0] * 10 + q[1]
    p[q[3 - 3] - q[0]] += 1
    return p + 8


def helper(a: Word) -> Word:
    return a + 1


def calls(a: Word, s: Word) -> Word:
    f = helper
    x: Word = helper(helper(a)) + call(f, 10)
    return x + strlen(s) + atoi(s) + call_int(atoi, s) + (stdout != 0)


def no_result(a: Word) -> Word:
    """A docstring, and that is all."""


def atomics(p: Word) -> Word:
    a = atomic_add(p, 5)
    b = swap(p + 8, 7)
    c = compare_swap(p + 16, 3, 4)
    d = compare_swap(p + 16, 3, 9)
    return a + 10 * b + 100 * c + 1000 * d + 10000 * acquire(p + 16)


def floats(s: Word, i: Word) -> Word:
    return float_of_double(strtod(s, 0)) << 32 | float_of_int(i)


def cleaned(p: Word, v: Word) -> Word:
    try:
        p[0] = labs(v)
        p[1] = helper(p[0])
    finally:
        p[2] = 99
    return p[1]


def signed(n):
    return (n + 2**63) % 2**64 - 2**63


def test_arithmetic():
    f = native(arithmetic)
    rng = random.Random(1)
    for _ in range(300):
        a, b = (signed(rng.getrandbits(64) >> rng.choice((0, 30, 60))) for _ in range(2))
        c = (a * b + 10 - (a & b)) | (a ^ 7)
        c = c + (b << 3) + a + 1
        assert f(a, b) == signed(c ^ ((a % 2**64 >> 60) + b))


def test_logic():
    f = native(logic)
    for a in (-2, 0, 3):
        for b in (-2, 0, 3, 4):
            order = 1 if a < b else 2 if a == b else 3
            assert f(a, b) == ((a > 0 and b > 0) + 10 * (not (a > 0 or b > 0)) + 100 * order + 1000 * (a != b)
                               + 10000 * (a <= b) + 100000 * (a >= b))


def test_loops():
    f = native(loops)
    for n in (0, 1, 7, 20):
        assert f(n) == sum(j for i in range(2, n + 1, 2) for j in range(i) if j != 3)


def test_memory():
    p = (ctypes.c_int64 * 4)(3, 4, 0, 0)
    address = ctypes.addressof(p)
    assert native(memory)(address) == address + 8 and list(p) == [4, 4, 43, 0]


def test_calls():
    f = native(calls)
    text = ctypes.create_string_buffer(b"-17")
    assert f(5, ctypes.addressof(text)) == 7 + 11 + 3 - 17 - 17 + 1


def test_a_function_without_return_gives_zero():
    assert native(no_result)(3) == 0


def test_atomics():
    p = (ctypes.c_int64 * 3)(1, 2, 3)
    assert native(atomics)(ctypes.addressof(p)) == 1 + 20 + 100 + 0 + 40000 and list(p) == [6, 7, 4]


def test_floats():
    f = native(floats)
    for text, i in ((b"0.1", 3), (b"-1e300", 2**62 + 1), (b"1e-60", -5)):
        s = ctypes.create_string_buffer(text)
        wide = ctypes.c_float(float(text)).value, ctypes.c_float(i).value
        assert struct.unpack("<ff", struct.pack("<q", f(ctypes.addressof(s), i))) == (wide[1], wide[0])


def test_finally_runs_without_an_exception_too():
    p = (ctypes.c_int64 * 3)()
    assert native(cleaned)(ctypes.addressof(p), -4) == 5 and list(p) == [4, 5, 99]


# ---- what is refused

def unknown(a: Word) -> Word:
    return misspelt(a)  # noqa: F821


def not_a_word(a: Word) -> Word:
    return a + other


def not_callable(a: Word) -> Word:
    return TEN(a)


def text_value(a: Word) -> Word:
    return "text"


def division(a: Word) -> Word:
    return a / 2


def chained(a: Word) -> Word:
    return 1 < a < 3


def with_statement(a: Word) -> Word:
    with a:
        pass


def keyword(a: Word) -> Word:
    return helper(a=a)


def too_many(a: Word) -> Word:
    return helper(a, a)


def uneven(a: Word) -> Word:
    b, c = a, a, a
    return b + c


def unpacked(a: Word) -> Word:
    b, c = a
    return b + c


def variable_local(a: Word) -> Word:
    return local(a)



def returns_in_try(a: Word) -> Word:
    try:
        return a
    finally:
        helper(a)


def catches(a: Word) -> Word:
    try:
        helper(a)
    except ValueError:
        pass


def attribute(a: Word) -> Word:
    return a.b


def varying(a: Word) -> Word:
    return strlen(a) + strlen(a, a)


def defaults(a: Word = 1) -> Word:
    return a


REFUSED = [(unknown, "unknown name misspelt"), (not_a_word, "other is not a word"),
           (not_callable, "TEN can not be called"),
           (text_value, "not an expression"), (division, "a / 2 is not an expression"), (chained, "not a comparison"),
           (with_statement, "not a statement"), (keyword, "positional arguments"), (too_many, "takes 1 arguments"),
           (uneven, "3 values for 2 targets"), (unpacked, "a tuple is assigned"), (variable_local, "is a constant"),
           (returns_in_try, "return inside try"), (catches, "not a statement"), (attribute, "not an expression"),
           (varying, "2 arguments here, 1 elsewhere"), (defaults, "positional parameters")]


@pytest.mark.parametrize("function, message", REFUSED, ids=lambda v: getattr(v, "__name__", ""))
def test_refused(function, message):
    with pytest.raises(WordLanguageError) as caught:
        words.Module([function])
    first = function.__code__.co_firstlineno
    assert message in str(caught.value) and function.__name__ in str(caught.value)
    assert caught.value.file == __file__ and first <= caught.value.line <= first + 5


def test_the_line_is_named():
    line = unknown.__code__.co_firstlineno + 1
    with pytest.raises(WordLanguageError, match=rf"test_entry_words.py:{line}: unknown name"):
        words.Module([unknown])


def test_symbols():
    module = words.Module([calls])
    assert module.symbols == ["atoi", "stdout", "strlen"] and module.exported == ("calls",)
    assert "define internal i64 @helper" in module.text
