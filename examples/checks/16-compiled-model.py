"""Checks and times examples/16-compiled-model.py, and says how its kernels are compiled ahead of time."""

from __future__ import annotations

import copy
import importlib
from typing import Any

import numpy as np

import common
from tessera.errors import TorchNotFound

example = common.example(__file__)


def specimens() -> list[common.Specimen]:
    return []  # the kernels are the compiler's


def measure(device: common.Device, what: str, run: Any, rows: int) -> common.Row:
    import torch

    torch.manual_seed(0)
    eager = example.block().to(device.name)
    compiled = torch.compile(copy.deepcopy(eager), backend="tessera")
    x = torch.randn(rows, example.WIDTH, device=device.name)
    expected = run(copy.deepcopy(eager).double(), x.double()).cpu().numpy()
    error = common.relative_error(run(compiled, x).cpu().numpy().astype(np.float64), expected)
    work = 2.0 * 6 * rows * example.WIDTH * example.WIDTH * (1 if run is example.forward else 3)
    return common.Row(
        f"compiled model, {what}", f"{rows}x{example.WIDTH} float32, beside eager", error, 1e-4, work, "GFLOP/s",
        device.time(lambda: run(compiled, x)), device.time(lambda: run(eager, x)),
    )  # fmt: skip


def main(device: common.Device) -> list[common.Row]:
    try:
        importlib.import_module("tessera.torch")  # registers the backend
    except TorchNotFound as missing:
        print(f"  no compiled model: {missing.message}; {missing.help}")
        return []
    rows = device.pick(1024, 16384)
    return [
        measure(device, "forward", example.forward, rows),
        measure(device, "step", example.step, rows),
    ]
