"""`nki.dtype`: the data types, as names to import and as an annotation."""
from __future__ import annotations

from .dtypes import *  # noqa: F403
from .dtypes import DType

dtype = DType
