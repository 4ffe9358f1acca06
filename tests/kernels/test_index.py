"""Gathers and embeddings against PyTorch on the CPU, on both executors."""
from __future__ import annotations

import pytest
import torch

F = torch.nn.functional


@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16, torch.float16), ids=str)
def test_embedding(dtype, executor, check, samples):
    table = samples.make((50, 33), dtype)
    for index in (torch.tensor([3, 0, 49, 3]), torch.tensor([[1, 2, 3], [4, 5, 49]]), torch.tensor(7),
                  torch.tensor([1, 2], dtype=torch.int32), torch.arange(150) % 50):
        check(F.embedding, index, table)
    check(F.embedding, torch.zeros(0, dtype=torch.long), table)
    check(lambda i, t: F.embedding(i[:, ::2], t), torch.arange(12).reshape(2, 6), table)


@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.uint8), ids=str)
def test_index_select(dtype, executor, check, samples):
    index = torch.tensor([4, 1, 1, 0])
    check(lambda t, i: t.index_select(0, i), samples.make((5, 7), dtype), index)
    check(lambda t, i: t.index_select(0, i), samples.make((5, 2, 3), dtype), index)


def test_wide_rows(kernels_only, check, samples):
    check(F.embedding, torch.tensor([2, 0]), samples.make((3, 5000)))


@pytest.mark.parametrize("dtype", (torch.float32, torch.int64, torch.bool), ids=str)
def test_an_index_for_every_dimension(dtype, executor, check, samples):
    x = samples.make((5, 7), dtype)
    rows, columns = torch.tensor([0, 4, -1, 2]), torch.tensor([6, -7, 3, 0])
    check(lambda t, a, b: t[a, b], x, rows, columns)
    check(lambda t, a, b: t[a[:, None], b], x, rows, columns)
    check(lambda t, a: t[a], samples.make((9,), dtype), rows)


@pytest.mark.parametrize("index", (50, -1, 2**40))
def test_an_index_outside_the_table_is_an_error(index, executor, samples):
    table = samples.make((50, 4)).to("neuron")
    with pytest.raises(IndexError):
        F.embedding(torch.tensor([0, index]).to("neuron"), table)
    assert F.embedding(torch.tensor([1]).to("neuron"), table).shape == (1, 4)       # the next call is clean
    with pytest.raises(IndexError):
        table.index_select(0, torch.tensor([index]).to("neuron"))


@pytest.mark.parametrize("index", (5, -6))
def test_an_element_outside_is_an_error(index, executor, samples):
    with pytest.raises(IndexError):
        samples.make((5, 4)).to("neuron")[torch.tensor([index]).to("neuron"), torch.tensor([0]).to("neuron")]
