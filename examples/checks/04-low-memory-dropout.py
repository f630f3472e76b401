"""Checks and times examples/04-low-memory-dropout.py, and says how its kernels are compiled ahead of time."""

from __future__ import annotations

from typing import Any

import numpy as np

import common

example = common.example(__file__)


def specimens() -> list[common.Specimen]:
    signature = {"x_ptr": "*fp32", "out_ptr": "*fp32", "n": "i32", "p": "fp32", "seed": "i32"}
    return [common.Specimen(example.dropout_kernel, signature, {"BLOCK": 2048})]


def philox_uniform(seed: int, n: int) -> np.ndarray:
    """n numbers in NumPy: ten rounds of Philox-4x32 over the counters (i, 0, 0, 0), four numbers each."""
    low, count = np.uint64(0xFFFFFFFF), -(-n // 4)
    c = [np.arange(count, dtype=np.uint64), *(np.zeros(count, np.uint64) for _ in range(3))]
    key = [seed & 0xFFFFFFFF, seed >> 32 & 0xFFFFFFFF]
    for _ in range(10):
        wide_a, wide_b = c[0] * np.uint64(0xD2511F53), c[2] * np.uint64(0xCD9E8D57)
        c = [
            (wide_b >> np.uint64(32)) ^ c[1] ^ np.uint64(key[0]),
            wide_b & low,
            (wide_a >> np.uint64(32)) ^ c[3] ^ np.uint64(key[1]),
            wide_a & low,
        ]
        key = [(key[0] + 0x9E3779B9) & 0xFFFFFFFF, (key[1] + 0xBB67AE85) & 0xFFFFFFFF]
    signed = np.stack(c, axis=1).reshape(-1)[:n].astype(np.uint32).view(np.int32)
    return np.where(signed < 0, ~signed, signed).astype(np.float32) * np.float32(4.6566127342e-10)


def main(device: common.Device) -> list[common.Row]:
    n = device.pick((1 << 21) + 5, (1 << 26) + 5)
    p, seed = 0.3, 1234
    x, out = device.normal(n), device.empty(n)
    example.dropout(x, out, p, seed)
    keep = philox_uniform(seed, n) > np.float32(p)
    expected = np.where(keep, device.numpy(x) / (1 - p), 0)
    error = common.relative_error(device.numpy(out), expected)

    grad = device.empty(n)  # the backward pass is the same kernel on the gradient
    example.dropout(device.array(np.ones(n, np.float32)), grad, p, seed)
    error = max(error, common.relative_error(device.numpy(grad), keep / (1 - p)))

    def reference() -> Any:
        if device.is_gpu:
            import torch

            return torch.nn.functional.dropout(x, p)
        return np.where(
            device.random.random(n, np.float32) > p, x / np.float32(1 - p), np.float32(0)
        )

    return [
        common.Row(
            "low-memory dropout", f"{n} fp32", error, 1e-6, 8.0 * n, "GB/s",
            device.time(lambda: example.dropout(x, out, p, seed)), device.time(reference),
        )
    ]  # fmt: skip
