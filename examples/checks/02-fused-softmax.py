"""Checks and times examples/02-fused-softmax.py, and says how its kernels are compiled ahead of time."""

from __future__ import annotations

import numpy as np

import common

example = common.example(__file__)


def specimens() -> list[common.Specimen]:
    signature = {
        "x_ptr": "*fp32", "out_ptr": "*fp32", "x_stride": "i32", "out_stride": "i32", "cols": "i32",
    }  # fmt: skip
    return [
        common.Specimen(example.softmax_kernel, signature, {"BLOCK": 1024}),
        common.Specimen(example.long_softmax_kernel, signature, {"BLOCK": 4096}, {"num_warps": 8}),
    ]


def numpy_softmax(x: np.ndarray) -> np.ndarray:
    powers = np.exp(x - x.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


def measure(device: common.Device, rows: int, cols: int) -> common.Row:
    x, out = device.normal(rows, cols, scale=3.0), device.empty(rows, cols)
    example.softmax(x, out)
    expected = numpy_softmax(device.numpy(x).astype(np.float64))
    error = common.relative_error(device.numpy(out), expected)
    reference = device.pick(lambda: numpy_softmax(x), lambda: x.softmax(dim=1))
    return common.Row(
        "fused softmax", f"{rows}x{cols} fp32", error, 1e-6, 8.0 * rows * cols, "GB/s",
        device.time(lambda: example.softmax(x, out)), device.time(reference),
    )  # fmt: skip


def main(device: common.Device) -> list[common.Row]:
    shapes = device.pick(
        [(4096, 1024), (1000, 781), (64, 50000)], [(16384, 1024), (8192, 781), (1024, 50000)]
    )
    return [measure(device, rows, cols) for rows, cols in shapes]
