"""Views share storage, base and version counter with their source, as on any device."""
import pytest
import torch

VIEWS = {
    "index": lambda x: x[1], "slice": lambda x: x[:, 1:3], "step": lambda x: x[::2], "transpose": lambda x: x.t(),
    "narrow": lambda x: x.narrow(0, 1, 2), "select": lambda x: x.select(1, 2), "flat": lambda x: x.view(-1),
    "unsqueeze": lambda x: x.unsqueeze(1), "squeeze": lambda x: x[:1].squeeze(0), "permute": lambda x: x.permute(1, 0),
    "expand": lambda x: x[:1].expand(3, 4), "diagonal": lambda x: x.diagonal(), "unfold": lambda x: x.unfold(1, 2, 1),
    "as_strided": lambda x: x.as_strided((2, 2), (4, 1), 1), "reshape": lambda x: x.reshape(2, 6),
    "flatten": lambda x: x.flatten(), "movedim": lambda x: x.movedim(0, 1),
    "unflatten": lambda x: x.unflatten(1, (2, 2)),
    "chunk": lambda x: x.chunk(2, 1)[1], "split": lambda x: x.split([1, 2])[1], "unbind": lambda x: x.unbind()[2],
    "view_as": lambda x: x.view_as(torch.empty(4, 3)), "int bits": lambda x: x.view(torch.int32),
    "bytes": lambda x: x.view(torch.uint8), "complex": lambda x: torch.view_as_complex(x.view(3, 2, 2)),
    "detach": lambda x: x.detach(), "swapaxes": lambda x: x.swapaxes(0, 1), "ellipsis": lambda x: x[..., None, 1],
    "broadcast": lambda x: x.broadcast_to(2, 3, 4), "tensor_split": lambda x: x.tensor_split(2)[0],
    "alias": lambda x: torch.ops.aten.alias(x), "T": lambda x: x.mT,
}


@pytest.mark.parametrize("name", VIEWS)
def test_values_strides_and_aliasing(name, check):
    view = VIEWS[name]
    source = torch.arange(12.0).view(3, 4).clone()
    check(view, source)
    x = source.clone().neuron()
    v, expected = view(x), view(source)
    assert v.stride() == expected.stride() and v.storage_offset() == expected.storage_offset()
    assert v.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
    assert v._is_view() == expected._is_view() and (v._base is x) == (expected._base is source)
    before = x._version
    x.zero_()
    assert x._version > before and v._version == (x._version if expected._is_view() else v._version)
    assert not v.cpu().abs().any()


def test_writing_through_views(check):
    def program(t):
        t[0].add_(1)
        t.t()[1].mul_(2)
        t[:, 1:3].zero_()
        t.view(-1)[5] = 7
        t.as_strided((2, 2), (4, 1), 1).add_(3)
        t[1:, ::2] = -1
        t.narrow(0, 1, 1).fill_(9)
        t.unsqueeze(0).squeeze(0)[2, 2] = 5
        a, b = t.chunk(2, 1)
        a.copy_(b)
        return t.clone()
    check(program, torch.arange(12.0).reshape(3, 4))


def test_contiguity():
    x = torch.arange(12.0, device="neuron").view(3, 4)
    y = x.t()
    assert not y.is_contiguous() and y.contiguous().is_contiguous() and x.contiguous() is x
    assert torch.equal(y.contiguous().cpu(), x.cpu().t())


def test_errors_are_those_of_cpu():
    for bad in (lambda t: t.view(5), lambda t: t.t().view(-1), lambda t: t.as_strided((9, 9), (4, 1)),
                lambda t: t.select(0, 7), lambda t: t.unfold(1, 9, 1), lambda t: t.expand(2, 4)):
        messages = []
        for t in (torch.zeros(3, 4), torch.zeros(3, 4, device="neuron")):
            with pytest.raises((RuntimeError, IndexError)) as error:
                bad(t)
            messages.append((error.type, str(error.value)))
        assert messages[0] == messages[1]


def test_complex_conjugate_and_negative_views(check):
    c = torch.randn(3, dtype=torch.cfloat)
    check(lambda t: [t.conj() + 0, t.conj().imag + 0, (t.conj() * t).real + 0, t.imag + 0], c)
    x = c.neuron()
    assert x.conj().is_conj() and x.conj().imag.is_neg()
    assert torch.equal(x.conj().cpu(), c.conj()) and torch.equal(x.conj().imag.cpu(), c.conj().imag)
    assert torch.equal(c.conj().neuron().cpu(), c.conj())
    check(lambda t: torch.view_as_real(t) * 2, c)


def test_writing_through_conjugate_and_negative_views(check):
    def program(t):
        t.conj()[1:].copy_(torch.full((2,), 1 + 1j))
        t.conj().imag[0] = 5.0
        t.imag.neg_()
        z = torch.zeros(3, dtype=torch.cfloat, device=t.device)
        z.conj().copy_(t)
        return z
    check(program, torch.randn(3, dtype=torch.cfloat))


def test_channels_last(check):
    x = torch.randn(2, 3, 4, 4).neuron().to(memory_format=torch.channels_last)
    assert x.is_contiguous(memory_format=torch.channels_last) and x.stride() == (48, 1, 12, 3)
    assert torch.empty_like(x).stride() == x.stride()
    assert torch.empty(2, 3, 4, 4, device="neuron", memory_format=torch.channels_last).stride() == x.stride()
    check(lambda t: t.to(memory_format=torch.channels_last) * 2, torch.randn(2, 3, 4, 4))


def test_empty_and_zero_dimensional(check):
    check(lambda t: [t + t, torch.cat([t, torch.ones(1, 3, device=t.device)]), t.sum()], torch.empty(0, 3))
    check(lambda t: [t[None], t.view(1, 1), t.expand(3)], torch.tensor(2.5))


def test_strides_survive():
    for size, stride in (((1, 4), (100, 1)), ((4, 1), (1, 7)), ((2, 1, 3), (3, 50, 1)), ((0, 3), (3, 1)),
                         ((2, 2), (0, 1))):
        assert torch.empty_strided(size, stride, device="neuron").stride() == stride
        assert torch.empty_strided(size, stride).neuron().shape == size


def test_version_counter_guards_autograd():
    x = torch.ones(3, device="neuron", requires_grad=True)
    y = x * 1
    z = (y * y).sum()
    y[0] = 5
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        z.backward()


def test_views_in_inference_mode():
    with torch.inference_mode():
        x = torch.randn(3, device="neuron")
        y = x + x
        y[0] = 1
        assert y.is_inference() and x.view(3, 1).is_inference()
