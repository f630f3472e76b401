"""Tells a kernel's author where loops were not fused or split, products not packed once for all steps, or reductions
not computed on vectors, and why (`metadata.remarks`, which `explain` shows with remedies)."""

from __future__ import annotations

from math import prod
from posixpath import basename

from tessera import ops
from tessera.backends.cpu.bounds import prefix_masks
from tessera.backends.cpu.lowering import Lowering
from tessera.dtypes import dtype
from tessera.ir import Op, TileType, Value, elem_of, shape_of
from tessera.ops import arith, tile

INTEGERS = "divides integers, of which lanes without an element may be zero"
LARGE = 1 << 12  # bytes of a tile whose way through memory is worth a remark


def _place(op: Op) -> str:
    return f"{basename(op.loc.file)}:{op.loc.line}" if op.loc is not None else "the kernel"


def _note(lo: Lowering, text: str) -> None:
    if not lo.em.dry:
        lo.state.remarks[text] = None


def _bytes(v: Value) -> int:
    elem = elem_of(v.type)
    return prod(shape_of(v.type)) * (elem.storage_bytes if isinstance(elem, dtype) else 8)


def kept_before_store(lo: Lowering, v: Value, store: Op, later: bool) -> None:
    """Note that a load was executed before a store that might overtake it. `later`: it is used after the store, too."""
    op = v.op
    if op is None or _bytes(v) < LARGE:
        return
    name = f" `{v.name}`" if v.name else ""
    what = f"the tile{name} loaded at {_place(op)} is copied to memory, and not read by the loop that uses it"
    why = "is used after" if later else "may come from elements that are written by"
    _note(lo, f"{what}: it {why} the {store.opcode.replace('_', ' ')} at {_place(store)}")


def packed_each_time(lo: Lowering, op: ops.DotOp, loop: ops.ForOp, why: str) -> None:
    """Note that the operands of a product are packed in each step of a loop, if its accumulator is the loop's."""
    if op.acc.owner is loop.body and (why.startswith("the loop writes") or "not carried" in why):
        _note(
            lo,
            f"the operands of the product at {_place(op)} are packed in each step of its loop: {why}",
        )


def tested_each_time(lo: Lowering, op: ops.LoadOp | ops.StoreOp, mask: Value, dim: int) -> None:
    """Note that a loop along `dim` is not split where the mask of an access ends, if the mask depends on `dim`."""
    value = op.value if isinstance(op, ops.StoreOp) else op.result
    if _bytes(value) >= LARGE and _varies(mask, dim) and not prefix_masks(lo, mask, dim):
        what = f"the mask of the {op.opcode} at {_place(op)} is tested for each vector"
        _note(
            lo,
            f"{what}: it is no comparison of an index, which grows by 1 along them, with a bound",
        )


def _varies(mask: Value, dim: int) -> bool:
    """Whether a mask depends on the index along `dim`."""
    op = mask.op
    if isinstance(op, tile.BroadcastOp):
        return shape_of(op.x.type)[dim] > 1 and _varies(op.x, dim)
    if isinstance(op, tile.ExpandDimsOp):
        return dim != op.axis and _varies(op.x, dim - (dim > op.axis))
    if isinstance(op, arith.Elementwise) and op.operands:
        return any(_varies(x, dim) for x in op.operands)
    return isinstance(mask.type, TileType) and not isinstance(op, tile.SplatOp | arith.ConstOp)


def one_at_a_time(lo: Lowering, op: ops.CombineOp, inner: Op) -> None:
    """Note that a reduction or scan takes one element after another because of an op in its function."""
    if max(map(_bytes, op.inputs)) >= LARGE:
        what = f"the {op.opcode} at {_place(op)} combines one element after another, not vectors"
        why = (
            INTEGERS
            if isinstance(inner, ops.DivOp | ops.RemOp)
            else f"has a {inner.opcode.replace('_', ' ')}"
        )
        _note(lo, f"{what}: its function {why}")
