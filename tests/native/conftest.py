"""What the tests of native entries share: the runtime, and a few kernels written in the word language."""
from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

import neuron_eager  # noqa: F401  (registers the device)
from neuron_eager.errors import Unavailable
from neuron_eager.native import elf, words
from neuron_eager.native.runtime import resolve, runtime
from neuron_eager.native.words import Word, extern

usleep = extern("usleep", "int")


# Kernels on contiguous int64 tensors of r1 elements: k(pointers, r0, r1), the output last

def negate(p: Word, r0: Word, r1: Word) -> Word:
    x, out = p[0], p[1]
    for i in range(r1):
        out[i] = -x[i]


def add(p: Word, r0: Word, r1: Word) -> Word:
    x, y, out = p[0], p[1], p[2]
    for i in range(r1):
        out[i] = x[i] + y[i]


def add_times(p: Word, r0: Word, r1: Word) -> Word:
    """out = x + y * (the integer operand)"""
    x, y, operand, out = p[0], p[1], p[2], p[3]
    for i in range(r1):
        out[i] = x[i] + y[i] * operand[1]


def copy_operand(p: Word, r0: Word, r1: Word) -> Word:
    """Both words of an operand."""
    operand, out = p[0], p[1]
    out[0], out[1] = operand[0], operand[1]


def three(p: Word, r0: Word, r1: Word) -> Word:
    """(-x, x + x, x), by way of a scratch tensor."""
    x, scratch, a, b, c = p[0], p[1], p[2], p[3], p[4]
    for i in range(r1):
        scratch[i] = -x[i]
    for i in range(r1):
        a[i], b[i], c[i] = scratch[i], x[i] + x[i], x[i]


def sleepy_add(p: Word, r0: Word, r1: Word) -> Word:
    usleep(2000)
    add(p, r0, r1)


def first_words(p: Word, r0: Word, r1: Word) -> Word:
    """out[i] = the first word behind pointer i, for r1 pointers; the output comes after them."""
    out = p[r1]
    for i in range(r1):
        x = p[i]
        out[i] = x[0]


def faulty(p: Word, r0: Word, r1: Word) -> Word:
    """Sets the fault word, whose address is the first pointer, if x[0] is negative."""
    fault, x, out = p[0], p[1], p[2]
    if x[0] < 0:
        fault[0] = x[0]
    out[0] = x[0]


KERNELS = (faulty, negate, add, add_times, copy_operand, three, sleepy_add, first_words)


@pytest.fixture(scope="session")
def rt():
    try:
        return runtime()
    except Unavailable as e:
        pytest.skip(str(e))


@pytest.fixture(scope="session")
def kernels():
    symbols = elf.load_object(words.compile_object(words.Module(KERNELS).text), resolve)
    return SimpleNamespace(**symbols)


@pytest.fixture
def ints(rt):
    """A neuron int64 tensor of these values."""
    def make(*values, index=0):
        return rt.to_neuron(torch.tensor(values, dtype=torch.int64), index)
    return make
