"""Any shape and any strides: random views through elementwise ops, copies, reductions and softmax, beside the CPU."""
from __future__ import annotations

import os

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from neuron_eager.kernels import shapes

EXAMPLES = int(os.environ.get("NEURON_EAGER_TEST_EXAMPLES", "15"))
every = settings(max_examples=EXAMPLES, deadline=None, derandomize=True,
                 suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])


@st.composite
def views(draw, shape, dtype=torch.float32, repeats=True):
    """A tensor of this shape in a random layout: permuted, cut, stepped, repeated."""
    order = draw(st.permutations(range(len(shape))))
    steps = [draw(st.sampled_from((1, 1, 1, 2))) for _ in shape]
    once = [repeats and draw(st.integers(0, 9)) == 0 for _ in shape]
    starts = [draw(st.sampled_from((0, 0, 1))) for _ in shape]
    sizes = [1 if o else n for n, o in zip(shape, once)]
    base = torch.arange(1.0 * _product((s + n * k for n, k, s in zip(sizes, steps, starts)))).remainder(97) - 41
    base = base.reshape([starts[d] + sizes[d] * steps[d] for d in order]).to(dtype)
    t = base.permute([order.index(d) for d in range(len(shape))])
    t = t[tuple(slice(s, s + n * k, k) for s, n, k in zip(starts, sizes, steps))]
    return t.expand(shape)


def _product(sizes):
    total = 1
    for n in sizes:
        total *= n
    return total


shape = st.lists(st.sampled_from((1, 2, 3, 5, 7, 0)) | st.integers(1, 140), min_size=0, max_size=3).map(tuple) | \
    st.lists(st.integers(1, 4), min_size=4, max_size=5).map(tuple)


@every
@given(data=st.data())
def test_elementwise(data, kernels_only, check):
    common = data.draw(shape)
    operands = []
    for _ in range(2):
        own = tuple(n if data.draw(st.integers(0, 4)) else 1 for n in common)
        operands.append(data.draw(views(own[data.draw(st.integers(0, len(own))) if data.draw(st.booleans()) else 0:])))
    check(torch.add, *operands)
    check(lambda a, b: torch.where(a > b, a, b), *operands)


@every
@given(data=st.data())
def test_copies(data, kernels_only, check):
    common = data.draw(shape)
    target, source = data.draw(views(common, repeats=False)), data.draw(views(common))
    check.written(torch.Tensor.copy_, target, source)
    check(lambda t: t.contiguous(), source)
    check(lambda t: t.to(torch.bfloat16), source)


@every
@given(data=st.data())
def test_reductions(data, kernels_only, check):
    common = data.draw(shape.filter(lambda s: s and 0 not in s))
    x = data.draw(views(common))
    dims = data.draw(st.lists(st.integers(0, len(common) - 1), min_size=1, unique=True))
    check(lambda t: t.sum(dims), x, rtol=1e-5)
    check(lambda t: t.amax(dims, keepdim=True), x)
    check(lambda t: torch.softmax(t, dims[0]), x, rtol=2e-5)


@every
@given(data=st.data())
def test_matrix_products(data, kernels_only, check):
    m, k, n = (data.draw(st.sampled_from((1, 2, 5, 16, 33, 130))) for _ in range(3))
    check(torch.mm, data.draw(views((m, k))), data.draw(views((k, n))), rtol=2e-5)


@settings(max_examples=20 * EXAMPLES, deadline=None, derandomize=True)
@given(data=st.data())
def test_the_strides_of_results(data):
    """The rules for shapes and strides give what PyTorch's TensorIterator gives."""
    common = data.draw(st.lists(st.integers(0, 4), max_size=4).map(tuple))
    operands = [data.draw(views(tuple(n if data.draw(st.integers(0, 3)) else 1 for n in common)))
                for _ in range(data.draw(st.integers(1, 3)))]
    expected = {1: torch.neg, 2: torch.add, 3: torch.addcmul}[len(operands)](*operands)
    got = shapes.broadcast_shape([tuple(t.shape) for t in operands])
    assert got == expected.shape
    assert shapes.fresh_strides(got, [(tuple(t.shape), t.stride()) for t in operands]) == expected.stride()


def test_shapes_that_do_not_fit():
    assert shapes.broadcast_shape([(2, 3), (4,)]) is None


@pytest.mark.parametrize("threads", (1, 2))
def test_large_work_over_threads(threads, kernels_only, check, samples):
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        x = samples.make((700, 1000))
        check(lambda t: torch.softmax(t * 2, -1), x, rtol=2e-5)
        check(lambda t: t.t().contiguous(), x)
        check(lambda t: t.abs().sum(0), x, rtol=1e-5)
        check(torch.mm, x.abs(), x.abs().t().contiguous()[:, :300], rtol=1e-5)
    finally:
        torch.set_num_threads(before)
