"""Partitions a program over the CTAs of a cluster: each of them computes its part of the program's tiles.

    %r = arange 0, 256                          %r = arange 0, 128 + 128 * cta_rank
    %a = load %p + %r … : 256x64                %a = load %p + %r … : 128x64
    %b = load %q        : 64x256         →      %b = load %q        : 64x256     the same in both CTAs
    %c = dot %a, %b     : 256x256               %c = dot %a, %b     : 128x256
    store %s + %r …, %c                         store %s + %r …, %c

Dimensions that correspond (analysis/dimensions.py), as rows of `a` and rows of `c` do, are cut together. Of the classes
that can be cut, the one with most of the work is. A tile without a dimension in it is the same in all CTAs; the TMA
unit may copy it to all of them at once (`multicast_loads`).

The CTAs exchange nothing else. Where that is not enough, one CTA computes the whole program, and the module's
attribute `remarks` says why; otherwise the attribute `cluster` has the number of CTAs."""

from __future__ import annotations

from collections.abc import Iterable
from math import gcd, prod
from typing import Any

from tessera import ops
from tessera.analysis.dimensions import Dim, Dimensions, extents
from tessera.analysis.provenance import argument_of, outgoing, reached
from tessera.ir import Builder, DescriptorType, Effect, Module, Op, TileType, Value, pass_
from tessera.ir.applications import Declined, apply
from tessera.passes.neutral.canonicalize import canonicalize
from tessera.passes.neutral.cse import cse
from tessera.passes.neutral.loops import const
from tessera.passes.neutral.remarks import remark

LEAST_ROWS = 64  # of an MMA's part: those of one instruction of a warpgroup
LEAST_EXTENT = 16  # of an MMA's part, in any case
MEMORY_WORK = 64  # cost of an element that is loaded or stored, in multiplications
MOST_COPIED = 64  # ops of index arithmetic that may be copied for a dimension
REASONS = 2  # reported, those of the largest classes
ONCE = (
    ops.CallOp,
    ops.BarrierOp,
    ops.BreakpointOp,
    ops.CheckOp,
    ops.PrintOp,
    ops.SpecialRegisterOp,
    ops.VolatileAsmOp,
)
READS = (ops.TileLoad, ops.DescriptorGatherOp)


@pass_("partition-cluster")
def partition_cluster(module: Module) -> None:
    """Spread the kernel over the `num_ctas` CTAs of a cluster.

    Takes: tile IR as the front end emits it; later passes see a CTA's part. A kernel that went through this (attribute
        `cluster`) is left as it is: fallback variants are compiled from the text of parts.
    Gives: the IR of one CTA's part, and `cluster`, the number of CTAs: 1, with a remark, if it cannot be cut.
    Needs: a GPU with clusters (sm_90).
    Raises: nothing.
    Example: `halves` of tests/filecheck/partition-cluster.tir
        arange {end=256}; load → cta_rank {ctas=2}; const; mul; arange {end=128}; splat; add; load
    Compare: Triton `triton-nvidia-gpu-plan-cta`; CUDA guide, "Thread Block Clusters".
    """
    if "cluster" in module.attrs:
        return
    ctas: int = module.attrs["num_ctas"]
    module.attrs["cluster"] = 1
    if not apply("cluster-partition", module):
        return
    canonicalize(module)  # no dead code that would prevent the cut
    for func in [f for f in module.body if isinstance(f, ops.FuncOp) and f.kernel]:
        try:
            _check(func)
            for op in list(func.walk()):
                _own_indices(op)
            _Spread(func, _chosen(func, ctas), ctas).run()
            module.attrs["cluster"] = ctas
        except Declined as reason:
            remark(module, f"not partitioned over {ctas} CTAs: {reason}")
    canonicalize(module)  # no range that has become unused
    cse(module)


@pass_("multicast-loads", optimization="cluster-multicast", counts=True)
def multicast_loads(module: Module) -> None:
    """Mark loads by the TMA unit that are the same in all CTAs of a cluster.

    Takes: tile IR; all passes that make such loads have run, and what depends on `cta_rank` can be seen.
    Gives: the attribute `ctas` on these loads, one of which brings the tile to all CTAs.
    Needs: a GPU with clusters and a TMA unit: without `cta_rank` nothing is changed.
    Raises: nothing.
    Example: `matmul` of tests/filecheck/multicast-loads.tir
        descriptor_load %da; descriptor_load %db → descriptor_load %da; descriptor_load %db {ctas=2}
    Compare: PTX ISA, `cp.async.bulk.tensor` with `.multicast::cluster`.
    """
    for number in [op for op in module.walk() if isinstance(op, ops.CtaRankOp)]:
        own = reached([number.result], _dependent)
        for op in module.walk():
            if isinstance(op, ops.DescriptorLoadOp) and not own & set(op.operands):
                if apply("cluster-multicast", op):
                    op.ctas = number.ctas


