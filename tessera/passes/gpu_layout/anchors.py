"""Finds the anchor of each tile in a function: the layout in which the tile is computed once, if there is one.

A value is *anchored* if something fixes its layout: it comes from memory, a matrix instruction or a reduction, or is
computed from such values. It is *rematerialisable* if it is cheap to compute again in any layout: constants, ranges,
splats, broadcasts, and what is computed from rematerialisable values only.
Example:

    %offs = arange             rematerialisable
    %x = load %ptr + %offs     anchor: the layout that coalescing chose
    %m = reduce %x             anchor: that of %x without the axis
        %b = broadcast %m          rematerialisable: the small %m is converted where %b is needed
    %y = sub %x, %b            anchor of %x

Values that flow together in a loop or a branch (a *group*) share one anchor: that of the most important value that
flows in. Accumulators come before loads, and loads before the rest; of equals, what a loop yields comes first, which
would be converted in each iteration. Importance only grows, so the iteration ends.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tessera import ops
from tessera.analysis.axis import AxisAnalysis
from tessera.ir import Block, Op, TileType, Type, Value, elem_of, shape_of
from tessera.ir.applications import apply
from tessera.layout import LinearLayout
from tessera.passes.gpu_layout import rules
from tessera.passes.gpu_layout.rules import is_pointwise

MATRIX, WIDE, PLAIN, UNKNOWN = 3, 2, 1, 0  # how important an anchor is
# Columns of a thread from which an exchange (two barriers, eight instructions) is shorter than loads and addresses.
MANY_COLUMNS = 8
FAR = 64  # values that are looked at for a repeated row or column


@dataclass(slots=True)
class Group:
    """Values that flow into one another where control joins: `phis` have one type, and the uses `incoming` feed
    them."""

    phis: list[Value]
    incoming: list[tuple[Op, int]]
    layout: LinearLayout | None = None

    def sources(self) -> list[Value]:
        return [op.operands[i] for op, i in self.incoming]


def groups_of(op: Op) -> list[Group]:
    """Return the groups of tiles that a control op joins."""
    found: list[Group] = []
    if isinstance(op, ops.ForOp):
        for i, r in enumerate(op.results):
            found.append(Group([r, op.carried[i]], [(op.body.terminator, i), (op, 3 + i)]))
    elif isinstance(op, ops.WhileOp):
        for i, r in enumerate(op.results):
            phis = [r, op.before.args[i], op.after.args[i]]
            found.append(
                Group(phis, [(op, i), (op.before.terminator, 1 + i), (op.after.terminator, i)])
            )
    elif isinstance(op, ops.IfOp):
        for i, r in enumerate(op.results):
            found.append(Group([r], [(op.then.terminator, i), (op.orelse.terminator, i)]))
    return [g for g in found if isinstance(g.phis[0].type, TileType)]


@dataclass(slots=True)
class Anchors:
    """Anchors of the values of one function. `groups` maps a value of a loop or branch to its group; `inputs` maps a
    reduction or scan to the layout of its inputs, from which the anchors of its results follow."""

    num_warps: int
    lanes: int
    table: dict[Value, tuple[int, LinearLayout]] = field(default_factory=lambda: {})
    groups: dict[Value, Group] = field(default_factory=lambda: {})
    inputs: dict[Op, tuple[int, LinearLayout]] = field(default_factory=lambda: {})
    changed: bool = True
    axis: AxisAnalysis | None = None  # made when the first load needs it

    def analyse(self, func: ops.FuncOp) -> Anchors:
        for op in func.walk():
            for g in groups_of(op):
                self.groups.update(dict.fromkeys(g.phis, g))
            for v in op.results:
                self._preset(v)
        for v in func.body.args:
            if isinstance(v.type, TileType):
                self.anchor(v, PLAIN, self.default(v.type))
        while self.changed:
            self.changed = False
            self._block(func.body)
        for v, (_, layout) in self.table.items():
            group = self.groups.get(v)
            if group is not None:
                group.layout = layout
        return self

    def _preset(self, v: Value) -> None:
        if isinstance(v.type, TileType) and v.type.layout is not None:
            self.table[v] = (MATRIX, v.type.layout)

    @property
    def slice_limit(self) -> int:
        """The most elements of a load that may be repeated in many threads."""
        return 2 * self.lanes * self.num_warps

    def default(self, t: Type) -> LinearLayout:
        return rules.default_layout(shape_of(t), self.num_warps, self.lanes)

    def layout(self, v: Value) -> LinearLayout | None:
        """Return the anchor of `v`; None if it is rematerialisable."""
        found = self.table.get(v)
        return found[1] if found is not None else None

    def anchor(self, v: Value, importance: int, layout: LinearLayout) -> None:
        old = self.table.get(v)
        if old is None or old[0] < importance:
            self.table[v] = (importance, layout)
            self.changed = True

    def best(self, values: list[Value]) -> tuple[int, LinearLayout] | None:
        """Return the anchor of the most important value; of several, the first."""
        anchors = [h for v in values if (h := self.table.get(v)) is not None]
        return max(anchors, key=lambda h: h[0]) if anchors else None

    def widened(self, op: ops.ReduceOp | ops.ScanOp) -> LinearLayout:
        """Return a layout for inputs that nothing anchors: the default one. Where they are computed from a column or a
        row that is repeated, lanes hold that first, as its load does, and need not exchange it."""
        shape, seen = shape_of(op.inputs[0].type), set[Value]()
        work = list(op.inputs)
        while work and len(seen) < FAR:
            v = work.pop()
            if v in seen or v.op is None or not is_pointwise(v.op):
                continue
            seen.add(v)
            narrow = v.op.x if isinstance(v.op, ops.BroadcastOp) else None
            if narrow is None or shape_of(v.type) != shape:
                work += rules.tile_operands(v.op)
            elif (known := self.table.get(narrow)) is not None and known[0] >= PLAIN:
                return rules.repeated(known[1], shape, op.axis, self.num_warps, self.lanes)
        return self.default(op.inputs[0].type)

    # --- walking ------------------------------------------------------------------------------------------
    def _block(self, block: Block) -> None:
        for op in block:
            if isinstance(op, ops.Loop | ops.IfOp):
                groups = groups_of(op)
                self._join(groups)
                for inner in op.regions:
                    self._block(inner)
                self._join(groups)
            elif op.results:
                self._op(op)

    def _join(self, groups: list[Group]) -> None:
        for g in groups:
            best = self.best(g.sources())
            if best is not None:
                for v in g.phis:
                    self.anchor(v, *best)

    def _op(self, op: Op) -> None:
        if is_pointwise(op):
            if isinstance(op, ops.BroadcastOp):
                return
            best = self.best(rules.tile_operands(op))
            if best is not None:
                layout = rules.result_layout(op, best[1])
                for r in op.results:
                    if shape_of(r.type):
                        self.anchor(r, best[0], layout)
            return
        _RULES.get(type(op), _fresh)(self, op)


# --- where the results of other ops are anchored -----------------------------------------------------------
def is_slice_load(op: Op, limit: int) -> bool:
    """Whether a load of at most `limit` elements is used only as rows or columns of larger tiles. It is then done
    in the layout that these need: to read a few elements in many threads is cheaper than to exchange
    them."""
    if (
        not isinstance(op, ops.TileLoad)
        or (isinstance(op, ops.LoadOp) and op.volatile)
        or len(shape_of(op.result.type)) != 1
        or op.result.type.numel > limit
    ):
        return False
    widened = False
    seen: set[Op] = set()
    work = [op.result]
    while work:
        for user in work.pop().users():
            if isinstance(user, ops.ExpandDimsOp):
                widened = True
            elif not is_pointwise(user):
                return False
            elif user not in seen:
                seen.add(user)
                work.extend(user.results)
    return widened


def function_of(op: Op) -> ops.FuncOp:
    above: Op | None = op
    while not isinstance(above, ops.FuncOp):
        assert above is not None
        above = above.parent_op()
    return above


def _is_scattered(h: Anchors, op: ops.TileLoad) -> bool:
    """Whether a load in a loop with MMAs reads an element for each of their columns, all in sectors of their own. Where
    a thread has many columns, to load each in one thread, and to exchange them, is cheaper than as many loads."""
    loop = op.parent_op()
    if not isinstance(op, ops.LoadOp) or not isinstance(loop, ops.ForOp):
        return False
    size: int = op.result.type.numel
    if not _becomes_rows(op.result) or _columns(loop, size) < MANY_COLUMNS:
        return False
    if h.axis is None:
        h.axis = AxisAnalysis(function_of(op))
    facts = h.axis.facts(op.ptr)
    return max(facts.contiguity[0], facts.constancy[0]) == 1 and apply("scattered-columns", op)


def _becomes_rows(v: Value) -> bool:
    """Whether a slice, after element-wise work, is used as rows of larger tiles alone."""
    users = v.users()
    return bool(users) and all(
        user.axis == 0 if isinstance(user, ops.ExpandDimsOp) else _becomes_rows(user.results[0])
        for user in users
        if user.results
    )


def _columns(loop: ops.ForOp, size: int) -> int:
    """Return how many columns a thread has of the loop's products with that many of them."""
    found = [op.result.type for op in loop.body if isinstance(op, ops.WgmmaOp | ops.MmaOp)]
    found = [t for t in found if len(t.shape) == 2 and t.shape[1] == size and t.layout is not None]
    held = [t.layout.drop_dim(0).unique_registers().size("register") for t in found]
    return min(held, default=0)


