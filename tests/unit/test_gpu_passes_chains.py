"""Products that run while others' results are used: chains in loops, waits, and what must stay in order."""

from __future__ import annotations

import numpy as np
import pytest

from tessera.errors import InterpreterError
from tessera.interp import roles, run
from tessera.ir import Module, Op, TileType, parse_module
from tessera.ops import ForOp, LocalAllocOp, WgmmaOp, WgmmaWaitOp
from tessera.passes.gpu_loops.chains import shiftable
from tests.unit.gpu_modules import attention
from tests.unit.gpu_passes_kit import compiled, ops
from tests.unit.watched_kit import watched


def loop_of(module: Module) -> ForOp:
    (loop,) = [op for op in module.walk() if isinstance(op, ForOp)]
    return loop


def late(stages: int = 3, n: int = 64, warps: int = 8, m: int = 128) -> Module:
    return compiled(attention(m=m, n=n, warps=warps, stages=stages), 90)


def test_the_second_product_is_an_iteration_late() -> None:
    body = list(loop_of(late()).body)
    products = [op for op in body if isinstance(op, WgmmaOp)]
    waits = [op for op in body if isinstance(op, WgmmaWaitOp)]
    first, second = products
    assert all(op.asynchronous for op in products)
    assert second.a.op is None, "its operand comes from the iteration before"
    assert [w.pending for w in waits] == [1, 0]
    assert [w.acc for w in waits] == [first.result, second.result]
    assert second.a in waits[1].held
    order = [op.opcode for op in body if op.opcode in ("wgmma", "wgmma_wait", "async_copy", "exp")]
    assert order[:2] == ["wgmma", "wgmma"]
    assert order.index("async_copy") < order.index("wgmma_wait")


def test_what_the_late_product_needs_is_made_behind_its_wait() -> None:
    body = list(loop_of(late()).body)
    (last,) = [op for op in body if isinstance(op, WgmmaWaitOp) and op.pending == 0]
    after = [op.opcode for op in body[body.index(last) :]]
    assert "cast" in after
    assert "mul" in after
    assert "exp" not in after


@pytest.mark.parametrize("blocks", [0, 1, 2, 3, 7])
def test_results(blocks: int) -> None:
    rng = np.random.default_rng(blocks)
    q = rng.standard_normal((128, 64)).astype(np.float16)
    k, v = (rng.standard_normal((64 * max(blocks, 1), 64)).astype(np.float16) for _ in range(2))
    out = np.zeros_like(q)
    run(late(), (1,), [q, k, v, out, 64 * blocks])
    if blocks:
        s = q.astype(np.float64) @ k.T.astype(np.float64)
        p = np.exp(s - s.max(1, keepdims=True))
        want = p / p.sum(1, keepdims=True) @ v
        assert np.abs(out - want).max() < 4e-3 * np.abs(want).max()


