# ruff: noqa: E501  lines of IR
"""Kernels as tile IR for the tests of GPU passes, with the arguments' facts that a launch would give."""

from __future__ import annotations

from typing import Any

from tessera.ir import Module, TileType
from tessera.layout import broadcast_map, register_map


def aligned(count: int) -> str:
    """`arg_attrs` of `count` arguments that are all divisible by 16."""
    return "[" + ", ".join(['[["divisibility", 16]]'] * count) + "]"


def matmul(
    elem: str = "fp16", acc: str = "fp32", bm: int = 64, bn: int = 64, bk: int = 32, warps: int = 4, stages: int = 3,
    precision: str = "ieee", b_transposed: bool = False, other: str = "",
) -> str:  # fmt: skip
    """c[bm,bn] = a[bm,k] @ b[k,n]; arguments a, b, c, k, row strides. `b_transposed`: b is stored [n,k]."""
    zero = "0" if acc.startswith("i") else "float('0x0.0p+0')"
    if b_transposed:
        b_offsets = f"""
    %bo1: tile<1x{bn}xi32> = mul %rn2, %sbs
    %bo2: tile<{bk}x{bn}xi32> = broadcast %bo1
    %bo3: tile<{bk}x{bn}xi32> = broadcast %rkb
    %bincs: tile<{bk}x{bn}xi32> = splat %step"""
        stride = f"%sbs: tile<1x{bn}xi32> = splat %sb"
    else:
        b_offsets = f"""
    %bo1: tile<{bk}x1xi32> = mul %rkb, %sbs
    %bo2: tile<{bk}x{bn}xi32> = broadcast %bo1
    %bo3: tile<{bk}x{bn}xi32> = broadcast %rn2
    %binc: i32 = mul %sb, %step
    %bincs: tile<{bk}x{bn}xi32> = splat %binc"""
        stride = f"%sbs: tile<{bk}x1xi32> = splat %sb"
    fill = f"%other: tile<{bm}x{bk}x{elem}> = const {{value={other}}}" if other else ""
    return f"""
module {{num_warps={warps}, num_stages={stages}}} {{
  func {{name="matmul", arg_attrs={aligned(7)}}} (%a: *{elem}, %b: *{elem}, %c: *{acc}, %k: i32, %sa: i32, %sb: i32, %sc: i32) {{
    %rm: tile<{bm}xi32> = arange {{start=0, end={bm}}}
    %rn: tile<{bn}xi32> = arange {{start=0, end={bn}}}
    %rk: tile<{bk}xi32> = arange {{start=0, end={bk}}}
    %rm2: tile<{bm}x1xi32> = expand_dims %rm {{axis=1}}
    %rn2: tile<1x{bn}xi32> = expand_dims %rn {{axis=0}}
    %rka: tile<1x{bk}xi32> = expand_dims %rk {{axis=0}}
    %rkb: tile<{bk}x1xi32> = expand_dims %rk {{axis=1}}
    %zero: i32 = const {{value=0}}
    %step: i32 = const {{value={bk}}}
    %sas: tile<{bm}x1xi32> = splat %sa
    {stride}
    %ao1: tile<{bm}x1xi32> = mul %rm2, %sas
    %ao2: tile<{bm}x{bk}xi32> = broadcast %ao1
    %ao3: tile<{bm}x{bk}xi32> = broadcast %rka
    %ao: tile<{bm}x{bk}xi32> = add %ao2, %ao3
    %as: tile<{bm}x{bk}x*{elem}> = splat %a
    %ap0: tile<{bm}x{bk}x*{elem}> = addptr %as, %ao{b_offsets}
    %bo: tile<{bk}x{bn}xi32> = add %bo2, %bo3
    %bs: tile<{bk}x{bn}x*{elem}> = splat %b
    %bp0: tile<{bk}x{bn}x*{elem}> = addptr %bs, %bo
    %acc0: tile<{bm}x{bn}x{acc}> = const {{value={zero}}}
    %ainc: tile<{bm}x{bk}xi32> = const {{value={bk}}}
    %ks: tile<1x{bk}xi32> = splat %k
    %kbs: tile<{bk}x1xi32> = splat %k
    {fill}
    %acc: tile<{bm}x{bn}x{acc}>, %apl: tile<{bm}x{bk}x*{elem}>, %bpl: tile<{bk}x{bn}x*{elem}> = for %zero, %k, %step, [%acc0, %ap0, %bp0] (%i: i32, %accl: tile<{bm}x{bn}x{acc}>, %ap: tile<{bm}x{bk}x*{elem}>, %bp: tile<{bk}x{bn}x*{elem}>) {{
      %is: tile<1x{bk}xi32> = splat %i
      %ika: tile<1x{bk}xi32> = add %is, %rka
      %ma1: tile<1x{bk}xi1> = cmp %ika, %ks {{predicate="lt"}}
      %ma: tile<{bm}x{bk}xi1> = broadcast %ma1
      %at: tile<{bm}x{bk}x{elem}> = load %ap, %ma, {"%other" if other else "_"}
      %ibs: tile<{bk}x1xi32> = splat %i
      %ikb: tile<{bk}x1xi32> = add %ibs, %rkb
      %mb1: tile<{bk}x1xi1> = cmp %ikb, %kbs {{predicate="lt"}}
      %mb: tile<{bk}x{bn}xi1> = broadcast %mb1
      %bt: tile<{bk}x{bn}x{elem}> = load %bp, %mb, _
      %acc1: tile<{bm}x{bn}x{acc}> = dot %at, %bt, %accl {{precision="{precision}"}}
      %ap1: tile<{bm}x{bk}x*{elem}> = addptr %ap, %ainc
      %bp1: tile<{bk}x{bn}x*{elem}> = addptr %bp, %bincs
      yield [%acc1, %ap1, %bp1]
    }}
    %scs: tile<{bm}x1xi32> = splat %sc
    %co1: tile<{bm}x1xi32> = mul %rm2, %scs
    %co2: tile<{bm}x{bn}xi32> = broadcast %co1
    %co3: tile<{bm}x{bn}xi32> = broadcast %rn2
    %co: tile<{bm}x{bn}xi32> = add %co2, %co3
    %cs: tile<{bm}x{bn}x*{acc}> = splat %c
    %cp: tile<{bm}x{bn}x*{acc}> = addptr %cs, %co
    store %cp, %acc, _
    return []
  }}
}}
"""


