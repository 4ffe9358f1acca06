"""Element-wise instructions: values, rounding, integer rules, overlap."""
import ml_dtypes
import numpy as np
import pytest

import neuron_eager.nki.isa as nisa
import neuron_eager.nki.language as nl
from neuron_eager.nki.isa.trial import Trial

BF16 = ml_dtypes.bfloat16
F32 = np.float32
rng = np.random.default_rng(0)
X = rng.standard_normal((128, 40)).astype(F32)
Y = rng.standard_normal((128, 40)).astype(F32)
ARITHMETIC = {
    "add": np.add, "subtract": np.subtract, "multiply": np.multiply, "divide": np.divide, "maximum": np.maximum,
    "minimum": np.minimum, "equal": np.equal, "not_equal": np.not_equal, "greater": np.greater,
    "greater_equal": np.greater_equal, "less": np.less, "less_equal": np.less_equal,
    "logical_and": np.logical_and, "logical_or": np.logical_or, "logical_xor": np.logical_xor,
}


@pytest.fixture
def t():
    with Trial() as trial:
        yield trial


def run(t, instruction, shape, dtype, *operands, **more):
    dst = t.empty(shape, dtype)
    instruction(dst, *operands, **more)
    return dst.numpy()


@pytest.mark.parametrize("name", ARITHMETIC)
def test_tensor_tensor_computes_in_float32_and_rounds_once(t, name):
    x, y = X.astype(BF16), Y.astype(ml_dtypes.float8_e5m2)
    op = getattr(nl, name)
    want = ARITHMETIC[name](x.astype(F32), y.astype(F32)).astype(BF16)
    got = run(t, nisa.tensor_tensor, x.shape, nl.bfloat16, t.tile(x), t.tile(y), op)
    np.testing.assert_array_equal(got.view(np.uint16), want.view(np.uint16))


def test_tensor_tensor_matches_elements_whatever_the_rank(t):
    x, y = t.tile(X), t.tile(Y.reshape(128, 5, 8))
    dst = t.empty((128, 2, 20))
    nisa.tensor_tensor(dst=dst, data1=x, data2=y, op=nl.add)
    np.testing.assert_array_equal(dst.numpy().reshape(128, 40), X + Y)


def test_power_and_signed_extremes(t):
    x, y = np.abs(X), Y
    np.testing.assert_allclose(run(t, nisa.tensor_tensor, x.shape, nl.float32, t.tile(x), t.tile(y), nl.power),
                               np.power(x, y), rtol=1e-6)
    a, b = t.tile(F32([[3, -3, 2, -2]])), t.tile(F32([[-2, 4, -2, 2]]))
    np.testing.assert_array_equal(run(t, nisa.tensor_tensor, (1, 4), nl.float32, a, b, nl.abs_max), [[3, 4, -2, 2]])
    np.testing.assert_array_equal(run(t, nisa.tensor_tensor, (1, 4), nl.float32, a, b, nl.abs_min), [[-2, -3, -2, 2]])


def test_int32_tiles_are_exact_on_gpsimd_and_float32_on_vector(t):
    x, y = np.int32([[2 ** 24 + 1, 2 ** 31 - 1, -5]]), np.int32([[1, 1, 3]])
    instr = nisa.tensor_tensor(dst := t.empty((1, 3), nl.int32), t.tile(x), t.tile(y), nl.add)
    assert instr.engine == "gpsimd"
    np.testing.assert_array_equal(dst.numpy(), [[2 ** 24 + 2, -2 ** 31, -2]])
    instr = nisa.tensor_tensor(dst, t.tile(x), t.tile(y), nl.add, engine=nisa.engine.vector)
    assert instr.engine == "vector"
    np.testing.assert_array_equal(dst.numpy(), [[2 ** 24, 2 ** 31 - 1, -2]])


def test_int32_tiles_fall_back_to_float32_in_psum(t):
    x = np.int32([[2 ** 24 + 1]])
    instr = nisa.tensor_tensor(dst := t.empty((1, 1), nl.int32), t.tile(x, "psum"), t.tile(x), nl.subtract)
    assert instr.engine == "vector"
    assert dst.numpy() == 0


def test_int64_is_an_exact_extension(t):
    x, y = np.int64([[2 ** 40 + 1, 2 ** 63 - 1]]), np.int64([[3, 1]])
    np.testing.assert_array_equal(run(t, nisa.tensor_tensor, (1, 2), nl.int64 if hasattr(nl, "int64") else "int64",
                                      t.tile(x), t.tile(y), nl.add), [[2 ** 40 + 4, -2 ** 63]])
    mask = run(t, nisa.tensor_tensor, (1, 2), nl.uint8, t.tile(x), t.tile(x - 1), nl.equal)
    np.testing.assert_array_equal(mask, [[0, 0]])
    wide = run(t, nisa.tensor_scalar, (1, 2), "int64", t.tile(x), nl.multiply, 3, op1=nl.add, operand1=-1)
    np.testing.assert_array_equal(wide, x * 3 - 1)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32])
