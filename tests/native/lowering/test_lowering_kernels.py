"""Every kernel × shape × dtype: native code against torch, and against the interpreter running the same program."""
from __future__ import annotations

import nki.language as nl
import pytest
import torch
import torch.nn.functional as F

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
TOLERANCE = {"float32": 4e-6, "bfloat16": 2e-2, "float16": 3e-3}        # of the largest value
SHAPES = [(300, 96), (130, 37), (128, 128)]


def causal(q, k, v):
    return F.scaled_dot_product_attention(q[None], k[None], v[None], is_causal=True, scale=0.125)[0]


def rope(x, cos, sin):
    heads = x.view(len(x), 8, -1).float()
    half = heads.shape[2] // 2
    a, b, c, s = heads[..., :half], heads[..., half:], cos[:, None].float(), sin[:, None].float()
    return torch.cat([a * c - b * s, b * c + a * s], -1).to(x.dtype)


def heads(q, k, v):
    split = (t.view(len(t), 4, 64).transpose(0, 1)[None] for t in (q, k, v))
    return F.scaled_dot_product_attention(*split, is_causal=True, scale=0.125)[0].transpose(0, 1)


def cases(R, C, dtype):
    """name → (kernel, shapes of the inputs, reference, constants)"""
    S, W, H = (R, C), (C,), (R, 64)
    other = "bfloat16" if dtype == "float32" else "float32"
    found = {
        "add": ("add", [S, S], torch.add, {"chunk": 40}),
        "exp": ("act", [S], torch.exp, {}),
        "gelu": ("act", [S], F.gelu, {"op": nl.gelu}),
        "bias": ("bias_add", [S, W], torch.add, {}),
        "softmax": ("softmax", [S], lambda x: x.softmax(-1), {}),
        "softmax in chunks": ("softmax_chunked", [S], lambda x: x.softmax(-1), {"chunk": 25}),
        "online softmax": ("softmax_online", [S], lambda x: x.softmax(-1), {"chunk": 30}),
        "layernorm": ("layernorm", [S, W, W], lambda x, w, b: F.layer_norm(x, (C,), w, b), {}),
        "rmsnorm": ("rmsnorm", [S, W], lambda x, w: F.rms_norm(x, (C,), w, 1e-5), {}),
        "sum of rows": ("sum_rows", [S], lambda x: x.sum(1), {"chunk": 50}),
        "sum of columns": ("sum_cols", [S], lambda x: x.sum(0), {}),
        "cast": ("cast", [S], lambda x: x.to(DTYPES[other]), {"to": other}),
        "causal mask": ("causal_mask", [S], lambda x: torch.where(torch.ones_like(x, dtype=torch.bool).tril(), x, -3e4),
                        {"fill": -3e4}),
        "transpose": ("transpose", [S], lambda x: x.t(), {}),
        "matmul": ("matmul", [S, (C, 530)], torch.mm, {}),
        "linear and gelu": ("matmul", [S, (130, C), (130,)], lambda x, w, b: F.gelu(F.linear(x, w, b)),
                            {"wt": True, "op": nl.gelu}),
        "attention": ("attention", [H, H, H], causal, {}),
        "flash attention": ("flash", [H, H, H], causal, {}),
    }
    if C % 16 == 0:
        found["rotary embedding"] = ("rope", [S, (R, C // 16), (R, C // 16)], rope, {})
        found["heads"] = ("heads", [(R, 256)] * 3, heads, {})
    return found


def close(got, want, tolerance):
    got, want = got.double(), want.double().reshape(got.shape)
    limit = tolerance * max(1.0, float(want.abs().max()))
    assert float((got - want).abs().max()) <= limit


ALL = [(name, shape, dtype) for dtype in DTYPES for shape in SHAPES for name in cases(*shape, dtype)]


@pytest.mark.parametrize("name,shape,dtype", ALL, ids=str)
def test_kernel(name, shape, dtype, kernels, both):
    kernel, shapes, reference, constants = cases(*shape, dtype)[name]
    torch.manual_seed(0)
    inputs = [torch.randn(s).to(DTYPES[dtype]) for s in shapes]
    b = both(getattr(kernels, kernel), inputs, **constants)
    threads = torch.get_num_threads()
    results = []
    try:
        for n in (1, 2):
            torch.set_num_threads(n)
            results.append(b.native())
    finally:
        torch.set_num_threads(threads)
    close(results[0], reference(*inputs), TOLERANCE[dtype])
    close(results[0], b.interpreted(), TOLERANCE[dtype])
    close(results[1], results[0], TOLERANCE[dtype])


def test_large_work_is_shared_by_threads(kernels, both):
    """Enough work for several threads, in a kernel lifted whole and in one in regions."""
    torch.manual_seed(0)
    x = torch.randn(1000, 600)
    q = torch.randn(700, 64)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        close(both(kernels.softmax, [x]).native(), x.softmax(-1), 1e-6)
        w = torch.randn(600, 500)
        close(both(kernels.matmul, [x, w]).native(), x @ w, 4e-6)
        flash = both(kernels.flash, [q, q, q])
        assert flash.compiled.table.how.startswith("regions")
        close(flash.native(), causal(q, q, q), 4e-6)
    finally:
        torch.set_num_threads(threads)
