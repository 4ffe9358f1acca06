"""Instructions that combine elements: reductions, scans, statistics, and the tensor engine."""

from __future__ import annotations

from collections.abc import Callable

from .access import Access, Cut
from .lift import Lift
from .operators import BITWISE, LOGICAL, Args, exact_integers, handler, prepared, store_bits
from .patterns import normal
from .values import Bail, V


@handler
def tensor_reduce(L: Lift, a: Args) -> None:
    dst, data, op = a["dst"], a["data"], a["op"].name
    axes = (a["axis"],) if isinstance(a["axis"], int) else tuple(a["axis"])
    kept = data.ndim - len(axes)
    F = 1
    for n in data.shape[1:kept]:
        F *= n
    count = data.size // data.shape[0] // F
    v = L.g.red(*prepared(L, op, dst, data), count, F)
    if op in BITWISE:
        return store_bits(L, dst, v)
    if op in LOGICAL:
        v = L.g.cvt(v, "f")
    return L.write(dst, L.g.ew("negative", v) if a["negate"] else v)


@handler
def tensor_tensor_scan(L: Lift, a: Args) -> None:
    first, second, initial = L.f32(a["data0"]), L.f32(a["data1"]), L.scalar(a["initial"])
    ops = (a["op0"].name, a["op1"].name)
    if any(op not in ("add", "subtract", "multiply", "maximum", "minimum") for op in ops):
        raise Bail(f"a scan with {ops}")
    F = a["data0"].size // a["data0"].shape[0]
    at = (*ops, bool(a["reverse0"]), bool(a["reverse1"]))
    L.write(a["dst"], L.g.scan(first, second, initial, at, F))


@handler
def bn_stats(L: Lift, a: Args) -> None:
    v, g = L.f32(a["data"]), L.g
    F = a["data"].size // a["data"].shape[0]
    parts: list[V] = []
    for start in (0, 1):
        n = (F - start + 1) // 2
        if n == 0:
            parts += [g.const(0.0)] * 3
            continue
        half = g.take(v, 0, (start, normal(((2, n),))))
        mean = (
            g.ew("multiply", g.red("add", half, n, 1), g.const(1.0 / n))
            if n & (n - 1) == 0
            else g.ew("divide", g.red("add", half, n, 1), g.const(float(n)))
        )
        away = g.ew("subtract", half, g.bcast(mean))
        parts += [g.const(float(n)), mean, g.red("add", g.ew("multiply", away, away), n, 1)]
    L.write(a["dst"], g.mosaic([(p, k, ()) for k, p in enumerate(parts)], 6))


@handler
def bn_aggr(L: Lift, a: Args) -> None:
    v, g = L.f32(a["data"]), L.g
    n = a["data"].size // a["data"].shape[0] // 3
    count, mean, spread = (g.take(v, 0, (k, normal(((3, n),)))) for k in range(3))
    total = g.red("add", count, n, 1)
    overall = g.ew("divide", g.red("add", g.ew("multiply", count, mean), n, 1), total)
    away = g.ew("subtract", mean, g.bcast(overall))
    square = g.ew("multiply", count, g.ew("multiply", away, away))
    variance = g.ew("divide", g.red("add", g.ew("add", spread, square), n, 1), total)
    L.write(a["dst"], g.mosaic([(overall, 0, ()), (variance, 1, ())], 2))


# ---- across partitions


def contract(L: Lift, stationary: Access, moving: Access) -> V:
    """stationary.T @ moving; where their rows come from different places, the sum over each range of rows."""
    g = L.g
    try:
        left, right = g.cvt(L.read(stationary), "f"), g.cvt(L.read(moving), "f")
        return g.dot(g.transpose(left, stationary.P), right, stationary.P)
    except Cut as cut:
        points = [0, *cut.points, stationary.P]
        total: V | None = None
        for x, y in zip(points, points[1:]):
            part = contract(L, stationary.rows(x, y), moving.rows(x, y))
            total = part if total is None else g.ew("add", total, part)
        assert total is not None
        return total


@handler
def nc_matmul(L: Lift, a: Args) -> None:
    dst, stationary, moving = a["dst"], a["stationary"], a["moving"]
    window, L.window = L.window, None
    left, right = L.access(stationary), L.access(moving)
    L.window = window
    if a["perf_mode"].name == "double_row" or "tfloat32" in (stationary.dtype, moving.dtype):
        raise Bail("a matmul in this mode")
    if a["is_transpose"] and dst.dtype == stationary.dtype:
        raise Bail("a transpose by a permutation matrix")
    if window is not None:
        left = left.columns(window[0], min(window[1], left.F) - window[0])
    v = contract(L, left, right)
    if a["accumulate"]:
        v = L.g.ew("add", L.f32(dst), v)
    L.write(dst, v)


@handler
def nc_transpose(L: Lift, a: Args) -> None:
    dst, src = a["dst"], a["data"]
    window, L.window = L.window, None
    target, source = L.access(dst), L.access(src)
    L.window = window
    first, last = (window[0], min(window[1], target.P)) if window is not None else (0, target.P)

    def move(x: int, y: int) -> None:
        part = source.rows(x, y)
        if (first, last) != (0, target.P):
            part = part.columns(first, last - first)
        try:
            v = L.g.transpose(L.read(part), y - x)
        except Cut as cut:
            points = [x, *(x + p for p in cut.points), y]
            for p, q in zip(points, points[1:]):
                move(p, q)
            return
        where = target.rows(first, last)
        L.write(where if (x, y) == (0, source.P) else where.columns(x, y - x), v)

    move(0, source.P)


@handler
def tensor_partition_reduce(L: Lift, a: Args) -> None:
    dst, data, op, g = a["dst"], a["data"], a["op"].name, L.g
    P, F = data.shape[0], data.size // data.shape[0]
    if op in ("add", "average") and not exact_integers(dst, data):
        v = over_rows(L, "add", P, lambda rows: g.dot(g.const(1.0), g.cvt(L.read(data), "f"), rows))
        v = g.ew("divide", v, g.const(float(P))) if op == "average" else v
        return L.write(dst, v)
    name = "maximum" if op == "max" else op

    def part(rows: int) -> V:
        combined, v = prepared(L, name, dst, data)
        return g.transpose(g.red(combined, g.transpose(v, rows), rows, 1), F)

    v = over_rows(L, name, P, part)
    return store_bits(L, dst, v) if op in BITWISE else L.write(dst, v)


def over_rows(L: Lift, op: str, rows: int, part: Callable[[int], V]) -> V:
    """`part` of all rows; where they come from different places, the parts of each range, combined."""
    outer = L.window
    first, last = outer or (0, rows)
    L.window = (first, last)
    try:
        return part(last - first)
    except Cut as cut:
        points = [first, *(first + p for p in cut.points), last]
        total: V | None = None
        for L.window in list(zip(points, points[1:])):
            v = over_rows(L, op, rows, part)
            total = v if total is None else L.g.ew(op, total, v)
        assert total is not None
        return total
    finally:
        L.window = outer
