"""Dropout that stores no mask: the backward pass makes the same random numbers again from the same seed.

The numbers come from Philox, a counter-based generator: four numbers are a function of (seed, counter) alone, so tiles
may be computed in any order, on any device, with the same bits. Neighbours share a counter, as the generator is more
work than moving an element. The check below computes them in NumPy.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import common
import tessera
import tessera.language as tl


@tessera.jit
def dropout_kernel(x_ptr, out_ptr, n, p, seed, BLOCK: tl.constexpr):
    block = tl.program_id(0)
    at = block * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    x = tl.load(x_ptr + at, mask=inside)
    r0, r1, r2, r3 = tl.rand4x(seed, block * (BLOCK // 4) + tl.arange(0, BLOCK // 4))
    uniform = tl.join(tl.join(r0, r2), tl.join(r1, r3)).reshape(BLOCK)
    keep = uniform > p
    tl.store(out_ptr + at, tl.where(keep, x / (1 - p), 0.0), mask=inside)


def dropout(x: Any, out: Any, p: float, seed: int) -> None:
    n = x.shape[0]
    dropout_kernel[lambda meta: (tessera.cdiv(n, meta["BLOCK"]),)](x, out, n, p, seed, BLOCK=2048)


if __name__ == "__main__":
    device = common.choose_device("auto")  # tensors on a GPU if there is one, else arrays of NumPy
    x, out = device.array(np.ones(100_000, np.float32)), device.empty(100_000)
    dropout(x, out, p=0.3, seed=1)
    kept = device.numpy(out) > 0
    dropout(x, out, p=0.3, seed=1)  # the same seed keeps the same elements
    print("kept:", kept.mean(), "again:", np.array_equal(kept, device.numpy(out) > 0))
