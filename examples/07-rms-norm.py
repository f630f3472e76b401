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


def specimens() -> list[common.Specimen]:
    signature = {"x_ptr": "*fp16", "w_ptr": "*fp16", "y_ptr": "*fp16", "cols": "i32", "eps": "fp32"}
    return [common.Specimen(rms_norm_kernel, signature, {"BLOCK": 4096}, {"num_warps": 8})]


def numpy_rms_norm(x: np.ndarray, w: np.ndarray, eps: float = 1e-6) -> np.ndarray:
    return x / np.sqrt((x * x).mean(axis=1, keepdims=True) + x.dtype.type(eps)) * w


def main(device: common.Device) -> list[common.Row]:
    rows, cols = device.pick((4096, 1000), (16384, 4096))
    dtype = device.pick("float32", "float16")
    x, w = device.normal(rows, cols, dtype=dtype), device.normal(cols, dtype=dtype)
    y = device.empty(rows, cols, dtype=dtype)
    rms_norm(x, w, y)
    expected = numpy_rms_norm(
        device.numpy(x).astype(np.float64), device.numpy(w).astype(np.float64)
    )
    error = common.relative_error(device.numpy(y), expected)

    def reference() -> Any:
        if device.is_gpu:
            import torch

            return torch.nn.functional.rms_norm(x, (cols,), w, 1e-6)
        return numpy_rms_norm(x, w)

    return [
        common.Row(
            "RMS norm", f"{rows}x{cols} {dtype}", error, device.pick(1e-6, 1e-3),
            2.0 * x.nbytes, "GB/s", device.time(lambda: rms_norm(x, w, y)), device.time(reference),
        )
    ]  # fmt: skip


if __name__ == "__main__":
    common.run(main)
