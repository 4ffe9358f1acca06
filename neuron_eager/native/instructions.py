"""What each instruction does to values: the counterpart, on graph nodes, of `nki/semantics`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..nki.limits import FP32_MIN
from ..nki.tensor import NkiTensor
from .access import Access, Cut
from .graph import COMPARISONS, KIND, SIZE, Bail, V
from .lift import SCALAR, VECTOR, Lift, joint_rows
from .patterns import normal, width

Args = dict[str, Any]
Handler = Callable[[Lift, Args], None]
HANDLERS: dict[str, Handler] = {}
LOGICAL = {"logical_and": "and_bool", "logical_or": "or_bool", "logical_xor": "xor_bool"}
BITWISE = frozenset({"bitwise_and", "bitwise_or", "bitwise_xor", "left_shift", "right_shift", "invert"})
UNARY = frozenset({"abs", "square", "relu", "rsqrt", "reciprocal", "invert", "bypass"})
FRACTIONAL = frozenset({"power", "divide", "rsqrt", "reciprocal"})  # always computed in float32
ACTIVATIONS = frozenset(
    "abs square sign relu exp log sqrt rsqrt reciprocal sin cos tan arctan tanh sigmoid erf erf_dx gelu gelu_dx gelu_apprx_tanh "
    "gelu_apprx_sigmoid gelu_apprx_sigmoid_dx silu silu_dx softplus mish trunc floor ceil negative".split(" ")
)
IDENTITY = {"add": 0.0, "multiply": 1.0, "maximum": float("-inf"), "minimum": float("inf")}
INTEGERS = frozenset({"int8", "int16", "int32", "uint8", "uint16", "uint32", "int64", "bool"})
ADDRESSES = frozenset({"int32", "uint32"})


def handler(f: Handler) -> Handler:
    HANDLERS[f.__name__] = f
    return f


# ---- operators


def apply(L: Lift, op: str, x: V, y: V | None = None) -> V:
    """An ALU operator on operands of one kind. Comparisons and logic give truth values."""
    g = L.g
    if op == "bypass":
        return x
    if op in UNARY:
        if op == "relu":
            return g.ew("maximum", x, g.const(0, x.kind))
        if op == "square":
            return g.ew("multiply", x, x)
        return g.ew(op, x)
    assert y is not None
    if op in COMPARISONS:
        return g.ew(op, x, y, kind="b")
    if op in LOGICAL:
        return g.ew(LOGICAL[op], g.cvt(x, "b"), g.cvt(y, "b"))
    if op in ("abs_max", "abs_min"):
        larger = g.ew("greater" if op == "abs_max" else "less", g.ew("abs", x), g.ew("abs", y), kind="b")
        return g.ew("select", larger, x, y, kind=x.kind)
    if op in ("add", "subtract", "multiply", "maximum", "minimum", "power", "divide", "mod", "fmod"):
        return g.ew(op, x, y)
    raise Bail(f"operator {op}")


def chain(L: Lift, op: Any, x: V, y: V | None, reverse: bool) -> V:
    """`x op y`, or `y op x`; the result of a comparison becomes a number of x's kind."""
    name = op.name
    if name in UNARY:
        return apply(L, name, x)
    assert y is not None
    r = apply(L, name, y, x) if reverse else apply(L, name, x, y)
    return L.g.cvt(r, x.kind)


def convert(L: Lift, v: V, src: str, dst: str) -> V:
    """What a copy between dtypes does: the same bits if they are equal, else through float32, except for int64 and float64."""
    if src == dst:
        return v
    if src in ("int64", "float64") or dst in ("int64", "float64"):
        return L.g.to(v, dst)
    return L.g.to(L.g.cvt(v, "f"), dst)


def exact_integers(*operands: Any) -> bool:
    tiles = [t.dtype for t in operands if isinstance(t, NkiTensor)]
    return all(d in INTEGERS for d in tiles) and "int64" in tiles


