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
from tessera.backends.nvidia.target import facts_for
from tessera.errors import ToolNotFound
from tessera.interp import run
from tessera.ir import Module, parse_module
from tessera.ops import ForOp, WgmmaOp
from tessera.passes.gpu_loops.warp_roles import roles_for
from tests.unit.mma_chains_kit import (
    CASES,
    STAYING,
    chain,
    chains_of_tiles,
    execute,
    inputs,
    reference,
    same_tile_twice,
    softmax_chain,
    two_walks,
)
from tests.unit.tensor_maps_kit import built, flat


def innermost(module: Module) -> list[ForOp]:
    """Loops with products that hold no other loop, of the consumers."""
    loops = [op for op in module.walk() if isinstance(op, ForOp)]
    return [x for x in loops if any(isinstance(op, WgmmaOp) for op in x.body)]


@pytest.mark.parametrize("ctas", [1, 2, 3, 6])
@pytest.mark.parametrize(("warps", "stages"), [(8, 2), (4, 3)])
@pytest.mark.parametrize(("kernel", "causal"), CASES)
def test_teams_compute_chains(
    kernel: Any, causal: bool, warps: int, stages: int, ctas: int
) -> None:
    m, step, d = 64 * (warps // 4), 64, 64
    compiled = chain(kernel, m, step, d, causal, num_warps=warps, num_stages=stages)
    n = m * ctas if kernel is chains_of_tiles or causal else step * ctas
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
    """Two loops with two streams each, in a loop with one of its own: three rings. Its own tile is read by MMAs of
    these loops, which may not run: each warp releases it."""
    text = chain(two_walks, 128, 128, 128, True, num_warps=8).asm["gir"]
    module = parse_module(text)
    (inits,) = [op for op in module.walk() if op.opcode == "mbarrier_init"]
    assert sorted(inits.attrs["counts"]) == [1, 1, 1, 2, 2, 8]
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
    assert (roles.warps, roles.registers, roles.ctas) == want
    granted = roles.registers if roles.warps > 1 else (0, 0, 0)
    quarter = roles.ctas * (granted[0] * roles.warps + granted[1] * warps) * 32
    assert quarter <= 64 * 1024


def test_one_instruction_fits_before_registers_are_handed_over() -> None:
    """Three CTAs would start with 80 registers a thread: too few for an instruction that names 68."""
    facts = facts_for(90)
    assert roles_for(facts, 4, 100, 3, largest=36).ctas == 3
    assert roles_for(facts, 4, 100, 3, largest=68).ctas == 2


def test_a_lone_warpgroup_leaves_room_for_another_block() -> None:
    """Two CTAs with three stages instead of one with four; two warpgroups of a CTA get one more, as it fits."""
    for m, warps, ctas, stages in ((64, 4, 2, 3), (128, 8, 1, 5)):
        text = chain(softmax_chain, m, 128, 64, num_warps=warps, num_stages=4).asm["gir"]
        module = parse_module(text)
        assert module.attrs["resident_ctas"] == ctas
        assert f"shared<{stages}x128x64xfp16" in text


@tessera.jit
def scaled(a, b, c, K, SCALED: tl.constexpr):
    acc = tl.zeros((128, 128), tl.float32)
    for k in range(0, K, 64):
        if SCALED:
            acc += tl.dot(a.load([0, k]), b.load([0, k]).T) * (k + 1)
        else:
            acc = tl.dot(a.load([0, k]), b.load([0, k]).T, acc)
    c.store([0, 0], acc.to(tl.float16))


@pytest.mark.parametrize(("is_scaled", "ctas"), [(False, 2), (True, 1)])
def test_a_sum_beside_the_result_takes_registers(is_scaled: bool, ctas: int) -> None:
    """The scaled sum and the MMA's result live at a time: two CTAs would leave 96 registers of 160 that are needed."""
    kind = "tensordesc<fp16[128, {}]>".format
    signature = {"a": kind(64), "b": kind(64), "c": kind(128), "K": "i32"}
    constants: Any = {"SCALED": is_scaled}
    kernel = built(scaled, signature, constants, num_warps=8, num_stages=3)
    assert parse_module(kernel.asm["gir"]).attrs["resident_ctas"] == ctas
    try:
        compiled = built(scaled, signature, constants, "cuda", num_warps=8, num_stages=3)
        assembled = ptxas.assemble(compiled.asm["ptx"], "sm_90a", ["-v"])
    except ToolNotFound:
        pytest.skip("needs ptxas")
    assert assembled.spill_stores == 0


@pytest.mark.parametrize("warps", [1, 2])
@pytest.mark.parametrize("words", [32, 128, 400])
@pytest.mark.parametrize("fit", [1, 2, 4])
def test_fewer_warps_than_a_group_get_registers_from_nobody(
    warps: int, words: int, fit: int
) -> None:
    roles = roles_for(facts_for(90), warps, words, fit)
    assert (roles.warps, roles.registers) == (1, (0, 0, 0))
    assert 1 <= roles.ctas <= fit


@tessera.jit
def _repeated(q, k, v, out, n, turns, M: tl.constexpr, N: tl.constexpr, D: tl.constexpr):
    first = tl.program_id(0) * M
    x = q.load([first, 0])
    acc = tl.zeros((M, D), tl.float32)
    for start in range(0, n, N):
        p = tl.dot(x, k.load([start, 0]).T).to(tl.float16)
        y = v.load([start, 0])
        for _ in range(turns):
            acc += tl.dot(p, y)
    out.store([first, 0], acc.to(tl.float16))


@pytest.mark.parametrize("turns", [0, 2])
def test_each_warp_releases_what_an_inner_loop_may_not_read(turns: int) -> None:
    """Without an MMA, nothing says that all warps of a group have waited for the buffer."""
    kind = "tensordesc<fp16[64, 64]>"
    signature = {**dict.fromkeys(("q", "k", "v", "out"), kind), "n": "i32", "turns": "i32"}
    sizes = {"M": 64, "N": 64, "D": 64}
    compiled = built(_repeated, signature, sizes, num_warps=4, num_stages=2)  # which is checked
    text = compiled.asm["gir"]
    assert (
        "warp_specialize" in text and text.count("groups=True") == 1
    )  # the keys are read each time
    rng = np.random.default_rng(0)
    arrays = [rng.integers(-1, 2, (rows, 64)).astype(np.float16) for rows in (64, 192, 192, 64)]
    q, k, v = (x.astype(np.float64) for x in arrays[:3])
    run(parse_module(text), (1,), [*flat(*arrays), 192, turns])
    np.testing.assert_array_equal(arrays[3], (turns * (q @ k.T) @ v).astype(np.float16))
