"""Tells how many bytes each load and store moves at once and, if these are few, which fact is missing
(docs/debugging.md).

On a GPU the width is the one that the lowering asks for; on a CPU it is read from the source line's LLVM IR.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from tessera import ops
from tessera.analysis.axis import AxisAnalysis, AxisFacts
from tessera.analysis.prefixes import prefix_width
from tessera.analysis.provenance import argument_of, incoming
from tessera.backends.compiler import Backend, Options
from tessera.backends.gpu.local import copy_length
from tessera.backends.gpu.memory import VECTOR_BITS, vector_length
from tessera.dtypes import dtype, int1, pointer_type
from tessera.ir import Block, Module, Op, TileType, Value, elem_of, shape_of
from tessera.passes.gpu_loops.streams import is_partial

WIDE = VECTOR_BITS // 8  # bytes of the widest access of a GPU's thread
DESCRIPTORS = (ops.DescriptorLoadOp, ops.DescriptorStoreOp, ops.TensorCopyOp)
ACCESSES = (ops.LoadOp, ops.StoreOp, ops.AsyncCopyOp)
Access = ops.LoadOp | ops.StoreOp | ops.AsyncCopyOp
# LLVM IR of a CPU that moves the elements of a vector one by one.
GATHERED = r"@llvm\.masked\.gather|= insertelement .*\n.*= load"
SCATTERED = r"@llvm\.masked\.scatter|= extractelement .*\n.*store (?!<)"
# Nothing can be promised about these: they are blamed only if there is nothing else.
FIXED = (ops.ProgramIdOp, ops.NumProgramsOp, ops.ConstOp)
Bad = Callable[[AxisFacts, Value, int], bool]  # whether a value's facts along a dimension are weak


@dataclass(frozen=True, slots=True)
class Width:
    """One access: its source line, what it does, how much it moves at once, and the facts that allow no more."""

    place: str
    what: str
    size: str
    why: str = ""

    def __str__(self) -> str:
        return f"  {self.place:<24} {self.what:<16} {self.size:<24} {self.why}".rstrip()


def widths(module: Module, backend: Backend, options: Options) -> list[Width]:
    """Return the loads and stores of tiles in a module from the front end, in program order, equal ones once. Atomics
    are left out, since they have widths of their own."""
    stages, metadata = backend.stages(options), {"name": ""}
    module = stages["tir"](module, metadata)
    measure = _on_gpu
    if "gir" in stages:
        module = stages["gir"](module, metadata)
    else:
        measure = partial(_on_cpu, by_place(stages["llir"](module, metadata)))
    found: dict[Width, None] = {}
    for func in module.body:
        assert isinstance(func, ops.FuncOp)
        axis = AxisAnalysis(func)
        for op in func.walk():
            where = op.loc.line_chain() if op.loc is not None else "?"
            if isinstance(op, DESCRIPTORS):
                found[Width(where, access_name(op), "blocks, by a descriptor")] = None
            elif isinstance(op, ACCESSES) and isinstance(op.ptr.type, TileType):
                found[Width(where, access_name(op), *measure(op, axis))] = None
    return list(found)


def _on_gpu(op: Access, axis: AxisAnalysis) -> tuple[str, str]:
    elem = elem_of(op.ptr.type).element_ty
    count = elements_at_once(op, axis)
    size = count * elem.storage_bytes
    return f"{size} of {WIDE} bytes", why_narrow(op, axis, 2 * count) if size < WIDE else ""


def elements_at_once(op: Access, axis: AxisAnalysis) -> int:
    """Return how many elements of a tile a thread of a GPU moves by one instruction."""
    if isinstance(op, ops.AsyncCopyOp):
        return copy_length(axis, op)
    width = prefix_width if is_partial(op) else AxisAnalysis.mask_width
    return vector_length(axis, op.ptr, op.mask, elem_of(op.ptr.type).element_ty, width)


def _on_cpu(code: dict[str, str], op: Access, axis: AxisAnalysis) -> tuple[str, str]:
    text = code.get(op.loc.line_chain(), "") if op.loc is not None else ""
    if is_elementwise(op, text):
        return "one element at a time", why_narrow(op, axis, 2)
    return "vectors" if re.search(r"<\d+ x ", text) else "scalars", ""


def is_elementwise(op: Access, llir: str) -> bool:
    """Whether the LLVM IR of an access on a CPU moves the elements of a vector one by one."""
    return bool(re.search(SCATTERED if isinstance(op, ops.StoreOp) else GATHERED, llir))


def by_place(llir: str) -> dict[str, str]:
    """Return the code of each source line that comments name."""
    found: dict[str, str] = {}
    for part in re.split(r"^  ; ", llir, flags=re.MULTILINE)[1:]:
        where, _, code = part.partition("\n")
        found[where] = found.get(where, "") + code
    return found


# --- why ------------------------------------------------------------------------------------------------------------
def why_narrow(op: Access, axis: AxisAnalysis, wanted: int) -> str:
    """Return the facts that allow fewer than `wanted` elements at once, and the values to blame."""
    facts, size = axis.facts(op.ptr), elem_of(op.ptr.type).element_ty.storage_bytes
    d = max(range(len(facts.contiguity)), key=lambda i: (facts.contiguity[i], i))
    found: list[str] = []
    runs, steps = facts.contiguity[d], facts.divisibility[d]
    if shape_of(op.ptr.type)[d] < wanted:
        found.append("the tile has no more elements")
    elif runs < wanted:
        found.append(f"contiguity {runs}: {Blame(axis, _apart(wanted)).of(op.ptr, d)}")
    elif steps < wanted * size:
        found.append(f"divisibility {steps} bytes: {Blame(axis, _odd(wanted, size)).of(op.ptr, d)}")
    constancy = axis.mask_width(op.mask, d)
    if op.mask is not None and constancy < wanted:
        blamed = Blame(axis, _odd(wanted, 1)).of(op.mask, d)
        found.append(f"constancy {constancy} of the mask: {blamed}")
    return (
        "; ".join(found)
        or "a thread has no more elements, or another access of this shape is narrow"
    )


def _apart(wanted: int) -> Bad:
    """Return a test whether elements are neither consecutive nor equal."""
    return lambda f, v, d: max(f.contiguity[d], f.constancy[d]) < wanted


def _odd(wanted: int, size: int) -> Bad:
    """Return a test for runs that are misaligned: of `wanted` numbers, `wanted * size` bytes, or equal masks."""

    def bad(f: AxisFacts, v: Value, d: int) -> bool:
        if elem_of(v.type) is int1:
            return f.constancy[d] < wanted
        step = size if isinstance(elem_of(v.type), pointer_type) else 1
        return f.divisibility[d] < wanted * step

    return bad


class Blame:
    """Finds the values in which a weak fact originates: those whose own operands are good."""

    def __init__(self, axis: AxisAnalysis, bad: Bad):
        self.axis, self.bad = axis, bad
        self.seen: set[Value] = set()
        self.found: dict[str, bool] = {}  # name → whether nothing can be promised about it

    def of(self, v: Value, d: int) -> str:
        self._walk(v, d)
        hintable = [name for name, fixed in self.found.items() if not fixed]
        return "see " + ", ".join(hintable or self.found)

    def _walk(self, v: Value, d: int) -> None:
        if v in self.seen:
            return
        self.seen.add(v)
        op, sources = v.op, incoming(v)
        loop = v.owner.parent if isinstance(v.owner, Block) else None
        if op is not None and not sources and not isinstance(op, ops.LoadOp):
            sources = list(op.operands)
        elif isinstance(loop, ops.ForOp) and not sources:  # the induction variable
            sources = [loop.lb, loop.step]
        if isinstance(op, ops.ExpandDimsOp) and op.axis <= d:
            d -= 1
        elif isinstance(op, ops.TransOp):
            d = op.order[d]
        weak = [x for x in sources if self._is_weak(x, d)]
        if isinstance(op, ops.MulOp):  # in a row index times a stride, the stride is to blame
            weak = [x for x in weak if self._is_uniform(x)] or weak
        for x in weak:
            self._walk(x, min(d, max(len(shape_of(x.type)) - 1, 0)))
        if not weak:
            self.found[_named(v)] = isinstance(v.op, FIXED)

    def _is_uniform(self, v: Value) -> bool:
        constancy = self.axis.facts(v).constancy
        return all(c >= n for c, n in zip(constancy, shape_of(v.type) or (1,), strict=True))

    def _is_weak(self, v: Value, d: int) -> bool:
        elem = elem_of(v.type)
        if not (isinstance(elem, pointer_type) or (isinstance(elem, dtype) and elem.is_int())):
            return False
        facts = self.axis.facts(v)
        return self.bad(facts, v, max(0, min(d, len(facts.contiguity) - 1)))


def _named(v: Value) -> str:
    if v.op is None:
        return f"the argument `{v.name}`"
    name = f"`{v.name}`, " if v.name else ""
    where = f" at {v.op.loc.line_chain()}" if v.op.loc is not None else ""
    return f"{name}{v.op.opcode}{where}"


def access_name(op: Op) -> str:
    word = "store" if isinstance(op, ops.StoreOp | ops.DescriptorStoreOp) else "load"
    word = "copy" if isinstance(op, ops.AsyncCopyOp | ops.TensorCopyOp) else word
    base: Value | None = op.ptr if isinstance(op, ACCESSES) else None
    if isinstance(op, DESCRIPTORS) and isinstance(op.desc.op, ops.MakeDescriptorOp):
        base = op.desc.op.base
    argument = argument_of(base) if base is not None else None
    return f"{word} {argument.name if argument is not None else ''}".strip()
