"""Checks and times examples/13-gemv.py, and says how its kernels are compiled ahead of time."""

from __future__ import annotations

import numpy as np

import common

example = common.example(__file__)


def specimens() -> list[common.Specimen]:
    found: list[common.Specimen] = []
    for element, width in (("fp16", 1024), ("fp32", 512)):
        signature = {
            "a_ptr": f"*{element}", "x_ptr": f"*{element}", "y_ptr": "*fp32",
            **dict.fromkeys(("rows", "cols", "stride", "part"), "i32"),
        }  # fmt: skip
        constants = {"BLOCK_M": 4, "BLOCK_N": width, "WHOLE": True}
        found.append(common.Specimen(example.gemv_kernel, signature, constants))
    return found


def measure(device: common.Device, rows: int, cols: int, dtype: str) -> common.Row:
    a, x = device.normal(rows, cols, dtype=dtype), device.normal(cols, dtype=dtype)
    y = device.empty(rows)
    example.gemv(a, x, y)
    expected = device.numpy(a).astype(np.float64) @ device.numpy(x).astype(np.float64)
    error = common.relative_error(device.numpy(y), expected)
    return common.Row(
        "matrix times vector", f"{rows}x{cols} {dtype}", error, 1e-5, float(a.nbytes), "GB/s",
        device.time(lambda: example.gemv(a, x, y)), device.time(lambda: a @ x),
    )  # fmt: skip


def main(device: common.Device) -> list[common.Row]:
    size = device.pick(2048, 16384)
    return [
        measure(device, size, size, "float32"),
        measure(device, size - 3, size // 2, "float16"),
        measure(device, 7, 8 * size + 5, "float32"),
    ]