def _memory(h: Anchors, op: ops.TileLoad) -> None:
    r = op.result
    if not isinstance(r.type, TileType) or r in h.table:
        return
    if not is_slice_load(op, h.slice_limit):
        wide = r.type.numel >= h.lanes * h.num_warps
        h.anchor(r, WIDE if wide else PLAIN, op.attrs.get("layout") or h.default(r.type))
    elif _is_scattered(h, op):
        h.anchor(r, PLAIN, op.attrs.get("layout") or h.default(r.type))


def _combine(h: Anchors, op: ops.ReduceOp | ops.ScanOp) -> None:
    importance, layout = combine_input(h, op)
    known = h.inputs.get(op)
    if not shape_of(op.results[0].type) or (known is not None and known[0] >= importance):
        return  # no anchors follow, or they stay as they are
    h.inputs[op] = importance, layout
    anchor = rules.reduce_result(layout, op.axis) if isinstance(op, ops.ReduceOp) else layout
    for r in op.results:
        h.anchor(r, importance, anchor)


def combine_input(h: Anchors, op: ops.ReduceOp | ops.ScanOp) -> tuple[int, LinearLayout]:
    """Return (importance, layout) in which a reduction or scan takes its inputs."""
    shape = shape_of(op.inputs[0].type)
    importance, layout = h.best(list(op.inputs)) or (UNKNOWN, h.widened(op))
    if isinstance(op, ops.ReduceOp):
        return importance, rules.reduce_input(layout, op.axis, h.num_warps, h.lanes)
    if rules.is_scannable(layout, op.axis):
        return importance, layout
    return PLAIN, rules.scan_layout(shape, op.axis, h.num_warps, h.lanes)


