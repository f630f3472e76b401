"""A kernel on raw addresses, for processes without array libraries."""

# annotations of kernels name dtypes
# pyright: basic, reportInvalidTypeForm=false, reportUndefinedVariable=false
from __future__ import annotations

import tessera
import tessera.language as tl


@tessera.jit
def increase(x: "*fp32", n, BLOCK: tl.constexpr):  # noqa: F722
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x + i, tl.load(x + i, i < n) + 1, i < n)
