"""Checks and times examples/10-stream-k-matmul.py, and says how its kernels are compiled ahead of time."""

from __future__ import annotations

import numpy as np

import common

example = common.example(__file__)


def specimens() -> list[common.Specimen]:
    signature = {
        "a_ptr": "*fp16", "b_ptr": "*fp16", "c_ptr": "*fp16", "work_ptr": "*fp32", "ready_ptr": "*i32",
        **dict.fromkeys(("M", "N", "K", "stride_am", "stride_bk", "stretch"), "i32"),
    }  # fmt: skip
    constants = {"BLOCK_M": 128, "BLOCK_N": 128, "BLOCK_K": 64, "EVEN_K": True}
    options = {"num_warps": 8, "num_stages": 4}
    return [common.Specimen(example.stream_kernel, signature, constants, options)]


def measure(device: common.Device, m: int, n: int, k: int) -> common.Row:
    dtype = device.pick("float32", "float16")
    a, b = device.normal(m, k, dtype=dtype), device.normal(k, n, dtype=dtype)
    product = example.StreamMatmul(device, m, n, k)
    product.run(a, b)
    product.run(a, b)  # the flags are down again
    expected = device.numpy(a).astype(np.float64) @ device.numpy(b).astype(np.float64)
    return common.Row(
        "stream-K matmul", f"{m}x{n}x{k} {dtype}",
        common.relative_error(device.numpy(product.c), expected), device.pick(1e-5, 2e-3),
        2.0 * m * n * k, "GFLOP/s",
        device.time(lambda: product.run(a, b)), device.time(lambda: a @ b),
    )  # fmt: skip


def main(device: common.Device) -> list[common.Row]:
    unit = device.pick(128, 512)
    return [measure(device, 3 * unit, 3 * unit, 8 * unit), measure(device, 333, 200, 8 * unit - 3)]
