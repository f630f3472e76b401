"""Gives every tile a layout and inserts the conversions between them.

Anchors (`anchors.py`) say where anchored values are computed. This pass visits the ops that need their operands in
certain layouts and asks `Assignment.at(value, layout)` for each operand, which

    returns the value itself                  when it is anchored there,
    computes it again                         when it is rematerialisable (constants, ranges, masks, pointers,
    broadcasts), or when that is cheaper than a conversion (before a widening cast, say), converts it
    otherwise.

Each (value, layout) is made once, where the value is defined, so that work that is invariant in a loop stays
outside it; conversions then sink to their first use, and so does what is only needed after a loop: pointers of results,
say, would take registers from the loop. Loop-carried values without an anchor take the layout in which
they are first needed. For example, pointers advanced in a loop take the layout of the loop's load without any
conversion."""

from __future__ import annotations

from tessera import ops
from tessera.analysis.axis import AxisAnalysis
from tessera.errors import InternalError
from tessera.ir import Block, Builder, Module, Op, SharedType, TileType, Value, pass_, shape_of
from tessera.ir.applications import apply
from tessera.layout import Identity, LinearLayout, RegisterPermute, plan_conversion
from tessera.layout.convert import is_within_warps
from tessera.passes.gpu_facts import GpuFacts
from tessera.passes.gpu_layout import rules
from tessera.passes.gpu_layout.anchors import Anchors, Group, bytes_of, combine_input
from tessera.passes.gpu_layout.coalesce import access_width
from tessera.passes.gpu_layout.rules import is_pointwise, operand_layout, producible

# A tile of at most this size is stored in the layout it has rather than converted first (tools/fit).
DIRECT_STORE_BYTES = 4096
RECOMPUTE_DEPTH = 4  # pointwise ops that may be computed again to save a conversion (tools/fit)
SECTOR_BYTES = 32  # of global memory that one transaction moves


@pass_("assign-layouts")
def assign_layouts(module: Module, facts: GpuFacts) -> None:
    """Give every tile type a layout, with conversions where two of them meet.

    Takes: tile IR after `coalesce` and `accelerate`; layouts already there (of matrix ops) stay.
    Gives: GPU IR: each tile type has a layout, `convert_layout` stands where it must.
    Needs: any GPU.
    Raises: nothing.
    Example: `two_layouts` of tests/filecheck/assign-layouts.gir
        addptr; load; store → addptr; addptr; load; convert_layout; store
    Compare: Triton `convert-triton-to-tritongpu` and `tritongpu-remove-layout-conversions`.
    """
    for func in module.body:
        assert isinstance(func, ops.FuncOp)
        Assignment(func, module.attrs["num_warps"], facts).run()


