"""Matrix multiplication on the tensor engine, alone and batched, with bias and scale."""
from __future__ import annotations

import nki
import nki.isa as nisa
import nki.language as nl

from ..dispatch.plan import Decline, KernelCall, Operand, Reason
from .rules import ENGINE_FLOATS, unsupported
from .shapes import broadcast_shape, settled
from .tiling import P, load, pieces, store, tile, tile_like, turned, walks

N = nl.tile_size.gemm_moving_fmax              # columns of one PSUM bank
RESIDENT_BYTES = 96 << 10                      # of a partition: a right operand up to this size is loaded once


@nki.jit
@walks("out", "x", "y", "bias")
def matmul(out, x, y, bias=None, alpha=None, beta=None):
    """out = beta * bias + alpha * (x @ y).

    Dimensions:
        batch: optional leading dimension of all operands. M, K, N: any.
    Args:
        out: HBM [M, N] or [batch, M, N], written.
        x: HBM [M, K] or [batch, M, K]; y: HBM [K, N] or [batch, K, N]; one floating dtype; any strides.
        bias: HBM of out's shape (stride 0 where repeated) or None.
        alpha, beta: HBM [1, 1] float32 or None, which means 1. beta only with bias.
    Constraints:
        accumulation in float32 (PSUM), one rounding at the store.
    Pseudocode:
        for each 128 rows of x, transposed to [K, 128] (the stationary operand):
            for each 512 columns of y (the moving operand):
                accumulate over K in steps of 128 in one PSUM bank
                scale, add the bias, store
    """
    if out.ndim == 3:
        for i in range(out.shape[0]):
            _matmul(out[i], x[i], y[i], None if bias is None else bias[i], alpha, beta)
    else:
        _matmul(out, x, y, bias, alpha, beta)
    return out


def _matmul(out, x, y, bias, alpha, beta):
    (m_total, k_total), n_total = x.shape, y.shape[1]
    resident = k_total * n_total * y.dtype.itemsize <= RESIDENT_BYTES * P
    blocks = {}

    def moving(k, kn, n, nn):
        if (k, n) not in blocks:
            block = _load_columns(y, k, kn, n, nn)
            if not resident:
                return block
            blocks[k, n] = block
        return blocks[k, n]

    for m, mn in pieces(m_total, P):
        stationary = [_load_stationary(x, m, mn, k, kn) for k, kn in pieces(k_total, P)]
        for n, nn in pieces(n_total, N):
            acc = nl.ndarray((mn, nn), nl.float32, buffer=nl.psum)
            if not k_total:
                nisa.memset(dst=acc, value=0.0)
            for i, (k, kn) in enumerate(pieces(k_total, P)):
                nisa.nc_matmul(dst=acc, stationary=stationary[i], moving=moving(k, kn, n, nn), accumulate=i > 0)
            view = out[m:m + mn, n:n + nn]
            store(view, _finish(acc, view, None if bias is None else bias[m:m + mn, n:n + nn], alpha, beta))


def _load_stationary(x, m, mn, k, kn):
    """x[m:m+mn, k:k+kn] as [kn, mn]. Rows that lie along memory are transposed on the tensor engine, not by the DMA."""
    if x.strides[0] == 1 and x.strides[1] != 1:
        t = tile(kn, mn, x.dtype)
        nisa.dma_copy(dst=t, src=x.permute((1, 0))[k:k + kn, m:m + mn])
        return t
    return turned(load(x[m:m + mn, k:k + kn]))


def _load_columns(y, k, kn, n, nn):
    """y[k:k+kn, n:n+nn] as [kn, nn]."""
    block = tile(kn, nn, y.dtype)
    if y.strides[0] == 1 and y.strides[1] != 1:
        across = y.permute((1, 0))
        for j, jn in pieces(nn, P):
            nisa.tensor_copy(dst=block[:, j:j + jn], src=turned(load(across[n + j:n + j + jn, k:k + kn])))
    else:
        nisa.dma_copy(dst=block, src=y[k:k + kn, n:n + nn])
    return block


def _finish(acc, out, bias, alpha, beta):
    """The PSUM tile scaled, with the bias added, in out's dtype."""
    rows, columns = acc.shape
    result = tile(rows, columns, out.dtype)
    value = acc
    if alpha is not None:
        value = tile(rows, columns, nl.float32)
        nisa.tensor_scalar(dst=value, data=acc, op0=nl.multiply, operand0=load(alpha.broadcast(0, rows)))
    if bias is None:
        nisa.tensor_copy(dst=result, src=value)
        return result
    addend = load(bias)
    if beta is not None:
        scaled = tile_like(addend, nl.float32)
        nisa.tensor_scalar(dst=scaled, data=addend, op0=nl.multiply, operand0=load(beta.broadcast(0, rows)))
        addend = scaled
    nisa.tensor_tensor(dst=result, data1=value, data2=addend, op=nl.add)
    return result


class Matmul:
    """mm, bmm, addmm, baddbmm. Scales of 1, the usual case, are left out, so their values are a part of the key."""

    operands = ()

    def __init__(self, x, y, bias=None, rank=2):
        self.x, self.y, self.bias, self.rank = x, y, bias, rank

    def lower(self, call):
        x, y = call[self.x], call[self.y]
        bias = call[self.bias] if self.bias else None
        out = self.out(call, x, y, bias)
        alpha, beta = (call.get(name, 1) for name in ("alpha", "beta"))
        if beta == 0:
            bias = None                                  # by definition it is not read: its NaN must not spread
        declined = unsupported([a for a in (x, y, out, bias) if a is not None], ENGINE_FLOATS, call.name)
        if declined:
            return declined
        if len({a.dtype for a in (x, y, bias) if a is not None}) > 1:
            return Decline(Reason.DTYPE, f"{call.name} of operands of different dtypes")
        optional = {
            "bias": None if bias is None else bias.broadcast(out.shape),
            "alpha": None if alpha == 1 else Operand(float(alpha)),
            "beta": None if bias is None or beta == 1 else Operand(float(beta)),
        }
        inputs = {"x": x, "y": y, **{name: item for name, item in optional.items() if item is not None}}
        return KernelCall(matmul, inputs, [out], {name: None for name, item in optional.items() if item is None})

    def out(self, call, x, y, bias):
        """The result as PyTorch has it. Asks PyTorch where the shapes or dtypes may not fit."""
        shape = (*x.shape[:-1], y.shape[-1]) if x.ndim and y.ndim else ()
        fits = (x.ndim == y.ndim == self.rank and x.shape[:-2] == y.shape[:-2] and x.shape[-1] == y.shape[-2]
                and x.dtype == y.dtype and (bias is None or bias.dtype == x.dtype
                                            and broadcast_shape([bias.shape, shape]) == shape))
        return fits and settled(call, shape, x.dtype) or call.outputs[0]


ROUTES = {
    "mm": Matmul("self", "mat2"),
    "bmm": Matmul("self", "mat2", rank=3),
    "addmm": Matmul("mat1", "mat2", "self"),
    "baddbmm": Matmul("batch1", "batch2", "self", rank=3),
}
