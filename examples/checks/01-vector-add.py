"""Checks and times examples/01-vector-add.py, and says how its kernels are compiled ahead of time."""

from __future__ import annotations

import common

example = common.example(__file__)


def specimens() -> list[common.Specimen]:
    signature = {"x_ptr": "*fp32", "y_ptr": "*fp32", "out_ptr": "*fp32", "n": "i32"}
    return [common.Specimen(example.add_kernel, signature, {"BLOCK": 1024})]


def main(device: common.Device) -> list[common.Row]:
    n = device.pick((1 << 23) - 7, (1 << 27) - 7)
    x, y = device.normal(n), device.normal(n)
    out = device.empty(n)
    example.add(x, y, out)
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
            device.time(lambda: example.add(x, y, out)), device.time(reference),
        )
    ]  # fmt: skip