class Assignment:
    """Rewrites one function."""

    def __init__(self, func: ops.FuncOp, num_warps: int, facts: GpuFacts):
        self.func, self.facts = func, facts
        _forget_undecided(func)
        self.anchors = Anchors(num_warps, facts.warp_size).analyse(func)
        self.memo: dict[tuple[Value, LinearLayout], Value] = {}
        self.origin: dict[Value, Value] = {}  # of copies and conversions: the source
        self.costs: dict[tuple[Value, LinearLayout], float] = {}
        self.ready: list[Group] = []
        self.conversions: list[Op] = []
        self.copies: list[Op] = []  # of rematerialisable ops
        # Rematerialisable ops: their copies in layouts are inserted before them, and they are erased at the end.
        self.markers: list[Op] = []
        self.made: dict[
            Value, LinearLayout
        ] = {}  # of rematerialisable values: where the first copy is
        self.anywhere: list[Op] = []  # ops without results that take their operands in any layout

    def run(self) -> None:
        for v, (_, layout) in self.anchors.table.items():
            v.type = v.type.with_layout(layout)
        seen: set[int] = set()
        for g in self.anchors.groups.values():
            if id(g) not in seen:
                seen.add(id(g))
                if g.layout is not None:
                    self.ready.append(g)
        self._block(self.func.body)
        self._feed_groups()
        for op in self.anywhere:
            for i, v in enumerate(op.operands):
                if isinstance(v.type, TileType):
                    op.set_operand(i, self.at(v, self._nearest(v)))
        self._feed_groups()
        for g in self.anchors.groups.values():
            if g.layout is None:  # nothing needs these values
                self._settle(g, self.anchors.default(g.phis[0].type))
                self._feed_groups()
        for op in self.func.walk():
            if (
                isinstance(op, ops.TileLoad)
                and isinstance(op.result.type, TileType)
                and op.result.type.layout is None
            ):
                self._settle_load(
                    op, op.attrs.get("layout") or self.anchors.default(op.result.type)
                )
        self._feed_groups()
        for op in reversed(self.markers):
            op.erase()
        self.func.attrs["returns"] = tuple(v.type for v in self.func.body.terminator.operands)
        for op in reversed(self.conversions):
            sink(op)
        for op in reversed(self.copies):
            if crosses_loop(op) and apply("sink-past-loops", op):
                sink(op)

    # --- values in layouts ----------------------------------------------------------------------------------
    def anchor(self, v: Value) -> LinearLayout | None:
        return v.type.layout

    def at(self, v: Value, layout: LinearLayout) -> Value:
        """Return `v` in `layout`; a scalar as it is."""
        if not isinstance(v.type, TileType) or v.type.layout == layout:
            return v
        v = self.origin.get(v, v)
        if v.type.layout == layout:
            return v
        key = (v, layout)
        found = self.memo.get(key)
        if found is None:
            found = self._make(v, layout)
            self.memo[key] = found
        return found

    def _make(self, v: Value, layout: LinearLayout) -> Value:
        op = v.op
        if v.type.layout is None:
            group = self.anchors.groups.get(v)
            if group is not None:
                self._settle(group, layout)
                return self.at(v, layout)
            if isinstance(op, ops.TileLoad):
                self._settle_load(op, layout)
                return self.at(v, layout)
            if op is None or not is_pointwise(op):
                raise InternalError(f"{v!r} has no layout")
            return self._compute(v, op, layout)
        if op is not None and self._recompute_cost(op, layout, 0) < self._convert_cost(v, layout):
            return self._compute(v, op, layout)
        return self._convert(v, layout)

    def _settle(self, group: Group, layout: LinearLayout) -> None:
        group.layout = layout
        for v in group.phis:
            v.type = v.type.with_layout(layout)
        self.ready.append(group)

    def _settle_load(self, op: ops.TileLoad, layout: LinearLayout) -> None:
        """Do a load that serves as a slice in the layout that its first user needs."""
        op.attrs.pop("layout", None)
        op.result.type = op.result.type.with_layout(layout.unique_registers())
        self._operands(op, op.result.type.layout)

    def _compute(self, v: Value, op: Op, layout: LinearLayout) -> Value:
        """Compute `v` by a copy of its op that works in `layout`, or in the nearest layout that the op can produce."""
        inside = producible(op, layout)
        if inside != layout:
            return self._convert(self.at(v, inside), layout)
        wanted = operand_layout(op, layout)
        new = op.clone({old: self.at(old, wanted) for old in op.operands})
        for old, r in zip(op.results, new.results, strict=True):
            if isinstance(r.type, TileType):
                r.type = r.type.with_layout(layout)
            self.memo[old, layout] = r
            self.made.setdefault(old, layout)
            self.origin[r] = old
        assert op.parent is not None
        op.parent.insert_before(op, new)
        self.copies.append(new)
        return new.results[v.index]

    def _convert(self, v: Value, layout: LinearLayout) -> Value:
        known = self.memo.get((v, layout))
        if known is not None:
            return known
        op = v.op
        builder = Builder.after_op(op) if op is not None else Builder.at_start(_block_of(v))
        new = ops.ConvertLayoutOp(v, results=[v.type.with_layout(layout)], names=[v.name])
        self.conversions.append(new)
        self.origin[new.result] = self.origin.get(v, v)
        self.memo[v, layout] = builder.emit(new)
        return new.result

    # --- what is cheaper ------------------------------------------------------------------------------------
    def _convert_cost(self, v: Value, layout: LinearLayout) -> float:
        plan = plan_conversion(v.type.layout, layout, v.type.elem.storage_bits)
        return 0.0 if isinstance(plan, Identity | RegisterPermute) else float(bytes_of(v))

    def _recompute_cost(self, op: Op, layout: LinearLayout, depth: int) -> float:
        """Return how many bytes must be converted to get the operands of `op` for a result in `layout`."""
        if not is_pointwise(op) or isinstance(op, rules.EXPENSIVE) or depth == RECOMPUTE_DEPTH:
            return float("inf")
        wanted = operand_layout(op, producible(op, layout))
        return sum([self._cost(u, wanted, depth + 1) for u in op.operands])

    def _cost(self, v: Value, layout: LinearLayout, depth: int) -> float:
        v = self.origin.get(v, v)
        if not isinstance(v.type, TileType) or v.type.layout == layout or (v, layout) in self.memo:
            return 0.0
        key = (v, layout)
        if key not in self.costs:
            again = self._recompute_cost(v.op, layout, depth) if v.op is not None else float("inf")
            if v.type.layout is not None:
                self.costs[key] = min(again, self._convert_cost(v, layout))
            else:
                self.costs[key] = 0.0 if again == float("inf") else again
        return self.costs[key]

    # --- ops --------------------------------------------------------------------------------------------------
    def _block(self, block: Block) -> None:
        for op in block:
            if isinstance(op, ops.Loop | ops.IfOp):
                for inner in op.regions:
                    self._block(inner)
            elif is_pointwise(op):
                self._pointwise(op)
            else:
                self._demand(op)

    def _pointwise(self, op: Op) -> None:
        r = op.results[0]
        tiles = [v for v in (*op.operands, *op.results) if isinstance(v.type, TileType)]
        if not tiles:
            return
        if isinstance(op, ops.SplitOp) and not shape_of(r.type):
            self._operands(
                op, rules.default_layout((), self.anchors.num_warps, self.anchors.lanes).join()
            )
        elif not isinstance(r.type, TileType):  # of one element, which every thread has
            self._operands(op, self._anywhere(op.operands[0]))
        elif r.type.layout is not None:
            self._operands(op, operand_layout(op, r.type.layout))
        else:
            self.markers.append(op)

    def _operands(self, op: Op, layout: LinearLayout) -> None:
        for i, v in enumerate(op.operands):
            op.set_operand(i, self.at(v, layout))

    def _anywhere(self, v: Value) -> LinearLayout:
        """Return the anchor of a value, or the default layout."""
        return v.type.layout or self.anchors.default(v.type)

    def _written(self, t: SharedType) -> LinearLayout:
        lanes, vector = self.facts.warp_size, self.facts.max_vector_bytes
        return rules.written_layout(t, self.anchors.num_warps, lanes, vector)

    def _nearest(self, v: Value) -> LinearLayout:
        """Return the anchor of a value, else the layout in which it is already computed, else that of the nearest value
        it is computed from.

        The condition of an assertion about indices, say, is computed in the layout of the indices.
        """
        work, seen = [v], {v}
        for u in work:
            layout = u.type.layout or self.made.get(u)
            if layout is not None:
                return layout
            if u.op is not None and is_pointwise(u.op) and not isinstance(u.op, ops.BroadcastOp):
                found = [
                    w
                    for w in u.op.operands
                    if w not in seen and shape_of(w.type) == shape_of(v.type)
                ]
                seen.update(found)
                work += found
        return self.anchors.default(v.type)

    def _demand(self, op: Op) -> None:
        """Bring the operands of an op that is not pointwise into the layouts that it needs."""
        if isinstance(op, ops.PointerAccess | ops.TileLoad | ops.DescriptorStoreOp):
            self._access(op)
        elif isinstance(op, ops.ReduceOp | ops.ScanOp):
            self._operands(op, (self.anchors.inputs.get(op) or combine_input(self.anchors, op))[1])
        elif isinstance(op, ops.DotOp):
            for i, v in enumerate((op.a, op.b)):  # else the lowering reads them from its scratch
                if op.in_place:
                    wanted = rules.fma_operand(op.result.type.layout, shape_of(op.a.type)[-1], i)
                else:
                    wanted = self._anywhere(v)
                op.set_operand(i, self.at(v, wanted))
            op.set_operand(2, self.at(op.acc, op.result.type.layout))
        elif isinstance(op, ops.ConvertLayoutOp):
            new = self.at(op.x, op.result.type.layout)
            op.replace_by([new])
        elif isinstance(op, ops.GatherOp):
            op.set_operand(0, self.at(op.x, self._anywhere(op.x)))
            op.set_operand(1, self.at(op.index, op.result.type.layout))
        elif isinstance(op, ops.LocalAllocOp) and op.init is not None:
            op.set_operand(
                0, self.at(op.init, op.init.type.layout or self._written(op.result.type))
            )
        elif isinstance(op, ops.HistogramOp):
            self._operands(op, self._anywhere(op.x))
        elif isinstance(op, ops.VolatileAsmOp):
            if isinstance(op.results[0].type, TileType):
                self._operands(op, op.results[0].type.layout)
        elif isinstance(op, ops.CallOp | ops.ReturnOp):
            for i, v in enumerate(op.operands):
                if isinstance(v.type, TileType):
                    op.set_operand(i, self.at(v, self.anchors.default(v.type)))
        elif not op.results and not op.terminator:
            self.anywhere.append(op)
        elif not (op.terminator and isinstance(op.parent_op(), ops.Loop | ops.IfOp)):
            for i, v in enumerate(op.operands):
                if isinstance(v.type, TileType):
                    op.set_operand(i, self.at(v, self._anywhere(v)))

    def _access(self, op: ops.PointerAccess | ops.TileLoad | ops.DescriptorStoreOp) -> None:
        """Do loads in the layout of their result's anchor, and stores in their coalesced layout."""
        noted: LinearLayout | None = op.attrs.pop("layout", None)
        t = op.results[0].type if op.results else None
        if isinstance(t, TileType) and t.layout is None:
            op.attrs["layout"] = noted  # a slice: nothing needs it yet
            return
        if t is not None:
            layout = t.layout if isinstance(t, TileType) else None
        elif isinstance(op, ops.DescriptorStoreOp):
            # The TMA unit takes tiles from shared memory anyway.
            layout = op.value.type.layout or noted or self.anchors.default(op.value.type)
        else:
            assert isinstance(op, ops.PointerAccess)
            layout = self._store_layout(op, op.operands[1], noted)
        if layout is not None:
            self._operands(op, layout)

    def _store_layout(
        self, op: ops.PointerAccess, value: Value, coalesced: LinearLayout | None
    ) -> LinearLayout | None:
        """Return the coalesced layout, or that of a small value whose own stores fill whole sectors already, each
        instruction by itself (`whole-sectors`): parts of a sector are as many requests to L2. So are the pieces of a
        row that an instruction writes, which are longer where the threads of a warp exchange elements first."""
        if not isinstance(value.type, TileType):
            return None
        wanted = coalesced or self.anchors.default(value.type)
        anchor = value.type.layout
        small = bytes_of(value) <= DIRECT_STORE_BYTES
        if anchor is None or not small or self._convert_cost(value, wanted) == 0:
            return wanted
        step, size = fastest_step(wanted), value.type.elem.storage_bytes
        if neighbours(anchor, step) * size < SECTOR_BYTES:
            return wanted
        vector = self._vector(op, wanted)
        pieces, longer = (neighbours(v, step, vector) * size for v in (anchor, wanted))
        if pieces < SECTOR_BYTES:
            return wanted if apply("whole-sectors", op) else anchor
        exchanged = longer > pieces and is_within_warps(anchor, wanted)
        return wanted if exchanged and apply("longer-stores", op) else anchor

    def _vector(self, op: ops.PointerAccess, coalesced: LinearLayout) -> int:
        """Return how many elements one instruction of a thread may store side by side."""
        bases = (*coalesced.bases("register"), *coalesced.bases("lane"))
        fastest = next(b for b in bases if any(b))
        if self.anchors.axis is None:
            self.anchors.axis = AxisAnalysis(self.func)
        dim = next(d for d, c in enumerate(fastest) if c)
        return access_width(self.anchors.axis, op.ptr, op.mask, dim, self.facts.max_vector_bytes)

    def _feed_groups(self) -> None:
        """Bring the incoming values of settled groups into their layouts, which may settle other groups."""
        while self.ready:
            group = self.ready.pop()
            assert group.layout is not None
            for op, i in group.incoming:
                op.set_operand(i, self.at(op.operands[i], group.layout))


