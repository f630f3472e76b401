"""Finds operands of dots that are computed, element by element, from what is loaded: rows times a decay, say.

Warps that compute such a tile in the layout in which it was loaded must exchange it through shared memory. While copies
run ahead, what is loaded lies there anyway: warps read it in the operand's layout, and compute it there."""

from __future__ import annotations

from math import prod

from tessera import ops
from tessera.ir import Op, Value, elem_of, shape_of
from tessera.layout import LinearLayout
from tessera.ops.arith import Elementwise
from tessera.passes.gpu_layout.mma_operands import loop_between, memory_order
from tessera.passes.gpu_layout.rules import EXPENSIVE

MOST_OPS = 12  # of the elements: more would be computed for a longer time than an exchange takes
WIDE_BITS = 32  # of elements that ldmatrix does not transpose
SPREAD = (ops.BroadcastOp, ops.SplatOp, ops.ConstOp)  # any layout is as good for them


def computable(dot: ops.DotOp, v: Value, layout: LinearLayout) -> bool:
    """Whether warps rather compute an operand in its `layout` from what is loaded than exchange it.

    Only the dot uses it; copies of warps cost little, or there are none. Of elements that are narrower in memory
    threads would read pieces, and wider ones one at a time, unless those of a register are neighbours; and a warp alone
    exchanges 16 bits by few instructions, without a barrier."""
    chain: dict[Op, None] = {}
    loads: dict[ops.TileLoad, None] = {}
    if not _walk(v, chain, loads) or not 0 < len(chain) <= MOST_OPS or not loads:
        return False
    here = all(loop_between(dot, op) is None for op in (*chain, *loads))
    bits = elem_of(v.type).storage_bits
    depth = len(shape_of(v.type)) - (1 if v is dot.a else 2)
    alike = all(_read_whole(op, bits, depth) for op in loads)
    dear = bits >= WIDE_BITS or layout.size("warp") > 1
    known = (*chain, *loads)
    others = (ops.DotOp, ops.TransOp, ops.LocalAllocOp)
    own = all(u in known or isinstance(u, others) for op in loads for u in op.results[0].users())
    return here and own and alike and dear and _affordable(chain, loads, layout)


def _read_whole(load: ops.TileLoad, bits: int, depth: int) -> bool:
    """Whether threads read what a register of the operand takes, of `bits` for each element, at once."""
    found = elem_of(load.result.type).storage_bits
    return found == bits or (found > bits and memory_order(load)[0] == depth)


def _affordable(
    chain: dict[Op, None], loads: dict[ops.TileLoad, None], layout: LinearLayout
) -> bool:
    copies = prod(layout.size(dim) for dim in layout.in_dims) // prod(layout.shape)
    cheap = len(loads) == 1 and not any(isinstance(op, EXPENSIVE) for op in chain)
    return copies == 1 or (copies == 2 and cheap)


def _walk(v: Value, chain: dict[Op, None], loads: dict[ops.TileLoad, None]) -> bool:
    """Collect the ops that compute `v` alone, and the loads that they read; whether there is nothing else."""
    op = v.op
    if isinstance(op, ops.TileLoad):
        loads[op] = None
        return True
    if isinstance(op, SPREAD) or op in chain:
        return True
    if not isinstance(op, Elementwise) or len(op.results) > 1 or len(set(v.users())) != 1:
        return False
    chain[op] = None
    return all(_walk(x, chain, loads) for x in op.operands)
