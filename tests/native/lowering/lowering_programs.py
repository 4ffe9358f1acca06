"""Random tile programs whose results are exact in every order of evaluation, so that native code and interpreter must
agree bit for bit.

Values are integers below 2^24. Each tile carries a bound of its magnitudes, and instructions that could leave the
exact range of float32, or of the dtype of their destination, are not made. Instructions that the language refuses are
left out.
"""

from __future__ import annotations

from math import prod

import nki.isa as nisa
import nki.language as nl
import numpy as np

from neuron_eager.errors import NkiError
from neuron_eager.native import compile as native
from neuron_eager.nki.dtypes import ALL
from neuron_eager.nki.interpreter import Interpreter
from neuron_eager.nki.jit import trace
from neuron_eager.nki.program import TensorSpec

EXACT = 2**22
DTYPES = ("float32", "float32", "float32", "bfloat16", "float16", "int32", "uint8", "int64", "uint32", "int8", "bool")
LARGEST = {
    "float32": 2**24,
    "bfloat16": 2**24,
    "float16": 30000,
    "int32": 2**24,
    "uint8": 255,
    "int64": 2**24,
    "uint32": 2**24,
    "int8": 127,
    "bool": 1,
}
COMPARE = (nl.equal, nl.not_equal, nl.greater, nl.greater_equal, nl.less, nl.less_equal)
ARITHMETIC = (nl.add, nl.subtract, nl.multiply, nl.maximum, nl.minimum)
LOGIC = (nl.logical_and, nl.logical_or, nl.logical_xor)
SIGNED = (nl.abs_max, nl.abs_min)
BITS = (nl.bitwise_and, nl.bitwise_or, nl.bitwise_xor, nl.left_shift, nl.right_shift)
ANYTHING = 2**40  # a bound that no exact instruction accepts


def grown(op, x, y):
    """The bound of `x op y` from those of its operands."""
    return {nl.add: x + y, nl.subtract: x + y, nl.multiply: x * y}.get(op, max(x, y, 1))


