"""Checks and times examples/07-rms-norm.py, and says how its kernels are compiled ahead of time."""

from __future__ import annotations

from typing import Any

import numpy as np

import common

example = common.example(__file__)


def specimens() -> list[common.Specimen]:
    signature = {"x_ptr": "*fp16", "w_ptr": "*fp16", "y_ptr": "*fp16", "cols": "i32", "eps": "fp32"}
    return [common.Specimen(example.rms_norm_kernel, signature, {"BLOCK": 4096}, {"num_warps": 8})]


def numpy_rms_norm(x: np.ndarray, w: np.ndarray, eps: float = 1e-6) -> np.ndarray:
    return x / np.sqrt((x * x).mean(axis=1, keepdims=True) + x.dtype.type(eps)) * w


def main(device: common.Device) -> list[common.Row]:
    rows, cols = device.pick((4096, 1000), (16384, 4096))
    dtype = device.pick("float32", "float16")
    x, w = device.normal(rows, cols, dtype=dtype), device.normal(cols, dtype=dtype)
    y = device.empty(rows, cols, dtype=dtype)
    example.rms_norm(x, w, y)
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
            2.0 * x.nbytes, "GB/s", device.time(lambda: example.rms_norm(x, w, y)), device.time(reference),
        )
    ]  # fmt: skip