def _dependent(v: Value) -> list[Value]:
    """Return the values that may depend on one as an operand."""
    return [x for user, index in v.uses for x in _handed_on(user, index)]


def _handed_on(user: Op, index: int) -> list[Value]:
    op = user.parent_op() if user.terminator else user
    everything = [x for block in op.regions for x in block.args] if op is not None else []
    return outgoing(user, index) or [*(op.results if op is not None else ()), *everything]


def _check(func: ops.FuncOp) -> None:
    """Decline ops that a program runs once, or at which all its threads synchronise."""
    written: set[Value | None] = set()
    read: set[Value | None] = set()
    for op in func.walk():
        if isinstance(op, ONCE):
            raise Declined(f"{op.opcode} is for all threads of a program at once")
        if isinstance(op, ops.LoadOp) and op.volatile:
            raise Declined("a volatile load may differ between CTAs")
        if isinstance(op, ops.PointerWrite | ops.DescriptorWrite):
            written.add(_array(op))
        if isinstance(op, READS):
            read.add(_array(op))
    if read and written and (None in written or None in read or read & written):
        raise Declined("the kernel reads an array that it writes to, or may")


def _array(op: Any) -> Value | None:
    """Return the kernel argument that an access goes to; None if that is not known."""
    return argument_of(op.ptr if isinstance(op, ops.PointerAccess) else op.desc)


# --- the dimensions -----------------------------------------------------------------------------------------
def _own_indices(op: Op) -> None:
    """Copy index arithmetic that rows and columns share, so that they need not be cut together."""
    for i, v in enumerate(op.operands):
        if not (isinstance(op, ops.ExpandDimsOp) or _is_source(v)):
            continue
        chain = _arithmetic(v)
        if any(len(x.results[0].uses) > 1 for x in chain):
            mapping: dict[Value, Value] = {}
            b = Builder.before_op(op)
            for x in chain:
                b.insert(x.clone(mapping))
            op.set_operand(i, mapping[v])


def _is_source(v: Value) -> bool:
    return isinstance(
        v.op, ops.ArangeOp | ops.ConstOp | ops.SplatOp | ops.MakeDescriptorOp
    ) and bool(extents(v))


def _arithmetic(v: Value) -> list[Op]:
    """Return the ops that compute a tile of numbers from scalars, in order; none if other ops are needed."""
    found: list[Op] = []

    def add(v: Value) -> bool:
        op = v.op
        if not extents(v) or op in found:
            return True
        known = _is_source(v) or (isinstance(op, ops.Elementwise) and op.effects is Effect.NONE)
        if op is None or not known or len(found) == MOST_COPIED or not all(map(add, op.operands)):
            return False
        found.append(op)
        return True

    return found if add(v) else []


def _chosen(func: ops.FuncOp, ctas: int) -> set[Dim]:
    """Return the dimensions to cut, on which more than half of the work must lie."""
    dimensions = Dimensions(func)
    every = list(func.walk())
    total = sum(_work(op, None, ctas) for op in every)
    best: tuple[int, set[Dim]] = 0, set()
    refused: dict[str, int] = {"most tiles have no dimension that could be cut": 0}
    for name, members in dimensions.classes().items():
        cut = set(members)
        work = sum(_work(op, cut, ctas) for op in every)
        met = dimensions.reasons.get(name)
        reason = _obstacle(every, cut, ctas) if met is None else f"elements meet in {_named(met)}"
        if not reason and work > best[0]:
            best = work, cut
        elif reason and work:
            refused[reason] = max(work, refused.get(reason, 0))
    if best[0] * 2 <= total:
        raise Declined("; ".join(sorted(refused, key=lambda x: -refused[x])[:REASONS]))
    return best[1]


def _work(op: Op, cut: set[Dim] | None, ctas: int) -> int:
    """Return the work of an op, if its tile has a dimension among those to cut."""
    tile = _tile(op)
    where = [i for i in range(len(extents(tile))) if (tile, i) in cut] if tile and cut else []
    if tile is None or (cut is not None and not where):
        return 0
    size = prod(extents(tile))
    if not isinstance(op, ops.DotOp):
        return size * MEMORY_WORK
    rows = len(extents(tile)) - 2
    few = where == [rows] and extents(tile)[rows] // ctas < LEAST_ROWS
    return size * extents(op.a)[-1] // (2 if few else 1)


