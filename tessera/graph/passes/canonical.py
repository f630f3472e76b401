"""Brings graphs into canonical form: folds views into the maps of loads, simplifies maps, resolves known masks and
comparisons, drops copies and unused results. Rules of tile IR fold scalars."""

from __future__ import annotations

from collections.abc import Sequence

from tessera.dtypes import int64
from tessera.graph.index import IndexMap, Ranges, dim, expr, is_nonnegative
from tessera.graph.ir.combine import extremum_of, region_of, simple
from tessera.graph.ir.concat import ConcatOp
from tessera.graph.ir.ops import (
    CheckedOp,
    ExternOp,
    IndexOp,
    LoadOp,
    LoopOp,
    ReduceOp,
    ScanOp,
    ScatterOp,
    SortOp,
    ViewOp,
    WriteOp,
    yielded,
)
from tessera.graph.ir.types import TensorType
from tessera.graph.passes.cost import top_level
from tessera.graph.passes.facts import (
    NESTS,
    Leaves,
    SymbolRanges,
    decided,
    extent_of,
    is_inside,
    shared_ranges,
    symbol_ranges,
)
from tessera.graph.passes.inline import selected
from tessera.graph.passes.reindex import REINDEX
from tessera.graph.passes.scatters import SCATTERS
from tessera.ir import Block, Module, Op, Rewriter, RuleSet, Value, pass_, rule
from tessera.ir.applications import apply
from tessera.ops import CmpOp, ConstOp, ReturnOp
from tessera.passes.neutral.fold import FOLD, constant_of, make_const

GRAPH = RuleSet()
NEED_OWN = (ReturnOp, ExternOp, ViewOp, WriteOp, ScatterOp, ConcatOp)


class GraphRewriter(Rewriter):
    """A rewriter whose rules know the ranges of symbols."""

    def __init__(self, rules: RuleSet, symbols: SymbolRanges, optimization: str = ""):
        super().__init__(rules, optimization)
        self.symbols = symbols


# --- indices ------------------------------------------------------------------------------------------------------
@rule(GRAPH, LoadOp, IndexOp)
def fold_indices(op: LoadOp | IndexOp, rw: GraphRewriter) -> Op | None:
    """load x[index e(i)] → load x at e(i);  maps simplified within the ranges of their indices"""
    if _is_plain(op):
        return None
    leaves = Leaves()
    map = leaves.through(op.map, op.indices)
    map = map.subs(leaves.units()).simplify(leaves.ranges(rw.symbols))
    used = sorted({k for r in map.results for k in r.dims})
    values = [leaves.values[k] for k in used]
    place = {k: dim(n) for n, k in enumerate(used)}
    new = map.at([place.get(k, 0) for k in range(map.dims)], len(used))
    new, values = _in_order(new, values)
    if values == list(op.indices) and new == op.map:
        return None
    if isinstance(op, LoadOp):
        rw.set_operands(op, op.tensor, values, op.mask, op.other)
    else:
        rw.set_operands(op, values)
    op.index_map = None if new.is_identity else new
    return op


def _is_plain(op: LoadOp | IndexOp) -> bool:
    """Whether the coordinates are indices of loops that run more than once, each at one place."""
    plain = op.index_map is None and all(extent_of(v) not in (None, 1) for v in op.indices)
    return plain and len(set(op.indices)) == len(op.indices)


def _in_order(map: IndexMap, values: list[Value]) -> tuple[IndexMap, list[Value]]:
    """With indices in the order in which the results first use them."""
    order = list(dict.fromkeys(k for r in map.results for k in sorted(r.dims)))
    place = {k: n for n, k in enumerate(order)}
    moved = map.at([dim(place[k]) for k in range(map.dims)], map.dims)
    return moved, [values[k] for k in order]


@rule(GRAPH, IndexOp)
def plain_index(op: IndexOp, rw: GraphRewriter) -> Value | None:
    """index i → i;  index 3 → const 3"""
    if op.map.is_identity and len(op.indices) == 1:
        return op.indices[0]
    value = op.map.results[0].value
    return None if value is None else make_const(rw, value, int64)


@rule(GRAPH, CmpOp)
def compare_indices(op: CmpOp, rw: GraphRewriter) -> Value | None:
    """i < n → true where the ranges of the indices prove it, false where they refute it"""
    if op.lhs.type is not int64:
        return None
    leaves = Leaves()
    a, b = leaves.follow(op.lhs), leaves.follow(op.rhs)
    ranges = leaves.ranges(rw.symbols)
    known = decided(op.predicate, a, b, ranges)
    return None if known is None else make_const(rw, known, op.result.type)


# --- loads and views ------------------------------------------------------------------------------------------------
@rule(GRAPH, LoadOp)
def load_through_view(op: LoadOp, rw: GraphRewriter) -> Op | None:
    """load (view x by m)[i] → load x[m(i)]"""
    view = op.tensor.op
    if not isinstance(view, ViewOp):
        return None
    map = view.index_map.compose(op.map)
    rw.set_operands(op, view.x, list(op.indices), op.mask, op.other)
    op.index_map = None if map.is_identity else map
    return op


