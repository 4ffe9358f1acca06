"""`nki.meta`: the tensor class under the name that older kernels import."""
from __future__ import annotations

from .tensor import NkiTensor as tensor

__all__ = ["tensor"]
