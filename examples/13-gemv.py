"""Matrix times vector, bound by the memory that holds the matrix.

A program owns BLOCK_M rows and walks their columns. Products add up element by element in a tile; only at the end are
its columns summed. A matrix with few rows gives too few programs to fill a GPU: then each row is cut into parts,
and the programs of a row add their parts up in memory.
"""

from __future__ import annotations

from typing import Any

import common
import tessera
import tessera.language as tl

PROGRAMS = 1024  # enough to keep every processor's memory requests flowing


@tessera.jit
def gemv_kernel(
    a_ptr, x_ptr, y_ptr, rows, cols, stride, part,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, WHOLE: tl.constexpr,
):  # fmt: skip
    """y = a @ x over columns [part * program_id(1), + part). WHOLE: one part, which is stored; others are added."""
    row = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    first = tl.program_id(1) * part
    last = tl.minimum(first + part, cols)
    at = tl.arange(0, BLOCK_N)
    a_rows = a_ptr + row[:, None].to(tl.int64) * stride
    inside = row[:, None] < rows
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for start in range(first, last, BLOCK_N):
        col = start + at
        x = tl.load(x_ptr + col, mask=col < last, other=0.0).to(tl.float32)
        a = tl.load(a_rows + col[None, :], mask=inside & (col < last)[None, :], other=0.0)
        acc += a.to(tl.float32) * x[None, :]
    y = tl.sum(acc, axis=1)
    if WHOLE:
        tl.store(y_ptr + row, y.to(y_ptr.dtype.element_ty), mask=row < rows)
    else:
        tl.atomic_add(y_ptr + row, y, mask=row < rows)


def gemv(a: Any, x: Any, y: Any) -> None:
    """y = a @ x; y is fp32."""
    rows, cols = a.shape
    block_m = 4
    block_n = 16 // a.itemsize * 128  # each of 128 threads reads 16 bytes of a row
    groups = tessera.cdiv(rows, block_m)
    parts = max(1, min(PROGRAMS // groups, cols // (4 * block_n)))
    part = tessera.cdiv(tessera.cdiv(cols, parts), block_n) * block_n
    if parts > 1:
        y[...] = 0
    gemv_kernel[(groups, parts)](
        a, x, y, rows, cols, common.strides(a)[0], part,
        BLOCK_M=block_m, BLOCK_N=block_n, WHOLE=parts == 1, num_warps=4,
    )  # fmt: skip


if __name__ == "__main__":
    device = common.choose_device("auto")  # tensors on a GPU if there is one, else arrays of NumPy
    a, x, y = device.normal(500, 3000), device.normal(3000), device.empty(500)
    gemv(a, x, y)
    print(
        "largest error:", common.relative_error(device.numpy(y), device.numpy(a) @ device.numpy(x))
    )
