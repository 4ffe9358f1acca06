"""Programs in which the order of reads and writes matters, and what may be shared between specialisations."""

from __future__ import annotations

import random
import threading

import nki.isa as nisa
import nki.language as nl
import numpy as np
import pytest
import torch

from neuron_eager.errors import NativeUnsupported
from neuron_eager.native import compile as native
from neuron_eager.native.table import Table
from neuron_eager.nki.interpreter import Interpreter
from neuron_eager.nki.jit import trace
from neuron_eager.nki.program import TensorSpec

P = 128


def pieces(n):
    return [(i, min(P, n - i)) for i in range(0, n, P)]


def like(x):
    return nl.ndarray(x.shape, x.dtype, nl.shared_hbm)


def shifted(x):
    """A tile moved over itself by one column."""
    out, C = like(x), x.shape[1]
    for r, n in pieces(x.shape[0]):
        a = nl.ndarray((n, C), x.dtype)
        nisa.dma_copy(a, x[r : r + n])
        nisa.tensor_copy(a[:, 1:], a[:, : C - 1])
        nisa.dma_copy(out[r : r + n], a)
    return out


def in_place(x):
    for r, n in pieces(x.shape[0]):
        a = nl.ndarray((n, x.shape[1]), x.dtype)
        nisa.dma_copy(a, x[r : r + n])
        nisa.activation(a, nl.square, a)
        nisa.dma_copy(x[r : r + n], a)
    return x


def in_place_softmax(x):
    for r, n in pieces(x.shape[0]):
        a, m, s = (
            nl.ndarray((n, x.shape[1]), nl.float32),
            nl.ndarray((n, 1), nl.float32),
            nl.ndarray((n, 1), nl.float32),
        )
        nisa.dma_copy(a, x[r : r + n])
        nisa.tensor_reduce(m, nl.maximum, a, axis=1, negate=True)
        nisa.activation(a, nl.exp, a, bias=m, reduce_op=nl.add, reduce_cmd=nisa.reduce_cmd.reset_reduce, reduce_res=s)
        nisa.reciprocal(s, s)
        nisa.tensor_scalar(a, a, nl.multiply, s)
        nisa.dma_copy(x[r : r + n], a)
    return x