def _dot(h: Anchors, op: ops.DotOp) -> None:
    h.anchor(op.result, MATRIX, rules.fma_acc(shape_of(op.acc.type), h.num_warps, h.lanes))


def _gather(h: Anchors, op: ops.GatherOp) -> None:
    h.anchor(op.result, *(h.best([op.index]) or (PLAIN, h.default(op.result.type))))


def _as_given(h: Anchors, op: ops.ConvertLayoutOp) -> None:
    if op.result not in h.table:
        h.anchor(op.result, *(h.best([op.x]) or (PLAIN, h.default(op.x.type))))


def _fresh(h: Anchors, op: Op) -> None:
    for r in op.results:
        if isinstance(r.type, TileType) and r not in h.table:
            h.anchor(r, PLAIN, h.default(r.type))


_RULES: dict[type[Op], Any] = {
    ops.LoadOp: _memory, ops.DescriptorLoadOp: _memory, ops.AtomicRmwOp: _memory, ops.AtomicCasOp: _memory,
    ops.ReduceOp: _combine, ops.ScanOp: _combine, ops.DotOp: _dot, ops.GatherOp: _gather,
    ops.ConvertLayoutOp: _as_given,
}  # fmt: skip


def bytes_of(v: Value) -> int:
    """Return the size of a tile's data in bytes."""
    n = elem_of(v.type).storage_bytes
    for s in shape_of(v.type):
        n *= s
    return n
