"""`torch.autocast("neuron")`: PyTorch's own op lists and cast policies.

The lists are those of ATen/autocast_mode.h (torch 2.13), which CUDA, XPU and other backends share:
AT_FORALL_LOWER_PRECISION_FP, AT_FORALL_FP32, AT_FORALL_FP32_SET_OPT_DTYPE, AT_FORALL_DIFFERENT_REDISPATCH_SIGNATURE and
AT_FORALL_PROMOTE. Every other op runs in the dtypes it gets. Casts are not cached: each use of a weight casts it.
"""
from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch

from .devices import NAME
from .kernels import KernelLibrary
from .views import overload

LOWER_PRECISION = (
    "_convolution.deprecated", "_convolution", "conv1d", "conv2d", "conv3d", "conv_tbc", "conv_transpose1d",
    "conv_transpose2d.input", "conv_transpose3d.input", "convolution", "prelu", "addmm", "addmv", "addr",
    "matmul", "einsum", "mm", "mv", "linalg_vecdot", "linear", "addbmm", "baddbmm", "bmm", "chain_matmul",
    "linalg_multi_dot", "_thnn_fused_lstm_cell", "_thnn_fused_gru_cell", "lstm_cell", "gru_cell",
    "rnn_tanh_cell", "rnn_relu_cell", "_scaled_dot_product_flash_attention", "scaled_dot_product_attention",
)

FLOAT32 = (
    "acos", "asin", "cosh", "erfinv", "exp", "expm1", "log", "log10", "log2", "log1p", "reciprocal", "rsqrt",
    "sinh", "tan", "pow.Tensor_Scalar", "pow.Tensor_Tensor", "pow.Scalar", "softplus", "layer_norm",
    "native_layer_norm", "rms_norm", "group_norm", "frobenius_norm.dim", "nuclear_norm", "nuclear_norm.dim",
    "cosine_similarity", "poisson_nll_loss", "cosine_embedding_loss", "nll_loss", "nll_loss2d",
    "hinge_embedding_loss", "kl_div", "l1_loss", "smooth_l1_loss", "huber_loss", "mse_loss",
    "margin_ranking_loss", "multilabel_margin_loss", "soft_margin_loss", "triplet_margin_loss",
    "multi_margin_loss", "binary_cross_entropy_with_logits", "dist", "pdist", "cdist", "renorm", "logsumexp",
    "upsample_nearest1d", "_upsample_nearest_exact1d", "upsample_nearest2d", "_upsample_nearest_exact2d",
    "upsample_nearest3d", "_upsample_nearest_exact3d", "upsample_linear1d", "upsample_bilinear2d",
    "_upsample_bilinear2d_aa", "upsample_trilinear3d", "upsample_bicubic2d", "_upsample_bicubic2d_aa",
)

FLOAT32_RESULT = (
    "prod", "prod.dim_int", "softmax.int", "log_softmax.int", "cumprod", "cumsum", "linalg_vector_norm",
    "linalg_matrix_norm", "linalg_matrix_norm.str_ord", "sum", "sum.dim_IntList",
)

FLOAT32_APPENDED = {"norm.Scalar": "norm.ScalarOpt_dtype", "norm.ScalarOpt_dim": "norm.ScalarOpt_dim_dtype"}

WIDEST = (
    "addcdiv", "addcmul", "atan2", "bilinear", "cross", "dot", "vdot", "grid_sampler", "index_put", "tensordot",
    "scatter_add",
)

_AUTOCAST_KEY = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastPrivateUse1)
_without_autocast = torch._C._ExcludeDispatchKeyGuard
Kernel = Callable[..., Any]


def _eligible(value: Any) -> bool:
    return (isinstance(value, torch.Tensor) and value.is_floating_point() and value.dtype is not torch.float64
            and value.device.type == NAME)


def _cast(value: Any, dtype: torch.dtype) -> Any:
    if isinstance(value, (list, tuple)):
        return [_cast(item, dtype) for item in value]
    return value.to(dtype) if _eligible(value) and value.dtype is not dtype else value


