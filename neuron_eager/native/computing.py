"""Instructions of the Vector, Scalar and GpSimd engines that compute element by element, with their accumulators."""

from __future__ import annotations

from typing import Any

from ..nki.limits import FP32_MIN
from ..nki.tensor import NkiTensor
from .access import Access
from .lift import SCALAR, VECTOR, Lift
from .moving import select, truth
from .operators import (
    ADDRESSES,
    BITWISE,
    FRACTIONAL,
    UNARY,
    Args,
    apply,
    bit_op,
    chain,
    column,
    exact_integers,
    handler,
    integer,
    pattern_bits,
    store_bits,
)
from .patterns import normal
from .values import KIND, SIZE, Bail, V

ACTIVATIONS = frozenset(
    [
        "abs",
        "square",
        "sign",
        "relu",
        "exp",
        "log",
        "sqrt",
        "rsqrt",
        "reciprocal",
        "sin",
        "cos",
        "tan",
        "arctan",
        "tanh",
        "sigmoid",
        "erf",
        "erf_dx",
        "gelu",
        "gelu_dx",
        "gelu_apprx_tanh",
        "gelu_apprx_sigmoid",
        "gelu_apprx_sigmoid_dx",
        "silu",
        "silu_dx",
        "softplus",
        "mish",
        "trunc",
        "floor",
        "ceil",
        "negative",
    ]
)
IDENTITY = {"add": 0.0, "multiply": 1.0, "maximum": float("-inf"), "minimum": float("inf")}


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
        return L.write(dst, apply(L, op, integer(L, x, kind), integer(L, y, kind)))
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
    v = L.f32(data) if kind == "f" else integer(L, data, kind)
    for op, o, reverse in stages:
        other = None if op.name in UNARY else L.scalar(o) if kind == "f" else column(L, o, kind)
        v = chain(L, op, v, other, reverse)
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


# ---- selections with a maximum


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


# ---- running totals


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
