# ruff: noqa: E501  lines of IR
"""Layout assignment on every kind of op and control flow: valid layouts, and the same meaning before and after."""

from __future__ import annotations

import numpy as np
import pytest

from tessera.backends.nvidia.target import facts_for
from tessera.interp import run
from tessera.ir import PassManager, parse_module, print_module, verify
from tessera.passes.gpu_pipeline import gpu_passes
from tessera.passes.neutral.pipeline import neutral_pipeline
from tests.unit.gpu_modules import check_layouts

HEAD = """
    %r: tile<16xi32> = arange {start=0, end=16}
    %c: tile<32xi32> = arange {start=0, end=32}
    %r1: tile<16x1xi32> = expand_dims %r {axis=1}
    %c1: tile<1x32xi32> = expand_dims %c {axis=0}
    %w: tile<16x1xi32> = const {value=32}
    %rw: tile<16x1xi32> = mul %r1, %w
    %rb: tile<16x32xi32> = broadcast %rw
    %cb: tile<16x32xi32> = broadcast %c1
    %o: tile<16x32xi32> = add %rb, %cb
    %xs: tile<16x32x*fp32> = splat %x
    %xp: tile<16x32x*fp32> = addptr %xs, %o
    %ys: tile<16x32x*fp32> = splat %y
    %yp: tile<16x32x*fp32> = addptr %ys, %o
    %f: tile<512xi32> = arange {start=0, end=512}
    %fs: tile<512x*fp32> = splat %y
    %fp: tile<512x*fp32> = addptr %fs, %f
    %v: tile<16x32xfp32> = load %xp, _, _
"""

