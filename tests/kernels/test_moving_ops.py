"""Ops that join, turn, place and pick elements, against PyTorch on the CPU, on both executors."""
from __future__ import annotations

import math

import pytest
import torch

import neuron_eager

aten = torch.ops.aten
DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.int32, torch.uint8, torch.bool)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_cat(dtype, executor, check, samples):
    def new(*shape, seed=0):
        return samples.make(shape, dtype, seed=seed)
    check(torch.cat, [new(3, 5), new(2, 5, seed=1)])
    check(torch.cat, [new(3, 5), new(3, 7, seed=1), new(3, 1, seed=2)], 1)
    check(torch.cat, [new(3, 5, 4, 6).transpose(1, 2), new(3, 4, 1, 6, seed=1)], -2)
    check(torch.cat, [new(70, 5), new(70, 9, seed=1)[:, ::3]], 1)
    check(torch.cat, [torch.empty(0, dtype=dtype), new(7)])
    check(torch.cat, [new(3, 1).expand(3, 4), new(3, 2, seed=1)], 1)
    check(torch.stack, [new(7, 3), new(7, 3, seed=1)], 1)


def test_cat_of_several_dtypes(executor, check, samples):
    check(torch.cat, [samples.make((3, 5)), samples.make((3, 5), torch.bfloat16), samples.make((3, 5), torch.int64)])
    check(torch.cat, [samples.make((4,), torch.bool), samples.make((4,), torch.int64)])
    check(torch.cat, [samples.special(torch.float32), samples.special(torch.float32)])


def test_cat_follows_the_memory_format(executor, check, samples):
    images = [samples.make((2, n, 4, 4)).to(memory_format=torch.channels_last) for n in (3, 1)]
    check(torch.cat, images, 1)


def test_cat_into_out(executor, check, samples):
    def cat(target, *parts):
        torch.cat(parts, 1, out=target)
    check.written(cat, samples.make((5, 9))[:, 1:7], samples.make((2, 5)).t(), samples.make((4, 5), seed=1).t())


def test_one_code_for_every_length(kernels_only):
    """What a generation appends to compiles nothing from token to token."""
    counts = []
    for n in range(5, 12):
        torch.cat([torch.ones(2, n, dtype=torch.int64, device="neuron"),
                   torch.ones(2, 1, dtype=torch.int64, device="neuron")], 1)
        torch.cat([torch.ones(2, 3, n, 8, device="neuron"), torch.ones(2, 3, 1, 8, device="neuron")], 2)
        counts.append(len(neuron_eager.compile_report()))
    assert counts[1:] == counts[1:2] * 6


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_roll_and_flip(dtype, executor, check, samples):
    x = samples.make((7, 9), dtype)
    for shifts, dims in (([2], [0]), ([2, -3], [0, 1]), ([5], []), ([0], [0]), ([1, 2], [1, 1])):
        check(aten.roll, x, shifts, dims)
    check(aten.roll, samples.make((6, 20), dtype)[:, ::2], [3], [1])
    check(torch.flip, x, [0])
    check(torch.flip, samples.make((4, 70), dtype), [1])
    check(torch.flip, samples.make((3, 7, 9), dtype).permute(2, 0, 1), [0, 2])
    check(torch.flip, samples.make((8, 9), dtype)[::2, ::3], [0, 1])
    check(torch.flip, x, [])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_triangles(dtype, executor, check, samples):
    for diagonal in (0, 2, -3):
        check(torch.tril, samples.make((3, 13, 17), dtype), diagonal)
        check(torch.triu, samples.make((17, 13), dtype).t(), diagonal)
    check(torch.triu, samples.make((130, 5), dtype), -100)


def test_triangle_in_place(executor, check, samples):
    check.written(lambda t: t.tril_(1), samples.make((9, 9))[:, 1:8])
    check.written(lambda t: t.triu_(-1), samples.make((2, 6, 5)))
    masked = torch.full((5, 5), -math.inf)
    check(torch.triu, masked, 1)


# ---- by index

@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_index_copy(dtype, executor, check, samples):
    def new(*shape, seed=0):
        return samples.make(shape, dtype, seed=seed)
    x = new(2, 3, 10, 4)
    check(torch.index_copy, x, 2, torch.tensor([3, 1, 9]), new(2, 3, 3, 4, seed=1))
    check(torch.index_copy, x, 2, torch.tensor([3]), new(2, 1, 3, 4, seed=1).transpose(1, 2))
    check(torch.index_copy, x, 0, torch.tensor([1]), new(1, 3, 10, 4, seed=1))
    check(torch.index_copy, x, -1, torch.tensor([3, 0]), new(2, 3, 10, 2, seed=1))
    check(torch.index_copy, new(7), 0, torch.tensor([3, 0]), new(2, seed=1))
    check.written(lambda t, i, s: t.index_copy_(2, i, s), x, torch.arange(8),
                  new(2, 8, 3, 4, seed=1).transpose(1, 2))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_gather_and_scatter(dtype, executor, check, samples):
    def new(*shape, seed=0):
        return samples.make(shape, dtype, seed=seed)
    x = new(5, 14, 7)
    for dim in (0, 1, -1):
        check(torch.gather, x, dim, torch.arange(5 * 14 * 7).reshape(5, 14, 7) * 3 % 5)
        check(torch.gather, x, dim, torch.arange(3 * 2 * 4).reshape(3, 2, 4) % 5)
        check(torch.gather, x.transpose(0, 2), dim, torch.arange(5 * 2 * 3).reshape(5, 2, 3) % 5)
    check(torch.gather, new(1, 64).expand(2, 64), 1, torch.arange(16).expand(2, 16))
    check(torch.gather, new(9), 0, torch.tensor([3, 3]))
    y, index = new(10, 14), (torch.arange(60).reshape(10, 6) * 5 + torch.arange(10)[:, None]) % 14
    check(torch.scatter, y, 1, index, new(10, 6, seed=1))
    check(torch.scatter, y.t().contiguous(), 0, index.t(), new(6, 12, seed=1))
    check(torch.scatter, y, 1, index, 1)
    check.written(lambda t, i: t.scatter_(1, i, 0), y, index)


