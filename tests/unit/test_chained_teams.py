"""Loops with several streams and chained products, split into teams: by the interpreter and the lane simulator."""

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
from tessera.backends.nvidia.target import facts_for
from tessera.compiler import CompiledKernel
from tessera.errors import ToolNotFound
from tessera.interp import run
from tessera.ir import Module, parse_module
from tessera.ops import ForOp, WgmmaOp
from tessera.passes.gpu_scheduling.warp_roles import roles_for
from tests.unit.test_tensor_maps import built, flat


@tessera.jit
def softmax_chain(
    q, k, v, out, n, causal: tl.constexpr, M: tl.constexpr, N: tl.constexpr, D: tl.constexpr
):
    """Running maximum and sum; a branch for the mask."""
    first = tl.program_id(0) * M
    rows, at = first + tl.arange(0, M), tl.arange(0, N)
    x = q.load([first, 0])
    acc = tl.zeros((M, D), tl.float32)
    total = tl.zeros((M,), tl.float32)
    peak = tl.full((M,), -float("inf"), tl.float32)
    last = tl.minimum(first + M, n) if causal else n
    for start in range(0, last, N):
        s = tl.dot(x, k.load([start, 0]).T)
        if causal:
            if start + N > first:
                s = tl.where(start + at[None, :] <= rows[:, None], s, -float("inf"))
        higher = tl.maximum(peak, tl.max(s, axis=1))
        p = tl.exp2(s - higher[:, None])
        shrink = tl.exp2(peak - higher)
        total = total * shrink + tl.sum(p, axis=1)
        acc = acc * shrink[:, None]
        y = v.load([start, 0])
        acc = tl.dot(p.to(y.dtype), y, acc)
        peak = higher
    out.store([first, 0], (acc / total[:, None]).to(out.dtype))


@tessera.jit
def walk(
    x,
    k,
    v,
    acc,
    total,
    peak,
    first,
    begin,
    end,
    masked: tl.constexpr,
    M: tl.constexpr,
    N: tl.constexpr,
):
    """The keys from `begin` to `end`."""
    rows, at = first + tl.arange(0, M), tl.arange(0, N)
    for start in range(begin, end, N):
        s = tl.dot(x, k.load([start, 0]).T)
        if masked:
            s = tl.where(start + at[None, :] <= rows[:, None], s, -float("inf"))
        higher = tl.maximum(peak, tl.max(s, axis=1))
        p = tl.exp2(s - higher[:, None])
        shrink = tl.exp2(peak - higher)
        total = total * shrink + tl.sum(p, axis=1)
        y = v.load([start, 0])
        acc = tl.dot(p.to(y.dtype), y, acc * shrink[:, None])
        peak = higher
    return acc, total, peak


