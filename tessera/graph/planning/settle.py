"""Decides where the tensors of a plan lie: who computes in whose memory, and which ones share an allocation.

t = extern f (x)            alive until the launch, then its memory is free
launch g (t) → y            y lies in the memory of t if each program reads the elements that it writes, and no others
launch h (y) → z            z as well: t is dead, of the same size, and goes back to the library behind the launches
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from math import inf

from tessera.graph.ir.types import TensorType, is_tensor, product
from tessera.graph.passes import alive
from tessera.graph.planning.breaks import Lease, choose, least_of
from tessera.graph.planning.memory import Buffer, cut, rounded
from tessera.graph.planning.order import COLLECTIVES, order_steps
from tessera.graph.planning.pages import share_pages
from tessera.graph.planning.plan import (
    FOREIGN,
    INPUT,
    LIKELY,
    OUTPUT,
    OWN,
    TEMPORARY,
    Allocation,
    Extern,
    Launch,
    Plan,
    Step,
    groups_of,
    number,
    storage_size,
)
from tessera.ir import Value
from tessera.ir.applications import apply

Forbidden = Mapping[str, set[tuple[int, int]]]
PAGE = 512  # bytes: CUDA's caching allocator rounds up to them


def settle(plan: Plan, forbidden: Forbidden, keep_from: float = inf, page: int = PAGE) -> None:
    """Decide where every tensor lies and how long it lives. `forbidden`: by kernel, pairs of parameters that must not
    be the same memory. `keep_from`: the bytes from which an arena is kept for the next call. `page`: the bytes that an
    allocation is rounded up to."""
    settling = Settling(plan, forbidden, keep_from, page)
    settling.run()
    plan.arenas = [*([found] if (found := plan.buffers()) else []), *plan.pages]
    if apply("graph-cut-arena", what="arena"):
        cut_arena(plan, keep_from, page)
        settling.break_where_arenas_hold_more()


class Settling:
    """Gives the tensors of a plan their places."""

    def __init__(self, plan: Plan, forbidden: Forbidden, keep_from: float, page: int):
        self.plan, self.forbidden, self.keep_from, self.page = plan, forbidden, keep_from, page
        self.launches: list[tuple[int, Launch]] = []
        self.before: tuple[dict[Value, Value], dict[Value, tuple[int, int]]] = {}, {}
        self.apart: list[Lease] = []

    def run(self) -> None:
        plan = self.plan
        plan.place = dict.fromkeys((a for a in plan.arguments if is_tensor(a)), INPUT)
        outputs = {plan.root(v) for v in plan.results if is_tensor(v)}
        for step in [s for s in plan.steps if isinstance(s, Launch) and s.copies is not None]:
            self._write_in_place(step, outputs)
        order_steps(plan, self.page)
        for step in plan.steps:
            for v in step.writes:
                home = plan.root(v)  # parts of a concatenation are written where they lie in it
                if home not in plan.place:
                    inner = OUTPUT if home in outputs else TEMPORARY
                    plan.place[home] = inner if isinstance(step, Launch) else FOREIGN
        self._measure(outputs)
        for v in plan.same:
            self._merge(v)
        written = {plan.memory(v) for s in plan.steps for v in s.writes}
        plan.donated = frozenset(plan.donated - written - outputs)
        self.launches = [(n, s) for n, s in enumerate(plan.steps) if isinstance(s, Launch)]
        for n, step in self.launches:
            self._reuse(n, step)
        share_pages(plan, self.page)
        self.before = dict(plan.same), dict(plan.lives)
        self.apart = leases_of(plan, self.page)
        self._take_over_all()
        found = self._breaks(leases_of(plan, self.page))
        if found and apply("graph-break-launches", what="call"):
            self._break(found)

    # --- where launches begin anew ----------------------------------------------------------------------------------
    def _breaks(self, whole: list[Lease]) -> frozenset[int]:
        """Where launches begin anew, so that little is held if the caller keeps arguments, and if it does not."""
        found = choose(self.apart, self.plan.groups(), whole)
        gone = [Lease(a.first, a.last, -a.bytes) for a in let_go(self.plan)]
        if gone:
            groups = groups_of(self.plan.steps, breaks=found)
            found |= choose([*self.apart, *gone], groups, None if found else [*whole, *gone])
        return found

    def _break(self, found: frozenset[int]) -> None:
        plan = self.plan
        plan.same, plan.lives = dict(self.before[0]), dict(self.before[1])
        plan.breaks = found
        self._take_over_all()

    def break_where_arenas_hold_more(self) -> None:
        """Start launches apart where arenas, whose tensors share them in a group, hold more than these would apart:
        beside where they are started apart anyway."""
        plan = self.plan
        held = plan.peak_bytes(LIKELY, self.page)
        if not plan.steps or held <= least_of(self.apart, len(plan.steps)):
            return
        found = choose([replace(x, placed=False) for x in self.apart], plan.groups())
        if not found or not apply("graph-break-launches", what="call"):
            return
        kept = plan.same, plan.lives, dict(plan.place), plan.arenas, plan.breaks
        plan.place = {v: TEMPORARY if sort == OWN else sort for v, sort in plan.place.items()}
        self._break(plan.breaks | found)
        cut_arena(plan, self.keep_from, self.page)
        if plan.peak_bytes(LIKELY, self.page) >= held:
            plan.same, plan.lives, plan.place, plan.arenas, plan.breaks = kept

    # --- results in the memory of arguments -------------------------------------------------------------------------
    def _write_in_place(self, copy: Launch, outputs: set[Value]) -> None:
        """Let a tensor be computed in the memory of the argument that it is copied to at the end, if nobody reads that
        argument any more by then: the steps that copy go."""
        plan = self.plan
        assert copy.copies is not None
        target, value = copy.copies
        if plan.place.get(target) != INPUT or value in outputs or value in plan.views:
            return
        if value in plan.same or value in plan.same.values() or value in plan.arguments:
            return
        if target.type.all_strides != value.type.all_strides:
            return
        steps = [s for s in plan.steps if s is not copy]
        first = next((s for s in steps if value in s.writes), None)
        if isinstance(first, Launch) and first.copies == (value, target):
            steps.remove(first)  # what is written is an update of the argument itself
            first = next((s for s in steps if value in s.writes), None)
        if not isinstance(first, Launch) or any(
            self._reads(s, target, s is first, value) for s in steps[steps.index(first) :]
        ):
            return
        if any(target in map(plan.root, s.reads) for s in steps if not isinstance(s, Launch)):
            return  # what an extern made of it may be its memory
        plan.steps[:] = steps
        plan.same[value] = target

    def _reads(self, step: Step, target: Value, same: bool, value: Value) -> bool:
        """Whether a step needs what an argument held before. `same`: the step computes the `value` that takes its
        place, and may read each element before it writes it."""
        root = self.plan.root
        if target in map(root, step.reads) and same:
            assert isinstance(step, Launch)
            if target not in step.code.parameters:
                return True
            pair = step.code.parameters.index(value), step.code.parameters.index(target)
            views = sum(root(x) is target for x in step.reads) > 1
            return views or self._clash(step, *pair) or pair not in step.code.reusable
        return target in map(root, (*step.reads, *step.writes))

    def _clash(self, step: Launch, i: int, j: int) -> bool:
        """Whether a kernel takes two parameters to be different memory."""
        return not {(i, j), (j, i)}.isdisjoint(self.forbidden.get(step.code.name, ()))

    # --- lives ------------------------------------------------------------------------------------------------------
    def _measure(self, outputs: set[Value]) -> None:
        plan = self.plan
        for n, step in enumerate(plan.steps):
            for v in (*step.reads, *step.writes):
                if is_tensor(v):
                    root = plan.root(v)
                    plan.lives[root] = (plan.lives.get(root, (n, n))[0], n)
        for v in outputs:
            plan.lives[v] = (plan.lives.get(v, (0, 0))[0], len(plan.steps))
        for step in plan.steps:
            if isinstance(step, Extern) and step.op.target.startswith(COLLECTIVES):
                self._wait(step)

    def _wait(self, step: Extern) -> None:
        """Let what a collective reads live until somebody waits for its results: it may run until then."""
        lives = self.plan.lives
        roots = [self.plan.root(v) for v in step.writes if is_tensor(v)]
        end = max((lives[v][1] for v in roots), default=0)
        for v in filter(is_tensor, step.reads):
            first, last = lives[self.plan.root(v)]
            lives[self.plan.root(v)] = first, max(last, end)

    def _merge(self, v: Value) -> None:
        """Let the memory that a tensor takes live as long as the tensor."""
        home = self.plan.memory(v)
        lives = self.plan.lives.get(home, self.plan.lives[v]), self.plan.lives[v]
        self.plan.lives[home] = (min(first for first, _ in lives), max(last for _, last in lives))

    # --- memory of the dead -----------------------------------------------------------------------------------------
    def _reuse(self, n: int, step: Launch) -> None:
        """Let results take the memory of operands that die here."""
        plan = self.plan
        for r, x in step.code.reusable:
            result, operand = step.code.parameters[r], step.code.parameters[x]
            assert isinstance(result, Value) and isinstance(operand, Value)
            taken = {plan.memory(v) for v in step.writes if v in plan.same}
            taken |= {plan.memory(v) for v in step.writes if v in plan.same.values()}
            home = plan.memory(operand)
            alone = sum(is_tensor(v) and plan.memory(v) is home for v in step.reads) == 1
            if (
                operand not in plan.views
                and alone
                and home not in taken
                and plan.lives[home][1] == n
                and not self._clash(step, r, x)
            ):
                self._share(n, result, home)

    def _take_over_all(self) -> None:
        starts = {n: group.start for group in self.plan.groups() for n in group}
        homes: dict[
            Value, None
        ] = {}  # what the launches since the last start touched, in their order
        for n, step in self.launches:
            if starts[n] == n:
                homes.clear()
            self._take_over(n, step, homes)
            homes.update(
                (self.plan.root(v), None) for v in (*step.reads, *step.writes) if is_tensor(v)
            )

    def _take_over(self, n: int, step: Launch, homes: Iterable[Value]) -> None:
        """Let results take memory that is dead, but goes behind the launches that touch `homes` only."""
        plan = self.plan
        for result in dict.fromkeys(step.writes):
            for home in dict.fromkeys(map(plan.memory, homes)):
                temporary = plan.place.get(result) == plan.place.get(home) == TEMPORARY
                if not temporary and plan.lives[home][1] < n and self._share(n, result, home):
                    break

    def _share(self, n: int, result: Value, home: Value) -> bool:
        """Let a result lie in memory that is dead, if there is no reason against that; what a graph returns takes that
        of temporary tensors with it."""
        plan = self.plan
        sort = plan.place.get(result)
        if sort not in (TEMPORARY, OUTPUT) or result in plan.same or result is home:
            return False
        if plan.lives[result][0] != n or not self._is_free(home):
            return False
        a, b = result.type, home.type
        same = a.elem.storage_bytes == b.elem.storage_bytes and a.device == b.device
        if not same or storage_size(a) != storage_size(b):
            return False
        if not apply("graph-reuse-memory", result.op):
            return False
        if sort == OUTPUT and plan.place[home] == TEMPORARY:
            plan.same[home] = result
            self._merge(home)
        else:
            plan.same[result] = home
            self._merge(result)
        return True

    def _is_free(self, home: Value) -> bool:
        """Whether the graph may write to memory when nobody reads it any more. What a library made, or a caller gave,
        may have elements of others between its own."""
        place = self.plan.place.get(home)
        if place == TEMPORARY:
            return True
        return (place == FOREIGN or home in self.plan.donated) and is_whole(home.type)


def is_whole(t: TensorType) -> bool:
    """Whether a tensor takes all of the memory from its first to its last element."""
    return storage_size(t) == product([*t.shape, t.elem.storage_bytes])


# --- groups and arenas ----------------------------------------------------------------------------------------------
def leases_of(plan: Plan, page: int) -> list[Lease]:
    """What a plan holds in pages, each temporary tensor by itself."""
    own = ((v, rounded(number(storage_size(v.type), LIKELY))) for v in plan.buffers())
    others = (Lease(a.first, a.last, a.bytes) for a in plan.allocations(LIKELY, page))
    return [*(Lease(*plan.lives[v], size, True) for v, size in own), *others]


def cut_arena(plan: Plan, keep_from: float = inf, page: int = PAGE) -> None:
    """Make several arenas of the one, where less is held then; tensors that are alone in one are allocated as such, but
    for those that are kept for the next call."""
    buffers = plan.buffers()
    made = [Buffer(*plan.lives[v], number(storage_size(v.type), LIKELY)) for v in buffers]
    groups = plan.groups()
    others = [a for a in plan.allocations(LIKELY, page) if a.arena is None]
    held = [sum(a.at(g) for a in others) for g in groups]
    room = [workspace(plan.steps[g.start]) for g in groups]
    gone = [sum(a.at(g) for a in let_go(plan)) for g in groups]
    parts = cut(made, [g.stop - 1 for g in groups], held, room, gone)
    arenas = [[buffers[k] for k in sorted(part)] for part in parts]
    alone = {part[0] for part in parts if len(part) == 1 and made[part[0]].size < keep_from}
    plan.place |= {buffers[k]: OWN for k in alone}
    plan.arenas = [*(arena for arena in arenas if plan.place[arena[0]] != OWN), *plan.pages]


def let_go(plan: Plan) -> list[Allocation]:
    """The memory of arguments that the caller may have let go of when they are read: where it needs some of them no
    more, it may also drop results of the program, which a backward graph gets again, and gradients."""
    arguments = plan.arguments if plan.donated else []
    return [
        Allocation(plan.lives[v][1] + 1, len(plan.steps), number(storage_size(v.type), LIKELY))
        for v in arguments
        if v in plan.lives and v not in plan.donated and is_tensor(v)
    ]


def workspace(step: Step) -> int:
    """What a call of the library may take while it runs."""
    return alive.workspace(step.op, lambda n: number(n, LIKELY)) if isinstance(step, Extern) else 0
