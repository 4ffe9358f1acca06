"""Instructions that move, make or choose data, on values: the counterpart of parts of `nki/semantics`."""

from __future__ import annotations

from typing import Any

from ..nki.tensor import NkiTensor
from .access import Access
from .lift import Lift, joint_rows
from .operators import ADDRESSES, Args, apply, convert, handler
from .patterns import normal, width
from .reducing import nc_transpose
from .values import KIND, Bail, V


@handler
def dma_copy(L: Lift, a: Args) -> None:
    dst, src = a["dst"], a["src"]
    mode = a.get("oob_mode")
    skip = mode is not None and mode.name == "skip"
    if dst.dynamic:
        v = convert(L, L.read(src, dst.shape[0]), src.dtype, dst.dtype)
        return L.write_rows(L.access(dst, dst.shape[0]), v, skip)
    if src.dynamic and skip:
        return L.write(dst, convert(L, gather_or_keep(L, dst, src), src.dtype, dst.dtype))
    if dst.buffer.on_chip and src.buffer.on_chip and dst.shape[0] != src.shape[0]:
        return L.write(dst, convert(L, L.read_across(src, dst.shape[0]), src.dtype, dst.dtype))
    if dst.buffer.on_chip or src.buffer.on_chip or src.dynamic:
        rows = dst.shape[0] if dst.buffer.on_chip or src.dynamic else src.shape[0]
        v = L.read(src, rows)
        return L.write(L.access(dst, rows), convert(L, v, src.dtype, dst.dtype))
    target, source, outer = joint_rows(dst, src)
    for to, at in outer:
        w = Access(target.sid, False, target.off + to, target.P, target.F, target.rs, target.cols, target.dt)
        r = Access(source.sid, False, source.off + at, source.P, source.F, source.rs, source.cols, source.dt)
        L.write(w, convert(L, L.read(r), src.dtype, dst.dtype))
    return None


def gather_or_keep(L: Lift, dst: NkiTensor, src: NkiTensor) -> V:
    """Rows at run-time indices; rows whose index is outside stay as they are."""
    if dst.dtype != src.dtype:
        raise Bail("a cast together with indices that may be skipped")
    found, inside = L.gather_valid(L.access(src, dst.shape[0]))
    return choose(L, L.g.bcast(inside), found, L.read(dst), dst.dtype)


@handler
def dma_transpose(L: Lift, a: Args) -> None:
    dst, src = a["dst"], a["src"]
    axes = a["axes"] or {2: (1, 0), 3: (2, 1, 0), 4: (3, 1, 2, 0)}[src.ndim]
    if not src.buffer.on_chip:
        return dma_copy(L, {"dst": dst, "src": src.permute(axes)})
    if tuple(axes) != (1, 0):
        raise Bail("a transpose of more than two dimensions on chip")
    return nc_transpose(L, {"dst": dst, "data": src})


@handler
def dma_compute(L: Lift, a: Args) -> None:
    dst = a["dst"]
    total: V | None = None
    for src in a["srcs"]:
        v = L.g.cvt(L.read(src, dst.shape[0]), "f")
        total = v if total is None else L.g.ew("add", total, v)
    assert total is not None
    L.write(L.access(dst, dst.shape[0]), total)


@handler
def tensor_copy(L: Lift, a: Args) -> None:
    dst, src = a["dst"], a["src"]
    L.write(dst, convert(L, L.read(src), src.dtype, dst.dtype))


@handler
def memset(L: Lift, a: Args) -> None:
    dst, value = a["dst"], a["value"]
    kind = KIND.get(dst.dtype)
    if kind is None:
        raise Bail("memset of a packed dtype")
    L.write(dst, L.g.const(float(value)) if kind in "fd" else L.g.to(L.g.const(int(value), "l"), dst.dtype))


def affine(L: Lift, a: Args, dst: NkiTensor) -> V:
    """offset + partition * channel_multiplier + steps, in int32."""
    offset, row = a["offset"], a["channel_multiplier"]
    if not isinstance(offset, int):
        raise Bail("an offset known only at run time")
    cols = normal(tuple((s, n) for s, n in a["pattern"]))
    first = L.window[0] if L.window is not None and dst.shape[0] > 1 else 0
    reach = abs(offset) + abs(row) * 128 + sum(abs(s) * n for s, n in cols)
    if reach >= 1 << 31:
        raise Bail("an affine pattern that leaves 32 bits")
    return L.g.affine(offset + first * row, row, cols, width(cols))


@handler
def iota(L: Lift, a: Args) -> None:
    dst = a["dst"]
    v = affine(L, a, dst)
    L.write(dst, v if dst.dtype in ADDRESSES or dst.dtype == "int64" else L.g.cvt(v, "f"))


@handler
def affine_select(L: Lift, a: Args) -> None:
    dst = a["dst"]
    keep = apply(L, a["cmp_op"].name, affine(L, a, dst), L.g.const(0, "i"))
    select(L, dst, keep, a["on_true_tile"], a["on_false_value"])


def select(L: Lift, dst: NkiTensor, keep: V, on_true: NkiTensor, on_false: Any) -> None:
    g, dt = L.g, dst.dtype
    if isinstance(on_false, NkiTensor):
        fill = convert(L, L.read(on_false), on_false.dtype, dt)
        fill = g.bcast(fill) if fill.F == 1 and on_true.size != on_true.shape[0] else fill
    elif KIND[dt] not in "fd" and type(on_false) is int:
        fill = g.to(g.const(on_false, "l"), dt)
    else:
        fill = g.to(g.const(float(on_false)), dt)
    L.write(dst, choose(L, keep, convert(L, L.read(on_true), on_true.dtype, dt), fill, dt))


def choose(L: Lift, keep: V, x: V, y: V, dt: str) -> V:
    if x.kind != y.kind:
        x, y = L.g.cvt(x, KIND[dt]), L.g.cvt(y, KIND[dt])
    return L.g.ew("select", keep, x, y, kind=x.kind)


def truth(L: Lift, predicate: NkiTensor, reverse: bool) -> V:
    v = L.g.cvt(L.read(predicate), "b")
    return L.g.ew("not_bool", v) if reverse else v


@handler
def tensor_copy_predicated(L: Lift, a: Args) -> None:
    dst, src = a["dst"], a["src"]
    value = L.read(src) if isinstance(src, NkiTensor) else L.g.to(L.g.const(float(src)), dst.dtype)
    L.write(dst, choose(L, truth(L, a["predicate"], a["reverse_pred"]), value, L.read(dst), dst.dtype))