def fastest_step(layout: LinearLayout) -> int:
    """Return the packed coordinate of one step along the dimension that registers and lanes run along first."""
    return next((c for c in (*layout.columns("register"), *layout.columns("lane")) if c), 1)


def neighbours(layout: LinearLayout, step: int, vector: int | None = None) -> int:
    """Return how many elements at steps 1, 2, 4, ... of `step` one warp's registers and lanes hold. With `vector`:
    those of one instruction, which moves at most so many elements of a thread."""
    held, lanes = {*layout.columns("register")}, {*layout.columns("lane")}
    count = 1
    while vector is not None and count < vector and step * count in held:
        count *= 2
    while step * count in (lanes if vector is not None else held | lanes):
        count *= 2
    return count


def _block_of(v: Value) -> Block:
    block = v.block
    assert block is not None
    return block


def _forget_undecided(func: ops.FuncOp) -> None:
    """Replace conversions to no layout by their operand."""
    for op in list(func.walk()):
        if isinstance(op, ops.ConvertLayoutOp) and op.result.type.layout is None:
            op.replace_by([op.x])


def crosses_loop(op: Op) -> bool:
    """Whether a loop stands between an op of one result and its first use in its block."""
    if len(op.results) > 1:
        return False
    users = set[Op | None]()
    for user in op.result.users():
        while user.parent is not op.parent:
            above = user.parent_op()
            assert above is not None
            user = above
        users.add(user)
    place, crossed = op.next, False
    while place is not None and place not in users:
        crossed |= isinstance(place, ops.Loop)
        place = place.next
    return crossed and place is not None


def sink(op: Op) -> None:
    """Move a pure op down to its first use in its block, and into a branch if it is used only there. Erase it if it
    has no use."""
    users = op.result.users()
    if not users:
        op.erase()
        return
    places: dict[Op, Block | None] = {}  # with the one of its blocks that contains the users
    for user in users:
        block: Block | None = None
        while user.parent is not op.parent:
            block, parent = user.parent, user.parent_op()
            assert parent is not None
            user = parent
        places[user] = block if places.get(user, block) is block else None
    place = op.next
    while place is not None and place not in places:
        place = place.next
    branch = places[place] if place is not None and len(places) == 1 else None
    if isinstance(place, ops.IfOp) and branch is not None and branch.first is not None:
        op.move_before(branch.first)
        sink(op)
    elif place is not None and place is not op.next:
        op.move_before(place)