@tessera.jit
def two_walks(
    q, k, v, out, n, causal: tl.constexpr, M: tl.constexpr, N: tl.constexpr, D: tl.constexpr
):
    """A loop before the diagonal, and one along it, in programs that stay."""
    for tile in range(tl.program_id(0), n // M, tl.num_programs(0)):
        first = tile * M
        x = q.load([first, 0])
        acc = tl.zeros((M, D), tl.float32)
        total = tl.zeros((M,), tl.float32)
        peak = tl.full((M,), -float("inf"), tl.float32)
        acc, total, peak = walk(x, k, v, acc, total, peak, first, 0, first, False, M, N)
        if causal:
            acc, total, peak = walk(x, k, v, acc, total, peak, first, first, first + M, True, M, N)
        out.store([first, 0], (acc / total[:, None]).to(out.dtype))


def softmax_reference(q: Any, k: Any, v: Any, n: int, causal: bool) -> Any:
    s = q @ k[:n].T * np.log(2)
    if causal:
        s = np.where(np.tri(*s.shape, dtype=bool), s, -np.inf)
    p = np.exp(s - s.max(1, keepdims=True))
    return p / p.sum(1, keepdims=True) @ v[:n]


@tessera.jit
def same_tile_twice(
    q, k, v, out, n, causal: tl.constexpr, M: tl.constexpr, N: tl.constexpr, D: tl.constexpr
):
    """Both products read the tile of one load, the second one an iteration late; a third adds to another sum."""
    first = tl.program_id(0) * M
    x = q.load([first, 0])
    acc = tl.zeros((M, D), tl.float32)
    other = tl.zeros((M, D), tl.float32)
    for start in range(0, n, N):
        y = k.load([start, 0])
        s = tl.dot(x, y.T)
        p = (s * 0.125).to(y.dtype)
        acc = tl.dot(p, y, acc)
        other = tl.dot(p, v.load([start, 0]), other * 0.5)
    out.store([first, 0], (acc - other).to(out.dtype))


def same_tile_reference(q: Any, k: Any, v: Any, n: int, step: int) -> Any:
    acc, other = np.zeros((len(q), k.shape[1])), np.zeros((len(q), v.shape[1]))
    for start in range(0, n, step):
        y = k[start : start + step]
        p = (q @ y.T * 0.125).astype(np.float16).astype(np.float64)
        acc += p @ y
        other = other * 0.5 + p @ v[start : start + step]
    return acc - other


@tessera.jit
def chains_of_tiles(
    q, k, v, out, n, causal: tl.constexpr, M: tl.constexpr, N: tl.constexpr, D: tl.constexpr
):
    """A chain in each tile of a program that stays; the first operand stays in a ring of the outer loop."""
    for tile in range(tl.program_id(0), tl.cdiv(n, M), tl.num_programs(0)):
        x = q.load([tile * M, 0])
        acc = tl.zeros((M, D), tl.float32)
        for start in range(0, (tile + 1) * M, N):
            s = tl.dot(x, k.load([start, 0]).T)
            y = v.load([start, 0])
            acc = tl.dot(tl.maximum(s, 0.0).to(y.dtype), y, acc)
        for start in range(0, tile * N, N):
            y = v.load([start, 0])
            acc = tl.dot(x, y, acc)
        out.store([tile * M, 0], (acc * 0.03125).to(out.dtype))


def tiles_reference(q: Any, k: Any, v: Any, n: int, m: int, step: int) -> Any:
    found = np.zeros((n, v.shape[1]))
    for tile in range(n // m):
        rows, end = slice(tile * m, tile * m + m), (tile + 1) * m
        s = np.maximum(q[rows] @ k[:end].T, 0).astype(np.float16).astype(np.float64)
        found[rows] = s @ v[:end]
        for start in range(0, tile * step, step):
            found[rows] += q[rows] @ v[start : start + step]
    return found * 0.03125


def chain(
    kernel: Any,
    m: int,
    n: int,
    d: int,
    causal: bool = False,
    backend: str = "simt",
    **options: Any,
) -> CompiledKernel:
    kind = "tensordesc<fp16[{}, {}]>".format
    signature = {"q": kind(m, d), "k": kind(n, d), "v": kind(n, d), "out": kind(m, d), "n": "i32"}
    constants = {"causal": causal, "M": m, "N": n, "D": d}
    return built(kernel, signature, constants, backend, **options)


def inputs(rows: int, keys: int, d: int) -> list[Any]:
    rng = np.random.default_rng(keys)
    q, k, v = (rng.standard_normal((x, d)).astype(np.float16) for x in (rows, keys, keys))
    return [q, k, v, np.zeros_like(q)]


def reference(kernel: Any, arrays: list[Any], n: int, m: int, step: int, causal: bool) -> Any:
    q, k, v = (x.astype(np.float64) for x in arrays[:3])
    if kernel is same_tile_twice:
        return same_tile_reference(q, k, v, n, step)
    if kernel is chains_of_tiles:
        return tiles_reference(q, k, v, n, m, step)
    return softmax_reference(q, k, v, n, causal)


def execute(compiled: CompiledKernel, arrays: list[Any], n: int, programs: int, lanes: bool) -> Any:
    args = [*flat(*arrays), n]
    if not lanes:
        run(parse_module(compiled.asm["gir"]), (programs,), args)
        return arrays[3]
    meta = compiled.metadata
    values = [x if isinstance(x, np.ndarray) else ("i64", x) for x in args]
    run_kernel(
        compiled.asm["llir"], compiled.name, values, 32 * meta.warps, meta.shared, (programs, 1, 1), meta.tensor_maps,
        cluster=meta.cluster_dims[0],
    )  # fmt: skip
    return arrays[3]


def innermost(module: Module) -> list[ForOp]:
    """Loops with products that hold no other loop, of the consumers."""
    loops = [op for op in module.walk() if isinstance(op, ForOp)]
    return [x for x in loops if any(isinstance(op, WgmmaOp) for op in x.body)]


CASES = [
    (softmax_chain, False), (softmax_chain, True), (same_tile_twice, False), (chains_of_tiles, False),
    (two_walks, True),
]  # fmt: skip
STAYING = (chains_of_tiles, two_walks)


@pytest.mark.parametrize("blocks", [1, 2, 3, 6])
@pytest.mark.parametrize(("warps", "stages"), [(8, 2), (4, 3)])
@pytest.mark.parametrize(("kernel", "causal"), CASES)
def test_teams_compute_chains(
    kernel: Any, causal: bool, warps: int, stages: int, blocks: int
) -> None:
    m, step, d = 64 * (warps // 4), 64, 64
    compiled = chain(kernel, m, step, d, causal, num_warps=warps, num_stages=stages)
    n = m * blocks if kernel is chains_of_tiles or causal else step * blocks
    rows = n if kernel is chains_of_tiles or causal else 2 * m
    arrays = inputs(rows, n, d)
    programs = 2 if kernel in STAYING else rows // m
    found = execute(compiled, arrays, n, programs, lanes=False)
    want = reference(kernel, arrays, n, m, step, causal)
    assert np.abs(found - want).max() <= 4e-3 * np.abs(want).max()
    text = compiled.asm["gir"]
    assert "warp_specialize" in text
    assert "descriptor_load" not in text


@pytest.mark.parametrize(("kernel", "causal"), CASES)
def test_lowered_chains(kernel: Any, causal: bool) -> None:
    m, step, d = 128, 64, 64
    compiled = chain(kernel, m, step, d, causal, num_warps=8, num_stages=2)
    arrays = inputs(m, m, d)
    found = execute(compiled, arrays, m, 1, lanes=True)
    want = reference(kernel, arrays, m, m, step, causal)
    assert np.abs(found - want).max() <= 4e-3 * np.abs(want).max()


def test_streams_have_rings_of_their_own() -> None:
    """One for the operand in front of the loop, one for each of the two in it; no barrier of all in the loop."""
    module = parse_module(chain(softmax_chain, 128, 64, 64, num_warps=8).asm["gir"])
    (inits,) = [op for op in module.walk() if op.opcode == "mbarrier_init"]
    assert inits.attrs["counts"] == (1, 1, 2, 1, 2)
    (loop,) = innermost(module)
    body = [op.opcode for op in loop.body]
    assert body.count("mbarrier_wait") == body.count("mbarrier_arrive") == 2
    assert "barrier" not in body


def test_loops_that_follow_each_other_share_buffers() -> None:
    """Two loops with two streams each, in a loop with one of its own: three rings."""
    text = chain(two_walks, 128, 128, 128, True, num_warps=8).asm["gir"]
    module = parse_module(text)
    (inits,) = [op for op in module.walk() if op.opcode == "mbarrier_init"]
    assert sorted(inits.attrs["counts"]) == [1, 1, 1, 2, 2, 2]
    assert len(innermost(module)) == 2
    assert "descriptor_load" not in text


def test_the_second_product_starts_before_the_first_result_is_used() -> None:
    module = parse_module(chain(softmax_chain, 128, 64, 64, num_warps=8).asm["gir"])
    (loop,) = innermost(module)
    watched = ("wgmma", "wgmma_wait", "exp2", "mbarrier_arrive")
    order = [op.opcode for op in loop.body if op.opcode in watched]
    assert order == [
        "wgmma", "wgmma", "wgmma_wait", "mbarrier_arrive", "exp2", "exp2", "wgmma_wait", "mbarrier_arrive",
    ]  # fmt: skip
    assert [op.attrs["pending"] for op in loop.body if op.opcode == "wgmma_wait"] == [1, 0]


def test_a_tile_that_both_products_read_is_given_back_by_the_late_one() -> None:
    module = parse_module(chain(same_tile_twice, 128, 64, 64, num_warps=8).asm["gir"])
    (loop,) = innermost(module)
    arrivals = [op for op in loop.body if op.opcode == "mbarrier_arrive"]
    waits = [op for op in loop.body if op.opcode == "wgmma_wait"]
    assert len(arrivals) == 2
    place = list(loop.body).index
    assert all(place(a) > place(waits[0]) for a in arrivals)


@pytest.mark.parametrize(("m", "n", "d", "warps"), [(128, 128, 128, 8), (128, 64, 64, 8)])
@pytest.mark.parametrize("kernel", [softmax_chain, two_walks])
def test_machine_code_of_chains(kernel: Any, m: int, n: int, d: int, warps: int) -> None:
    try:
        compiled = chain(kernel, m, n, d, True, "cuda", num_warps=warps, num_stages=2)
        done = ptxas.assemble(compiled.asm["ptx"], "sm_90a", ["-v"])
    except ToolNotFound:
        pytest.skip("needs ptxas")
    assert done.spill_stores == done.spill_loads == done.stack == 0
    assert not [line for line in done.log.splitlines() if "C75" in line]


def test_many_warpgroups_play_ping_pong() -> None:
    """Four of them in order; two do not need it. The masked iterations are a loop of their own."""
    module = parse_module(chain(softmax_chain, 256, 64, 64, True, num_warps=16).asm["gir"])
    found = innermost(module)
    assert len(found) == 2
    for loop in found:
        assert [op.attrs["kind"] for op in loop.body if op.opcode == "ping_pong"] == [
            "begin",
            "end",
        ]
    text = chain(softmax_chain, 128, 64, 64, True, num_warps=8).asm["gir"]
    assert "ping_pong {" not in text


@pytest.mark.parametrize(
    ("warps", "words", "fit", "want"),
    [
        (8, 128, 1, (4, (40, 232, 0), 1)), (16, 80, 2, (4, (24, 112, 0), 1)),
        (4, 80, 4, (1, (0, 0, 0), 3)),
        (4, 128, 2, (1, (0, 0, 0), 2)), (8, 32, 3, (1, (0, 0, 0), 3)),
        (4, 100, 3, (4, (24, 136, 0), 3)), (8, 0, 1, (1, (0, 0, 0), 1)),
    ],
)  # fmt: skip
def test_registers_are_shared_out(warps: int, words: int, fit: int, want: Any) -> None:
    roles = roles_for(facts_for(90), warps, words, fit)
    assert (roles.warps, roles.registers, roles.blocks) == want
    granted = roles.registers if roles.warps > 1 else (0, 0, 0)
    quarter = roles.blocks * (granted[0] * roles.warps + granted[1] * warps) * 32
    assert quarter <= 64 * 1024


def test_one_instruction_fits_before_registers_are_handed_over() -> None:
    """Three blocks would start with 80 registers a thread: too few for an instruction that names 68."""
    facts = facts_for(90)
    assert roles_for(facts, 4, 100, 3, largest=36).blocks == 3
    assert roles_for(facts, 4, 100, 3, largest=68).blocks == 2


def test_a_lone_warpgroup_leaves_room_for_another_block() -> None:
    """Two blocks with three stages instead of one with four; two warpgroups of a block get one more, as it fits."""
    for m, warps, blocks, stages in ((64, 4, 2, 3), (128, 8, 1, 5)):
        text = chain(softmax_chain, m, 128, 64, num_warps=warps, num_stages=4).asm["gir"]
        module = parse_module(text)
        assert module.attrs["resident_blocks"] == blocks
        assert f"shared<{stages}x128x64xfp16" in text


@pytest.mark.parametrize("warps", [1, 2])
@pytest.mark.parametrize("words", [32, 128, 400])
@pytest.mark.parametrize("fit", [1, 2, 4])
def test_fewer_warps_than_a_group_get_registers_from_nobody(
    warps: int, words: int, fit: int
) -> None:
    roles = roles_for(facts_for(90), warps, words, fit)
    assert (roles.warps, roles.registers) == (1, (0, 0, 0))
    assert 1 <= roles.blocks <= fit
