"""Checks and times examples/09-grouped-gemm.py, and says how its kernels are compiled ahead of time."""

from __future__ import annotations

import numpy as np

import common
import tessera.language as tl

example = common.example(__file__)


def specimens() -> list[common.Specimen]:
    tables = dict.fromkeys(("a_addresses", "b_addresses", "c_addresses"), "*i64")
    signature = {**tables, "sizes_ptr": "*i32", "groups": "i32"}
    constants = {"DTYPE": tl.float16, "BLOCK_M": 128, "BLOCK_N": 128, "BLOCK_K": 32}
    return [common.Specimen(example.grouped_matmul_kernel, signature, constants)]


def main(device: common.Device) -> list[common.Row]:
    unit = device.pick(64, 512)
    shapes = [(3, 4, 5), (1, 2, 8), (7, 3, 2), (4, 4, 4)]
    sizes = [(m * unit - 1, n * unit, k * unit + 8) for m, n, k in shapes]
    grouped = example.GroupedMatmul(device, sizes)
    grouped.run()
    error = max(
        common.relative_error(
            device.numpy(c), device.numpy(a).astype(np.float64) @ device.numpy(b).astype(np.float64)
        )
        for a, b, c in zip(grouped.a, grouped.b, grouped.c)
    )
    work = sum(2.0 * m * n * k for m, n, k in sizes)
    return [
        common.Row(
            "grouped matmul", f"{len(sizes)} of {unit}x(1..8) {grouped.dtype}", error,
            device.pick(1e-5, 2e-3), work, "GFLOP/s", device.time(grouped.run),
            device.time(lambda: [a @ b for a, b in zip(grouped.a, grouped.b)]),
        )
    ]  # fmt: skip
