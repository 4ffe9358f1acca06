"""Instructions that search a row or take its elements by index, on values."""

from __future__ import annotations

import numpy as np

from .lift import Lift
from .operators import Args, handler
from .values import KIND, Bail, V


def row(L: Lift, v: V) -> V:
    """A value whose columns can be taken in any order."""
    if v.op in ("row", "max8", "scan"):
        return v
    if v.F is None or v.op == "mosaic":
        raise Bail("a search in a tile of several pieces")
    return L.g.make("row", (v,), (), v.F, v.kind)


def whole(v: V) -> V:
    if v.op == "mosaic" or v.F is None:
        raise Bail("a search in a tile of several pieces")
    return v


@handler
def max8(L: Lift, a: Args) -> None:
    L.write(a["dst"], L.g.make("max8", (whole(L.f32(a["src"])),), (), 8, "f"))


@handler
def nc_find_index8(L: Lift, a: Args) -> None:
    missing = int(np.iinfo(a["dst"].dtype.numpy).max)
    data, values = whole(L.f32(a["data"])), row(L, L.f32(a["vals"]))
    L.write(a["dst"], L.g.make("find8", (data, values), (False, missing), 8, "u"))


@handler
def nc_match_replace8(L: Lift, a: Args) -> None:
    data, values = whole(L.f32(a["data"])), row(L, L.f32(a["vals"]))
    positions = None
    if a["dst_idx"] is not None:
        positions = L.g.make("find8", (data, values), (True, -1), 8, "i")
    L.write(a["dst"], L.g.make("replace8", (data, values, L.g.const(float(a["imm"]))), (), data.F, "f"))
    if positions is not None:
        L.write(a["dst_idx"], positions)


@handler
def nc_n_gather(L: Lift, a: Args) -> None:
    g, data, index = L.g, L.read(a["data"]), L.read(a["indices"])
    if data.kind == "b":
        data = g.cvt(data, KIND[a["data"].dtype])
    if index.kind not in "iu" or whole(index).F is None:
        raise Bail("indices of more than 32 bits")
    L.write(a["dst"], g.make("ngather", (row(L, data), index), (), index.F, data.kind))
