"""Loops with a product that reads what threads computed, turned, and adds to an array: by teams on the interpreter and
the lane simulator."""

# annotations of kernels name dtypes
# pyright: reportInvalidTypeForm=false, reportUndefinedVariable=false
from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tessera
import tessera.language as tl
from tessera.backends.nvidia import ptxas
from tessera.backends.nvidia.simulator import run_kernel
from tessera.compiler import CompiledKernel
from tessera.errors import ToolNotFound
from tessera.interp import run
from tessera.ir import Module, Op, parse_module
from tessera.ops import DescriptorStoreOp, LocalAllocOp, WarpSpecializeOp, WgmmaWaitOp
from tests.unit.tensor_maps_kit import built, flat


@tessera.jit
def gradients(
    q, k, row, dk, dv, dq, n, masked: tl.constexpr, M: tl.constexpr, N: tl.constexpr, D: tl.constexpr
):  # fmt: skip
    first = tl.program_id(0) * N
    keys = first + tl.arange(0, N)
    y = k.load([first, 0])
    acc = tl.zeros((N, D), tl.float32)
    other = tl.zeros((N, D), tl.float32)
    begin = first // M * M if masked else 0
    for start in range(begin, n, M):
        x = q.load([start, 0])
        factors = row.load([0, start]).reshape(M)
        s = tl.dot(y, x.T) * factors[None, :]
        if masked:
            if start < first + N:
                s = tl.where(keys[:, None] <= (start + tl.arange(0, M))[None, :], s, 0.0)
        p = s.to(x.dtype)
        acc = tl.dot(p, x, acc)
        half = (s * 0.5).to(x.dtype)
        grad = tl.dot(half.T, y)
        other = tl.dot(half, x, other)
        dq.atomic_add([start, 0], grad)
    dk.store([first, 0], acc.to(dk.dtype))
    dv.store([first, 0], other.to(dv.dtype))


def compiled(
    masked: bool, m: int, n: int, d: int, backend: str = "simt", **options: Any
) -> CompiledKernel:
    kind = "tensordesc<{}[{}, {}]>".format
    signature = {
        "q": kind("fp16", m, d), "k": kind("fp16", n, d), "row": kind("fp32", 1, m), "dk": kind("fp16", n, d),
        "dv": kind("fp16", n, d), "dq": kind("fp32", m, d), "n": "i32",
    }  # fmt: skip
    constants = {"masked": masked, "M": m, "N": n, "D": d}
    return built(gradients, signature, constants, backend, **options)


def module_of(kernel: CompiledKernel) -> Module:
    return parse_module(kernel.asm["gir"])


def consumers(module: Module) -> list[Op]:
    (split,) = [op for op in module.walk() if isinstance(op, WarpSpecializeOp)]
    return [inner for op in split.consumers for inner in op.walk()]