def integer(L: Lift, operand: Any, kind: str) -> V:
    """An operand of an exact integer instruction, wrapped to the kind."""
    if isinstance(operand, NkiTensor):
        v = L.read(operand)
        if v.kind != kind:
            v = L.g.cvt(v, "l") if kind == "l" else L.g.to(v, "int32" if kind == "i" else "uint32")
        return v
    if isinstance(operand, float) and not operand.is_integer():
        raise Bail("a fraction as an integer operand")
    return L.g.const(wrapped(int(operand), 64 if kind == "l" else 32, kind != "u"), kind)


def column(L: Lift, operand: Any, kind: str) -> V:
    v = integer(L, operand, kind)
    return v if v.F is None else L.g.bcast(v)


def wrapped(value: int, bits: int, signed: bool = True) -> int:
    value %= 1 << bits
    return value - (1 << bits) if signed and value >> (bits - 1) else value


def pattern_bits(L: Lift, operand: Any, dt: str, wide: int) -> V:
    """The bits of an operand of dtype `dt`, zero-extended: kind u, or l if `wide` is 8 bytes."""
    g = L.g
    if not isinstance(operand, NkiTensor):
        size = 8 * SIZE[dt]
        return g.const(
            wrapped(operand, 64) if wide == 8 else operand & ((1 << min(size, 32)) - 1), "l" if wide == 8 else "u"
        )
    v = L.read(operand)
    if v.kind == "b":
        v = g.cvt(v, KIND[dt])
    if KIND[dt] == "f":
        v = g.bits(v, dt, {4: "uint32", 2: "uint16", 1: "uint8"}[SIZE[dt]])
    if v.kind == "i":
        v = g.ew("to", v, at=("uint32",), kind="u")
        if dt in ("int8", "int16"):
            v = g.ew("bitwise_and", v, g.const((1 << 8 * SIZE[dt]) - 1, "u"))
    if wide == 8 and v.kind == "u":
        v = g.cvt(v, "l")
    return v


def bit_op(L: Lift, op: str, x: V, y: V | None, size: int) -> V:
    """A bit operator on patterns of `size` bytes."""
    g = L.g
    full = (1 << 8 * size) - 1
    if op == "bypass":
        return x
    if op == "invert":
        x = g.ew("invert", x)
    else:
        assert y is not None
        if op in ("left_shift", "right_shift") and size < 4:
            inside = g.ew("less", y, g.const(8 * size, x.kind), kind="b")
            x = g.ew("select", inside, g.ew(op, x, y), g.const(0, x.kind), kind=x.kind)
        else:
            x = g.ew(op, x, y)
    return g.ew("bitwise_and", x, g.const(full, x.kind)) if op in ("invert", "left_shift") and size < 4 else x


def store_bits(L: Lift, dst: NkiTensor, v: V) -> None:
    """Patterns cut to the destination and taken as its dtype."""
    dt = dst.dtype
    if KIND[dt] == "f" or dt == "bool":
        size = {8: "int64", 4: "uint32", 2: "uint16", 1: "uint8"}[SIZE[dt]]
        v = L.g.bits(L.g.to(v, size), size, dt)
    L.write(dst, v)


# ---- copies, constants, patterns


@handler
def dma_copy(L: Lift, a: Args) -> None:
    dst, src = a["dst"], a["src"]
    mode = a.get("oob_mode")
    if src.dynamic and mode is not None and mode.name == "skip":
        return L.write(dst, convert(L, gather_or_keep(L, dst, src), src.dtype, dst.dtype))
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


@handler
def select_reduce(L: Lift, a: Args) -> None:
    dst = a["dst"]
    keep = truth(L, a["predicate"], a["reverse_pred"])
    if a["reduce_cmd"].name != "idle":
        v = L.g.ew("select", keep, L.f32(a["on_true"]), L.scalar(a["on_false"]), kind="f")
        command = "reset_reduce" if a["reduce_cmd"].name == "reset_reduce" else "reduce"
        accumulate(L, VECTOR, dst, command, "maximum", v)
    select(L, dst, keep, a["on_true"], a["on_false"])
    read_out(L, a["reduce_res"], VECTOR)