STORE = "store %yp, %z, _"
FLAT = "store %fp, %z, _"
BODIES = {
    "transpose twice": """
    %t: tile<32x16xfp32> = trans %v {order=[1, 0]}
    %e: tile<32x16xfp32> = exp %t
    %z: tile<16x32xfp32> = trans %e {order=[1, 0]}
    """ + STORE,
    "transpose and store": """
    %t: tile<32x16xfp32> = trans %v {order=[1, 0]}
    %z: tile<512xfp32> = reshape %t
    """ + FLAT,
    "reshape": """
    %z: tile<512xfp32> = reshape %v
    """ + FLAT,
    "join and split": """
    %p: tile<16x32x2xfp32> = join %v, %v
    %q: tile<1024xfp32> = reshape %p
    %s: tile<512x2xfp32> = reshape %q
    %a: tile<512xfp32>, %b: tile<512xfp32> = split %s
    %z: tile<512xfp32> = add %a, %b
    """ + FLAT,
    "split rows": """
    %t: tile<32x16xfp32> = trans %v {order=[1, 0]}
    %s: tile<16x2x16xfp32> = reshape %t
    %s2: tile<16x16x2xfp32> = trans %s {order=[0, 2, 1]}
    %a: tile<16x16xfp32>, %b: tile<16x16xfp32> = split %s2
    %j: tile<16x16x2xfp32> = join %b, %a
    %z: tile<16x32xfp32> = reshape %j
    """ + STORE,
    "scan": """
    %z: tile<16x32xfp32> = scan [%v] {axis=0} (%a: fp32, %b: fp32) {
      %s: fp32 = add %a, %b
      yield [%s]
    }
    """ + STORE,
    "scan flat": """
    %q: tile<512xfp32> = reshape %v
    %z: tile<512xfp32> = scan [%q] {axis=0, reverse=True} (%a: fp32, %b: fp32) {
      %s: fp32 = max %a, %b
      yield [%s]
    }
    """ + FLAT,
    "reduce both axes": """
    %m: tile<32xfp32> = reduce [%v] {axis=0} (%a: fp32, %b: fp32) {
      %s: fp32 = max %a, %b
      yield [%s]
    }
    %n: fp32 = reduce [%m] {axis=0} (%a2: fp32, %b2: fp32) {
      %s2: fp32 = max %a2, %b2
      yield [%s2]
    }
    %m1: tile<1x32xfp32> = expand_dims %m {axis=0}
    %mb: tile<16x32xfp32> = broadcast %m1
    %nb: tile<16x32xfp32> = splat %n
    %d: tile<16x32xfp32> = sub %v, %mb
    %z: tile<16x32xfp32> = add %d, %nb
    """ + STORE,
    "reduce of flexible": """
    %q: tile<16xi32> = reduce [%o] {axis=1} (%a: i32, %b: i32) {
      %s: i32 = add %a, %b
      yield [%s]
    }
    %q1: tile<16x1xi32> = expand_dims %q {axis=1}
    %qb: tile<16x32xi32> = broadcast %q1
    %z: tile<16x32xfp32> = cast %qb
    """ + STORE,
    "gather": """
    %i: tile<16x32xi32> = const {value=3}
    %z: tile<16x32xfp32> = gather %v, %i {axis=1}
    """ + STORE,
    "histogram": """
    %q: tile<512xfp32> = reshape %v
    %k: tile<512xi32> = cast %q
    %h: tile<16xi32> = histogram %k, _ {bins=16}
    %h1: tile<16x1xi32> = expand_dims %h {axis=1}
    %hb: tile<16x32xi32> = broadcast %h1
    %z: tile<16x32xfp32> = cast %hb
    """ + STORE,
    "atomics": """
    %z: tile<16x32xfp32> = atomic_rmw %xp, %v, _ {kind="add"}
    """ + STORE,
    "outer product": """
    %m: tile<32xfp32> = reduce [%v] {axis=0} (%a: fp32, %b: fp32) {
      %s: fp32 = add %a, %b
      yield [%s]
    }
    %n: tile<16xfp32> = reduce [%v] {axis=1} (%a2: fp32, %b2: fp32) {
      %s2: fp32 = add %a2, %b2
      yield [%s2]
    }
    %m1: tile<1x32xfp32> = expand_dims %m {axis=0}
    %n1: tile<16x1xfp32> = expand_dims %n {axis=1}
    %mb: tile<16x32xfp32> = broadcast %m1
    %nb: tile<16x32xfp32> = broadcast %n1
    %z: tile<16x32xfp32> = mul %mb, %nb
    """ + STORE,
    "branch": """
    %zero: i32 = const {value=0}
    %k: i1 = cmp %count, %zero {predicate="gt"}
    %z: tile<16x32xfp32> = if %k () {
      %e: tile<16x32xfp32> = exp %v
      yield [%e]
    } () {
      %g: tile<16x32xfp32> = const {value=float('0x1.0p+0')}
      yield [%g]
    }
    """ + STORE,
    "while": """
    %zero: i32 = const {value=0}
    %one: i32 = const {value=1}
    %i: i32, %z: tile<16x32xfp32> = while [%zero, %v] (%j: i32, %u: tile<16x32xfp32>) {
      %go: i1 = cmp %j, %count {predicate="lt"}
      condition %go, [%j, %u]
    } (%j2: i32, %u2: tile<16x32xfp32>) {
      %j3: i32 = add %j2, %one
      %u3: tile<16x32xfp32> = add %u2, %v
      yield [%j3, %u3]
    }
    """ + STORE,
    "loop of flexible values": """
    %zero: i32 = const {value=0}
    %one: i32 = const {value=1}
    %inc: tile<16x32xi32> = const {value=2}
    %t: tile<16x32xi32>, %u: tile<16xi32> = for %zero, %count, %one, [%o, %r] (%i: i32, %a: tile<16x32xi32>, %b: tile<16xi32>) {
      %a2: tile<16x32xi32> = add %a, %inc
      %b1: tile<16x1xi32> = expand_dims %b {axis=1}
      %bb: tile<16x32xi32> = broadcast %b1
      %a3: tile<16x32xi32> = add %a2, %bb
      %b2: tile<16xi32> = add %b, %b
      yield [%a3, %b2]
    }
    %z: tile<16x32xfp32> = cast %t
    """ + STORE,
    "slice load": """
    %bs: tile<32x*fp32> = splat %x
    %bp: tile<32x*fp32> = addptr %bs, %c
    %bias: tile<32xfp32> = load %bp, _, _
    %half: tile<32xfp32> = add %bias, %bias
    %b1: tile<1x32xfp32> = expand_dims %half {axis=0}
    %bb: tile<16x32xfp32> = broadcast %b1
    %z: tile<16x32xfp32> = add %v, %bb
    """ + STORE,
    "unused": """
    %bs: tile<32x*fp32> = splat %x
    %bp: tile<32x*fp32> = addptr %bs, %c
    %bias: tile<32xfp32> = load %bp, _, _ {volatile=True}
    %z: tile<16x32xfp32> = add %v, %v
    """ + STORE,
}  # fmt: skip


@pytest.mark.parametrize("warps", [1, 4, 16])
@pytest.mark.parametrize("name", BODIES)
def test_meaning_and_layouts(name: str, warps: int) -> None:
    body = BODIES[name]
    text = f"""
module {{num_warps={warps}}} {{
  func {{name="f", arg_attrs=[[["divisibility", 16]], [["divisibility", 16]], []]}} (%x: *fp32, %y: *fp32, %count: i32) {{
{HEAD}{body}
    return []
  }}
}}
"""
    outputs = []
    for passes in ([], [*neutral_pipeline(), *gpu_passes(facts_for(90), pointer_maps=False)]):
        module = parse_module(text)
        verify(module)
        PassManager(passes, verify=True).run(module)
        if passes:
            check_layouts(module, warps)
            assert print_module(parse_module(print_module(module))) == print_module(module)
        x = np.random.default_rng(0).uniform(0, 16, (16, 32)).astype(np.float32)
        y = np.zeros((16, 32), np.float32)
        run(module, (1,), [x, y, 3])
        outputs.append((x, y))
    np.testing.assert_array_equal(outputs[0][0], outputs[1][0])
    np.testing.assert_array_equal(outputs[0][1], outputs[1][1])
