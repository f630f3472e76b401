"""The simulated GPU finds warps that race in global memory: right kernels lose their barriers, and are reported."""

from __future__ import annotations

import re

import numpy as np
import pytest

import tessera
import tessera.language as tl
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
    ir = ir if barriers else without_barriers(ir)
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
def test_lanes_of_a_warp_race_too(name: str) -> None:
    want = np.stack([CASES[name][1](row, 3) for row in filled()])
    np.testing.assert_array_equal(run(name, warps=1), want)
    with pytest.raises(SimulatedHazard, match=r"by another thread of it since they last met"):
        run(name, barriers=False, warps=1)


@tessera.jit
def copied_ahead(p, q, out):
    """Operands of products that the program has turned and stored are copied ahead by cp.async."""
    i, j, k = tl.arange(0, 32)[:, None], tl.arange(0, 32)[None, :], tl.arange(0, 128)[None, :]
    tl.store(p + i * 128 + k, tl.load(q + k * 32 + i))
    acc = tl.zeros((32, 32), tl.float32)
    for at in range(0, 128, 32):
        a = tl.load(p + i * 128 + at + j)
        acc = tl.dot(a, tl.load(q + (at + i) * 32 + j), acc)
    tl.store(out + i * 32 + j, acc)


@pytest.mark.parametrize("barriers", [True, False])
def test_copies_see_what_was_stored(barriers: bool) -> None:
    names = {"p": "*fp16", "q": "*fp16", "out": "*fp32"}
    facts = {(i,): [["tt.divisibility", 16]] for i in range(3)}
    options = {"num_warps": 4, "num_stages": 3}
    source = ASTSource(copied_ahead, names, {}, facts)
    compiled = tessera.compile(source, target=GPUTarget("simt", 80, 32), options=options)
    ir: str = compiled.asm["llir"]
    assert "cp.async" in ir
    q = np.random.default_rng(0).integers(-4, 5, (128, 32)).astype(np.float16)
    args = [np.zeros((32, 128), np.float16), q, np.zeros((32, 32), np.float32)]
    shared: int = compiled.metadata.shared
    if barriers:
        run_kernel(ir, compiled.name, args, 128, shared)
        np.testing.assert_array_equal(args[2], q.T.astype(np.float32) @ q.astype(np.float32))
    else:
        with pytest.raises(SimulatedHazard, match=r"global memory is read by warp .* stored"):
            run_kernel(without_barriers(ir), compiled.name, args, 128, shared)


def without_barriers(ir: str) -> str:
    lines = ir.splitlines()
    return "\n".join(x for x in lines if not re.search(r" asm .*bar\.(warp\.)?sync", x))


@tessera.jit
def boxes(p, q, out, BY_THREADS: tl.constexpr):
    """Threads store what the TMA unit loads, or the TMA unit stores what threads load."""
    i, j = tl.arange(0, 32)[:, None], tl.arange(0, 32)[None, :]
    d = tl.make_tensor_descriptor(p, [32, 32], [32, 1], [32, 32])
    x = tl.load(q + i * 32 + j)
    if BY_THREADS:
        tl.store(p + j * 32 + i, x)
        y = d.load([0, 0])
    else:
        d.store([0, 0], x)
        y = tl.load(p + j * 32 + i)
    tl.store(out + i * 32 + j, y)


@pytest.mark.filterwarnings("ignore:.*uninitialised reads:RuntimeWarning")
@pytest.mark.parametrize("by_threads", [True, False])
def test_the_tma_unit_takes_part(by_threads: bool) -> None:
    """With all barriers the kernel runs; without one of them a race is found."""
    names = {"p": "*fp32", "q": "*fp32", "out": "*fp32"}
    facts = {(i,): [["tt.divisibility", 16]] for i in range(3)}
    source = ASTSource(boxes, names, {"BY_THREADS": by_threads}, facts)
    compiled = tessera.compile(source, target=GPUTarget("simt", 90, 32))
    metadata = compiled.metadata
    more = metadata.shared, (1, 1, 1), metadata.tensor_maps
    q = np.arange(1024, dtype=np.float32).reshape(32, 32)
    lines = compiled.asm["llir"].splitlines()
    barriers = [n for n, x in enumerate(lines) if re.search(r" asm .*bar\.(warp\.)?sync", x)]
    messages: list[str] = []
    for left_out in (None, *barriers):
        ir = "\n".join(x for n, x in enumerate(lines) if n != left_out)
        args = [np.zeros_like(q), q, np.zeros_like(q)]
        try:
            run_kernel(ir, compiled.name, args, 128, *more, latency="random", seed=0)
        except SimulatedHazard as error:
            messages.append(str(error))
        if left_out is None:
            assert not messages
            np.testing.assert_array_equal(args[2], q.T)
    how = "read by warp .* and was stored" if by_threads else "stored by warp .* and was read"
    assert any(re.search(f"global memory is {how}", x) for x in messages), messages
