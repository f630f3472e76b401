"""Delays the later stages of a loop: its ops run one iteration after the one that they belong to.

    for i:                                if at least one iteration:
      %s = k[i] @ q                         %s = k[0] @ q;  %p = f(%s);  %x = h(acc)
      %p = f(%s)                            for i from the second on, carrying %p, %x:
      %x = h(%acc)                    →       %s = k[i] @ q
      %acc' = %x + %p @ v[i] {late}           %acc' = %x + %p @ v[i - 1]      # both MMAs in flight
                                              %p = f(%s)                      # … while this needs the first only
                                              %x = h(%acc')
                                            %acc' = %x + %p @ v[last]

What ops of the late stage use of the others is carried to the next iteration; views of shared memory are made again,
for the buffer of the iteration before. A carried value that they make is there as soon as they have run."""

from __future__ import annotations

from collections.abc import Sequence

from tessera import ops
from tessera.analysis.provenance import BOUNDS
from tessera.ir import Builder, Op, SharedType, Value
from tessera.ir.builder import AnyOp
from tessera.passes.neutral.loops import branch_for, iteration, runs_at_all, with_carried


class Placing(Builder):
    """Inserts ops before `at`, all of them in one place of the schedule (ops/schedule.py), which is spelt out."""

    def __init__(self, at: Op, position: int, stage: int):
        super().__init__(at.parent, at, at.loc)
        self.place = {"position": position, "stage": stage}

    def insert(self, op: AnyOp) -> AnyOp:
        op.attrs |= self.place
        return super().insert(op)


def last_position(loop: ops.ForOp, stage: int) -> int:
    """Return the position of the last op of a stage."""
    return [op.attrs["position"] for op in loop.body if op.attrs.get("stage") == stage][-1]


def _place(op: Op) -> tuple[int, int]:
    return op.attrs["position"], op.attrs["stage"]


def arrange(loop: ops.ForOp) -> None:
    """Put the ops of a loop's body in the order of the schedule."""
    body = [op for op in loop.body if not op.terminator]
    wanted = sorted(body, key=_place)
    if wanted != body:
        for op in wanted:
            op.move_before(loop.body.terminator)


def delay(loop: ops.ForOp, stage: int, ping_pong: bool = False) -> ops.ForOp:
    """Let ops of `stage` and of later ones run one iteration later. `ping_pong`: warpgroups take turns at the MMAs.
    Return the loop of all iterations but the first, in the order of the schedule."""
    before = Builder.before_op(loop)
    runs = runs_at_all(before, loop.lb, loop.ub, loop.step)
    branch = branch_for(before, runs, loop.results, loop.loc)
    Builder(branch.orelse, None, loop.loc).insert(ops.YieldOp(list(loop.inits)))
    work = _Delay(loop, stage)
    new = work.run(Builder(branch.then, None, loop.loc))
    if ping_pong:
        _play(new, work.late)
    return new


