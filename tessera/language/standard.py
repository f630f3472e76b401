"""Exports as `tl.standard` the operations that are written in the language itself."""

from __future__ import annotations

from tessera.language.order import bitonic_merge, flip, sort, topk
from tessera.language.reductions import (
    argmax,
    argmin,
    cdiv,
    cumprod,
    cumsum,
    max,
    min,
    reduce_or,
    sigmoid,
    softmax,
    sum,
    swizzle2d,
    xor_sum,
)  # fmt: skip

__all__ = [
    "argmax", "argmin", "bitonic_merge", "cdiv", "cumprod", "cumsum", "flip", "max", "min", "reduce_or", "sigmoid",
    "softmax", "sort", "sum", "swizzle2d", "topk", "xor_sum",
]  # fmt: skip