def test_bit_operators_work_on_patterns(t, dtype):
    info = np.iinfo(dtype)
    x = rng.integers(info.min, info.max, (16, 32), endpoint=True).astype(dtype)
    y = rng.integers(info.min, info.max, (16, 32), endpoint=True).astype(dtype)
    for name, f in (("bitwise_and", np.bitwise_and), ("bitwise_or", np.bitwise_or), ("bitwise_xor", np.bitwise_xor)):
        got = run(t, nisa.tensor_tensor, x.shape, x.dtype, t.tile(x), t.tile(y), getattr(nl, name))
        np.testing.assert_array_equal(got, f(x, y))
    bits, unsigned = info.bits, np.dtype(f"u{np.dtype(dtype).itemsize}")
    got = run(t, nisa.tensor_scalar, x.shape, x.dtype, t.tile(x), nl.right_shift, 3)
    np.testing.assert_array_equal(got.view(unsigned), x.view(unsigned) >> 3, "shifts are logical")
    got = run(t, nisa.tensor_scalar, x.shape, x.dtype, t.tile(x), nl.left_shift, bits)
    np.testing.assert_array_equal(got, np.zeros_like(x))
    got = run(t, nisa.tensor_scalar, x.shape, x.dtype, t.tile(x), nl.invert, None)
    np.testing.assert_array_equal(got, ~x)
    got = run(t, nisa.tensor_scalar, x.shape, x.dtype, t.tile(x), nl.bitwise_xor, -1)
    np.testing.assert_array_equal(got, ~x)


def test_tensor_scalar_two_stages_without_a_rounding_between(t):
    x = X.astype(BF16)
    column = rng.standard_normal((128, 1)).astype(F32)
    got = run(t, nisa.tensor_scalar, x.shape, nl.bfloat16, t.tile(x), nl.multiply, t.tile(column), op1=nl.subtract,
              operand1=0.1, reverse1=True)
    want = (F32(0.1) - x.astype(F32) * column).astype(BF16)
    np.testing.assert_array_equal(got.view(np.uint16), want.view(np.uint16))


@pytest.mark.parametrize(("op", "function"), [("abs", np.abs), ("square", np.square), ("reciprocal", np.reciprocal),
                                              ("relu", lambda x: np.maximum(x, 0))])
def test_unary_op0(t, op, function):
    got = run(t, nisa.tensor_scalar, X.shape, nl.float32, t.tile(X), getattr(nl, op), None, op1=nl.add, operand1=1.0)
    np.testing.assert_array_equal(got, function(X) + F32(1))


def test_rsqrt_runs_on_gpsimd_or_scalar(t):
    instr = nisa.tensor_scalar(dst := t.empty((1, 1)), t.tile(F32([[4.0]])), nl.rsqrt, 0.0)
    assert (instr.engine, float(dst)) == ("gpsimd", 0.5)
    assert nisa.tensor_scalar(dst, t.tile(F32([[4.0]]), "psum"), nl.rsqrt, None).engine == "scalar"


def test_comparisons_give_one_and_zero_to_the_next_stage(t):
    got = run(t, nisa.tensor_scalar, (1, 3), nl.float32, t.tile(F32([[1, 2, 3]])), nl.greater, 1.5, op1=nl.multiply,
              operand1=10.0)
    np.testing.assert_array_equal(got, [[0, 10, 10]])


def test_address_arithmetic_is_exact_in_32_bits(t):
    x = np.int32([[2 ** 24 + 1, 5]])
    got = run(t, nisa.tensor_scalar, x.shape, nl.int32, t.tile(x), nl.multiply, 64, op1=nl.add, operand1=3)
    np.testing.assert_array_equal(got, x * 64 + 3)
    got = run(t, nisa.tensor_scalar, x.shape, nl.int32, t.tile(x), nl.add, t.tile(np.int32([[7]])))
    np.testing.assert_array_equal(got, x + 7)
    got = run(t, nisa.tensor_scalar, x.shape, nl.int32, t.tile(x), nl.add, 0.0)
    np.testing.assert_array_equal(got, [[2 ** 24, 5]], "a float operand means float32")


def test_scalar_tensor_tensor(t):
    x, y = X.astype(BF16), Y.astype(np.float16)
    column = rng.standard_normal((128, 1)).astype(F32)
    got = run(t, nisa.scalar_tensor_tensor, x.shape, nl.float32, t.tile(x), nl.subtract, t.tile(column), nl.multiply,
              t.tile(y), reverse0=True)
    np.testing.assert_array_equal(got, (column - x.astype(F32)) * y.astype(F32))
    got = run(t, nisa.scalar_tensor_tensor, x.shape, nl.float32, t.tile(x), nl.multiply, 2.0, nl.subtract, t.tile(y),
              reverse1=True)
    np.testing.assert_array_equal(got, y.astype(F32) - x.astype(F32) * F32(2))


def test_reciprocal(t):
    x = F32([[2, -4, 0, np.inf, np.nan]])
    np.testing.assert_array_equal(run(t, nisa.reciprocal, x.shape, nl.float32, t.tile(x)),
                                  F32([[0.5, -0.25, np.inf, 0, np.nan]]))