@rule(GRAPH, LoadOp)
def known_mask(op: LoadOp, rw: GraphRewriter) -> Value | Op | None:
    """load x[i], true → load x[i];  load x[i], false, other → other (0 without one)"""
    known = None if op.mask is None else constant_of(op.mask)
    if known is None:
        return None
    if known:
        rw.set_operands(op, op.tensor, list(op.indices), None, None)
        return op
    if op.other is not None:
        return op.other
    t = op.result.type
    return make_const(rw, 0.0 if t.is_floating() else False if t.is_bool() else 0, t)


@rule(GRAPH, CheckedOp)
def known_check(op: CheckedOp, rw: GraphRewriter) -> Value | None:
    """checked x, true → x;  checked x, c, false → x"""
    never = op.mask is not None and constant_of(op.mask) == 0
    return op.x if never or constant_of(op.condition) else None


@rule(GRAPH, ViewOp)
def view_of_view(op: ViewOp, rw: GraphRewriter) -> Value | None:
    """view (view x) → view x;  view x of x's own type at the same places → x"""
    if op.index_map.is_identity and op.x.type == op.result.type:
        return op.x
    inner = op.x.op
    if not isinstance(inner, ViewOp):
        return None
    map = inner.index_map.compose(op.index_map)
    return rw.emit(ViewOp(inner.x, index_map=map, results=[op.result.type]))


@rule(GRAPH, ViewOp)
def simple_view(op: ViewOp, rw: GraphRewriter) -> Op | None:
    """The map of a view, simplified within its shape"""
    ranges = shared_ranges(op.result.type.shape, tuple(sorted(rw.symbols.items())))
    map = op.index_map.simplify(ranges)
    if map == op.index_map:
        return None
    op.index_map = map
    return op


# --- loops ----------------------------------------------------------------------------------------------------------
@rule(GRAPH, LoadOp)
def load_of_uniform(op: LoadOp, rw: GraphRewriter) -> Value | None:
    """load (loop { yield v }) → v, where v is the same for all indices"""
    loop = op.tensor.op
    if not isinstance(loop, LoopOp):
        return None
    value = yielded(loop.body)[op.tensor.index]
    if isinstance(value.type, TensorType) or is_inside(value, loop):
        return None
    return value if op.mask is None else selected(rw.builder, op, value)


@rule(GRAPH, LoopOp, ReduceOp, ScanOp, SortOp, ScatterOp)
def unit_extents(op: LoopOp, rw: GraphRewriter) -> Op | None:
    """An index below an extent of 1 → 0"""
    units = [a for a, n in zip(op.regions[0].args, op.extents, strict=True) if n == 1 and a.uses]
    if not units:
        return None
    first = op.regions[0].first
    assert first is not None
    zero = ConstOp(value=0, results=[int64])
    op.regions[0].insert_before(first, zero)
    for arg in units:
        rw.replace_uses(arg, zero.result)
    return op


@rule(GRAPH, LoopOp)
def copying_loop(op: LoopOp, rw: GraphRewriter) -> Sequence[Value] | None:
    """loop (i) { yield load x[i] } → x, where nobody asks for a tensor of its own"""
    pairs = zip(op.results, yielded(op.body), strict=True)
    sources = [_copied(op, r, v) for r, v in pairs]
    found = [x for x in sources if x is not None]
    return found if len(set(found)) == len(op.results) else None


def _copied(op: LoopOp, result: Value, value: Value) -> Value | None:
    """The tensor that may take the place of a loop's result, which is a copy of it."""
    load = value.op
    if not isinstance(load, LoadOp) or load.mask is not None or load.parent is not op.body:
        return None
    if list(load.indices) != op.body.args or not load.map.is_identity:
        return None
    x = load.tensor
    same = x.type == result.type or (
        result.type.strides is None and x.type.device == result.type.device
    )
    if not same or x.type.shape != result.type.shape:
        return None
    return x if not _needs_own(result) or _stands_for(x, result) else None


def _stands_for(x: Value, copy: Value) -> bool:
    """Whether a tensor may take the place of a copy of it: a loop has made it where the copy would lie, and nobody
    else gets it but to read it."""
    return isinstance(x.op, LoopOp) and x.type == copy.type and not _needs_own(x)


def _needs_own(v: Value) -> bool:
    """Whether a tensor must not be another one's memory: who gets it from the graph may write to it, an extern is told
    strides, a scatter changes its base where that is its own, what is written to an argument may be another argument's
    former contents, and a part of a concatenation lies in that."""
    return any(isinstance(user, NEED_OWN) for user in v.users())