@handler
def range_select(L: Lift, a: Args) -> None:
    dst, g = a["dst"], L.g
    v = L.f32(a["on_true_tile"])
    F = a["on_true_tile"].size // a["on_true_tile"].shape[0]
    index = g.cvt(g.affine(int(a["range_start"]), 0, normal(((1, F),)), F), "f")
    keep = g.ew(
        "and_bool",
        apply(L, a["comp_op0"].name, index, L.scalar(a["bound0"])),
        apply(L, a["comp_op1"].name, index, L.scalar(a["bound1"])),
    )
    v = g.ew("select", keep, v, g.const(FP32_MIN), kind="f")
    command = a["reduce_cmd"].name
    if command != "idle":
        accumulate(L, VECTOR, dst, command, "maximum", v)
    L.write(dst, v)
    read_out(L, a["reduce_res"], VECTOR)


# ---- elementwise


@handler
def tensor_tensor(L: Lift, a: Args) -> None:
    dst, x, y, op = a["dst"], a["data1"], a["data2"], a["op"].name
    if op in BITWISE:
        wide = max(SIZE[x.dtype], SIZE[y.dtype])
        return store_bits(
            L, dst, bit_op(L, op, pattern_bits(L, x, x.dtype, wide), pattern_bits(L, y, y.dtype, wide), wide)
        )
    integral = op not in FRACTIONAL
    if integral and exact_integers(dst, x, y):
        return L.write(dst, apply(L, op, integer(L, x, "l"), integer(L, y, "l")))
    if integral and a["engine"].name == "gpsimd" and {dst.dtype, x.dtype, y.dtype} <= ADDRESSES:
        kind = KIND[x.dtype]
        return L.write(dst, apply(L, op, L.read(x), integer(L, y, kind)))
    return L.write(dst, apply(L, op, L.f32(x), L.f32(y)))


@handler
def tensor_scalar(L: Lift, a: Args) -> None:
    dst, data = a["dst"], a["data"]
    stages = [(a["op0"], a["operand0"], a["reverse0"])]
    if a["op1"] is not None:
        stages.append((a["op1"], a["operand1"], a["reverse1"]))
    operands = [o for op, o, _ in stages if op.name not in UNARY]
    if stages[0][0].name in BITWISE:
        size = SIZE[data.dtype]
        v = pattern_bits(L, data, data.dtype, size)
        for op, o, reverse in stages:
            other = None
            if op.name not in UNARY:
                other = pattern_bits(L, o, o.dtype if isinstance(o, NkiTensor) else data.dtype, size)
                other = other if other.F is None else L.g.bcast(other)
            v = (
                bit_op(L, op.name, other, v, size)
                if reverse and other is not None
                else bit_op(L, op.name, v, other, size)
            )
        return store_bits(L, dst, v)
    kind = integer_kind(dst, data, [op.name for op, _, _ in stages], operands)
    if kind == "f":
        v, number = L.f32(data), L.scalar
    else:
        v, number = integer(L, data, kind), lambda o: column(L, o, kind)
    for op, o, reverse in stages:
        v = chain(L, op, v, None if op.name in UNARY else number(o), reverse)
    return L.write(dst, v)


def integer_kind(dst: NkiTensor, data: NkiTensor, ops: list[str], operands: list[Any]) -> str:
    """The kind in which tensor_scalar computes: exact integers, or float32."""
    if any(op in FRACTIONAL for op in ops) or any(type(o) is float for o in operands):
        return "f"
    if exact_integers(dst, data, *operands):
        return "l"
    tiles = {t.dtype for t in (dst, data, *operands) if isinstance(t, NkiTensor)}
    return KIND[data.dtype] if tiles <= ADDRESSES else "f"


