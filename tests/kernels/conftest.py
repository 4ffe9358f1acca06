"""What kernel tests share: a cache of their own, both executors, and the comparison with PyTorch on the CPU."""
from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch

import neuron_eager
from neuron_eager.config import config

EXECUTORS = ("native", "interpreter")


@pytest.fixture(scope="session", autouse=True)
def cache(tmp_path_factory):
    """One cache for the session: an object that two tests need is compiled once."""
    patch = pytest.MonkeyPatch()
    patch.setenv("NEURON_EAGER_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
    yield
    patch.undo()


@pytest.fixture(autouse=True)
def counted_from_here():
    """What ops ran, and where, is counted for each test."""
    neuron_eager.clear_op_tracking()


@pytest.fixture(params=EXECUTORS)
def executor(request):
    """Runs the test on both embedded executors; a call that would take the CPU fallback is an error."""
    with config.override(executor=request.param, fallback="error"):
        yield request.param


@pytest.fixture
def kernels_only():
    """Calls that would take the CPU fallback are errors; the default executor."""
    with config.override(fallback="error"):
        yield


# ---- comparison

def _to(value: Any, device: str) -> Any:
    """A copy on a device that keeps strides and storage offset."""
    if isinstance(value, torch.Tensor):
        if value.is_complex() or not value.numel() or not value.dim():
            return value.to(device)
        low = sum((n - 1) * s for n, s in zip(value.shape, value.stride()) if s < 0)
        span = 1 + sum((n - 1) * s for n, s in zip(value.shape, value.stride()) if s > 0)
        start = value.storage_offset() + low
        flat = value.as_strided((start + span,), (1,), 0)
        return flat.to(device).as_strided(value.shape, value.stride(), value.storage_offset())
    if isinstance(value, (list, tuple)):
        return type(value)(_to(v, device) for v in value)
    if isinstance(value, dict):
        return {k: _to(v, device) for k, v in value.items()}
    return value


def _double(value: Any) -> Any:
    """Floating tensors as float64, for an exact reference."""
    if isinstance(value, torch.Tensor):
        return value.double() if value.is_floating_point() else value
    if isinstance(value, (list, tuple)):
        return type(value)(_double(v) for v in value)
    if isinstance(value, dict):
        return {k: _double(v) for k, v in value.items()}
    return value


def _flat(result: Any) -> list[torch.Tensor]:
    return [t for r in result for t in _flat(r)] if isinstance(result, (list, tuple)) else [result]


# relative and absolute error that a result may have beside the CPU's own
TOLERANCE = {torch.float32: (2e-6, 2e-6), torch.float64: (2e-6, 2e-6), torch.bfloat16: (8e-3, 1e-3),
             torch.float16: (1e-3, 1e-3)}


def _compare(got: torch.Tensor, cpu: torch.Tensor, exact: torch.Tensor | None, rtol: float | None) -> None:
    assert got.dtype == cpu.dtype and got.shape == cpu.shape, f"{got.dtype}{got.shape} for {cpu.dtype}{cpu.shape}"
    steps = [(g, c) for g, c, n in zip(got.stride(), cpu.stride(), got.shape) if n > 1]
    assert all(g == c for g, c in steps) or not got.numel(), f"strides {got.stride()} for {cpu.stride()}"
    got = got.cpu()
    if not cpu.is_floating_point():
        assert torch.equal(got, cpu), f"got {got}\nfor {cpu}"
        return
    relative, absolute = TOLERANCE[cpu.dtype]
    relative = max(relative, rtol or 0.0)
    true = (cpu if exact is None else exact).double()
    finite = true.isfinite() & cpu.isfinite()
    allowed = (cpu.double() - true).abs() * 2 + relative * true.abs() + absolute
    wrong = torch.where(finite, ~((got.double() - true).abs() <= allowed),
                        ~((got == cpu) | (got.isnan() & cpu.isnan())))
    assert not wrong.any(), (f"{int(wrong.sum())} of {wrong.numel()} differ: got {got[wrong][:4].tolist()} for "
                             f"{cpu[wrong][:4].tolist()}, exactly {true[wrong][:4].tolist()}")


@dataclass
class Checker:
    """check(function, *arguments): the same on the CPU and on neuron, with equal results, dtypes and strides."""

    def __call__(self, function: Callable[..., Any], *args: Any, exact: bool = True, rtol: float | None = None,
                 **kwargs: Any) -> Any:
        cpu_args, cpu_kwargs = _to(args, "cpu"), _to(kwargs, "cpu")
        args, kwargs = _to(args, "neuron"), _to(kwargs, "neuron")
        reference = None
        if exact:
            try:
                reference = _flat(function(*_double(cpu_args), **_double(cpu_kwargs)))
            except RuntimeError:        # the op has another rule for float64
                reference = None
        expected = function(*cpu_args, **cpu_kwargs)
        got = function(*args, **kwargs)
        for i, (g, e) in enumerate(zip(_flat(got), _flat(expected))):
            if not isinstance(e, torch.Tensor):
                assert g == e or math.isnan(g) and math.isnan(e)
                continue
            assert g.device.type == "neuron"
            with_reference = reference is not None and reference[i].shape == e.shape
            _compare(g, e, reference[i] if with_reference else None, rtol)
        return got

    def written(self, function: Callable[..., Any], target: torch.Tensor, *args: Any, **kwargs: Any) -> None:
        """A function that writes its first argument, which then equals the CPU's; the rest of its storage stays."""
        cpu, neuron = _to(target, "cpu"), _to(target, "neuron")
        cpu_args, neuron_args = _to(args, "cpu"), _to(args, "neuron")
        function(cpu, *cpu_args, **_to(kwargs, "cpu"))
        function(neuron, *neuron_args, **_to(kwargs, "neuron"))
        _compare(neuron, cpu, None, None)
        whole = [t.as_strided((t.untyped_storage().nbytes() // t.itemsize,), (1,), 0) for t in (neuron, cpu)]
        if whole[0].numel() == whole[1].numel():
            _compare(whole[0], whole[1], None, None)


@pytest.fixture
def check() -> Checker:
    return Checker()


# ---- samples

class Samples:
    """Tensors of any dtype and layout, the same at every run."""

    floats = (torch.float32, torch.bfloat16, torch.float16)
    integers = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)

    def make(self, shape: Sequence[int], dtype: torch.dtype = torch.float32, low: float = -4.0, high: float = 4.0,
             seed: int = 0) -> torch.Tensor:
        g = torch.Generator().manual_seed(seed + 1)
        if dtype is torch.bool:
            return torch.rand(tuple(shape), generator=g) < 0.5
        if dtype.is_floating_point:
            return (torch.rand(tuple(shape), generator=g, dtype=torch.float64) * (high - low) + low).to(dtype)
        low = max(int(low), torch.iinfo(dtype).min)
        return torch.randint(low, int(high) + 1, tuple(shape), generator=g).to(dtype)

    def special(self, dtype: torch.dtype) -> torch.Tensor:
        """What arithmetic stumbles over: NaN, infinities, signed zeros, extremes."""
        info = torch.finfo(dtype)
        return torch.tensor([math.nan, math.inf, -math.inf, 0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 2.5, -2.5, info.max,
                             info.min, info.tiny, -info.tiny, 3.0], dtype=torch.float64).to(dtype)

    def layouts(self, dtype: torch.dtype, low: float = -4.0, high: float = 4.0, seed: int = 0
                ) -> dict[str, torch.Tensor]:
        """[5, 12]-like tensors in every layout that a kernel must read."""
        def new(*shape: int) -> torch.Tensor:
            return self.make(shape, dtype, low, high, seed)
        return {
            "ragged": new(5, 13), "vector": new(131), "transposed": new(12, 5).t(), "stepped": new(5, 25)[:, ::2],
            "offset": new(7, 12)[1:6, 3:11], "expanded": new(5, 1).expand(5, 9), "row": new(1, 9).expand(5, 9),
            "permuted": new(3, 4, 5).permute(2, 0, 1), "cut": new(4, 3, 6)[:, 1:, ::2], "scalar": new(),
            "one": new(1, 1), "empty": new(0, 3), "four": new(2, 3, 2, 4).transpose(1, 3),
        }


@pytest.fixture(scope="session")
def samples() -> Samples:
    return Samples()