def test_tensor_copy_keeps_bits_of_equal_dtypes(t):
    bits = np.uint32([[0x7FC00001, 0xFFFFFFFF, 0x80000000, 1]])
    got = run(t, nisa.tensor_copy, (1, 4), nl.float32, t.tile(bits.view(F32)))
    np.testing.assert_array_equal(got.view(np.uint32), bits)
    big = np.int32([[2 ** 31 - 1, 2 ** 24 + 1]])
    np.testing.assert_array_equal(run(t, nisa.tensor_copy, (1, 2), nl.int32, t.tile(big)), big)
    np.testing.assert_array_equal(run(t, nisa.tensor_copy, (1, 2), nl.uint32, t.tile(big)), [[2 ** 31, 2 ** 24]],
                                  "another dtype goes through float32")


def test_overlapping_copy_loads_before_it_stores(t):
    x = t.tile(np.arange(16, dtype=F32).reshape(1, 16))
    nisa.tensor_copy(dst=x[:, 1:16], src=x[:, 0:15])
    np.testing.assert_array_equal(x.numpy(), [[0, *range(15)]])
    nisa.tensor_tensor(dst=x[:, 0:15], data1=x[:, 1:16], data2=x[:, 1:16], op=nl.add)
    np.testing.assert_array_equal(x.numpy(), [[*(2 * i for i in range(15)), 14]])


def test_tensor_copy_predicated(t):
    for dtype in (np.uint8, np.uint16, np.uint32):
        predicate = (X > 0).astype(dtype).reshape(128, 2, 4, 5)
        dst = t.tile(Y.reshape(128, 2, 4, 5))
        nisa.tensor_copy_predicated(dst=dst, src=t.tile(X), predicate=t.tile(predicate))
        np.testing.assert_array_equal(dst.numpy().reshape(128, 40), np.where(X > 0, X, Y), "ranks may differ")
        nisa.tensor_copy_predicated(dst=dst, src=-1.0, predicate=t.tile(predicate), reverse_pred=True)
        np.testing.assert_array_equal(dst.numpy().reshape(128, 40), np.where(X > 0, X, -1))


def test_memset(t):
    assert (run(t, nisa.memset, (128, 3), nl.bfloat16, 1.5) == 1.5).all()
    assert (run(t, nisa.memset, (128, 3), nl.uint8, 255) == 255).all()
    assert (run(t, nisa.memset, (128, 3), nl.int32, 2 ** 31 - 1) == 2 ** 31 - 1).all()
    assert (run(t, nisa.memset, (1, 1), nl.float8_e4m3, float("-inf")).astype(F32) == -np.inf).all()
    assert (run(t, nisa.memset, (4, 4), nl.float8_e4m3fn_x4, 0) == 0).all()


def test_iota(t):
    got = run(t, nisa.iota, (128, 2, 3), nl.int32, [[10, 2], [1, 3]], offset=5, channel_multiplier=100)
    want = 5 + 100 * np.arange(128)[:, None, None] + np.array([[0, 1, 2], [10, 11, 12]])
    np.testing.assert_array_equal(got, want)
    got = run(t, nisa.iota, (1, 4), nl.bfloat16, [[-1, 4]], 300)
    np.testing.assert_array_equal(got.astype(F32), (300 - np.arange(4, dtype=F32)[None]).astype(BF16).astype(F32))
    register = nisa.register_alloc(7)
    np.testing.assert_array_equal(run(t, nisa.iota, (1, 2), nl.int32, [[1, 2]], offset=register), [[7, 8]])


def test_affine_select_makes_a_causal_mask(t):
    scores = rng.standard_normal((8, 8)).astype(F32)
    got = run(t, nisa.affine_select, (8, 8), nl.float32, [[-1, 8]], 1, t.tile(scores), -9e9, cmp_op=nl.greater_equal)
    np.testing.assert_array_equal(got, np.where(np.tri(8, dtype=bool), scores, F32(-9e9)))
    got = run(t, nisa.affine_select, (8, 8), nl.bfloat16, [[1, 8]], 0, t.tile(scores), float(np.finfo(F32).min),
              offset=-3)
    assert (got[:, 3].astype(F32) == scores[:, 3].astype(BF16).astype(F32)).all()
    assert (got[:, 4].astype(F32) == -np.inf).all(), "FP32_MIN is -inf in bfloat16"


def test_affine_select_by_a_register(t):
    ones, start = np.ones((1, 6), F32), nisa.register_alloc(-2)
    got = run(t, nisa.affine_select, (1, 6), nl.float32, [[1, 6]], 0, t.tile(ones), 0.0, nl.greater_equal, offset=start)
    np.testing.assert_array_equal(got, [[0, 0, 1, 1, 1, 1]])


def test_wrong_engine_for_a_bit_operator_is_not_chosen(t):
    assert nisa.tensor_scalar(t.empty((1, 1), nl.int32), t.tile(np.int32([[1]])), nl.bitwise_and, 1).engine == "vector"