@handler
def scalar_tensor_tensor(L: Lift, a: Args) -> None:
    dst, data, other, op0, op1 = a["dst"], a["data"], a["operand1"], a["op0"], a["op1"]
    integral = not {op0.name, op1.name} & FRACTIONAL and type(a["operand0"]) is not float
    if integral and exact_integers(dst, data, a["operand0"], other):
        v = chain(L, op0, integer(L, data, "l"), column(L, a["operand0"], "l"), a["reverse0"])
        second = integer(L, other, "l")
    else:
        operand = None if op0.name in UNARY else L.scalar(a["operand0"])
        v, second = chain(L, op0, L.f32(data), operand, a["reverse0"]), L.f32(other)
    L.write(dst, apply(L, op1.name, second, v) if a["reverse1"] else apply(L, op1.name, v, second))


@handler
def reciprocal(L: Lift, a: Args) -> None:
    L.write(a["dst"], L.g.ew("reciprocal", L.f32(a["data"])))


# ---- activations and accumulators


def function(L: Lift, op: Any, v: V) -> V:
    if op.name == "copy":
        return v
    if op.name not in ACTIVATIONS:
        raise Bail(f"activation {op.name}")
    if op.name in ("square", "relu"):
        return apply(L, op.name, v)
    return L.g.ew(op.name, v)


def scaled(L: Lift, a: Args) -> V:
    v, scale, bias = L.f32(a["data"]), a["scale"], a["bias"]
    if not (type(scale) is float and scale == 1.0):
        v = L.g.ew("multiply", v, L.scalar(scale))
    if bias is None or (type(bias) is float and bias == 0.0):
        return v
    return L.g.ew("add", v, L.scalar(bias))


def register(L: Lift, which: int, partitions: int) -> Access:
    a = Access(which, True, 0, partitions, 1, 4, (), "float32")
    return a.rows(L.window[0], min(L.window[1], partitions)) if L.window is not None and partitions > 1 else a


def accumulate(L: Lift, which: int, like: NkiTensor, command: str, op: str, v: V, initial: Any = None) -> None:
    """Run a reduce command on the accumulators of the partitions in use; `v` has the width of a tile like `like`."""
    if op not in IDENTITY:
        raise Bail(f"an accumulation with {op}")
    a, F, g = register(L, which, like.shape[0]), like.size // like.shape[0], L.g
    before: V | None = None
    if command == "load_reduce":
        before = L.scalar(initial)
    elif command in ("reset", "reset_reduce"):
        before = g.const(IDENTITY[op])
    elif command == "reduce":
        before = L.tiles.read(a)
    else:
        raise Bail(f"reduce command {command}")
    if command == "reset":
        return L.tiles.write(a, before)
    total = g.red(op, v, F, 1)
    return L.tiles.write(a, total if command == "reset_reduce" else g.ew(op, before, total))


def read_out(L: Lift, res: NkiTensor | None, which: int, negate: bool = False) -> None:
    if res is not None:
        v = L.tiles.read(register(L, which, res.shape[0]))
        L.write(res, L.g.ew("negative", v) if negate else v)


@handler
def activation(L: Lift, a: Args) -> None:
    v = function(L, a["op"], scaled(L, a))
    if a["reduce_cmd"].name != "idle":
        accumulate(L, SCALAR, a["data"], a["reduce_cmd"].name, "add", v)
    L.write(a["dst"], v)
    read_out(L, a["reduce_res"], SCALAR)


@handler
def activation_reduce(L: Lift, a: Args) -> None:
    v = function(L, a["op"], scaled(L, a))
    accumulate(L, SCALAR, a["data"], "reset_reduce", a["reduce_op"].name, v)
    L.write(a["dst"], v)
    read_out(L, a["reduce_res"], SCALAR)