def _call(op: torch._ops.OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    # a Python number in the place of a tensor reaches kernels as a number, which only the overload packet takes
    for argument, value in zip(op._schema.arguments, args):
        if type(value) in (int, float, complex) and isinstance(argument.type, torch._C.TensorType):
            return op._overloadpacket(*args, **kwargs)
    return op(*args, **kwargs)


def _with_inputs_in(op: torch._ops.OpOverload, dtype_of: Callable[[Any, Any], torch.dtype]) -> Kernel:
    def run(*args: Any, **kwargs: Any) -> Any:
        with _without_autocast(_AUTOCAST_KEY):
            dtype = dtype_of(args, kwargs)
            return _call(op, tuple(_cast(a, dtype) for a in args), {k: _cast(v, dtype) for k, v in kwargs.items()})
    return run


def _lower_precision(args: Any, kwargs: Any) -> torch.dtype:
    return torch.get_autocast_dtype(NAME)


def _float32(args: Any, kwargs: Any) -> torch.dtype:
    return torch.float32


def _widest(args: Any, kwargs: Any) -> torch.dtype:
    lower = torch.get_autocast_dtype(NAME)
    seen = {t.dtype for a in (*args, *kwargs.values()) for t in (a if isinstance(a, (list, tuple)) else (a,))
            if _eligible(t)}
    if seen - {lower, torch.float32}:
        names = ", ".join(sorted(str(d) for d in seen))
        raise RuntimeError(f"autocast to {lower} can not promote tensors of {names}: cast them to {lower} or float32")
    return torch.float32 if torch.float32 in seen else lower


def _with_result_in_float32(op: torch._ops.OpOverload) -> Kernel:
    position = next(i for i, a in enumerate(op._schema.arguments) if a.name == "dtype")
    keyword_only = op._schema.arguments[position].kwarg_only

    def run(*args: Any, **kwargs: Any) -> Any:
        with _without_autocast(_AUTOCAST_KEY):
            given = kwargs.get("dtype") if keyword_only or len(args) <= position else args[position]
            if given is None and _eligible(args[0]):
                args, kwargs = args if keyword_only else args[:position], {**kwargs, "dtype": torch.float32}
            return op(*args, **kwargs)
    return run


def _with_float32_appended(op: torch._ops.OpOverload, with_dtype: torch._ops.OpOverload) -> Kernel:
    defaults = [a.default_value if a.has_default_value() else None for a in op._schema.arguments]

    def run(*args: Any, **kwargs: Any) -> Any:
        with _without_autocast(_AUTOCAST_KEY):
            full = [*args, *(kwargs.get(a.name, d) for a, d in zip(op._schema.arguments[len(args):],
                                                                   defaults[len(args):]))]
            dtype = torch.float32 if _eligible(args[0]) else args[0].dtype
            return with_dtype(*full, dtype=dtype)
    return run


def _banned(*args: Any, **kwargs: Any) -> Any:
    raise RuntimeError(
        "torch.nn.functional.binary_cross_entropy and torch.nn.BCELoss are unsafe to autocast. Use "
        "binary_cross_entropy_with_logits or torch.nn.BCEWithLogitsLoss, which are safe, or disable autocast there")


def rules() -> dict[str, Kernel]:
    """The kernel that autocast puts before each listed op."""
    table: dict[str, Kernel] = {"binary_cross_entropy": _banned}
    for names, dtype_of in ((LOWER_PRECISION, _lower_precision), (FLOAT32, _float32), (WIDEST, _widest)):
        table |= {name: _with_inputs_in(overload(name), dtype_of) for name in names}
    table |= {name: _with_result_in_float32(overload(name)) for name in FLOAT32_RESULT}
    table |= {name: _with_float32_appended(overload(name), overload(full)) for name, full in FLOAT32_APPENDED.items()}
    return table


_libraries: list[torch.library.Library] = []      # registrations last as long as their Library object
_lock = threading.Lock()


def register() -> None:
    """Put the rules before the listed ops and let every other op pass through. Later calls do nothing.

    Not at import, because it takes 7 ms: PyTorch visits every op. Before it an op under autocast would raise;
    `torch.autocast` asks `torch.neuron.get_amp_supported_dtype` first, and that calls this.
    """
    with _lock:
        if _libraries:
            return
        aten, rest = KernelLibrary("aten", "IMPL"), torch.library.Library("_", "IMPL")
        _libraries.extend((aten, rest))
        for name, kernel in rules().items():
            aten.impl(name, kernel, "AutocastPrivateUse1")
        rest.fallback(torch.library.fallthrough_kernel, "AutocastPrivateUse1")
