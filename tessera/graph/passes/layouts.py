"""Lets convolutions read and make tensors whose channels follow one another in memory, where that takes less time, and
loops write their results in the order in which convolutions read them.

    %y = graph.extern [%x, %w] {target='aten.convolution.default', …}          %x, %y row-major
    →   %x: strides=(h * w * c, 1, w * c, c), which is how the loop that makes it writes it
        %t = graph.loop (k, c, h, w) { load %w }                               the weight, in that order
        %y = graph.extern [%x, %t]: strides=(h * w * c, 1, w * c, c)           as what reads %y is told

Elements are at the same coordinates as before: loads and their maps stay. What leaves the graph, or goes to another
library function, keeps its strides, by a copy where it needs one.
"""

from __future__ import annotations

from collections.abc import Sequence

from tessera.dtypes import int64
from tessera.graph.emit.accesses import offset_of
from tessera.graph.index import Dim, IndexMap
from tessera.graph.ir.ops import LoadOp, LoopOp, MatmulOp, ScatterOp, ViewOp, yielded
from tessera.graph.ir.types import TensorType
from tessera.graph.passes import cost
from tessera.graph.passes.convolutions import (
    BACKWARD,
    RANK,
    Convolution,
    channels_last,
    convolution_of,
    is_channels_last,
    is_pointwise,
)
from tessera.graph.passes.cost import Machine, SizeOf
from tessera.graph.passes.facts import captured_tensors, symbol_ranges
from tessera.ir import Block, Builder, Module, Op, Value, pass_
from tessera.ir.applications import apply
from tessera.ops import FuncOp, ReturnOp, YieldOp

NAME = "graph-channels-last"
NOTE = "convolutions"  # the module's attribute that says what was chosen, and why
# And, in training, the numbers of the results whose strides are ours to choose.
FREE = "free_results"
MOST_SAVED = (
    1 << 20
)  # bytes of a copied argument from which on gradients copy it again: a launch and some of them
NEAR = 4  # elements that neighbours along a row are apart, at most: pooling goes on by several


@pass_("graph-channels-last")
def choose_layouts(module: Module) -> None:
    """Choose the order of the elements of what convolutions read and make (docs/graph-layouts.md)."""
    size = cost.sizes(symbol_ranges(module))
    for function in module.functions:
        assert isinstance(function, FuncOp)
        found = [c for op in function.body if (c := convolution_of(op)) is not None]
        if not found:
            continue
        machine = cost.machine_of(found[0].weight.type.device)
        layouts = Layouts(function, module.attrs.get(FREE), found, size)
        chosen, why = layouts.decide(machine)
        if chosen and not apply("graph-channels-last", found[0].op):
            chosen, why = False, f"{NAME} is off"
        if chosen:
            layouts.write()
        module.attrs[NOTE] = f"{'channels last' if chosen else 'row-major'}: {why}"


