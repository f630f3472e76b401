"""The simulated GPU finds warps that race in global memory: right kernels lose their barriers, and are reported."""

from __future__ import annotations

import re

import numpy as np
import pytest

import tessera
from tessera.backends.compiler import GPUTarget
from tessera.backends.nvidia.simulator import run_kernel
from tessera.compiler import ASTSource
from tessera.errors import SimulatedHazard
from tests.lang.program_order_kit import CASES, PROGRAMS, N, filled

NAMES = {"p": "*i32", "out": "*i32", "n": "i32"}
SEEDS = range(3)


def run(name: str, seed: int = 0, barriers: bool = True, warps: int = 4) -> np.ndarray:
    kernel, _ = CASES[name]
    target = GPUTarget("simt", 90, 32)
    compiled = tessera.compile(
        ASTSource(kernel, NAMES), target=target, options={"num_warps": warps}
    )
    ir: str = compiled.asm["llir"]
    if not barriers:
        ir = "\n".join(
            line for line in ir.splitlines() if "bar.sync" not in line or " asm " not in line
        )
    out = np.zeros((PROGRAMS, N), np.int32)
    shared: int = compiled.metadata.shared
    args = [filled(), out, ("i64", 3)]
    run_kernel(ir, compiled.name, args, 32 * warps, shared, (PROGRAMS, 1, 1), seed=seed)
    return out


@pytest.mark.parametrize("name", CASES)
def test_right_code_runs(name: str) -> None:
    want = np.stack([CASES[name][1](row, 3) for row in filled()])
    for seed in SEEDS:
        np.testing.assert_array_equal(run(name, seed), want)


@pytest.mark.parametrize("name", CASES)
def test_missing_barriers_are_found(name: str) -> None:
    with pytest.raises(SimulatedHazard, match=r"global memory is .* since they last met") as error:
        run(name, barriers=False)
    assert re.search(r"program_order_kit.py:\d+", str(error.value))


@pytest.mark.parametrize("name", CASES)
def test_one_warp_needs_none(name: str) -> None:
    want = np.stack([CASES[name][1](row, 3) for row in filled()])
    np.testing.assert_array_equal(run(name, barriers=False, warps=1), want)
