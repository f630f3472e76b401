"""Tells a kernel's author where loops were not fused, or products not packed once for all steps, and why
(`metadata.remarks`, which `explain` shows with remedies)."""

from __future__ import annotations

from math import prod
from posixpath import basename

from tessera.backends.cpu.lowering import Lowering
from tessera.dtypes import dtype
from tessera.ir import Op, Value, elem_of, shape_of
from tessera.ops import DotOp, ForOp

LARGE = 1 << 12  # bytes of a tile whose way through memory is worth a remark


def _place(op: Op) -> str:
    return f"{basename(op.loc.file)}:{op.loc.line}" if op.loc is not None else "the kernel"


def _note(lo: Lowering, text: str) -> None:
    if not lo.em.dry:
        lo.state.remarks[text] = None


def kept_before_store(lo: Lowering, v: Value, store: Op, later: bool) -> None:
    """Note that a load was executed before a store that might overtake it. `later`: it is used after the store, too."""
    elem, op = elem_of(v.type), v.op
    size = prod(shape_of(v.type)) * (elem.storage_bytes if isinstance(elem, dtype) else 8)
    if op is None or size < LARGE:
        return
    name = f" `{v.name}`" if v.name else ""
    what = f"the tile{name} loaded at {_place(op)} is copied to memory, and not read by the loop that uses it"
    why = "is used after" if later else "may come from elements that are written by"
    _note(lo, f"{what}: it {why} the {store.opcode.replace('_', ' ')} at {_place(store)}")


def packed_each_time(lo: Lowering, op: DotOp, loop: ForOp, why: str) -> None:
    """Note that the operands of a product are packed in each step of a loop, if its accumulator is the loop's."""
    if op.acc.owner is loop.body and (why.startswith("the loop writes") or "not carried" in why):
        _note(
            lo,
            f"the operands of the product at {_place(op)} are packed in each step of its loop: {why}",
        )