class Layouts:
    """The layouts of one function's tensors, if its convolutions have channels last. `last`: the tensors whose strides
    become those; `copies`: operands of convolutions that a copy takes the place of; `back`: tensors in `last` that
    somebody needs in the old strides."""

    def __init__(
        self,
        function: FuncOp,
        free: Sequence[int] | None,
        convolutions: Sequence[Convolution],
        size: SizeOf,
    ):
        self.function, self.convolutions, self.size = function, convolutions, size
        self.free = set(free or ())
        self.training = free is not None or any(c.op.target == BACKWARD for c in convolutions)
        made = [v for c in convolutions for v in (*c.made, c.weight_grad) if v is not None]
        read = [origin(v) for c in convolutions for v in c.tensors]
        self.last = {v for v in made if not is_channels_last(v.type)}
        self.last |= {v for v in read if self._may_change(v)}
        self._spread()
        self.back = {v for v in self.last if self._fixed_users(v)}
        self.copies = {v for c in convolutions for v in _ordered(c) if not self._lies_last(v)}

    def _lies_last(self, v: Value) -> bool:
        root = origin(v)
        return root in self.last or is_channels_last(root.type)

    # --- what may change ---------------------------------------------------------------------------------------
    def _may_change(self, v: Value) -> bool:
        """Whether a tensor is made by loops, and nobody is told its strides."""
        op = v.op
        if not isinstance(op, LoopOp | ScatterOp) or (isinstance(op, LoopOp) and op.joined):
            return False
        t: TensorType = v.type
        plain = t.rank == RANK and t.strides is None and not is_channels_last(t)
        return plain and not self._fixed_users(v)

    def _fixed_users(self, v: Value) -> list[tuple[Op, int]]:
        """Who needs a tensor in the strides that it has now, and in which operand."""
        return [(user, k) for user, k in v.uses if self._is_fixed(user, k, v)]

    def _is_fixed(self, user: Op, k: int, v: Value) -> bool:
        if isinstance(user, LoadOp | MatmulOp | ScatterOp):
            return False
        if isinstance(user, ReturnOp):
            return k not in self.free or not _has_numbers(with_channels_last(v.type))
        if isinstance(user, ViewOp):
            return not all(_looks_through(x, user.result) for x in user.result.users())
        c = convolution_of(user)
        return c is None or v not in (*c.tensors, c.weight)

    # --- loops between convolutions -------------------------------------------------------------------------------
    def _spread(self) -> None:
        """Loops write in the order in which they read most of their bytes, or else in that of their readers."""
        loops = [op for op in self.function.body if isinstance(op, LoopOp | ScatterOp)]
        before = -1
        while len(self.last) != before:
            before = len(self.last)
            for op in loops:
                self._follow(op, self._reads(op))
            for op in reversed(loops):
                if self._reads(op) == 0:
                    self._follow(op, self._is_read(op))

    def _follow(self, op: Op, gain: int) -> None:
        if gain > 0:
            self.last |= {r for r in op.results if self._may_change(r)}

    def _reads(self, op: LoopOp | ScatterOp) -> int:
        """The bytes that a loop reads along the channels of what it makes, less those that it reads along rows."""
        args = op.regions[0].args
        gain = 0
        if len(args) != RANK:
            return gain
        for v in captured_tensors(op):
            loads = cost.loads_of(op, [v]) if v.type.rank == RANK else None
            if loads:
                n = cost.bytes_of(v.type, self.size)
                gain += n * self._direction(loads[0], args[1], args[3])
        return gain

    def _direction(self, load: LoadOp, channel: Value, column: Value) -> int:
        """1 where neighbours along channels are neighbours in memory, -1 where those along a row are."""
        t: TensorType = load.tensor.type
        t = with_channels_last(t) if load.tensor in self.last else t
        offset = offset_of(t, load.map.results)
        steps = {v: offset.coefficient(Dim(k)) for k, v in enumerate(load.indices)}
        if steps.get(channel) == 1:
            return 1
        along = steps.get(column)
        near = along is not None and along.value is not None and 0 < abs(along.value) <= NEAR
        return -1 if near else 0

    def _is_read(self, op: LoopOp | ScatterOp) -> int:
        """Whether those that read a loop's results in its own order write with channels last."""
        votes = 0
        for r in op.results:
            for user in r.users():
                top = cost.top_level(user, self.function.body)
                same = isinstance(user, LoadOp) and user.map.is_identity
                if same and isinstance(top, LoopOp) and top.results[0].type.rank == RANK:
                    votes += 1 if top.results[0] in self.last else -1
        return votes

    # --- the decision ---------------------------------------------------------------------------------------------
    def decide(self, machine: Machine) -> tuple[bool, str]:
        """Whether channels come last, and why."""
        kinds = sorted({c.weight.type.elem.short for c in self.convolutions})
        if not set(kinds) <= set(machine.channels_last):
            names = " and ".join(machine.channels_last)
            return False, f"of {', '.join(kinds)}, while that is faster for {names} alone"
        reordered = [c for c in self.convolutions if not _is_padded(c, machine)]
        tensors = [v for c in reordered for v in (*c.tensors, *c.made)]
        if machine.weights_last:
            tensors += [v for c in reordered for v in _weights(c)]
        ours = [*self.copies, *self.back]
        saved = 2 * sum(cost.bytes_of(v.type, self.size) for v in tensors)
        moved = 2 * sum(cost.bytes_of(v.type, self.size) for v in ours)
        times = self._slower(machine)
        why = (
            f"{len(self.convolutions)} convolutions would reorder {saved:,} bytes, "
            f"and we reorder {moved:,} in {len(ours)} loops"
        )
        if times >= 1:
            return False, f"the library's kernels would take {times:.1f} times as long; {why}"
        launches = len(ours) - (len(tensors) if machine.weights_last else 0)
        return moved + launches * machine.launch * machine.bandwidth < saved, why

    def _slower(self, machine: Machine) -> float:
        """How many times as long the library's kernels take with channels last, by what each of them multiplies."""
        times = machine.convolutions if self.training else machine.inference
        work = [(self.size(c.work), times[c.kind]) for c in self.convolutions]
        total = sum(n for n, _ in work)
        return sum(n * f for n, f in work) / total if total else 1.0  # of no images none is faster

    # --- the rewrite ----------------------------------------------------------------------------------------------
    def write(self) -> None:
        """Give tensors their new strides, and copies to who needs others."""
        fixed = {v: self._fixed_users(v) for v in self.back}
        copies: dict[Value, Value] = {}
        for c in self.convolutions:
            places = {v: self._operand(v, c, copies) for v in _ordered(c)}
            c.op.set_operands([places.get(v, v) for v in c.op.operands])
        for v in self.last:
            old: TensorType = v.type
            v.type = with_channels_last(old)
            if isinstance(v.op, ScatterOp):
                _rebase(v.op)
            if v in fixed:
                assert v.op is not None
                copy = copied(v, old, Builder.after_op(v.op))
                for user, k in fixed[v]:
                    user.set_operand(k, copy)
        end = self.function.body.terminator
        for k, v in enumerate(end.operands):
            if k in self.free and v in copies and self._is_saved_so(v, copies[v]):
                end.set_operand(k, copies[v])  # for the gradients, which would copy it again
        self.function.returns = tuple(v.type for v in end.operands)

    def _is_saved_so(self, v: Value, copy: Value) -> bool:
        """Whether a copy is saved in place of a tensor; large arguments, which are there anyhow, are copied again."""
        large = v.op is None and cost.bytes_of(v.type, self.size) >= MOST_SAVED
        return _has_numbers(copy.type) and not large

    def _operand(self, v: Value, c: Convolution, copies: dict[Value, Value]) -> Value:
        """What a convolution reads in place of an operand."""
        if self._lies_last(v):
            root = origin(v)
            t = with_channels_last(root.type)
            if root in self.last or t == root.type or is_pointwise(t):
                return root
            same = IndexMap.identity(RANK)  # memory of one channel, of which the library is told
            return Builder.before_op(c.op).emit(ViewOp(root, index_map=same, results=[t]))
        if v not in copies:
            copies[v] = copied(v, with_channels_last(v.type), Builder.before_op(c.op))
        return copies[v]