def attention(m: int = 64, n: int = 32, d: int = 64, warps: int = 4, stages: int = 2) -> str:
    """o[m,d] = softmax(q k^T) v for one block of rows; arguments q, k, v, o, number of keys (a multiple of n)."""
    zero, low = "float('0x0.0p+0')", "float('-inf')"

    def pointers(name: str, rows: int, base: str) -> str:
        return f"""
    %{name}r: tile<{rows}xi32> = arange {{start=0, end={rows}}}
    %{name}r2: tile<{rows}x1xi32> = expand_dims %{name}r {{axis=1}}
    %{name}st: tile<{rows}x1xi32> = const {{value={d}}}
    %{name}ro: tile<{rows}x1xi32> = mul %{name}r2, %{name}st
    %{name}ro2: tile<{rows}x{d}xi32> = broadcast %{name}ro
    %{name}c: tile<{d}xi32> = arange {{start=0, end={d}}}
    %{name}c1: tile<1x{d}xi32> = expand_dims %{name}c {{axis=0}}
    %{name}c2: tile<{rows}x{d}xi32> = broadcast %{name}c1
    %{name}o: tile<{rows}x{d}xi32> = add %{name}ro2, %{name}c2
    %{name}b: tile<{rows}x{d}x*fp16> = splat {base}
    %{name}p: tile<{rows}x{d}x*fp16> = addptr %{name}b, %{name}o"""

    return f"""
module {{num_warps={warps}, num_stages={stages}}} {{
  func {{name="attention", arg_attrs={aligned(5)}}} (%q: *fp16, %k: *fp16, %v: *fp16, %out: *fp16, %count: i32) {{{pointers("q", m, "%q")}{pointers("k", n, "%k")}{pointers("v", n, "%v")}{pointers("x", m, "%out")}
    %qt: tile<{m}x{d}xfp16> = load %qp, _, _
    %zero: i32 = const {{value=0}}
    %step: i32 = const {{value={n}}}
    %m0: tile<{m}xfp32> = const {{value={low}}}
    %l0: tile<{m}xfp32> = const {{value={zero}}}
    %acc0: tile<{m}x{d}xfp32> = const {{value={zero}}}
    %s0: tile<{m}x{n}xfp32> = const {{value={zero}}}
    %inc: tile<{n}x{d}xi32> = const {{value={n * d}}}
    %acc: tile<{m}x{d}xfp32>, %ml: tile<{m}xfp32>, %ll: tile<{m}xfp32>, %kl: tile<{n}x{d}x*fp16>, %vl: tile<{n}x{d}x*fp16> = for %zero, %count, %step, [%acc0, %m0, %l0, %kp, %vp] (%i: i32, %ac: tile<{m}x{d}xfp32>, %mi: tile<{m}xfp32>, %li: tile<{m}xfp32>, %kpi: tile<{n}x{d}x*fp16>, %vpi: tile<{n}x{d}x*fp16>) {{
      %kt: tile<{n}x{d}xfp16> = load %kpi, _, _
      %ktt: tile<{d}x{n}xfp16> = trans %kt {{order=[1, 0]}}
      %s: tile<{m}x{n}xfp32> = dot %qt, %ktt, %s0
      %mx: tile<{m}xfp32> = reduce [%s] {{axis=1}} (%p: fp32, %p2: fp32) {{
        %w: fp32 = max %p, %p2
        yield [%w]
      }}
      %mn: tile<{m}xfp32> = max %mi, %mx
      %mn2: tile<{m}x1xfp32> = expand_dims %mn {{axis=1}}
      %mnb: tile<{m}x{n}xfp32> = broadcast %mn2
      %sd: tile<{m}x{n}xfp32> = sub %s, %mnb
      %e: tile<{m}x{n}xfp32> = exp %sd
      %ls: tile<{m}xfp32> = reduce [%e] {{axis=1}} (%p3: fp32, %p4: fp32) {{
        %w2: fp32 = add %p3, %p4
        yield [%w2]
      }}
      %md: tile<{m}xfp32> = sub %mi, %mn
      %alpha: tile<{m}xfp32> = exp %md
      %la: tile<{m}xfp32> = mul %li, %alpha
      %ln: tile<{m}xfp32> = add %la, %ls
      %al2: tile<{m}x1xfp32> = expand_dims %alpha {{axis=1}}
      %alb: tile<{m}x{d}xfp32> = broadcast %al2
      %as: tile<{m}x{d}xfp32> = mul %ac, %alb
      %eh: tile<{m}x{n}xfp16> = cast %e
      %vt: tile<{n}x{d}xfp16> = load %vpi, _, _
      %an: tile<{m}x{d}xfp32> = dot %eh, %vt, %as
      %kn: tile<{n}x{d}x*fp16> = addptr %kpi, %inc
      %vn: tile<{n}x{d}x*fp16> = addptr %vpi, %inc
      yield [%an, %mn, %ln, %kn, %vn]
    }}
    %le: tile<{m}x1xfp32> = expand_dims %ll {{axis=1}}
    %lb: tile<{m}x{d}xfp32> = broadcast %le
    %o: tile<{m}x{d}xfp32> = div %acc, %lb
    %oh: tile<{m}x{d}xfp16> = cast %o
    store %xp, %oh, _
    return []
  }}
}}
"""


