"""In-place ops, out=, masks and indices."""
import pytest
import torch


def test_arithmetic(check):
    def program(t):
        t.add_(1).mul_(2).sub_(t[0].clone()).add_(t.t().clone(), alpha=3)
        t.clamp_(-1, 1).neg_().exp_()
        t[0] += 4
        t *= t
        return t
    check(program, torch.randn(4, 4))


def test_masks_and_indices(check):
    def program(t):
        i = torch.tensor([0, 2], device=t.device)
        t[i] = 1.0
        t[t < 0] = 0.0
        t[i, i] += 5
        t.index_add_(0, i, torch.ones(2, 4, device=t.device))
        t.scatter_(1, i[:, None], 2.0)
        t.masked_fill_(t > 3, 0)
        t.index_fill_(1, i, 0.5)
        t.index_copy_(0, i, torch.zeros(2, 4, device=t.device))
        return [t[i], t[t > 0], t.nonzero(), torch.unique(t), t.gather(1, i[:, None]), t.take(i),
                torch.where(t > 0, t, 0.0)]
    check(program, torch.randn(4, 4))


def test_out_in_place(check):
    def program(t):
        out = torch.empty(3, 3, device=t.device)
        assert torch.add(t, t, out=out) is out
        return out
    check(program, torch.randn(3, 3))


def test_out_is_resized(check):
    def program(t):
        out, values = torch.empty(0, device=t.device), torch.empty(0, device=t.device)
        indices = torch.empty(0, dtype=torch.long, device=t.device)
        pointer = out.data_ptr()
        torch.mm(t, t, out=out)
        torch.max(t, 1, out=(values, indices))
        assert out.data_ptr() != pointer
        return [out, values, indices, torch.cumsum(t, 0, out=torch.empty(1, device=t.device).resize_(3, 3))]
    check(program, torch.randn(3, 3))


def test_out_of_a_wrong_shape_warns():
    with pytest.warns(UserWarning, match="was resized"):
        torch.add(torch.ones(3, device="neuron"), 1, out=torch.ones(2, device="neuron"))


def test_out_strided(check):
    def program(t):
        out = torch.zeros(6, 3, device=t.device)
        torch.add(t, t, out=out[::2])
        torch.mul(t, 2, out=out[1::2].t().contiguous().t()[:])
        return out
    check(program, torch.randn(3, 3))


def test_out_of_another_dtype(check):
    def program(t):
        return [torch.add(t, t, out=torch.empty(3, dtype=torch.float64, device=t.device)),
                torch.eq(t, t, out=torch.empty(3, dtype=torch.bool, device=t.device))]
    check(program, torch.randn(3))


def test_out_views_see_the_write(check):
    def program(t):
        out = torch.zeros(3, 3, device=t.device)
        row = out[1]
        torch.add(t, 1, out=out)
        return row
    check(program, torch.randn(3, 3))


def test_resize(check):
    def program(t):
        view = t[1:]
        t.resize_(10)
        assert t.shape == (10,)
        t[1] = 42.0         # the view is on the same, grown storage
        first = [t[:4].clone(), view.clone()]
        t.resize_(2)
        other = torch.zeros(2, 3, device=t.device).resize_as_(torch.zeros(3, 2))
        assert other.shape == (3, 2)
        return [*first, t.clone()]
    check(program, torch.arange(4.0))


def test_resize_channels_last():
    x = torch.empty(0, device="neuron").resize_(2, 3, 4, 5, memory_format=torch.channels_last)
    assert x.is_contiguous(memory_format=torch.channels_last)


def test_set_and_is_set_to():
    x, y = torch.randn(3, device="neuron"), torch.randn(5, device="neuron")
    x.set_(y)
    assert x.is_set_to(y) and x.data_ptr() == y.data_ptr()
    z = torch.empty(0, device="neuron").set_(y.untyped_storage(), 1, (2,), (2,))
    assert torch.equal(z.cpu(), y.cpu()[1::2][:2])
    z.set_()
    assert z.numel() == 0 and z.is_neuron


def test_data():
    x, y = torch.randn(3, device="neuron"), torch.randn(5, device="neuron")
    x.data = y
    assert x.shape == (5,) and x.data_ptr() == y.data_ptr()
    assert x.data.data_ptr() == x.data_ptr() and not x.data.requires_grad
    p = torch.nn.Parameter(torch.ones(2, device="neuron"))
    p.data = torch.zeros(3, device="neuron")
    assert p.shape == (3,) and p.requires_grad
    x.data.zero_()
    assert not y.cpu().any()


def test_swap_tensors():
    a, b = torch.randn(2, device="neuron"), torch.randn(3)
    torch.utils.swap_tensors(a, b)
    assert a.shape == (3,) and not a.is_neuron and b.is_neuron


def test_copies(check):
    def program(t):
        wide = torch.empty(3, dtype=torch.float64, device=t.device)
        wide.copy_(t, non_blocking=True)
        t.copy_(torch.ones(3))
        rows = torch.zeros(2, 3, device=t.device)
        rows.copy_(t)               # broadcast
        rows.t()[0].copy_(torch.tensor([7.0, 8.0]))
        return [wide, t, rows]
    check(program, torch.randn(3))
    back = torch.empty(3)
    back.copy_(torch.arange(3.0).neuron())
    assert back.tolist() == [0, 1, 2]
