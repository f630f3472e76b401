"""Vector addition: each program instance adds one tile of BLOCK elements."""

from __future__ import annotations

from typing import Any

import common
import tessera
import tessera.language as tl


@tessera.jit
def add_kernel(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n  # the last tile may reach past the end
    x = tl.load(x_ptr + at, mask=inside)
    y = tl.load(y_ptr + at, mask=inside)
    tl.store(out_ptr + at, x + y, mask=inside)


def add(x: Any, y: Any, out: Any) -> None:
    n = x.shape[0]
    add_kernel[lambda meta: (tessera.cdiv(n, meta["BLOCK"]),)](x, y, out, n, BLOCK=1024)


if __name__ == "__main__":
    device = common.choose_device("auto")  # tensors on a GPU if there is one, else arrays of NumPy
    x, y, out = device.normal(100_000), device.normal(100_000), device.empty(100_000)
    add(x, y, out)
    print(
        "largest error:",
        common.relative_error(device.numpy(out), device.numpy(x) + device.numpy(y)),
    )
