"""Checks and times examples/03-matmul.py, and says how its kernels are compiled ahead of time."""

from __future__ import annotations

import numpy as np

import common

example = common.example(__file__)


def specimens() -> list[common.Specimen]:
    strides = ("stride_am", "stride_ak", "stride_bk", "stride_bn", "stride_cm", "stride_cn")
    pointers = dict.fromkeys(("a_ptr", "b_ptr", "c_ptr"), "*fp16")
    outer = [s for s in strides if s[-1] in "mk" and s not in ("stride_ak",)]
    signature = {**pointers, **dict.fromkeys(("M", "N", "K", *outer), "i32")}
    ones = {s: 1 for s in strides if s not in outer}
    found: list[common.Specimen] = []
    for entry in example.CONFIGS[:3]:
        constants = {**entry.kwargs, "EVEN_K": True, "ACTIVATION": "leaky_relu", **ones}
        options = {"num_warps": entry.num_warps, "num_stages": entry.num_stages}
        found.append(common.Specimen(example.matmul_kernel.fn.fn, signature, constants, options))
    return found


def measure(device: common.Device, m: int, n: int, k: int, activation: str) -> common.Row:
    dtype = device.pick("float32", "float16")
    a, b = device.normal(m, k, dtype=dtype), device.normal(k, n, dtype=dtype)
    c = device.empty(m, n, dtype=dtype)
    example.matmul(a, b, c, activation)
    expected = device.numpy(a).astype(np.float64) @ device.numpy(b).astype(np.float64)
    if activation:
        expected = np.where(expected >= 0, expected, 0.01 * expected)
    error = common.relative_error(device.numpy(c), expected)
    return common.Row(
        f"matmul {activation}".strip(), f"{m}x{n}x{k} {dtype}", error, device.pick(1e-5, 2e-3),
        2.0 * m * n * k, "GFLOP/s",
        device.time(lambda: example.matmul(a, b, c, activation)), device.time(lambda: a @ b),
    )  # fmt: skip


def main(device: common.Device) -> list[common.Row]:
    size = device.pick(768, 4096)
    return [
        measure(device, size, size, size, ""),
        measure(device, size, size, size, "leaky_relu"),
        measure(device, size - 5, size + 3, size - 7, ""),
    ]
