"""Checks and times examples/15-split-k-matmul.py, and says how its kernels are compiled ahead of time."""

from __future__ import annotations

import numpy as np

import common

example = common.example(__file__)


def specimens() -> list[common.Specimen]:
    numbers = dict.fromkeys(("M", "N", "K", "stride_am", "stride_bk", "part"), "i32")
    signature = {"a_ptr": "*fp16", "b_ptr": "*fp16", "c_ptr": "*fp32", **numbers}
    found: list[common.Specimen] = []
    for m, n, k, atomic in ((16, 128, 64, True), (64, 64, 64, False)):
        constants = {"BLOCK_M": m, "BLOCK_N": n, "BLOCK_K": k, "ATOMIC": atomic, "EVEN_K": True}
        options = {"num_warps": 4, "num_stages": 4}
        found.append(common.Specimen(example.split_kernel, signature, constants, options))
    total = {"parts_ptr": "*fp32", "c_ptr": "*fp16", "size": "i32", "parts": "i32"}
    return [*found, common.Specimen(example.sum_kernel, total, {"PARTS": 16, "BLOCK": 256})]


def measure(device: common.Device, m: int, n: int, k: int, atomic: bool) -> common.Row:
    dtype = device.pick("float32", "float16")
    a, b = device.normal(m, k, dtype=dtype), device.normal(k, n, dtype=dtype)
    product = example.SplitMatmul(device, m, n, k, atomic)
    product.run(a, b)
    expected = device.numpy(a).astype(np.float64) @ device.numpy(b).astype(np.float64)
    return common.Row(
        f"split-K matmul, {'atomics' if atomic else 'workspace'}", f"{m}x{n}x{k} {dtype}",
        common.relative_error(device.numpy(product.c), expected), device.pick(1e-5, 2e-3),
        2.0 * m * n * k, "GFLOP/s",
        device.time(lambda: product.run(a, b)), device.time(lambda: a @ b),
    )  # fmt: skip


def main(device: common.Device) -> list[common.Row]:
    long = device.pick(2048, 8192)
    wide = device.pick(512, 8192)
    return [
        measure(device, 16, wide, long, True),
        measure(device, 128, 256, 2 * long, False),
        measure(device, 100, 202, long - 5, True),
    ]
