# ruff: noqa: E501  lines of IR
"""Layout assignment: vector add, row softmax, conversions only where needed; meaning unchanged in the interpreter."""

from __future__ import annotations

import numpy as np
import pytest

from tessera.backends.nvidia.target import facts_for
from tessera.interp import run
from tessera.ir import Module, TileType, parse_module, print_module, verify
from tessera.layout import LinearLayout
from tessera.ops import SplitOp
from tessera.passes.gpu_layout.assign import assign_layouts
from tessera.passes.gpu_layout.coalesce import coalesce
from tessera.passes.gpu_layout.rules import operand_layout, result_layout
from tests.unit.gpu_modules import check_layouts

FACTS = facts_for(80)

VECTOR_ADD = """
module {num_warps=4} {
  func {name="add", arg_attrs=[[["divisibility", 16]], [["divisibility", 16]], [["divisibility", 16]], [["divisibility", 16]]]} (%x: *fp16, %y: *fp32, %o: *fp32, %n: i32) {
    %pid: i32 = program_id {axis=0}
    %c: i32 = const {value=1024}
    %base: i32 = mul %pid, %c
    %range: tile<1024xi32> = arange {start=0, end=1024}
    %bases: tile<1024xi32> = splat %base
    %offs: tile<1024xi32> = add %bases, %range
    %ns: tile<1024xi32> = splat %n
    %mask: tile<1024xi1> = cmp %offs, %ns {predicate="lt"}
    %xs: tile<1024x*fp16> = splat %x
    %xp: tile<1024x*fp16> = addptr %xs, %offs
    %a: tile<1024xfp16> = load %xp, %mask, _
    %ys: tile<1024x*fp32> = splat %y
    %yp: tile<1024x*fp32> = addptr %ys, %offs
    %b: tile<1024xfp32> = load %yp, %mask, _
    %aw: tile<1024xfp32> = cast %a
    %s: tile<1024xfp32> = add %aw, %b
    %os: tile<1024x*fp32> = splat %o
    %op: tile<1024x*fp32> = addptr %os, %offs
    store %op, %s, %mask
    return []
  }
}
"""

SOFTMAX = """
module {num_warps=4} {
  func {name="softmax", arg_attrs=[[["divisibility", 16]], [["divisibility", 16]], [["divisibility", 16]]]} (%x: *fp32, %o: *fp32, %stride: i32) {
    %rows: tile<16xi32> = arange {start=0, end=16}
    %cols: tile<128xi32> = arange {start=0, end=128}
    %r2: tile<16x1xi32> = expand_dims %rows {axis=1}
    %c2: tile<1x128xi32> = expand_dims %cols {axis=0}
    %st: tile<16x1xi32> = splat %stride
    %ro: tile<16x1xi32> = mul %r2, %st
    %rb: tile<16x128xi32> = broadcast %ro
    %cb: tile<16x128xi32> = broadcast %c2
    %offs: tile<16x128xi32> = add %rb, %cb
    %xs: tile<16x128x*fp32> = splat %x
    %xp: tile<16x128x*fp32> = addptr %xs, %offs
    %v: tile<16x128xfp32> = load %xp, _, _
    %m: tile<16xfp32> = reduce [%v] {axis=1} (%p: fp32, %q: fp32) {
      %w: fp32 = max %p, %q
      yield [%w]
    }
    %m2: tile<16x1xfp32> = expand_dims %m {axis=1}
    %mb: tile<16x128xfp32> = broadcast %m2
    %d: tile<16x128xfp32> = sub %v, %mb
    %e: tile<16x128xfp32> = exp %d
    %t: tile<16xfp32> = reduce [%e] {axis=1} (%p2: fp32, %q2: fp32) {
      %w2: fp32 = add %p2, %q2
      yield [%w2]
    }
    %t2: tile<16x1xfp32> = expand_dims %t {axis=1}
    %tb: tile<16x128xfp32> = broadcast %t2
    %y: tile<16x128xfp32> = div %e, %tb
    %os: tile<16x128x*fp32> = splat %o
    %op: tile<16x128x*fp32> = addptr %os, %offs
    store %op, %y, _
    return []
  }
}
"""


def assigned(text: str) -> Module:
    module = parse_module(text)
    verify(module)
    coalesce.bind(facts=FACTS)(module)
    verify(module)
    assign_layouts.bind(facts=FACTS)(module)
    verify(module)
    check_layouts(module, module.attrs["num_warps"])
    assert print_module(parse_module(print_module(module))) == print_module(module)
    return module


def count(module: Module, opcode: str) -> int:
    return sum(op.opcode == opcode for op in module.walk())


def test_vector_add_has_one_layout() -> None:
    module = assigned(VECTOR_ADD)
    assert count(module, "convert_layout") == 0
    layouts = {
        v.type.layout for op in module.walk() for v in op.results if isinstance(v.type, TileType)
    }
    assert len(layouts) == 1
    assert layouts.pop().contiguity((0,)) == 4  # what one access of fp32 writes


def test_vector_add_means_the_same() -> None:
    module = assigned(VECTOR_ADD)
    x = np.arange(2048, dtype=np.float16)
    y = np.linspace(0, 1, 2048, dtype=np.float32)
    out = np.zeros(2048, np.float32)
    run(module, (2,), [x, y, out, 2000])
    want = x.astype(np.float32) + y
    want[2000:] = 0
    np.testing.assert_array_equal(out, want)


