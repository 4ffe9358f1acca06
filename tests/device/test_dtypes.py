"""Every dtype can be on the device and comes back bit for bit; linear algebra and transforms run."""
import pytest
import torch
import torch.nn.functional as F

DTYPES = [torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.bfloat16,
          torch.float32, torch.float64, torch.complex64, torch.complex128, torch.uint16, torch.uint32, torch.uint64,
          torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e8m0fnu]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_round_trip(dtype):
    c = torch.arange(32, dtype=torch.uint8).view(dtype) if dtype != torch.bool else torch.tensor([True, False])
    x = c.neuron()
    assert x.dtype == dtype
    assert torch.equal(x.cpu().view(torch.uint8), c.view(torch.uint8))


def test_float4_round_trip():
    c = torch.arange(4, dtype=torch.uint8).view(torch.float4_e2m1fn_x2)
    assert torch.equal(c.neuron().cpu().view(torch.uint8), c.view(torch.uint8))


def test_casts(check):
    check(lambda t: [t.to(d) for d in (torch.float16, torch.bfloat16, torch.int64, torch.float64, torch.bool)],
          torch.tensor([0.0, 1.5, -2.25]))


def test_linear_algebra(check):
    a = torch.randn(3, 3) + 3 * torch.eye(3)
    check(lambda t: [torch.linalg.inv(t), torch.linalg.det(t), torch.einsum("ij,jk->ik", t, t),
                     torch.linalg.solve(t, t), torch.linalg.eigvalsh(t @ t.t()), torch.linalg.svdvals(t),
                     torch.linalg.norm(t)], a, rtol=1e-3, atol=1e-4)
    x = a.neuron()
    q, r = torch.linalg.qr(x)
    assert torch.allclose((q @ r).cpu(), a, atol=1e-4)


def test_sorting_and_searching(check):
    check(lambda t: [t.sort()[0], t.topk(2)[0], t.argmax(1), t.median(1)[0], torch.quantile(t, 0.5), t.histc(),
                     torch.searchsorted(torch.arange(3.0, device=t.device), t), torch.cdist(t, t),
                     torch.where(t > 0, t, 0.0), torch.bincount(torch.ones(2, dtype=torch.long, device=t.device)),
                     t.flip(0), t.roll(1)], torch.randn(3, 3))


def test_transforms_and_images(check):
    check(lambda t: torch.fft.fft(t), torch.randn(8))
    check(lambda t: [F.interpolate(t, scale_factor=2), F.avg_pool2d(t, 2), F.pad(t, (1, 1)), F.grid_sample(
        t, torch.zeros(1, 2, 2, 2, device=t.device), align_corners=False)], torch.randn(1, 1, 4, 4))