def next_tile(x):
    """x[r] += x[r + 128] in place: the order of the tiles matters."""
    for r in range(0, x.shape[0] // P * P - P, P):
        a, b = nl.ndarray((P, x.shape[1]), x.dtype), nl.ndarray((P, x.shape[1]), x.dtype)
        nisa.dma_copy(a, x[r : r + P])
        nisa.dma_copy(b, x[r + P : r + 2 * P])
        nisa.tensor_tensor(a, a, b, nl.add)
        nisa.dma_copy(x[r : r + P], a)
    return x


def running_columns(x):
    """Column c of every tile becomes the sum of columns 0..c, in place, one column after the other."""
    out = like(x)
    for r, n in pieces(x.shape[0]):
        a = nl.ndarray((n, x.shape[1]), x.dtype)
        nisa.dma_copy(a, x[r : r + n])
        for c in range(1, x.shape[1]):
            nisa.tensor_tensor(a[:, c : c + 1], a[:, c - 1 : c], a[:, c : c + 1], nl.add)
        nisa.dma_copy(out[r : r + n], a)
    return out


def psum_accumulation(x, y):
    """accumulate=None: the first write overwrites, the second adds; False starts again."""
    out = nl.ndarray((2 * P, P), nl.float32, nl.shared_hbm)
    a, b, o = (nl.ndarray((P, P), nl.float32) for _ in range(3))
    acc = nl.ndarray((P, P), nl.float32, nl.psum)
    nisa.dma_copy(a, x)
    nisa.dma_copy(b, y)
    nisa.nc_matmul(acc, a, b)
    nisa.nc_matmul(acc, b, a)
    nisa.tensor_copy(o, acc)
    nisa.dma_copy(out[:P], o)
    nisa.nc_matmul(acc, a, a, accumulate=False)
    nisa.tensor_copy(o, acc)
    nisa.dma_copy(out[P:], o)
    return out


def through_hbm(x):
    """An HBM intermediate, read back with rows as columns."""
    R, C = x.shape
    middle, out = nl.ndarray((R, C), x.dtype, nl.private_hbm), nl.ndarray((C, R), x.dtype, nl.shared_hbm)
    for r, n in pieces(R):
        a = nl.ndarray((n, C), x.dtype)
        nisa.dma_copy(a, x[r : r + n])
        nisa.activation(a, nl.square, a)
        nisa.dma_copy(middle[r : r + n], a)
    for c, n in pieces(C):
        b = nl.ndarray((n, R), x.dtype)
        nisa.dma_copy(b, middle.permute((1, 0))[c : c + n])
        nisa.dma_copy(out[c : c + n], b)
    return out


def strided_tiles(x):
    out, C = like(x), x.shape[1]
    for r, n in pieces(x.shape[0]):
        a, o = nl.ndarray((n, C), x.dtype), nl.ndarray((n, C), x.dtype)
        nisa.dma_copy(a, x[r : r + n])
        nisa.tensor_scalar(o[:, 0::2], a[:, 1::2], nl.multiply, -1.0)
        nisa.tensor_copy(o[:, 1::2], a[:, 0::2])
        nisa.dma_copy(out[r : r + n], o)
    return out


def fill_then_write(x):
    """Zero everything, then overwrite a part: the order of the stores matters."""
    R, C = x.shape
    out, a, b = like(x), nl.ndarray((P, C), x.dtype), nl.ndarray((P, C), x.dtype)
    nisa.memset(a, 0.0)
    for r, n in pieces(R):
        nisa.dma_copy(out[r : r + n], a[:n])
    nisa.dma_copy(b[:32], x[10:42])
    nisa.dma_copy(out[10:42, 5:90], b[:32, 5:90])
    return out


def two_column_ranges(x):
    out, C = like(x), x.shape[1]
    for r, n in pieces(x.shape[0]):
        a = nl.ndarray((n, C), x.dtype)
        nisa.dma_copy(a, x[r : r + n])
        nisa.dma_copy(out[r : r + n, :30], a[:, :30])
        nisa.activation(a, nl.square, a)
        nisa.dma_copy(out[r : r + n, 30:], a[:, 30:])
    return out


def scaled(x, alpha):
    out, s = like(x), nl.ndarray((P, 1), nl.float32)
    nisa.dma_copy(s, alpha.broadcast(0, P))
    for r, n in pieces(x.shape[0]):
        a = nl.ndarray((n, x.shape[1]), x.dtype)
        nisa.dma_copy(a, x[r : r + n])
        nisa.tensor_scalar(a, a, nl.multiply, s[:n])
        nisa.dma_copy(out[r : r + n], a)
    return out


def halves_of_bits(x):
    """float32 as two 16-bit integers, exchanged: elements of another size."""
    out = like(x)
    for r, n in pieces(x.shape[0]):
        a, b = nl.ndarray((n, x.shape[1]), x.dtype), nl.ndarray((n, x.shape[1]), x.dtype)
        nisa.dma_copy(a, x[r : r + n])
        low, high = a.view(nl.uint16), b.view(nl.uint16)
        nisa.tensor_copy(high[:, 0::2], low[:, 1::2])
        nisa.tensor_copy(high[:, 1::2], low[:, 0::2])
        nisa.dma_copy(out[r : r + n], b)
    return out


def sign_bit(x):
    """The sign flipped as an integer."""
    out = like(x)
    for r, n in pieces(x.shape[0]):
        a = nl.ndarray((n, x.shape[1]), x.dtype)
        nisa.dma_copy(a, x[r : r + n])
        bits = a.view(nl.uint32)
        nisa.tensor_scalar(bits, bits, nl.bitwise_xor, 0x80000000)
        nisa.dma_copy(out[r : r + n], a)
    return out


def computed_moving(x, y):
    """A matmul whose moving operand is computed on chip."""
    out = nl.ndarray((P, P), nl.float32, nl.shared_hbm)
    a, b, o = (nl.ndarray((P, P), nl.float32) for _ in range(3))
    acc = nl.ndarray((P, P), nl.float32, nl.psum)
    nisa.dma_copy(a, x)
    nisa.dma_copy(b, y)
    nisa.activation(b, nl.square, b)
    nisa.nc_matmul(acc, a, b)
    nisa.tensor_copy(o, acc)
    nisa.dma_copy(out, o)
    return out


def rotated(x):
    cols = torch.stack([-x[:, 1::2], x[:, 0::2]], -1)
    return cols.reshape(x.shape)


def partly(x):
    o = torch.zeros_like(x)
    o[10:42, 5:90] = x[10:42, 5:90]
    return o


def counted(x):
    """Truth values in integer tiles, added as integers: 1 + 1 is 2."""
    out = like(x)
    for r, n in pieces(x.shape[0]):
        a, b = nl.ndarray((n, x.shape[1]), x.dtype), nl.ndarray((n, x.shape[1]), nl.uint32)
        nisa.dma_copy(a, x[r : r + n])
        nisa.tensor_scalar(b, a, nl.greater, 0.0)
        nisa.tensor_tensor(b, b, b, nl.add)
        nisa.tensor_copy(a, b)
        nisa.dma_copy(out[r : r + n], a)
    return out


def exchanged(x):
    bits = x.view(torch.int32)
    return ((bits << 16) | ((bits >> 16) & 0xFFFF)).view(torch.float32)


CASES = {
    "shifted overlapping copy": (shifted, 1, lambda x: torch.cat([x[:, :1], x[:, :-1]], 1), "whole"),
    "in place": (in_place, 1, torch.square, "whole"),
    "in place softmax": (in_place_softmax, 1, lambda x: x.softmax(-1), "whole"),
    "in place, reads the next tile": (next_tile, 1, lambda x: torch.cat([x[:128] + x[128:256], x[128:]]), "regions"),
    "running columns": (running_columns, 1, lambda x: x.double().cumsum(1).float(), None),
    "HBM intermediate": (through_hbm, 1, lambda x: x.square().t(), "regions"),
    "strided tiles": (strided_tiles, 1, rotated, "whole"),
    "fill, then overwrite": (fill_then_write, 1, partly, "regions"),
    "two column ranges": (two_column_ranges, 1, lambda x: torch.cat([x[:, :30], x[:, 30:].square()], 1), "whole"),
    "halves of bits": (halves_of_bits, 1, exchanged, "regions"),
    "truth values as integers": (counted, 1, lambda x: 2.0 * (x > 0), "whole"),
    "sign bit": (sign_bit, 1, torch.neg, "whole"),
    "PSUM accumulation": (psum_accumulation, 2, lambda a, b: torch.cat([a.t() @ b + b.t() @ a, a.t() @ a]), "whole"),
    "computed moving operand": (computed_moving, 2, lambda a, b: a.t() @ b.square(), "regions"),
}


@pytest.mark.parametrize("name", CASES)
def test_hazard(name, both):
    kernel, count, reference, how = CASES[name]
    torch.manual_seed(0)
    inputs = [torch.randn(300, 96) if count == 1 else torch.randn(P, P) for _ in range(count)]
    b = both(kernel, inputs)
    got = b.native()
    atol = 1e-4 if count == 2 else 1e-5
    torch.testing.assert_close(got, reference(*inputs), rtol=1e-5, atol=atol, equal_nan=True)
    torch.testing.assert_close(got.double(), b.interpreted(), rtol=1e-5, atol=atol, equal_nan=True)
    assert how is None or b.compiled.table.how.startswith(how), b.compiled.table.how


@pytest.mark.parametrize(
    "make", [lambda x: x.t(), lambda x: x[::2, 1::3], lambda x: x[:, :1].expand(-1, 64), lambda x: x[5]]
)
def test_strided_arguments(make, both):
    """Any strides of the arguments, broadcast ones among them."""
    torch.manual_seed(0)
    x = make(torch.randn(200, 96))
    x = x if x.ndim == 2 else x[None].expand(7, -1)
    b = both(shifted, [x])
    assert torch.equal(b.native([x]), torch.cat([x[:, :1], x[:, :-1]], 1))


def test_a_scalar_operand_is_data(both):
    torch.manual_seed(0)
    x = torch.randn(300, 96)
    b = both(scaled, [x, torch.full((1, 1), 1.5)])
    assert torch.equal(b.native(), x * 1.5)
    assert torch.equal(b.native([x, torch.full((1, 1), -3.0)]), x * -3.0)


def program_for(kernel, *shapes, dtype="float32", **constants):
    return trace(kernel, [TensorSpec.contiguous(s, dtype) for s in shapes], constants)


@pytest.mark.parametrize("name", ["softmax", "layernorm", "matmul"])
def test_row_counts_share_their_objects(name, kernels):
    """One object for every number of rows: a new one compiles nothing."""
    more = {"softmax": [], "layernorm": [(256,), (256,)], "matmul": [(256, 320)]}[name]
    kept = set()
    for R in (16, 127, 128, 129, 257, 1000, 4096):
        kept.update(native.compile_program(program_for(getattr(kernels, name), (R, 256), *more)).table.objects)
    assert len(kept) == 1


def test_contiguous_elementwise_work_has_one_function_for_every_shape(kernels):
    kept = set()
    for shape in ((4096, 1024), (1000, 768), (37, 130), (1, 5), (77, 1), (128, 2048)):
        for chunk in (2048, 100):
            kept.update(native.compile_program(program_for(kernels.add, shape, shape, chunk=chunk)).table.objects)
    assert len(kept) == 1


def test_a_table_is_stored_and_loaded(kernels, both):
    """A kernel from its stored table gives the same results without tracing or lowering."""
    torch.manual_seed(0)
    for name in ("softmax", "flash"):
        x = torch.randn(300, 64)
        b = both(getattr(kernels, name), [x] if name == "softmax" else [x, x, x])
        before = b.native()
        table = Table.from_json(b.compiled.table.to_json())
        b.compiled = native.load(table, native.current())
        assert torch.equal(b.native(), before)


def test_constants_of_a_program():
    values = np.arange(128 * 40, dtype=np.float32).reshape(128, 40)

    def kernel(x):
        out, a, b = like(x), nl.ndarray(x.shape, x.dtype), nl.ndarray(x.shape, x.dtype)
        nisa.dma_copy(a, x)
        nisa.dma_copy(b, nl.shared_constant(values))
        nisa.tensor_tensor(a, a, b, nl.add)
        nisa.dma_copy(out, a)
        return out

    compiled = native.compile_program(program_for(kernel, (128, 40)))
    compiled = native.load(Table.from_json(compiled.table.to_json()), native.current())
    x, out = np.ones((128, 40), np.float32), np.zeros((128, 40), np.float32)
    compiled([x.ctypes.data, out.ctypes.data])
    assert np.array_equal(out, x + values)


def add_into(out, x, y):
    for r, n in pieces(x.shape[0]):
        a, b = nl.ndarray((n, x.shape[1]), x.dtype), nl.ndarray((n, x.shape[1]), x.dtype)
        nisa.dma_copy(a, x[r : r + n])
        nisa.dma_copy(b, y[r : r + n])
        nisa.tensor_tensor(a, a, b, nl.add)
        nisa.dma_copy(out[r : r + n], a)
    return out


def test_which_arguments_may_be_one_memory(kernels):
    S, row = (
        TensorSpec.contiguous((300, 70), "float32"),
        TensorSpec((300, 70), (0, 1), TensorSpec.contiguous((1,), "float32").dtype),
    )
    assert native.compile_program(trace(add_into, [S, S, S])).safe == {(1, 0), (2, 0)}
    assert native.compile_program(trace(add_into, [S, S, row])).safe == {(1, 0)}
    assert native.compile_program(program_for(kernels.softmax, (300, 70))).safe == {(0, 1)}
    assert native.compile_program(program_for(kernels.transpose, (128, 128))).safe == frozenset()
    assert native.compile_program(program_for(kernels.matmul, (128, 128), (128, 128))).safe == frozenset()


def gather(out, table, index, mode=nisa.oob_mode.error):
    width = table.shape[1]
    for r, n in pieces(index.shape[0]):
        wanted, t = nl.ndarray((n, 1), nl.int32), nl.ndarray((n, width), table.dtype)
        nisa.dma_copy(wanted, index[r : r + n])
        nisa.memset(t, -7.0)
        rows = table.ap(pattern=[[width, n], [1, width]], vector_offset=wanted, indirect_dim=0)
        nisa.dma_copy(t, rows, oob_mode=mode)
        nisa.dma_copy(out[r : r + n], t)
    return out


@pytest.mark.parametrize("index_dtype", ["int32", "uint32"])
def test_rows_by_index(index_dtype):
    specs = [
        TensorSpec.contiguous(s, d) for s, d in (((300, 40), "float32"), ((50, 40), "float32"), ((300, 1), index_dtype))
    ]
    rng = np.random.default_rng(0)
    table, index = rng.normal(size=(50, 40)).astype(np.float32), rng.integers(0, 50, (300, 1)).astype(index_dtype)
    out = np.zeros((300, 40), np.float32)
    pointers = [a.ctypes.data for a in (out, table, index)]
    compiled = native.compile_program(trace(gather, specs))
    compiled(pointers)
    assert np.array_equal(out, table[index[:, 0]])
    assert compiled.checked and native.fault() is None

    index[7] = 55
    compiled(pointers)
    assert native.fault() == 55 and native.fault() is None

    program = trace(gather, specs, {"mode": nisa.oob_mode.skip})
    native.compile_program(program)(pointers)
    assert native.fault() is None
    want = Interpreter.replay(program, [np.zeros_like(out), table, index])[0]
    assert np.array_equal(out, want) and (out[7] == -7).all()


def searches(x, chosen):
    """The eight largest of each row, where they are, the row without them, and columns by index."""
    (R, C), outs = x.shape, []
    shapes = ((8, x.dtype), (8, nl.uint32), (C, x.dtype), (8, nl.uint32), (chosen.shape[1], x.dtype))
    for width, dtype in shapes:
        outs.append(nl.ndarray((R, width), dtype, nl.shared_hbm))
    for r, n in pieces(R):
        a, wanted = nl.ndarray((n, C), x.dtype), nl.ndarray((n, chosen.shape[1]), nl.uint32)
        best, where, rest, found, picked = (nl.ndarray((n, width), dtype) for width, dtype in shapes)
        nisa.dma_copy(a, x[r : r + n])
        nisa.dma_copy(wanted, chosen[r : r + n])
        nisa.max8(best, a)
        nisa.nc_find_index8(where, a, best)
        nisa.nc_match_replace8(rest, a, best, imm=-9.0, dst_idx=found)
        nisa.nc_n_gather(picked, a, wanted)
        for out, t in zip(outs, (best, where, rest, found, picked)):
            nisa.dma_copy(out[r : r + n], t)
    return tuple(outs)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("columns", [8, 37, 300])
def test_searches(columns, dtype):
    """max8, find_index8, match_replace8 and n_gather, with many equal values in a row."""
    specs = [TensorSpec.contiguous((200, columns), dtype), TensorSpec.contiguous((200, 5), "uint32")]
    program = trace(searches, specs)
    rng = np.random.default_rng(0)
    x = rng.integers(-6, 7, (200, columns)).astype(program.inputs[0].dtype.numpy)
    chosen = rng.integers(0, columns, (200, 5)).astype(np.uint32)
    want = Interpreter.replay(program, [x, chosen])
    got = [np.zeros(t.shape, t.dtype.numpy) for t in program.outputs]
    native.compile_program(program)([a.ctypes.data for a in (x, chosen, *got)])
    for a, b in zip(got, want):
        assert np.array_equal(a.astype(np.float64), b.astype(np.float64))


def scatter(out, x, index, mode=nisa.oob_mode.error):
    """out[index[i]] = 2 * x[i], in order; then out is read back."""
    rows, copy, width = out.shape[0], nl.ndarray(out.shape, out.dtype, nl.shared_hbm), x.shape[1]
    for r, n in pieces(x.shape[0]):
        t, wanted = nl.ndarray((n, width), x.dtype), nl.ndarray((n, 1), nl.int32)
        nisa.dma_copy(t, x[r : r + n])
        nisa.dma_copy(wanted, index[r : r + n])
        nisa.tensor_tensor(t, t, t, nl.add)
        nisa.dma_copy(out.ap(pattern=[[width, n], [1, width]], vector_offset=wanted, indirect_dim=0), t, oob_mode=mode)
    for r, n in pieces(rows):
        t = nl.ndarray((n, width), x.dtype)
        nisa.dma_copy(t, out[r : r + n])
        nisa.dma_copy(copy[r : r + n], t)
    return out, copy


def test_writes_by_index():
    """Of equal indices the last one stays."""
    specs = [
        TensorSpec.contiguous(s, d) for s, d in (((60, 40), "float32"), ((300, 40), "float32"), ((300, 1), "int32"))
    ]
    rng = np.random.default_rng(0)
    x, index = rng.normal(size=(300, 40)).astype(np.float32), rng.integers(0, 60, (300, 1)).astype(np.int32)
    program = trace(scatter, specs)
    want = Interpreter.replay(program, [np.zeros((60, 40), np.float32), x, index])
    out, copy = np.zeros((60, 40), np.float32), np.zeros((60, 40), np.float32)
    pointers = [a.ctypes.data for a in (out, x, index, copy)]
    compiled = native.compile_program(program)
    compiled(pointers)
    assert np.array_equal(out, want[0]) and np.array_equal(copy, want[1])
    assert compiled.checked and native.fault() is None

    index[3], index[5] = 60, -1
    compiled(pointers)
    assert native.fault() in (60, -1)

    program = trace(scatter, specs, {"mode": nisa.oob_mode.skip})
    out[:] = 5
    want = Interpreter.replay(program, [out.copy(), x, index])
    native.compile_program(program)(pointers)
    assert np.array_equal(out, want[0]) and native.fault() is None


def test_what_has_no_native_form_says_why():
    with pytest.raises(NativeUnsupported, match="reduction subtract"):
        native.compile_program(program_for(unreduced, (128, 40)))


def unreduced(x):
    """A reduction by subtraction."""
    out, a, s = (
        nl.ndarray((128, 1), x.dtype, nl.shared_hbm),
        nl.ndarray(x.shape, x.dtype),
        nl.ndarray((128, 1), x.dtype),
    )
    nisa.dma_copy(a, x)
    nisa.tensor_reduce(s, nl.subtract, a, axis=1)
    nisa.dma_copy(out, s)
    return out


def test_concurrent_calls(kernels, both):
    """Several Python threads in one kernel at once, some of them with threads of their own."""
    torch.manual_seed(0)
    b = both(kernels.flash, [torch.randn(300, 64)] * 3)
    inputs = [[torch.randn(300, 64) for _ in range(3)] for _ in range(4)]
    want = [b.native(i) for i in inputs]
    wrong = []

    def work(k):
        for _ in range(10):
            if not torch.equal(b.native(inputs[k]), want[k]):
                wrong.append(k)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


def test_large_programs_stay_few_functions(kernels):
    """10^4 instructions: the number of functions does not grow with them."""
    wide = native.compile_program(program_for(kernels.softmax_chunked, (8192, 1024), chunk=64))
    assert len(wide.table.objects) == 1
    small, large = (native.compile_program(program_for(kernels.flash, (n, 64), (n, 64), (n, 64))) for n in (512, 1024))
    assert large.table.how.startswith("regions")
    assert len(large.table.objects) <= len(small.table.objects) + 4


def test_many_different_functions_go_to_regions():
    """Every tile another immediate: one function each is refused, regions share what they can."""

    def kernel(x):
        out = like(x)
        for k, (r, n) in enumerate(pieces(x.shape[0])):
            a = nl.ndarray((n, x.shape[1]), x.dtype)
            nisa.dma_copy(a, x[r : r + n])
            nisa.tensor_scalar(a, a, nl.multiply, float(k + 2))
            nisa.dma_copy(out[r : r + n], a)
        return out

    x = np.random.default_rng(0).normal(size=(20 * 128, 8)).astype(np.float32)
    out = np.zeros_like(x)
    native.compile_program(program_for(kernel, x.shape))([x.ctypes.data, out.ctypes.data])
    factors = np.repeat(np.arange(20, dtype=np.float32) + 2, 128)[:, None]
    assert np.array_equal(out, x * factors)


def test_random_seed_of_programs_is_stable(programs):
    """The maker of random programs is deterministic, so that a failure can be made again."""
    first, second = (programs.make(random.Random(3)) for _ in range(2))
    assert (first is None) == (second is None)
    assert first is None or first[0].dump().split("#")[0] == second[0].dump().split("#")[0]