@handler
def activate2(L: Lift, a: Args) -> None:
    v = L.f32(a["data"])
    for i in (0, 1):
        if a[f"op{i}"].name != "bypass":
            v = chain(L, a[f"op{i}"], v, L.scalar(a[f"imm{i}"]), a[f"reverse{i}"])
    if a["op"].name == "prelu":
        slope = L.g.ew("multiply", L.scalar(a["relu_param"]), v)
        v = L.g.ew("select", apply(L, "greater_equal", v, L.g.const(0.0)), v, slope, kind="f")
    else:
        v = function(L, a["op"], v)
    if a["reduce_op"] is not None and a["reduce_cmd"].name != "idle":
        accumulate(L, SCALAR, a["data"], a["reduce_cmd"].name, a["reduce_op"].name, v)
    elif a["reduce_cmd"].name == "reset":
        L.tiles.write(register(L, SCALAR, a["dst"].shape[0]), L.g.const(0.0))
    L.write(a["dst"], v)
    read_out(L, a["reduce_res"], SCALAR)


@handler
def exponential(L: Lift, a: Args) -> None:
    v = L.g.ew("exp", L.g.ew("subtract", L.f32(a["src"]), L.scalar(a["max_value"])))
    if a["reduce_cmd"].name != "idle":
        accumulate(L, VECTOR, a["src"], a["reduce_cmd"].name, "add", v, a["reduce_init"])
    L.write(a["dst"], v)
    read_out(L, a["reduce_res"], VECTOR)


@handler
def tensor_scalar_reduce(L: Lift, a: Args) -> None:
    op0 = a["op0"]
    operand = None if op0.name in UNARY else L.scalar(a["operand0"])
    v = chain(L, op0, L.f32(a["data"]), operand, a["reverse0"])
    accumulate(L, VECTOR, a["data"], a["reduce_cmd"].name, a["reduce_op"].name, v, a["reduce_init"])
    L.write(a["dst"], v)
    read_out(L, a["reduce_res"], VECTOR, a["reduce_res_negate"])


# ---- reductions along the free dimensions


def prepared(L: Lift, op: str, dst: NkiTensor, data: NkiTensor) -> tuple[str, V]:
    """The operands of a reduction in the arithmetic that it works in, and the operator on them."""
    g = L.g
    if op in ("bitwise_and", "bitwise_or", "bitwise_xor"):
        return op, pattern_bits(L, data, data.dtype, SIZE[data.dtype])
    v = L.read(data)
    if op in LOGICAL:
        return {"logical_and": "minimum", "logical_or": "maximum", "logical_xor": "bitwise_xor"}[op], g.cvt(g.cvt(v, "b"), "i")
    return op, g.cvt(v, "l" if exact_integers(dst, data) else "f")


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
def tensor_scalar_cumulative(L: Lift, a: Args) -> None:
    src, op0, op1, g = a["src"], a["op0"], a["op1"].name, L.g
    if op1 not in IDENTITY:
        raise Bail(f"a running {op1}")
    v = chain(L, op0, L.f32(src), None if op0.name in UNARY else L.scalar(a["imm0"]), False)
    registers = register(L, VECTOR, src.shape[0])
    command = a["reduce_cmd"].name
    if command == "reset_reduce":
        start = g.const(IDENTITY[op1])
    elif command == "load_reduce":
        start = L.scalar(a["imm1"])
    else:
        start = g.bcast(L.tiles.read(registers))
    F = src.size // src.shape[0]
    running = g.scan(v, g.const(0.0), start, (op1, "first", False, False), F)
    L.tiles.write(registers, g.take(running, 0, (F - 1, ())))
    L.write(a["dst"], running)


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
    source = L.access(data)
    P, F = source.P, source.F
    if op in ("add", "average") and not exact_integers(dst, data):
        v = g.dot(g.const(1.0), g.cvt(L.read(data), "f"), P)
        v = g.ew("divide", v, g.const(float(P))) if op == "average" else v
        return L.write(dst, v)
    name, v = prepared(L, "maximum" if op == "max" else op, dst, data)
    v = g.transpose(g.red(name, g.transpose(v, P), P, 1), F)
    return store_bits(L, dst, v) if op in BITWISE else L.write(dst, v)