def _ordered(c: Convolution) -> list[Value]:
    """The operands of a convolution that should have channels last; a weight of one element for each pair of channels
    has them in either order."""
    return [*c.tensors, *_weights(c)[:1]]


def _weights(c: Convolution) -> list[Value]:
    """A convolution's weight and its gradient, where their order of dimensions says where elements lie."""
    given = [c.weight, *([] if c.weight_grad is None else [c.weight_grad])]
    return [] if is_pointwise(c.weight.type) else given


def _is_padded(c: Convolution, machine: Machine) -> bool:
    """Whether the library copies what a convolution reads and makes in either order, to have as many channels as its
    kernels for channels last want; row-major ones may have a kernel that copies nothing."""
    return c.groups == 1 and any(isinstance(n, int) and n % machine.channels for n in c.channels)


def _looks_through(user: Op, view: Value) -> bool:
    """Whether a view's memory does not matter to one who reads it: a convolution may read a copy."""
    c = convolution_of(user)
    copied = c is not None and view in _ordered(c) and not is_channels_last(view.type)
    return copied or isinstance(user, LoadOp)


def _has_numbers(t: TensorType) -> bool:
    """Whether all strides are numbers, as torch has to be told those of saved tensors."""
    return all(isinstance(n, int) for n in t.all_strides)


def _rebase(op: ScatterOp) -> None:
    """Let what a scatter begins with lie in memory as its result does, where that is a loop's, made for it alone."""
    base = op.base
    if isinstance(base.op, LoopOp) and len(base.uses) == 1 and base.type.strides is None:
        base.type = with_channels_last(base.type)


def with_channels_last(t: TensorType) -> TensorType:
    return TensorType(t.shape, t.elem, channels_last(t.shape), t.device)


def origin(v: Value) -> Value:
    """The tensor that a value is a copy of, in other strides."""
    while (source := _source(v)) is not None:
        v = source
    return v


def _source(v: Value) -> Value | None:
    op = v.op
    if isinstance(op, ViewOp):
        return op.x if op.index_map.is_identity and op.x.type.shape == v.type.shape else None
    if not isinstance(op, LoopOp) or len(op.extents) != v.type.rank:
        return None
    load = yielded(op.body)[v.index].op
    if not isinstance(load, LoadOp) or load.parent is not op.body or load.mask is not None:
        return None
    plain = load.map.is_identity and list(load.indices) == op.body.args
    return load.tensor if plain and load.tensor.type.shape == v.type.shape else None


def copied(v: Value, t: TensorType, b: Builder) -> Value:
    """The elements of a tensor in other strides."""
    body = Block([int64] * t.rank)
    inner = Builder(body)
    inner.insert(YieldOp([inner.emit(LoadOp(v, list(body.args), None, None))]))
    loop = b.insert(LoopOp(extents=t.shape, regions=[body], results=[t]))
    return loop.results[0]
