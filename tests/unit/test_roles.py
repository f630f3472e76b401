"""Schedules of warp roles (ops/roles.py): what the verifier refuses, and that split kernels compute what whole ones do,
with synchronisation that the checker proves."""

from __future__ import annotations

import numpy as np
import pytest

from tessera.analysis.synchronization import check_synchronization
from tessera.backends.nvidia.target import facts_for
from tessera.dtypes import int1
from tessera.errors import IRError
from tessera.interp import run
from tessera.ir import Block, Builder, Module, PassManager, parse_module, print_module, verify
from tessera.ops import IfOp, WarpSpecializeOp, WgmmaOp, YieldOp
from tessera.passes.gpu_loops.expand import expand_loops
from tessera.passes.gpu_mma.async_mma import async_mma
from tessera.passes.gpu_movement.allocate import allocate_shared
from tessera.passes.gpu_movement.barriers import barriers
from tessera.passes.neutral.loops import const

# s = q @ x[i]; out += half(s) @ y[i]: a tile that is loaded once, and two rings.
CHAIN = """
#0 = ll<[64,64] register=[[0,1],[8,0],[0,8],[0,16],[0,32]] lane=[[0,2],[0,4],[1,0],[2,0],[4,0]] warp=[[16,0],[32,0]]>
#1 = ll<[64,64] register=[[0,1],[0,2],[0,4],[16,0],[32,0]] lane=[[0,8],[0,16],[0,32],[1,0],[2,0]] warp=[[4,0],[8,0]]>
#2 = ll<[64,64] offset=[[0,1],[0,2],[0,4],[0,8],[0,16],[0,32],[1,8],[2,16],[4,32],[8,0],[16,0],[32,0]]>
module {num_warps=4} {
  func {name='chain', producer_warps=1, role_registers=[0, 0, 0]} (%p: *fp16, %o: *fp32, %n: i32, %width: i32, %stride: i64) {
    %first: i32 = const {value=0}
    %step: i32 = const {value=64}
    %rows: i32 = const {value=192}
    %one: i64 = const {value=1}
    %zero: tile<64x64xfp32, #0> = const {value=float('0x0.0p+0')}
    %second: i32 = const {value=128}
    %d: desc<64x64xfp16> = make_descriptor %p, [%rows, %width], [%stride, %one] {block_shape=[64, 64], mapped=True}
    %e: desc<64x64xfp32> = make_descriptor %o, [%step, %step], [%stride, %one] {block_shape=[64, 64], mapped=True}
    %once: tile<64x64xfp16, #1> = descriptor_load %d, [%first, %first]
    %q: shared<64x64xfp16, #2> = local_alloc %once {role='producer', ring=0, slots=1, signal='tma', release='never'}
    %sum: tile<64x64xfp32, #0> = for %first, %n, %step, [%zero] {main_stage=0} (%i: i32, %acc: tile<64x64xfp32, #0>) {
      %x: tile<64x64xfp16, #1> = descriptor_load %d, [%step, %i]
      %s: shared<64x64xfp16, #2> = local_alloc %x {role='producer', ring=1, slots=SLOTS, signal='tma', release='warpgroup'}
      %y: tile<64x64xfp32, #0> = wgmma %q, %s, %zero {instruction='wgmma.m64k16.f32.f16.f16', warpgroups=[1, 1]}
      %z: tile<64x64xfp16, #1> = descriptor_load %d, [%second, %i]
      %v: shared<64x64xfp16, #2> = local_alloc %z {role='producer', ring=2, slots=SLOTS, signal='tma', release='warpgroup'}
      %narrow: tile<64x64xfp16, #0> = cast %y {position=3}
      %next: tile<64x64xfp32, #0> = wgmma %narrow, %v, %acc {instruction='wgmma.m64k16.f32.f16.f16', warpgroups=[1, 1], stage=1, position=1}
      yield [%next]
    }
    descriptor_store %e, [%first, %first], %sum
    return []
  }
}
"""  # noqa: E501  IR
READ = "%v: shared<64x64xfp16, #2> = local_alloc %z"


def chain(changes: dict[str, str] | None = None, slots: int = 3) -> Module:
    text = CHAIN.replace("SLOTS", str(slots))
    for old, new in (changes or {}).items():
        assert old in text
        text = text.replace(old, new)
    return parse_module(text)


def result(module: Module, blocks: int) -> np.ndarray:
    width = 64 * max(blocks, 1)
    x = np.random.default_rng(blocks).integers(-2, 3, (192, width)).astype(np.float16)
    out = np.full((64, width), np.nan, np.float32)
    run(module, (1,), [x, out, 64 * blocks, width, width])
    return out[:, :64]