@rule(GRAPH, LoopOp)
def unused_results(op: LoopOp, rw: GraphRewriter) -> Sequence[Value] | None:
    """Results that nobody reads, and second ones of the same value, leave the loop"""
    out = yielded(op.body)
    first: dict[Value, int] = {}
    for i, v in enumerate(out):
        if op.results[i].uses and _may_share(op.results[i]):
            first.setdefault(v, i)
    source = [first.get(v, i) if _may_share(op.results[i]) else i for i, v in enumerate(out)]
    keep = [i for i, r in enumerate(op.results) if r.uses and source[i] == i]
    used = {source[i] for i, r in enumerate(op.results) if r.uses}
    keep = sorted({*keep, *used})
    if len(keep) == len(op.results) or not keep:
        return None
    rw.set_operands(op.body.terminator, [out[i] for i in keep])
    types = [op.results[i].type for i in keep]
    new = LoopOp(extents=op.extents, regions=op.regions, results=types)
    op.regions = []
    rw.insert(new)
    fresh = dict(zip(keep, new.results, strict=True))
    return [fresh.get(source[i], r) for i, r in enumerate(op.results)]


@rule(GRAPH, ReduceOp)
def unread_place(op: ReduceOp, rw: GraphRewriter) -> Sequence[Value] | None:
    """(largest, its place) → largest, where nobody reads the place: a NaN wins in both, and equal ones are equal"""
    known = None if len(op.results) != 2 or op.results[1].uses else extremum_of(op.combine)
    if known is None:
        return None
    element, place = yielded(op.body)
    rw.set_operands(op.body.terminator, [element])
    combine, identities = simple(known[0], element.type)
    region = region_of([element.type], combine)
    new = ReduceOp(extents=op.extents, identities=identities, regions=[op.body, region])
    op.regions = []
    rw.insert(new)
    return [new.result, place]


def _may_share(r: Value) -> bool:
    return not _needs_own(r) and r.type.strides is None


# --- scalars outside of loops ---------------------------------------------------------------------------------------
def sink_scalars(module: Module) -> None:
    """Give each top-level loop its own copy of the scalars that the function computes in front of it."""
    for function in module.functions:
        body = function.regions[0]
        for op in reversed(list(body)):
            if op.regions or op.terminator or not op.results or not _is_scalar_op(op):
                continue
            users: dict[Op, list[tuple[Op, int]]] = {}
            for user, index in op.result.uses:
                top = top_level(user, body)
                if top is not user and top.regions:
                    users.setdefault(top, []).append((user, index))
            for top, uses in users.items():
                copy, block = op.clone(), top.regions[0]
                inside = [block in (x.parent for x in (u, *u.ancestors())) for u, _ in uses]
                assert block.first is not None
                if len(top.regions) > 1 and not all(inside):
                    copy.drop_operands()
                    continue  # a combine region reads it: it stays outside
                block.insert_before(block.first, copy)
                for user, index in uses:
                    user.set_operand(index, copy.result)
            if not op.result.uses:
                op.erase()


def _is_scalar_op(op: Op) -> bool:
    tensors = any(isinstance(v.type, TensorType) for v in (*op.operands, *op.results))
    return not tensors and not op.all_effects() and len(op.results) == 1


# --- what does not depend on an index ---------------------------------------------------------------------------------
def hoist(module: Module) -> bool:
    """Move in front of an inner nest what does not depend on its indices; whether anything was. Loads and nests only
    move if its body runs at all: their indices are in range where they stand."""
    symbols = Ranges.of_extents((), symbol_ranges(module))
    moved = False
    for function in module.functions:
        for op in function.regions[0]:
            for block in op.regions:
                moved |= _hoist_inside(block, symbols)
    return moved


def _hoist_inside(block: Block, symbols: Ranges) -> bool:
    moved = False
    for nest in block:
        if not isinstance(nest, NESTS):
            continue
        moved |= _hoist_inside(nest.regions[0], symbols)
        runs = all(is_nonnegative(expr(n) - 1, symbols) for n in nest.extents)
        for op in nest.regions[0]:
            partial = bool(op.regions) or isinstance(op, LoadOp | CheckedOp)
            if op.terminator or op.all_effects() or (partial and not runs):
                continue
            inner = [v for x in op.walk() for v in x.operands if not is_inside(v, op)]
            if not any(is_inside(v, nest) for v in inner) and apply("graph-canonicalize", op):
                op.move_before(nest)
                moved = True
    return moved


RULES = FOLD + GRAPH + REINDEX + SCATTERS


@pass_("graph-canonicalize", optimization="graph-canonicalize", counts=True)
def canonicalize(module: Module) -> None:
    """Apply all rules to a fixpoint; drops unused pure ops. Assumes and keeps a valid graph."""
    GraphRewriter(RULES, symbol_ranges(module), "graph-canonicalize").run(module)
    if hoist(module):
        GraphRewriter(RULES, symbol_ranges(module), "graph-canonicalize").run(module)