def reshaped(op: Any, held: Any, shape: tuple[int, ...]) -> Any:
    """The layout `held` of the operand as `op` hands its elements on."""
    if op.opcode == "expand_dims":
        return held.expand_dim(op.axis)
    elif op.opcode == "trans":
        return held.trans(op.order)
    else:
        return held.reshape(shape)


def check_layouts(module: Module, num_warps: int) -> None:
    """What the SIMT lowering relies on: whole tiles, all lanes and warps there, operands where the op can use them."""
    op: Any
    for op in module.walk():
        for v in op.results:
            if isinstance(v.type, TileType):
                layout = v.type.layout
                assert layout is not None, op
                assert layout.shape == v.type.shape, op
                assert layout.is_surjective(), op
                assert (layout.size("lane"), layout.size("warp")) == (32, num_warps), op
        x = op.operands[0] if op.operands else None
        if x is None or not op.results or not isinstance(op.results[0].type, TileType):
            continue
        target, held = op.results[0].type.layout, getattr(x.type, "layout", None)
        if held is None or op.opcode in ("gather", "histogram", "local_load", "call"):
            continue
        if op.opcode == "broadcast":
            assert broadcast_map(held, target) is not None, op
        elif op.opcode in ("expand_dims", "trans", "reshape"):
            assert register_map(reshaped(op, held, target.shape), target) is not None, op
        elif op.opcode == "join":
            assert held.join() == target, op
        elif op.opcode == "split":
            assert held.split_bit() == 0, op
            assert held.split() == target, op
        elif op.opcode == "reduce":
            assert held.is_axis_separable(op.axis), op
            assert register_map(held.drop_dim(op.axis), target) is not None, op
        elif op.opcode == "scan":
            assert held == target, op
