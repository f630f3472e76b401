"""Checks and times examples/11-persistent-matmul.py, and says how its kernels are compiled ahead of time."""

from __future__ import annotations

import numpy as np

import common

example = common.example(__file__)


def specimens() -> list[common.Specimen]:
    found: list[common.Specimen] = []
    for entry in example.CONFIGS[:3]:
        m, n, k = (entry.kwargs[f"BLOCK_{x}"] for x in "MNK")
        signature = {
            "a_desc": f"tensordesc<fp16[{m}, {k}]>", "b_desc": f"tensordesc<fp16[{n}, {k}]>",
            "c_desc": f"tensordesc<fp16[{m}, {n}]>", **dict.fromkeys(("M", "N", "K"), "i32"),
        }  # fmt: skip
        options = {"num_warps": entry.num_warps, "num_stages": entry.num_stages}
        found.append(
            common.Specimen(example.persistent_kernel.fn, signature, entry.kwargs, options, (90,))
        )
    return found


def measure(device: common.Device, m: int, n: int, k: int) -> common.Row:
    dtype = device.pick("float32", "float16")
    a, b = device.normal(m, k, dtype=dtype), device.normal(n, k, dtype=dtype)
    c = device.empty(m, n, dtype=dtype)
    programs = example.processors(device)
    example.matmul(a, b, c, programs)
    expected = device.numpy(a).astype(np.float64) @ device.numpy(b).astype(np.float64).T
    return common.Row(
        "persistent matmul", f"{m}x{n}x{k} {dtype}", common.relative_error(device.numpy(c), expected),
        device.pick(1e-5, 2e-3), 2.0 * m * n * k, "GFLOP/s",
        device.time(lambda: example.matmul(a, b, c, programs)), device.time(lambda: a @ b.T),
    )  # fmt: skip


def main(device: common.Device) -> list[common.Row]:
    size = device.pick(512, 4096)
    return [measure(device, size, size, size), measure(device, size - 8, size + 8, size - 16)]
