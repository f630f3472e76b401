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


def specimens() -> list[common.Specimen]:
    signature = {"x_ptr": "*fp32", "y_ptr": "*fp32", "out_ptr": "*fp32", "n": "i32"}
    return [common.Specimen(add_kernel, signature, {"BLOCK": 1024})]


def main(device: common.Device) -> list[common.Row]:
    n = device.pick((1 << 23) - 7, (1 << 27) - 7)
    x, y = device.normal(n), device.normal(n)
    out = device.empty(n)
    add(x, y, out)
    expected = device.numpy(x) + device.numpy(y)
    error = common.relative_error(device.numpy(out), expected)
    other = device.empty(n)
    if device.is_gpu:
        import torch

        reference = lambda: torch.add(x, y, out=other)  # noqa: E731
    else:
        import numpy as np

        reference = lambda: np.add(x, y, out=other)  # noqa: E731
    return [
        common.Row(
            "vector add", f"{n} fp32", error, 0.0, 12.0 * n, "GB/s",
            device.time(lambda: add(x, y, out)), device.time(reference),
        )
    ]  # fmt: skip


if __name__ == "__main__":
    common.run(main)
