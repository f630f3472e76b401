"""A case on an NVIDIA GPU: many launches, each with outputs of its own, compared on the device."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from tessera.runtime.arguments.descriptor import TensorDescriptor
from tessera.runtime.driver import driver
from tests.conftest import as_dtype
from tests.fuzz.case import Case, load_kernel
from tests.fuzz.devices import TORCH, Memory, Unsteady, launch

LAUNCHES = int(os.environ.get("TESSERA_FUZZ_LAUNCHES", "200"))
ROOM = 2**28  # bytes of copies of the outputs; larger outputs are launched fewer times


def run_cuda(case: Case) -> dict[str, np.ndarray]:
    """Every array's memory after the first launch. `Unsteady` if a later launch leaves something else."""
    import torch

    host = Memory(case)
    written = {host.root(a).name for a in case.arrays if a.output}
    size = sum(_padded(host.blocks[name]) for name in written)
    launches = max(2, min(LAUNCHES, ROOM // max(size, 1)))
    blocks = {name: _rows(b, launches if name in written else 1) for name, b in host.blocks.items()}
    inputs = {n: b.clone() for n, b in blocks.items() if n not in written}
    kernel = load_kernel(case.source)
    driver.set_active("cuda")
    try:
        for row in range(launches):
            launch(kernel, case, _arguments(case, host, blocks, row))
        torch.cuda.synchronize()
    finally:
        driver.reset_active()
    for name, before in inputs.items():
        if not torch.equal(before, blocks[name]):
            raise Unsteady(f"{name}, which is only read, was written")
    for name in written:
        apart = int((blocks[name] != blocks[name][:1]).any(1).sum())
        if apart and case.ordered:
            raise Unsteady(f"{name}: {apart} of {launches} launches differ from the first one")
    return {n: _back(b, host.blocks[n]) for n, b in blocks.items()}


def _padded(block: np.ndarray) -> int:
    return -(-block.nbytes // 256) * 256


def _rows(block: np.ndarray, count: int) -> Any:
    import torch

    raw = np.zeros(_padded(block), np.uint8)
    raw[: block.nbytes] = block.view(np.uint8)
    return torch.from_numpy(raw).cuda()[None, :].repeat(count, 1)


def _back(rows: Any, like: np.ndarray) -> np.ndarray:
    return rows[0, : like.nbytes].cpu().numpy().view(like.dtype)


def _arguments(case: Case, host: Memory, blocks: dict[str, Any], row: int) -> list[Any]:
    import torch

    made: dict[str, Any] = {}
    for a in case.arrays:
        root = host.root(a).name
        like, memory = host.blocks[root], blocks[root]
        bits = memory[row if memory.shape[0] > 1 else 0, : like.nbytes]
        name = TORCH.get(a.dtype) or str(np.dtype(like.dtype))
        kind = getattr(torch, "bool" if as_dtype(a.dtype).name == "int1" else name)
        made[a.name] = host.view(a, bits.view(kind))
    for d in case.descriptors:
        made[d.name] = TensorDescriptor(made[d.base], d.shape, d.strides, d.block)
    return [made[p] if p in made else case.scalars[p] for p in case.order]