class _Delay:
    """One loop, its `late` ops, the carried values that these make (`made`), and the values that must be carried for
    them (`crossing`)."""

    def __init__(self, loop: ops.ForOp, stage: int):
        self.loop, self.stage = loop, stage
        self.late = self._late()
        yields = loop.body.terminator.operands
        self.made = {n: v for n, v in enumerate(yields) if v.op in set(self.late)}

    def _late(self) -> list[Op]:
        return [op for op in self.loop.body if op.attrs.get("stage", -1) >= self.stage]

    def _is_early(self, op: Op | None) -> bool:
        """Whether an op of the body is none of the late ones."""
        return op is not None and op.parent is self.loop.body and op.attrs["stage"] < self.stage

    def run(self, b: Builder) -> ops.ForOp:
        loop, count = self.loop, len(self.loop.results)
        self._repeat_views()
        mapping = iteration(b, loop, loop.lb, loop.inits, without=set(self.late))
        arrange(loop)
        self.late = self._late()
        second = b.emit(ops.AddOp(loop.lb, loop.step))
        crossing = self._crossing(b)
        loop.detach()
        b.insert(loop).set_operand(0, second)
        for n, v in enumerate(loop.body.terminator.operands):
            if n not in self.made:
                loop.set_operand(BOUNDS + n, mapping.get(v, v))
        loop = self._carry(crossing, mapping)
        b.insert(ops.YieldOp(self._last(b, loop)[:count]))
        return loop

    def _repeat_views(self) -> None:
        """Make the views that late ops read shared memory through themselves late."""
        repeated: dict[Value, Value] = {}
        for op in self.late:
            b = Placing(op, *_place(op))
            for inner in op.walk():
                for index, v in enumerate(inner.operands):
                    if isinstance(v.type, SharedType):
                        inner.set_operand(index, self._view(v, b, repeated))
        for v in reversed(repeated):
            if v.op is not None and not v.uses:
                v.op.erase()
        self.late = self._late()
        for op in self.late:
            if "slot" in op.attrs:
                op.attrs["slot"] -= 1

    def _view(self, v: Value, b: Builder, repeated: dict[Value, Value]) -> Value:
        op = v.op
        if not isinstance(op, ops.SharedView) or not self._is_early(op):
            return v
        if v not in repeated:
            whole = self._view(op.operands[0], b, repeated)
            repeated[v] = b.emit(op.clone({op.operands[0]: whole}))
        return repeated[v]

    def _crossing(self, b: Builder) -> list[Value]:
        found = dict[Value, None]()
        for op in self.late:
            for v in (v for inner in op.walk() for v in inner.operands):
                if isinstance(v.op, ops.ConstOp) and self._is_early(v.op):
                    v.op.detach()
                    b.insert(v.op)
                arg = v.owner is self.loop.body and v.index - 1 not in self.made
                if arg or self._is_early(v.op):
                    found[v] = None
        return list(found)

    def _carry(self, crossing: Sequence[Value], mapping: dict[Value, Value]) -> ops.ForOp:
        """Carry what late ops use, where nothing is carried any more if there is such a place. `mapping`: to values of
        the first iteration. Return the new loop."""
        late, free = set(self.late), dict[int, Value]()
        for n, made in self.made.items():
            arg = self.loop.carried[n]
            users = list(arg.uses)
            if not any(_inside(user, late) for user, _ in users):
                free[n] = arg
            for user, index in users:
                if not _inside(user, late):
                    user.set_operand(index, made)
        numbers, more = dict[Value, int](), list[Value]()
        for v in crossing:
            found = next((n for n, arg in free.items() if arg.type == v.type), None)
            numbers[v] = len(self.loop.results) + len(more) if found is None else found
            if found is None:
                more.append(v)
            else:
                del free[found]
        loop = with_carried(self.loop, [mapping.get(v, v) for v in more])
        for v, n in numbers.items():
            for user, index in list(v.uses):
                if _inside(user, late):
                    user.set_operand(index, loop.carried[n])
            loop.set_operand(BOUNDS + n, mapping.get(v, v))
            loop.body.terminator.set_operand(n, v)
        return loop

    def _last(self, b: Builder, new: ops.ForOp) -> list[Value]:
        """Emit the late ops of the last iteration, and return all results."""
        mapping = dict(zip(new.carried, new.results, strict=True))
        for op in sorted(self.late, key=lambda op: op.attrs["stage"]):
            copy = b.insert(op.clone(mapping))
            copy.attrs.pop("slot", None)
        found = list(new.results)
        for n, v in self.made.items():
            found[n] = mapping[v]
        return found


def _inside(op: Op, late: set[Op]) -> bool:
    return op in late or any(op.is_inside(x) for x in late if x.regions)


def _play(loop: ops.ForOp, late: Sequence[Op]) -> None:
    """Let warpgroups start the MMAs of an iteration one after another (ping-pong)."""
    Builder.before_op(loop).insert(ops.PingPongOp(kind="open"))
    Builder.after_op(loop).insert(ops.PingPongOp(kind="close"))
    waits: list[Op] = []
    for op in loop.body:
        if isinstance(op, ops.WgmmaOp):
            break
        if isinstance(op, ops.MbarrierWaitOp) and op.data and op not in late:
            waits.append(op)
    last = [op for op in late if isinstance(op, ops.WgmmaOp)][-1]
    Builder.after_op(waits[-1]).insert(ops.PingPongOp(kind="begin"))
    Builder.after_op(last).insert(ops.PingPongOp(kind="end"))
