"""Data types of NKI: strings that know their size, kind and NumPy counterpart."""
from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np


class DType(str):
    """The name of a data type, such as "bfloat16", with its properties.

    itemsize: bytes of one element. kind: "f" float, "i" signed, "u" unsigned, "b" bool. numpy: the NumPy dtype that
    stores it. The packed MX types hold `packed` values of type `element` in one element; NumPy sees their bits as an
    unsigned integer.
    """

    itemsize: int
    kind: str
    numpy: np.dtype[Any]
    packed: int
    element: DType | None

    def __new__(cls, name: str, numpy: Any, kind: str, packed: int = 1, element: DType | None = None) -> DType:
        self = super().__new__(cls, name)
        self.numpy = np.dtype(numpy)
        self.itemsize = self.numpy.itemsize
        self.kind = kind
        self.packed = packed
        self.element = element
        return self

    def __reduce__(self) -> Any:
        return as_dtype, (str(self),)

    def __deepcopy__(self, memo: dict[int, Any]) -> DType:
        return self

    @property
    def is_float(self) -> bool:
        return self.kind == "f"

    @property
    def is_integer(self) -> bool:
        """Integer in the sense of bit operations: signed, unsigned or bool."""
        return self.kind != "f"


bool_ = DType("bool", np.bool_, "b")
int8 = DType("int8", np.int8, "i")
int16 = DType("int16", np.int16, "i")
int32 = DType("int32", np.int32, "i")
uint8 = DType("uint8", np.uint8, "u")
uint16 = DType("uint16", np.uint16, "u")
uint32 = DType("uint32", np.uint32, "u")
float16 = DType("float16", np.float16, "f")
bfloat16 = DType("bfloat16", ml_dtypes.bfloat16, "f")
tfloat32 = DType("tfloat32", np.float32, "f")
float32 = DType("float32", np.float32, "f")
float8_e4m3 = DType("float8_e4m3", ml_dtypes.float8_e4m3, "f")
float8_e4m3fn = DType("float8_e4m3fn", ml_dtypes.float8_e4m3fn, "f")
float8_e5m2 = DType("float8_e5m2", ml_dtypes.float8_e5m2, "f")
float8_e8m0fnu = DType("float8_e8m0fnu", ml_dtypes.float8_e8m0fnu, "f")
float4_e2m1fn = DType("float4_e2m1fn", ml_dtypes.float4_e2m1fn, "f")
float8_e5m2_x4 = DType("float8_e5m2_x4", np.uint32, "f", 4, float8_e5m2)
float8_e4m3fn_x4 = DType("float8_e4m3fn_x4", np.uint32, "f", 4, float8_e4m3fn)
float4_e2m1fn_x4 = DType("float4_e2m1fn_x4", np.uint16, "f", 4, float4_e2m1fn)
# Only the embedded implementation has these: moves and casts keep them, so that int64 and float64 tensors are exact.
int64 = DType("int64", np.int64, "i")
float64 = DType("float64", np.float64, "f")

ALL: dict[str, DType] = {str(v): v for v in list(globals().values()) if isinstance(v, DType)}
_BY_NUMPY = {d.numpy: d for d in reversed(ALL.values()) if d.packed == 1 and d is not tfloat32}


_LOW = ("bfloat16", "float8_e4m3", "float8_e4m3fn", "float8_e5m2")
_WIDE = {name: DType(name, np.float32, "f") for name in _LOW}


def in_float32(dtype: DType) -> DType:
    """The dtype of the same name whose values are kept in float32 (NKI_PRECISE_FP=0), for the low-precision types."""
    return _WIDE.get(dtype, dtype)


def as_dtype(value: Any) -> DType:
    """The DType of a DType, a name ("float32", "torch.bfloat16", "bool_"), a NumPy dtype or a torch dtype.

    Raises TypeError for anything else.
    """
    if type(value) is DType:
        return value
    if not isinstance(value, str):
        if isinstance(value, (np.dtype, type)):
            found = _numpy_dtype(value)
            if found is not None:
                return found
        value = str(value)
    name = value.removeprefix("torch.").removeprefix("nl.").rstrip("_")
    name = {"half": "float16", "float": "float32", "double": "float64", "long": "int64", "int": "int32"}.get(name, name)
    try:
        return ALL[name]
    except KeyError:
        raise TypeError(f"{value!r} is not an NKI data type; there are: {', '.join(ALL)}") from None


def _numpy_dtype(value: Any) -> DType | None:
    try:
        return _BY_NUMPY.get(np.dtype(value))
    except TypeError:
        return None