def check(kernel: CompiledKernel, masked: bool, n: int, step: int, d: int, lanes: bool) -> None:
    rng = np.random.default_rng(n)
    q, k = (rng.standard_normal((n, d)).astype(np.float16) for _ in range(2))
    row = (rng.standard_normal((1, n)) / d**0.5).astype(np.float32)
    dk, dv, dq = np.zeros_like(k), np.zeros_like(k), np.zeros((n, d), np.float32)
    args = [*flat(q, k, row, dk, dv, dq), n]
    if lanes:
        meta, values = (
            kernel.metadata,
            [x if isinstance(x, np.ndarray) else ("i64", x) for x in args],
        )
        threads, grid = 32 * meta.warps, (n // step, 1, 1)
        run_kernel(
            kernel.asm["llir"], kernel.name, values, threads, meta.shared, grid, meta.tensor_maps
        )
    else:
        run(module_of(kernel), (n // step,), args)
    x, y = q.astype(np.float64), k.astype(np.float64)
    s = y @ x.T * row
    if masked:
        s = np.where(np.tri(n, dtype=bool).T, s, 0)
    for found, want in ((dk, s @ x), (dv, s @ x / 2), (dq, s.T @ y / 2)):
        assert np.abs(found - want).max() <= 4e-3 * np.abs(want).max()


CASES = [(64, 128, 64, 8, 2), (64, 64, 64, 4, 3), (64, 128, 128, 8, 2)]


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(("m", "n", "d", "warps", "stages"), CASES)
def test_teams_compute_gradients(
    masked: bool, m: int, n: int, d: int, warps: int, stages: int
) -> None:
    kernel = compiled(masked, m, n, d, num_warps=warps, num_stages=stages)
    check(kernel, masked, 2 * n, n, d, lanes=False)
    if d == 64:
        check(kernel, masked, n, n, d, lanes=True)


def test_what_is_read_turned_is_stored_as_it_is() -> None:
    """The scores go to shared memory once, rows as they are; no other tile is exchanged there."""
    ops = consumers(module_of(compiled(False, 64, 128, 128, num_warps=8, num_stages=2)))
    stored = [op for op in ops if isinstance(op, LocalAllocOp) and op.init is not None]
    (half,) = stored
    views = half.result.users()
    assert [op.opcode for op in views] == ["local_trans"]
    assert [op.opcode for op in views[0].results[0].users()] == ["wgmma", "wgmma_wait"]
    assert not [op for op in ops if op.opcode == "convert_layout" and "scratch" in op.attrs]
    reads = [op for op in ops if op.opcode == "local_load"]  # of the row, where it is wanted
    assert len(reads) == 1


def test_one_barrier_an_iteration_beside_those_of_the_store() -> None:
    """It comes between writing the scores and reading them; the store lets all meet before they are written again."""
    ops = consumers(module_of(compiled(False, 64, 128, 128, num_warps=8, num_stages=2)))
    names = [op.opcode for op in ops if op.opcode in ("barrier", "local_alloc", "descriptor_store")]
    assert names[:3] == ["local_alloc", "barrier", "descriptor_store"]


def test_a_slice_is_given_back_when_it_was_used() -> None:
    """Not when the read was started: behind the multiplication of the scores by the row."""
    ops = consumers(module_of(compiled(False, 64, 128, 128, num_warps=8, num_stages=2)))
    names = [op.opcode for op in ops]
    read = names.index("local_load")
    given = names.index("mbarrier_arrive", read)
    assert "mul" in names[read:given]


def test_products_that_an_earlier_wait_was_for() -> None:
    """Each wait is the last one for all that was started before: ptxas sees no wait for nothing."""
    ops = consumers(module_of(compiled(False, 64, 128, 128, num_warps=8, num_stages=2)))
    waits = [(op.pending, op.waited) for op in ops if isinstance(op, WgmmaWaitOp)]
    assert waits == [(0, False), (1, False), (1, True), (0, False)]


def test_stores_behind_the_loop_use_the_rings_memory() -> None:
    """Two of 32 KB; and the stores of both halves of a loop turn the same buffer."""
    for masked in (False, True):
        module = module_of(compiled(masked, 64, 128, 128, num_warps=8, num_stages=2))
        allocs = [op for op in module.walk() if isinstance(op, LocalAllocOp)]
        stores = [op for op in consumers(module) if isinstance(op, DescriptorStoreOp)]
        assert len({op.attrs["scratch"] for op in stores if op.kind == "add"}) == 1
        lasting = sum(op.bytes for op in allocs) + 32 * 1024
        assert module.attrs["shared"] < lasting + 8 * 1024
        last = [op for op in stores if op.kind == "store"]
        assert [op.attrs["scratch_bytes"] for op in last] == [32 * 1024] * 2


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(("m", "n", "d", "warps", "stages"), CASES)
def test_machine_code(masked: bool, m: int, n: int, d: int, warps: int, stages: int) -> None:
    try:
        kernel = compiled(masked, m, n, d, "cuda", num_warps=warps, num_stages=stages)
        done = ptxas.assemble(kernel.asm["ptx"], "sm_90a", ["-v"])
    except ToolNotFound:
        pytest.skip("needs ptxas")
    assert done.spill_stores == done.spill_loads == done.stack == 0
    assert not [line for line in done.log.splitlines() if "C75" in line]
