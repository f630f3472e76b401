"""Gives work on descriptors a version in which the extents of rows are multiples of 16 bytes.

    for k: x = descriptor_load d, [i, k]   →   if n % 8 == 0:  n' = hint n {divisibility=[8]}
                                                   for k: x = descriptor_load d', [i, k]       d' has n' for n
                                               else:           for k: x = descriptor_load d, [i, k]

Where a descriptor becomes pointers and a mask (passes/neutral/descriptors.py), threads access vectors if the mask
cannot change within one. Strides are multiples of 16 bytes by contract; of a number that is loaded, such as the size of
one of many groups, nothing is known, though nearly always it is such a multiple too.
"""

from __future__ import annotations

from functools import reduce

from tessera import ops
from tessera.analysis.axis import AxisAnalysis
from tessera.ir import Block, Builder, Module, Op, Value, pass_
from tessera.ir.applications import apply
from tessera.passes.neutral.descriptors import ALIGNMENT, argument_or_constant, made_by
from tessera.passes.neutral.loops import branch_around, const

LARGE = 400  # ops of a part that is copied: what a kernel does for one of its tiles


@pass_("aligned-extents", optimization="aligned-extents", counts=True)
def aligned_extents(module: Module, arguments: bool = True) -> None:
    """Branch on whether the extents of descriptors' rows are multiples of 16 bytes.

    Takes: tile IR before `lower-descriptors`. Without `arguments` extents that are arguments are let be: launches look
        at these themselves where the TMA unit loads.
    Gives: an `if` around what a block does with descriptors in loops, with two versions of it. A kernel gets one.
    Needs: nothing of a target; GPU pipelines run it, as the CPU moves blocks row by row.
    Raises: nothing.
    Example: `groups` of tests/filecheck/aligned-extents.tir
        load %n; make_descriptor; for { descriptor_load } → load %n; and; cmp; if { hint; make_descriptor; for } { for }
    Compare: LLVM LoopVersioning.
    """
    for func in module.body:
        assert isinstance(func, ops.FuncOp)
        work = _Extents(func, arguments)
        for block in dict.fromkeys(v.block for v in work.factors):
            if block is not None and work.version(block):
                break


class _Extents:
    """The extents of one function's descriptors of which nothing is known, and of what each should be a multiple."""

    def __init__(self, func: ops.FuncOp, arguments: bool):
        self.factors: dict[Value, int] = {}
        self.accesses: list[ops.DescriptorLoadOp | ops.DescriptorStoreOp] = []
        axis = AxisAnalysis(func)
        for op in func.walk():
            if not isinstance(op, ops.DescriptorLoadOp | ops.DescriptorStoreOp):
                continue
            desc = made_by(op.desc)
            factor = max(1, ALIGNMENT // desc.result.type.elem.storage_bytes)
            extent, offset = desc.shape[-1], op.offsets[-1]
            if desc.attrs.get("mapped") or axis.facts(offset).divisibility[0] % factor:
                continue
            if axis.facts(extent).divisibility[0] % factor == 0:
                continue
            if arguments or argument_or_constant(extent, func.body) is None:
                self.factors[extent] = max(factor, self.factors.get(extent, 1))
                self.accesses.append(op)

    def version(self, block: Block) -> bool:
        """Make two versions of what a block does with these extents. Return whether that was done."""
        using: set[Op] = {x for access in self.accesses for x in (access, *access.ancestors())}
        moved = [op for op in block if not op.terminator]
        while moved and moved[0] not in using:
            moved.pop(0)
        inside = {x for op in moved for x in op.walk()}
        repeated = any(isinstance(x, ops.Loop) for x in inside & using)
        if not repeated or len(inside) > LARGE:
            return False
        made = {made_by(x.desc): None for x in self.accesses if x in inside}
        known = [
            v for v in self.factors if _by(v) not in inside and not {*v.users()}.isdisjoint(made)
        ]
        if not known or not apply("aligned-extents", moved[0]):
            return False
        b = Builder.before_op(moved[0])
        branch, passed = branch_around(self._aligned(b, known), moved)
        b = Builder(branch.then, None, branch.loc)
        mapping = {v: b.emit(ops.HintOp(v, divisibility=(self.factors[v],))) for v in known}
        for op in (*(x for x in made if x not in inside), *moved):
            b.insert(op.clone(mapping))
        b.insert(ops.YieldOp([mapping[v] for v in passed]))
        return True

    def _aligned(self, b: Builder, extents: list[Value]) -> Value:
        """Return whether all of these are multiples of what they should be multiples of."""
        odd = [
            b.emit(ops.AndOp(v, const(b, self.factors[v] - 1, v.type))) for v in extents
        ]  # the low bits: extents are not negative
        low = reduce(lambda x, y: b.emit(ops.OrOp(x, y)), odd)
        return b.emit(ops.CmpOp(low, const(b, 0, low.type), predicate="eq"))


def _by(v: Value) -> Op | None:
    """Return the op that makes a value: the one around it, of an argument of a block."""
    if v.op is not None or v.block is None:
        return v.op
    return v.block.parent