def _tile(op: Op) -> Value | None:
    """Return the tile that an op multiplies, loads or stores."""
    if isinstance(op, (ops.DotOp, *READS)):
        return op.result
    if isinstance(op, ops.PointerWrite):
        return op.ptr
    return op.value if isinstance(op, ops.DescriptorWrite) else None


def _obstacle(every: Iterable[Op], cut: set[Dim], ctas: int) -> str:
    """Return why these dimensions cannot be cut; "" if they can."""
    if any(extents(v)[i] % ctas for v, i in cut):
        return f"an extent is no multiple of {ctas}"
    if len({v for v, _ in cut}) < len(cut):
        return "rows and columns of a tile would be cut at once"
    for op in every:
        tile = _tile(op)
        whole = tile is None or not any((tile, i) in cut for i in range(len(extents(tile))))
        kind: str = op.kind if isinstance(op, ops.DescriptorStoreOp) else "store"
        if whole and (isinstance(op, ops.Atomic) or kind != "store"):
            return f"all CTAs would do the same {_named(op)}"
        if isinstance(op, ops.DotOp) and min(_part(op.result, cut, ctas)[-2:]) < LEAST_EXTENT:
            return f"too little would be left of {_named(op)}"
    return ""


def _part(v: Value, cut: set[Dim], ctas: int) -> tuple[int, ...]:
    return tuple([n // ctas if (v, i) in cut else n for i, n in enumerate(extents(v))])


def _named(op: Op) -> str:
    return op.opcode + (f" at {op.loc.short()}" if op.loc is not None else "")


# --- the rewriting ------------------------------------------------------------------------------------------
class _Spread:
    def __init__(self, func: ops.FuncOp, cut: set[Dim], ctas: int):
        self.func, self.cut, self.ctas = func, cut, ctas
        self.number = Builder.at_start(func.body).insert(ops.CtaRankOp(ctas=ctas))
        self.firsts: dict[int, Value] = {}

    def run(self) -> None:
        every = list(self.func.walk())
        for v in {v for v, _ in self.cut}:
            t: Any = v.type
            shape = _part(v, self.cut, self.ctas)
            same = DescriptorType if isinstance(t, DescriptorType) else TileType
            v.type = same(shape, t.elem)
            owner = v.op if v.op is not None or v.block is None else v.block.parent
            if owner is not None:
                owner.touch()
        for op in every:
            if isinstance(op, ops.ArangeOp):
                self._arange(op)
            elif isinstance(op, ops.MakeDescriptorOp):
                op.block_shape = op.result.type.shape
            elif isinstance(op, ops.DescriptorLoadOp | ops.DescriptorStoreOp):
                self._move(op, 1, range(len(op.offsets)))
            elif isinstance(op, ops.DescriptorGatherOp | ops.DescriptorScatterOp):
                self._move(op, 2, [1])
            elif isinstance(op, ops.HintOp):
                self._hint(op)

    def _is_cut(self, v: Value) -> bool:
        return any((v, i) in self.cut for i in range(len(extents(v))))

    def _first(self, part: int) -> Value:
        """Return where this CTA's part begins (int32)."""
        if part not in self.firsts:
            rank, b = self.number.result, Builder.after_op(self.number)
            size = const(b, part, rank.type)
            self.firsts[part] = b.emit(ops.MulOp(rank, size))
        return self.firsts[part]

    def _arange(self, op: ops.ArangeOp) -> None:
        if not self._is_cut(op.result):
            return
        (part,) = op.result.type.shape
        b = Builder.before_op(op)
        mine = b.emit(ops.ArangeOp(start=op.start, end=op.start + part, loc=op.loc))
        first = b.emit(ops.SplatOp(self._first(part), results=[mine.type]))
        op.replace_by([b.emit(ops.AddOp(mine, first, loc=op.loc))])

    def _move(self, op: Any, first: int, dims: Iterable[int]) -> None:
        """Add the start of this CTA's part to the offsets of an access, the operands from `first` on."""
        for n, d in enumerate(dims):
            if (op.desc, d) in self.cut:
                b, old = Builder.before_op(op), op.operands[first + n]
                by = self._first(op.desc.type.shape[d])
                if old.type != by.type:
                    by = b.emit(ops.CastOp(by, results=[old.type]))
                op.set_operand(first + n, b.emit(ops.AddOp(old, by)))

    def _hint(self, op: ops.HintOp) -> None:
        """Weaken promises about runs in which a part may begin."""
        shape = extents(op.result)
        for i in [i for i in range(len(shape)) if (op.result, i) in self.cut]:
            for name, limit in (("divisibility", gcd), ("contiguity", min), ("constancy", min)):
                said: list[int] = list(op.attrs[name])
                if said and said[i]:
                    said[i] = limit(said[i], shape[i])
                op.attrs[name] = tuple(said)