class Maker:
    """Issues random instructions on the current machine."""

    def __init__(self, random):
        self.random = random

    def kernel(self, inputs):
        self.inputs, self.P = inputs, self.pick((128, 128, 64, 32, 5, 1))
        self.tiles, self.bounds, self.outputs = [], {}, []
        for _ in range(self.below(2) + 1):
            self.load()
        steps = [getattr(self, name) for name in dir(self) if name.startswith("do_")]
        for _ in range(3 + self.below(11)):
            try:
                step = self.pick(steps)
                step() if step in (self.do_load, self.do_store, self.do_read_back, self.do_gather) else step(
                    self.view(self.pick(self.tiles))
                )
            except NkiError:
                continue
        for _ in range(self.below(2) + 1):
            self.store()
        return tuple(self.outputs)

    # ---- choices
    def below(self, n):
        return self.random.randrange(n)

    def pick(self, options):
        return options[self.random.randrange(len(options))]

    def chance(self, p):
        return self.random.random() < p

    # ---- tiles
    def new(self, F, dtype, P=None, buffer=nl.sbuf):
        return nl.ndarray((P or self.P, *(F if isinstance(F, tuple) else (F,))), ALL[dtype], buffer)

    def keep(self, t, bound):
        self.tiles.append(t)
        self.bounds[t.storage.id] = bound

    def bound(self, t):
        return self.bounds.get(t.storage.id, 8)

    def raised(self, t, bound):
        self.bounds[t.storage.id] = max(self.bound(t), bound)
        if t.storage.id not in {x.storage.id for x in self.tiles}:
            self.tiles.append(t)

    def view(self, t):
        """The tile, or some of its columns, or another shape of it."""
        if t.ndim != 2:
            return t
        P, F = t.shape
        kind = self.below(6)
        if kind == 0 and F > 1:
            start = self.below(F)
            return t[:, start : start + 1 + self.below(F - start)]
        if kind == 1 and F > 2:
            return t[:, 0::2]
        if kind == 2 and F % 2 == 0 and F > 2:
            return t.reshape((P, 2, F // 2))
        if kind == 3 and F % 4 == 0:
            return t.reshape((P, F // 4, 4)).permute((0, 2, 1))
        if kind == 4 and F > 2:
            return t[:, 1::2]
        return t

    def partner(self, t):
        """Another operand of as many elements; None if there is none."""
        found = [v for x in self.tiles for v in (x, self.view(x)) if (v.shape[0], v.size) == (t.shape[0], t.size)]
        return self.pick(found) if found else None

    def target(self, t, bound, dtypes=DTYPES):
        """A destination like t that can hold the bound: a part of a tile, or a fresh one."""
        P, F = t.shape[0], t.size // t.shape[0]
        if self.chance(0.4):
            views = [self.view(x) for x in self.tiles]
            fit = [
                v
                for v in views
                if (v.shape[0], v.size) == (P, t.size) and LARGEST[v.dtype] >= bound and v.dtype in dtypes
            ]
            if fit:
                return self.pick(fit)
        dtype = self.pick(dtypes)
        return self.new(F, dtype if bound <= LARGEST[dtype] else "float32", P)

    def scalar(self, P):
        columns = [v for v in self.tiles if v.shape[0] == P and v.size == P and v.dtype == "float32"]
        if columns and self.chance(0.5):
            v = self.pick(columns)
            return v, self.bound(v)
        return float(self.below(7) - 3), 3

    # ---- memory
    def load(self):
        x = self.pick(self.inputs)
        (R, C), P = x.shape, self.P
        F, kind = min(C, self.pick((1, 2, 7, 16, 33, 64))), self.below(6)
        whole = x[:P, :F] if R >= P else x[0:1, :F].broadcast(0, P)
        v = whole
        if kind == 0 and R >= P:
            r, c = self.below(R - P + 1), self.below(C - F + 1)
            v = x[r : r + P, c : c + F]
        elif kind == 1:
            v = x[0:1, :F].broadcast(0, P)
        elif kind == 2 and C >= P and R >= F:
            v = x[:F, :P].permute((1, 0))
        elif kind == 3 and R >= P and C >= 2 * F:
            v = x[:P, 0 : 2 * F : 2]
        elif kind == 4 and R >= P:
            v = x[:P, :1].broadcast(1, F)
        t = self.new(v.shape[1], x.dtype)
        nisa.dma_copy(dst=t, src=v)
        self.keep(t, 8)

    do_load = load

    def store(self):
        t = self.view(self.pick(self.tiles))
        P, F = t.shape[0], t.size // t.shape[0]
        same = [o for o in self.outputs if o.shape == (P, F)]
        if same and self.chance(0.1):
            nisa.dma_copy(dst=self.pick(same), src=t)
            return
        dtype, kind = (t.dtype if self.chance(0.6) else "float32"), self.below(4)
        if kind == 0:
            out = nl.ndarray((F, P), ALL[dtype], nl.shared_hbm)
            nisa.dma_copy(dst=out.permute((1, 0)), src=t)
        elif kind == 1 and F % 2 == 0 and t.is_contiguous():
            out, flat = nl.ndarray((P, F), ALL[dtype], nl.shared_hbm), t.reshape((P, F))
            nisa.dma_copy(dst=out[:, 0::2], src=flat[:, : F // 2])
            nisa.dma_copy(dst=out[:, 1::2], src=flat[:, F // 2 :])
        else:
            out = nl.ndarray((P, F), ALL[dtype], nl.shared_hbm)
            nisa.dma_copy(dst=out, src=t)
        self.outputs.append(out)

    do_store = store

    def do_read_back(self):
        if self.outputs and (out := self.pick(self.outputs)).shape[0] <= 128:
            t = self.new(out.shape[1], out.dtype, out.shape[0])
            nisa.dma_copy(dst=t, src=out)
            self.keep(t, ANYTHING)

    def do_gather(self):
        x = self.pick(self.inputs)
        (R, C), P = x.shape, self.P
        F, several = min(C, self.pick((1, 5, 16))), int(R >= P)
        index, t = self.new(1, "int32"), self.new(F, x.dtype)
        nisa.iota(dst=index, pattern=[[1, 1]], offset=0, channel_multiplier=several)
        nisa.dma_copy(dst=t, src=x.ap([[C, P], [1, F]], vector_offset=index))
        self.keep(t, 8)

    def do_copy(self, t):
        d = self.target(t, self.bound(t))
        self.pick((nisa.tensor_copy, nisa.dma_copy))(dst=d, src=t)
        self.raised(d, self.bound(t))

    def do_copy_rows(self, t):
        u = self.partner(t)
        if t.shape[0] < 64 or u is None or self.bound(u) > LARGEST[t.dtype]:
            return
        half = self.pick((32, 64))
        first = self.pick((0, half)) if t.shape[0] >= 2 * half else 0
        nisa.tensor_copy(dst=t[first : first + half], src=u[first : first + half])
        self.raised(t, self.bound(u))

    def do_copy_across(self, t):
        """Elements in row-major order to another number of partitions."""
        P, F = t.shape[0], t.size // t.shape[0]
        rows = self.pick([n for n in (1, 2, 4, 8, 16, 32, 64, 128) if t.size % n == 0])
        if t.ndim == 2 and P * F // rows <= 4096:
            d = self.new(P * F // rows, t.dtype, rows)
            nisa.dma_copy(dst=d, src=t)
            self.keep(d, self.bound(t))

    def do_memset(self, t):
        low = -3 if t.dtype.kind in "fi" else 0
        value = self.below(2) if t.dtype == "bool" else low + self.below(6)
        nisa.memset(dst=t, value=float(value) if t.dtype.is_float else value)
        self.raised(t, 4)

    def do_iota(self, t):
        d = self.target(t, 2000, ("float32", "int32", "int64"))
        F = d.size // d.shape[0]
        pattern = [[3, 2], [1, F // 2]] if F % 2 == 0 and self.chance(0.5) else [[2, F]]
        nisa.iota(dst=d, pattern=pattern, offset=self.below(10) - 5, channel_multiplier=self.below(5) - 2)
        self.raised(d, 2000)

    # ---- elementwise
    def do_tensor_tensor(self, t):
        u = self.partner(t)
        if u is None:
            return
        op = self.pick((*ARITHMETIC, *COMPARE, *LOGIC, *SIGNED, nl.multiply))
        bound = grown(op, self.bound(t), self.bound(u))
        if bound > EXACT:
            return
        d = self.target(t, bound)
        nisa.tensor_tensor(dst=d, data1=t, data2=u, op=op)
        self.raised(d, bound)

    def do_tensor_scalar(self, t):
        op, (operand, size) = self.pick((*ARITHMETIC, *COMPARE)), self.scalar(t.shape[0])
        bound, more = grown(op, self.bound(t), size), {}
        if self.chance(0.5):
            second, (other, size) = self.pick((*ARITHMETIC, *COMPARE)), self.scalar(t.shape[0])
            bound = max(bound, grown(second, bound, size))
            more = {"op1": second, "operand1": other, "reverse1": self.chance(0.4)}
        if bound > EXACT:
            return
        d = self.target(t, bound)
        nisa.tensor_scalar(dst=d, data=t, op0=op, operand0=operand, reverse0=self.chance(0.4), **more)
        self.raised(d, bound)

    def do_scalar_tensor_tensor(self, t):
        u = self.partner(t)
        if u is None:
            return
        op, (operand, size), second = self.pick(ARITHMETIC), self.scalar(t.shape[0]), self.pick((*ARITHMETIC, *COMPARE))
        bound = grown(op, self.bound(t), size)
        bound = max(bound, grown(second, bound, self.bound(u)))
        if bound > EXACT:
            return
        d = self.target(t, bound)
        nisa.scalar_tensor_tensor(
            dst=d,
            data=t,
            op0=op,
            operand0=operand,
            op1=second,
            operand1=u,
            reverse0=self.chance(0.3),
            reverse1=self.chance(0.3),
        )
        self.raised(d, bound)

    def do_bits(self, t):
        u = self.partner(t)
        if t.dtype.is_float:
            return
        d = self.target(t, 2**24, ("int32", "uint32", "int64"))
        if u is not None and not u.dtype.is_float and self.chance(0.5):
            nisa.tensor_tensor(dst=d, data1=t, data2=u, op=self.pick(BITS))
        else:
            nisa.tensor_scalar(
                dst=d, data=t, op0=self.pick(BITS), operand0=self.below(9), op1=nl.bitwise_xor, operand1=5
            )
        self.raised(d, ANYTHING)

    def do_affine_select(self, t):
        bound, F = max(self.bound(t), 3), t.size // t.shape[0]
        d = self.target(t, bound, ("float32", t.dtype))
        nisa.affine_select(
            dst=d,
            pattern=[[-1, F]],
            channel_multiplier=1,
            on_true_tile=t,
            cmp_op=self.pick(COMPARE),
            on_false_value=3 if d.dtype.kind == "u" else -3.0,
            offset=self.below(18) - 9,
        )
        self.raised(d, bound)

    def do_copy_predicated(self, t):
        predicates = [
            v for v in self.tiles if v.dtype in ("uint8", "uint32") and (v.shape[0], v.size) == (t.shape[0], t.size)
        ]
        u = self.partner(t)
        if predicates and u is not None and u.dtype is t.dtype:
            nisa.tensor_copy_predicated(dst=t, src=u, predicate=self.pick(predicates), reverse_pred=self.chance(0.5))
            self.raised(t, self.bound(u))

    def do_select_reduce(self, t):
        predicates = [
            v for v in self.tiles if v.dtype in ("uint8", "int8") and (v.shape[0], v.size) == (t.shape[0], t.size)
        ]
        if predicates:
            bound = max(self.bound(t), 3)
            d, res = self.target(t, bound, ("float32",)), self.new(1, "float32", t.shape[0])
            nisa.select_reduce(
                dst=d,
                predicate=self.pick(predicates),
                on_true=t,
                on_false=-3.0,
                reduce_res=res,
                reduce_cmd=nisa.reduce_cmd.reset_reduce,
                reverse_pred=self.chance(0.5),
            )
            self.raised(d, bound)
            self.keep(res, bound)

    # ---- reductions and scans
    def do_reduce(self, t):
        op = self.pick((nl.add, nl.maximum, nl.minimum, nl.logical_and, nl.logical_or))
        axes = self.pick(((t.ndim - 1,), tuple(range(1, t.ndim))))
        kept = t.shape[1 : t.ndim - len(axes)]
        bound = self.bound(t) * (t.size // t.shape[0]) if op is nl.add else max(self.bound(t), 1)
        dtype = self.pick(("float32", "float32", "bfloat16", "int32", "int64"))
        if bound > EXACT:
            return
        d = self.new(tuple(kept) or 1, dtype if bound <= LARGEST[dtype] else "float32", t.shape[0])
        nisa.tensor_reduce(dst=d, op=op, data=t, axis=axes, negate=op not in LOGIC and self.chance(0.3))
        self.keep(d, bound)

    def do_partition_reduce(self, t):
        bound = self.bound(t) * 128
        if bound <= EXACT:
            d = self.new(t.size // t.shape[0], self.pick(("float32", "int32")), 1)
            nisa.tensor_partition_reduce(dst=d, op=self.pick((nl.add, nl.maximum)), data=t)
            self.keep(d, bound)

    def do_activation(self, t):
        op, bound, F = (
            self.pick((nl.copy, nl.relu, nl.abs, nl.square, nl.sign)),
            self.bound(t) * 2 + 3,
            t.size // t.shape[0],
        )
        bound = bound * bound if op is nl.square else bound
        if bound * F > EXACT:
            return
        columns = [
            v for v in self.tiles if v.size == v.shape[0] == t.shape[0] and v.dtype == "float32" and self.bound(v) <= 3
        ]
        d, more = self.target(t, bound, ("float32", "bfloat16", "float16")), {}
        if self.chance(0.5):
            res = self.new(1, "float32", t.shape[0])
            more = {"reduce_op": nl.add, "reduce_res": res, "reduce_cmd": nisa.reduce_cmd.reset_reduce}
        nisa.activation(dst=d, op=op, data=t, bias=self.pick(columns) if columns else None, scale=2.0, **more)
        self.raised(d, bound)
        if more:
            self.keep(res, bound * F)

    def do_scalar_reduce(self, t):
        operand, size = self.scalar(t.shape[0])
        bound, F = self.bound(t) + size, t.size // t.shape[0]
        if bound * F > EXACT:
            return
        d, res = self.target(t, bound), self.new(1, "float32", t.shape[0])
        nisa.tensor_scalar_reduce(
            dst=d,
            data=t,
            op0=nl.add,
            operand0=operand,
            reduce_res=res,
            reduce_op=self.pick((nl.add, nl.maximum, nl.minimum)),
            reduce_cmd=nisa.reduce_cmd.reset_reduce,
        )
        self.raised(d, bound)
        self.keep(res, bound * F)

    def do_scan(self, t):
        u, F = self.partner(t), t.size // t.shape[0]
        if u is None or (self.bound(t) + self.bound(u) + 3) * F > EXACT:
            return
        bound = (self.bound(t) + self.bound(u) + 3) * F
        d = self.target(t, bound, ("float32", "bfloat16"))
        nisa.tensor_tensor_scan(
            dst=d,
            data0=t,
            data1=u,
            initial=float(self.below(3)),
            op0=self.pick((nl.add, nl.maximum, nl.minimum)),
            op1=self.pick((nl.add, nl.maximum)),
        )
        self.raised(d, bound)

    def do_cumulative(self, t):
        bound = (self.bound(t) + 3) * (t.size // t.shape[0])
        if bound <= EXACT:
            d = self.target(t, bound, ("float32", "bfloat16"))
            nisa.tensor_scalar_cumulative(
                dst=d,
                src=t,
                op0=nl.add,
                op1=self.pick((nl.add, nl.maximum)),
                imm0=2.0,
                reduce_cmd=nisa.reduce_cmd.reset_reduce,
            )
            self.raised(d, bound)

    def do_search(self, t):
        P, F = t.shape[0], t.size // t.shape[0]
        if not t.dtype.is_float or F < 8:
            return
        best, where, rest = self.new(8, t.dtype, P), self.new(8, "uint32", P), self.new(F, t.dtype, P)
        nisa.max8(dst=best, src=t)
        nisa.nc_find_index8(dst=where, data=t, vals=best)
        nisa.nc_match_replace8(dst=rest, data=t, vals=best, imm=-2.0)
        for tile, bound in ((best, self.bound(t)), (where, F), (rest, max(2, self.bound(t)))):
            self.keep(tile, bound)

    def do_pick(self, t):
        index = [v for v in self.tiles if v.dtype == "uint32" and v.shape[0] == t.shape[0] and self.bound(v) <= 1]
        if not index:
            index = [self.new(4, "uint32", t.shape[0])]
            nisa.iota(dst=index[0], pattern=[[0, 4]], offset=(t.size // t.shape[0]) - 1, channel_multiplier=0)
        chosen = self.pick(index)
        d = self.new(chosen.size // chosen.shape[0], t.dtype, t.shape[0])
        nisa.nc_n_gather(dst=d, data=t, indices=chosen)
        self.keep(d, self.bound(t))

    # ---- tensor engine
    def do_transpose(self, t):
        if t.ndim == 2 and t.shape[1] <= 128 and t.dtype in ("float32", "bfloat16", "float16"):
            across = self.new(t.shape[0], t.dtype, t.shape[1], nl.psum)
            nisa.nc_transpose(dst=across, data=t)
            d = self.new(t.shape[0], t.dtype, t.shape[1])
            nisa.tensor_copy(dst=d, src=across)
            self.keep(d, self.bound(t))

    def do_matmul(self, t):
        if t.dtype not in ("float32", "bfloat16") or t.ndim != 2 or t.shape[1] > 128 or self.bound(t) > 256:
            return
        moving = [
            v
            for v in self.tiles
            if v.dtype is t.dtype
            and v.shape[0] == t.shape[0]
            and v.ndim == 2
            and self.bound(v) * self.bound(t) * 256 <= EXACT
        ]
        if not moving:
            return
        u = self.pick(moving)
        acc = self.new(u.shape[1], "float32", t.shape[1], nl.psum)
        for _ in range(self.pick((1, 1, 2))):
            nisa.nc_matmul(dst=acc, stationary=t, moving=u)
        d = self.new(u.shape[1], self.pick(("float32", "bfloat16")), t.shape[1])
        nisa.tensor_copy(dst=d, src=acc)
        self.keep(d, self.bound(t) * self.bound(u) * 256)


SHAPES = ((1, 2), (32, 16), (128, 40), (130, 70), (300, 130), (128, 16), (300, 2))


def make(random):
    """(program, inputs), or None if the language refused it."""
    dtypes = [random.choice(DTYPES) for _ in range(random.randrange(1, 4))]
    shapes = [random.choice(SHAPES) for _ in dtypes]
    maker = Maker(random)

    def kernel(a, b=None, c=None):
        return maker.kernel([x for x in (a, b, c) if x is not None])

    try:
        program = trace(kernel, [TensorSpec.contiguous(s, d) for s, d in zip(shapes, dtypes)])
    except NkiError:
        return None
    rng = np.random.default_rng(random.randrange(2**32))
    inputs = []
    for shape, dtype in zip(shapes, dtypes):
        low, high = (0 if ALL[dtype].kind in "ub" else -4), (2 if dtype == "bool" else 5)
        inputs.append(rng.integers(low, high, shape).astype(ALL[dtype].numpy))
    return program, inputs


def disagreement(program, inputs):
    """How native code differs from the interpreter: "" if it does not, None if there is no native form."""
    want = Interpreter.replay(program, [x.copy() for x in inputs])
    try:
        compiled = native.compile_program(program)
    except native.NativeUnsupported:
        return None
    memory = {}
    for t in program.outputs:
        memory.setdefault(t.storage.id, np.full(prod(t.storage.shape) * t.dtype.itemsize, 0x5A, np.uint8))
    arrays = [x.copy() for x in inputs]
    compiled([a.ctypes.data for a in (*arrays, *memory.values())])
    for t, expected in zip(program.outputs, want):
        got = np.ndarray(t.shape, t.dtype.numpy, memory[t.storage.id], t.byte_offset, t.byte_strides).astype(np.float64)
        if not np.array_equal(got, np.asarray(expected).astype(np.float64), equal_nan=True):
            return f"{t.describe()} ({compiled.table.how})\n{program.dump()}"
    return ""
