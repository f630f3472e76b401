"""RMS normalisation: each row divided by its root mean square and scaled by a weight."""

from __future__ import annotations

from typing import Any

import numpy as np

import common
import tessera
import tessera.language as tl


@tessera.jit
def rms_norm_kernel(x_ptr, w_ptr, y_ptr, cols, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    inside = at < cols
    x = tl.load(x_ptr + row * cols + at, mask=inside, other=0.0).to(tl.float32)
    w = tl.load(w_ptr + at, mask=inside, other=0.0).to(tl.float32)
    scale = tl.rsqrt(tl.sum(x * x, axis=0) / cols + eps)
    tl.store(y_ptr + row * cols + at, (x * scale * w).to(y_ptr.dtype.element_ty), mask=inside)


def rms_norm(x: Any, w: Any, y: Any, eps: float = 1e-6) -> None:
    rows, cols = x.shape
    block = tessera.next_power_of_2(cols)
    rms_norm_kernel[(rows,)](x, w, y, cols, eps, BLOCK=block, num_warps=4 if block <= 2048 else 8)


if __name__ == "__main__":
    device = common.choose_device("auto")  # tensors on a GPU if there is one, else arrays of NumPy
    x, w, y = device.normal(100, 1000), device.normal(1000), device.empty(100, 1000)
    rms_norm(x, w, y)
    rows = device.numpy(x)
    print(
        "largest error:",
        common.relative_error(
            device.numpy(y), rows / np.sqrt((rows**2).mean(axis=1, keepdims=True)) * device.numpy(w)
        ),
    )