def test_an_index_outside(kernels_only):
    x = torch.zeros(4, 5, device="neuron")
    def at(*values):
        return torch.tensor(values, device="neuron")
    for wrong in (5, -1, 1 << 40):
        with pytest.raises(IndexError):
            torch.gather(x, 1, at(wrong)[None])
        with pytest.raises(IndexError):
            x.scatter_(1, at(0, wrong)[None], 1.0)
        with pytest.raises(IndexError):
            x.index_copy_(1, at(wrong), torch.zeros(4, 1, device="neuron"))


@pytest.mark.parametrize("index", [
    torch.arange(48).reshape(4, 12)[:, :-1] % 7, torch.arange(6).expand(3, 6), torch.tensor(3),
    torch.arange(20, dtype=torch.int32).reshape(5, 4).t() % 7], ids=("cut", "expanded", "number", "transposed"))
def test_embedding_by_an_index_of_any_layout(index, executor, check, samples):
    check(torch.nn.functional.embedding, index, samples.make((7, 10)))


@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16, torch.int64, torch.bool), ids=str)
def test_rows_by_index(dtype, executor, check, samples):
    def at(*values):
        return torch.tensor(values)
    x = samples.make((6, 5, 4, 3), dtype)
    for indices in ([at(3, 1, -1)], [None, at(3, 1)], [None, None, at([3, 1], [0, -4])], [at(3, 1), at(4, -1)],
                    [at([3], [1]), at(4, 1, 0)], [None, at(1, 2), at(3, 0)], [torch.tensor(2)],
                    [at(3, 1), at(4, -1), at(1, 1), at(0, 2)]):
        check(aten.index.Tensor, x, indices)


@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16, torch.int64, torch.bool), ids=str)
def test_rows_put_by_index(dtype, executor, check, samples):
    def new(*shape, seed=1):
        return samples.make(shape, dtype, seed=seed)
    def put(target, values, *indices):
        aten._index_put_impl_(target, list(indices), values)
    x = new(6, 5, 4, 3, seed=0)
    check.written(put, x, new(3, 5, 4, 3), torch.tensor([3, 1, -1]))
    check.written(put, x, new(), torch.tensor([3, 1]))
    check.written(put, x, new(6, 2, 4, 3), None, torch.tensor([3, 1]))
    check.written(put, x, new(6, 2, 5, 3).transpose(1, 2), None, None, torch.tensor([3, 1]))
    check.written(put, new(64, seed=0), new(64), torch.arange(64) * 5 % 64)
    check(aten.index_put, x, [torch.tensor([3, 1]), torch.tensor([4, -1])], new(2, 4, 3))


@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16), ids=str)
def test_rows_added_by_index(dtype, executor, check, samples):
    x, index = samples.make((32, 24), dtype), torch.arange(150) ** 2 % 31 - 3
    check(aten.index_put, x, [index], samples.make((150, 24), dtype, seed=1), True, rtol=1e-5)
    check.written(lambda t, i, v: t.index_put_((i,), v, True), x, index[:4], samples.make((4, 24), dtype, seed=1))
    check(torch.index_add, x, 0, index[:20].abs(), samples.make((20, 24), dtype, seed=2), rtol=1e-5)
    check.written(lambda t, i, v: t.index_add_(0, i, v), x, index[3:7].abs(),
                  samples.make((4, 24), dtype, seed=1))
    check(torch.index_add, x[:, 0].contiguous(), 0, index[:20].abs(), samples.make((20,), dtype), rtol=1e-5)


@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16), ids=str)
def test_elements_added_by_index(dtype, executor, check, samples):
    x, index = samples.make((5, 30, 14), dtype), torch.arange(5 * 30 * 3).reshape(5, 30, 3) ** 2 % 14
    source = samples.make((5, 30, 3), dtype, seed=1)
    check(torch.scatter_add, x, -1, index, source, rtol=1e-5)
    check(torch.scatter_add, x.transpose(0, 2).contiguous(), 0, index.transpose(0, 2),
          source.transpose(0, 2).contiguous(), rtol=1e-5)
    check.written(lambda t, i, v: t.scatter_add_(1, i, v), samples.make((9, 24), dtype)[:, ::2],
                  torch.arange(18).reshape(9, 2) % 12, samples.make((9, 2), dtype, seed=1))


def test_an_element_added_outside(kernels_only):
    with pytest.raises(IndexError):
        torch.zeros(4, 5, device="neuron").scatter_add_(1, torch.full((4, 1), 5, device="neuron"),
                                                        torch.ones(4, 1, device="neuron"))


def test_rows_are_not_added_past_the_end(executor):
    x, values = torch.zeros(50, 6, device="neuron"), torch.ones(3, 6, device="neuron")
    outside = torch.tensor([1, 50, 2]).to("neuron")
    with pytest.raises(IndexError):
        x.index_add(0, outside, values)
    with pytest.raises(IndexError):
        x.index_put((outside,), values, accumulate=True)
    assert neuron_eager.get_fallback_ops() == []
