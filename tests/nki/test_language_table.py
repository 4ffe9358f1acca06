"""The page on nki.language: every public function, and the instructions it is made of.

    python tests/nki/test_language_table.py        writes docs/nki-language.md
"""
from __future__ import annotations

from pathlib import Path

from neuron_eager import nki
from neuron_eager.nki import isa as nisa
from neuron_eager.nki import language as nl
from neuron_eager.nki.language.math import ACTIVATIONS, BINARY
from neuron_eager.nki.program import TensorSpec
from neuron_eager.nki.tokens import TOKENS

PAGE = Path(__file__).parents[2] / "docs" / "nki-language.md"
INTEGER = ("bitwise_and", "bitwise_or", "bitwise_xor", "left_shift", "right_shift")

# A call of each function: t float32 [64, 32], u uint32 [64, 32], row float32 [1, 32], hbm float32 [64, 32].
CALLS = {
    **{n: lambda f, t, u, **_: f(t, t) for n in BINARY}, **{n: lambda f, t, u, **_: f(u, u) for n in INTEGER},
    **{n: lambda f, t, **_: f(t) for n in ACTIVATIONS},
    **{n: lambda f, t, **_: f(t) for n in ("reciprocal", "rsqrt", "negative", "logical_not", "copy", "softmax",
                                           "transpose", "zeros_like", "empty_like")},
    **{n: lambda f, t, **_: f(t, 1) for n in ("sum", "max", "min", "mean", "prod", "all", "var", "expand_dims")},
    **{n: lambda f, **_: f((64, 32), nl.float32) for n in ("ndarray", "zeros", "ones", "rand")},
    "invert": lambda f, u, **_: f(u), "full": lambda f, **_: f((64, 32), 1.0, nl.float32),
    "where": lambda f, t, **_: f(t, t, 0.0), "dropout": lambda f, t, **_: f(t, 0.5),
    "gather_flattened": lambda f, t, u, **_: f(t, u), "rms_norm": lambda f, t, **_: f(t, t, 1, 32),
    "broadcast_to": lambda f, row, **_: f(row, (64, 32)), "matmul": lambda f, t, **_: f(t, t, transpose_x=True),
    "load": lambda f, hbm, **_: f(hbm), "load_transpose2d": lambda f, hbm, **_: f(hbm),
    "store": lambda f, hbm, t, **_: f(hbm, t), "shared_identity_matrix": lambda f, **_: f(64),
    "random_seed": lambda f, u, **_: f(u[0:1, 0:1].view(nl.int32)), "device_print": lambda f, t, **_: f("t", t),
    "fori_loop": lambda f, **_: f(0, 2, lambda i: None), "ds": lambda f, **_: f(0, 2),
    **{n: lambda f, **_: list(f(2)) for n in ("affine_range", "sequential_range", "static_range", "dynamic_range")},
    "while_loop": lambda f, **_: f(nisa.register_alloc(0), lambda r: r), "program_id": lambda f, **_: f(),
    "num_programs": lambda f, **_: f(), "program_ndim": lambda f, **_: f(), "no_reorder": lambda f, **_: f(),
    "shared_constant": lambda f, **_: f(__import__("numpy").zeros((4, 4), "float32")),
    **{n: lambda f, **_: f(nl.sbuf) for n in ("is_hbm", "is_on_chip", "is_psum", "is_sbuf")},
}


def functions():
    """Every public function of nki.language by name."""
    public = {n: getattr(nl, n) for n in nl.__all__}
    return {n: f for n, f in public.items() if callable(f) and not isinstance(f, (type, str))
            and (n not in TOKENS or TOKENS[n].function is not None)}


def instructions(name, function):
    """The instructions that a call issues, in order, each once."""
    @nki.jit
    def kernel(x, y, r):
        t, u, row = nl.load(x), nl.load(y), nl.load(r)
        CALLS[name](function, t=t, u=u, row=row, hbm=x)
        return nl.ones((1, 1), nl.float32, buffer=nl.shared_hbm)

    arguments = (((64, 32), "float32"), ((64, 32), "uint32"), ((1, 32), "float32"))
    specs = [TensorSpec.contiguous(s, d) for s, d in arguments]
    issued = [i.op for i in nki.trace(kernel, specs, target="trn3").instrs][3:-2]
    return list(dict.fromkeys(op for op in issued if op != "register_alloc"))


def page():
    rows = []
    for name, function in sorted(functions().items()):
        does = " ".join(function.__doc__.split("\n\n")[0].split()).replace("|", "\\|")
        issues = ", ".join(f"`{op}`" for op in instructions(name, function))
        rows.append(f"| `{name}` | {does} | {issues or '-'} |")
    tokens = ", ".join(f"`{n}`" for n in sorted(TOKENS))
    return "\n".join([
        "# NKI language", "",
        "Every function of `nki.language` and the instructions that a call issues on trn3. All are implemented; the",
        "limits of the instructions hold for them ([nki-functions.md](nki-functions.md)). Written by",
        "`python tests/nki/test_language_table.py`.", "",
        f"Op tokens, as `op=` of instructions (most are functions too): {tokens}.", "",
        "| function | what it does | instructions |", "|---|---|---|", *rows, ""])


def test_every_function_has_a_call():
    assert set(functions()) == set(CALLS)


def test_the_page_is_up_to_date():
    assert PAGE.read_text() == page(), f"run python {Path(__file__).name}"


if __name__ == "__main__":
    PAGE.write_text(page())