@pytest.mark.parametrize("slots", [2, 3, 4])
@pytest.mark.parametrize("blocks", [0, 1, 2, 3, 5, 8])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"ring=2": "ring=1"},  # released together, an iteration late
        {"release='warpgroup'": "release='warp'"},
        {", stage=1, position=1": "", " {main_stage=0}": "", " {position=3}": ""},
    ],
)
def test_a_split_kernel_computes_the_same(changes: dict[str, str], blocks: int, slots: int) -> None:
    module = chain(changes, slots)
    verify(module)
    want = result(module, blocks)
    assert np.isfinite(want).all()
    PassManager([expand_loops, async_mma.bind(facts=facts_for(90))], verify=True).run(module)
    assert any(isinstance(op, WarpSpecializeOp) for op in module.walk())
    assert "ring=" not in print_module(module)
    np.testing.assert_array_equal(result(module, blocks), want)
    last = [allocate_shared.bind(facts=facts_for(90)), barriers]
    PassManager(last, verify=True).run(module)
    check_synchronization(module)


def test_roles_are_text() -> None:
    text = print_module(chain())
    assert print_module(parse_module(text)) == text
    assert "{role='producer', ring=1, slots=3, signal='tma', release='warpgroup'}" in text


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"producer_warps=1, ": ""}, "a buffer crosses roles, but its function has one only"),
        ({"%x {role='producer'": "%x {role='idle'"}, "role is none of producer, transpose"),
        ({"%x {role='producer'": "%x {role='transpose'"}, "what the role transpose fills has the signal 'mbarrier'"),
        ({"ring=1, slots=3, signal='tma'": "ring=1, slots=3, signal='cp.async'"}, "has the signal 'tma'"),
        ({"ring=1, slots=3, signal='tma', release='warpgroup'": "ring=1, slots=3, signal='tma', release='never'"},
         "released just if a loop fills them"),
        ({"release='never'": "release='warp'"}, "released just if a loop fills them"),
        ({"release='warpgroup'": "release='thread'"}, "release is none of warp, warpgroup, transpose, never"),
        ({"release='warpgroup'": "release='transpose'"}, "the transpose role releases what it alone reads"),
        ({"ring=2, slots=3": "ring=2, slots=1"}, "slots=1 are too few: 2 are in use at a time"),
        ({"ring=2, slots=3": "ring=1, slots=4"}, "buffers of one ring differ in role, slots or release"),
        ({"role_registers": "transpose_warps=4, role_registers"}, "warps transpose just if a buffer is filled by them"),
        ({READ: f"%w: shared<64x64xfp16, #2> = local_alloc %z\n{READ}"}, "fills a buffer from a descriptor_load"),
    ],
)  # fmt: skip
def test_what_roles_cannot_do_is_refused(changes: dict[str, str], message: str) -> None:
    with pytest.raises(IRError, match=message):
        verify(chain(changes))


def test_a_function_whose_producer_fills_nothing_is_refused() -> None:
    module = parse_module(
        "module {num_warps=4} {\nfunc {name='f', producer_warps=1} () {\nreturn []\n}\n}\n"
    )
    with pytest.raises(IRError, match="a producer fills no buffer"):
        verify(module)


def test_what_the_producer_cannot_compute_is_refused() -> None:
    module = chain(
        {"descriptor_load %d, [%step, %i]": "descriptor_load %d, [%step, %j]", "%x:": READS}
    )
    verify(module)
    with pytest.raises(IRError, match="the address of a tile depends on reduce of tiles"):
        expand_loops(module)


READS = """%j: i32 = reduce [%is] {axis=0} (%l: i32, %r: i32) {
        %m: i32 = max %l, %r
        yield [%m]
      }
      %x:"""
READS = (
    "%is: tile<64xi32, ll<[64] register=[[32]] lane=[[1],[2],[4],[8],[16]] warp=[[0],[0]]>> = splat %i\n"
    + READS
)


def test_mmas_of_a_branch_do_not_release_for_their_group() -> None:
    module = chain({", stage=1, position=1": "", " {main_stage=0}": "", " {position=3}": ""})
    mma = [op for op in module.walk() if isinstance(op, WgmmaOp)][-1]
    b = Builder.before_op(mma)
    branch = IfOp(const(b, True, int1), results=[mma.result.type], regions=[Block(), Block()])
    b.insert(branch)
    mma.result.replace_all_uses(branch.result)
    mma.detach()
    branch.then.append(mma)
    Builder(branch.then, None, None).insert(YieldOp([mma.result]))
    Builder(branch.orelse, None, None).insert(YieldOp([mma.acc]))
    with pytest.raises(IRError, match="warpgroups release what an MMA of each iteration reads"):
        verify(module)