def test_softmax_converts_in_registers_only() -> None:
    module = assigned(SOFTMAX)
    before, after = parse_module(SOFTMAX), module
    x = np.random.default_rng(0).standard_normal((16, 128)).astype(np.float32)
    a, b = np.zeros_like(x), np.zeros_like(x)
    run(before, (1,), [x, a, 128])
    run(after, (1,), [x, b, 128])
    np.testing.assert_array_equal(a, b)
    sizes = [op.result.type.numel for op in module.walk() if op.opcode == "convert_layout"]
    assert all(n <= 128 for n in sizes)


@pytest.mark.parametrize("warps", [1, 2, 8])
def test_number_of_warps(warps: int) -> None:
    module = assigned(SOFTMAX.replace("num_warps=4", f"num_warps={warps}"))
    loads = [op for op in module.walk() if op.opcode == "load"]
    assert loads[0].result.type.layout.size("warp") == warps


GATHER = """
module {num_warps=4} {
  func {name="gather", arg_attrs=[[["divisibility", 16]], [["divisibility", 16]], [["divisibility", 16]]]} (%x: *fp32, %table: *fp32, %o: *fp32) {
    %range: tile<1024xi32> = arange {start=0, end=1024}
    %three: tile<1024xi32> = const {value=3}
    %scaled: tile<1024xi32> = mul %range, %three
    %eight: tile<1024xi32> = const {value=8}
    %index: tile<1024xi32> = rem %scaled, %eight
    %ok: tile<1024xi1> = cmp %index, %eight {predicate="lt"}
    assert %ok {message="out of bounds"}
    %ts: tile<1024x*fp32> = splat %table
    %tp: tile<1024x*fp32> = addptr %ts, %index
    %t: tile<1024xfp32> = load %tp, _, _ {layout=LAYOUT}
    %os: tile<1024x*fp32> = splat %o
    %op: tile<1024x*fp32> = addptr %os, %range
    store %op, %t, _
    return []
  }
}
"""


def test_assertions_are_where_the_indices_are() -> None:
    """The gather's loads are no neighbours, so it and the assertion would have other layouts than the store."""
    module = assigned(GATHER.replace(" {layout=LAYOUT}", ""))
    assert count(module, "rem") == 1
    (check,) = (op for op in module.walk() if op.opcode == "assert")
    (load,) = (op for op in module.walk() if op.opcode == "load")
    assert check.operands[0].type.layout == load.result.type.layout


ADD_INTO = """
module {num_warps=4} {
  func {name="add", arg_attrs=[[["divisibility", 16]], [["divisibility", 16]]]} (%x: *bf16, %o: *fp32) {
    %range: tile<1024xi32> = arange {start=0, end=1024}
    %xs: tile<1024x*bf16> = splat %x
    %xp: tile<1024x*bf16> = addptr %xs, %range
    %a: tile<1024xbf16> = load %xp, _, _
    %w: tile<1024xfp32> = cast %a
    %os: tile<1024x*fp32> = splat %o
    %op: tile<1024x*fp32> = addptr %os, %range
    %old: tile<1024xfp32> = atomic_rmw %op, %w, _ {kind="add", sem="relaxed", scope="gpu"}
    return []
  }
}
"""


def test_writes_of_a_warp_have_no_gaps() -> None:
    """One access moves 16 bytes of each lane: with 8 elements of fp32 a lane, two of them would name each sector twice."""
    module = assigned(ADD_INTO)
    (update,) = (op for op in module.walk() if op.opcode == "atomic_rmw")
    (load,) = (op for op in module.walk() if op.opcode == "load")
    assert load.result.type.layout.contiguity((0,)) == 4
    assert update.results[0].type.layout == load.result.type.layout


def test_flows_join_what_meets() -> None:
    """Four loads that are added in pairs, and the pairs then, are one set; a load that nothing joins is another."""
    tiles = "\n".join(
        f"    %{n}: tile<1024xbf16> = load %xp, _, _ {{cache='.c{c}'}}"
        for n, c in zip("abcde", "agsva")
    ).replace("'", '"')
    sums = """
    %ab: tile<1024xbf16> = add %a, %b
    %cd: tile<1024xbf16> = add %c, %d
    %all: tile<1024xbf16> = add %ab, %cd
    %w: tile<1024xfp32> = cast %all"""
    line = "    %a: tile<1024xbf16> = load %xp, _, _\n"
    text = ADD_INTO.replace(line, tiles + sums + "\n")
    text = text.replace("    %w: tile<1024xfp32> = cast %a\n", "")
    loads = [op for op in assigned(text).walk() if op.opcode == "load"]
    assert [op.results[0].type.layout.contiguity((0,)) for op in loads] == [4, 4, 4, 4, 8]


def test_lanes_that_a_split_frees_take_registers() -> None:
    """Else each split of a row would double the copies of an element among threads."""
    layout = LinearLayout(
        (128, 2), {"register": [[1, 0], [2, 0]], "lane": [[4, 0], [8, 0], [16, 0], [32, 0], [0, 1]], "warp": [[64, 0]]}
    )  # fmt: skip
    module = parse_module("""module {num_warps=2} {
      func {name='halves'} (%x: tile<128x2xfp32>) {
        %a: tile<128xfp32>, %b: tile<128xfp32> = split %x
        return []
      }
    }""")
    op = next(op for op in module.walk() if isinstance(op, SplitOp))
    halves = result_layout(op, layout)
    assert halves.is_bijective()
    assert halves.bases("lane")[4] == (2,)
    assert operand_layout(op, halves).split() == halves