@pytest.mark.parametrize("stages", [2, 3, 4])
@pytest.mark.parametrize(("n", "m", "warps"), [(64, 128, 8), (32, 64, 4), (64, 128, 4)])
def test_no_buffer_is_overwritten_too_early(
    stages: int, n: int, m: int, warps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    q, k, v = (np.zeros((x, 64), np.float16) for x in (m, 256, 256))
    watch = watched(late(stages, n, warps, m), [q, k, v, np.zeros_like(q), 256], monkeypatch)
    assert watch.hazards == []
    assert watch.accesses > 0


def test_two_stages_leave_no_room_to_be_late() -> None:
    module = late(stages=2)
    for op in ops(module, "wgmma"):
        assert op.a.op is not None or not isinstance(op.a.type, TileType)


def test_warpgroups_wait_by_counters_instead_of_barriers() -> None:
    body = [op.opcode for op in loop_of(late()).body]
    assert body.count("mbarrier_wait") == 2
    assert body.count("mbarrier_arrive") == body.count("async_copy_mbarrier_arrive") == 1
    assert "async_wait" not in body
    assert "barrier" not in body
    assert "async_wait" in [op.opcode for op in loop_of(late(warps=4)).body]


def test_a_missing_arrival_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    module = late()
    for op in ops(module, "mbarrier_arrive"):
        op.erase()
    q, k, v = (np.zeros((x, 64), np.float16) for x in (128, 512, 512))
    monkeypatch.setattr(roles, "PATIENCE", 0.1)
    with pytest.raises(InterpreterError, match="waited for that nobody completes"):
        watched(module, [q, k, v, np.zeros_like(q), 512], monkeypatch)


def test_warpgroups_take_turns_where_products_are_long() -> None:
    module = compiled(attention(m=128, n=128, d=128, warps=8, stages=3), 90)
    body = list(loop_of(module).body)
    kinds = [op.opcode for op in body if op.opcode in ("ping_pong", "wgmma", "wgmma_wait")]
    assert kinds == ["ping_pong", "wgmma", "wgmma", "ping_pong", "wgmma_wait", "wgmma_wait"]
    assert [op.kind for op in ops(module, "ping_pong")] == ["open", "begin", "end", "close"]
    assert not ops(late(), "ping_pong")


def test_first_copies_do_not_wait_for_the_other_operand() -> None:
    order = [op for op in late().walk() if op.opcode in ("async_copy", "local_alloc")]
    fills = [
        i for i, op in enumerate(order) if isinstance(op, LocalAllocOp) and op.init is not None
    ]
    copies = [i for i, op in enumerate(order) if op.opcode == "async_copy"]
    assert copies[1] < fills[0]


def test_the_next_operand_is_made_when_the_last_one_is_free() -> None:
    """Without a step between the iterations only the cast depends on the wait, through its registers."""
    body = list(loop_of(late()).body)
    (cast,) = [op for op in body if op.opcode == "cast"]
    wait = [op for op in body if isinstance(op, WgmmaWaitOp)][-1]
    assert body.index(wait) < body.index(cast)


TWO_FIRST = """
#0 = ll<[64,64] register=[[0,1],[8,0],[0,8],[0,16],[0,32]] lane=[[0,2],[0,4],[1,0],[2,0],[4,0]] warp=[[16,0],[32,0]]>
#1 = ll<[64,64] register=[[0,1],[0,2],[0,4],[16,0],[32,0]] lane=[[0,8],[0,16],[0,32],[1,0],[2,0]] warp=[[4,0],[8,0]]>
#2 = ll<[64,64] offset=[[0,1],[0,2],[0,4],[0,8],[0,16],[0,32],[1,8],[2,16],[4,32],[8,0],[16,0],[32,0]]>
module {num_warps=4, num_stages=4} {
  func {name='two_first'} (%at: tile<64x64x*fp16, #1>, %q: shared<64x64xfp16, #2>, %n: i32) {
    %first: i32 = const {value=0}
    %step: i32 = const {value=64}
    %zero: tile<64x64xfp32, #0> = const {value=float('0x0.0p+0')}
    %sum: tile<64x64xfp32, #0> = for %first, %n, %step, [%zero] (%i: i32, %acc: tile<64x64xfp32, #0>) {
      %x: tile<64x64xfp16, #1> = load %at, _, _
      %s: shared<64x64xfp16, #2> = local_alloc %x
      %y: tile<64x64xfp32, #0> = wgmma %q, %s, %zero {instruction='wgmma.m64k16.f32.f16.f16', warpgroups=[1, 1]}
      %other: tile<64x64xfp32, #0> = wgmma %s, %s, %zero {instruction='wgmma.m64k16.f32.f16.f16', warpgroups=[1, 1]}
      %both: tile<64x64xfp32, #0> = add %y, %other
      %narrow: tile<64x64xfp16, #0> = cast %both
      %next: tile<64x64xfp32, #0> = wgmma %narrow, %s, %acc {instruction='wgmma.m64k16.f32.f16.f16', warpgroups=[1, 1]}
      yield [%next]
    }
    print [%sum]
    return []
  }
}
"""


def test_two_first_products_fill_each_others_waits_where_other_warps_load() -> None:
    loop = loop_of(parse_module(TWO_FIRST))
    rings: set[Op] = {op for op in loop.body if isinstance(op, LocalAllocOp)}
    assert [d.number for d in shiftable(loop, rings)] == [0]
    assert shiftable(loop, rings, roles=True) == []
    (other,) = [op for op in loop.body if isinstance(op, WgmmaOp) and op.a is op.b]
    first = next(op for op in loop.body if isinstance(op, WgmmaOp))
    other.result.replace_all_uses(first.result)
    other.erase()
    assert [d.number for d in shiftable(loop, rings, roles=True)] == [0]
