"""Runs the plan of a module in one world: roles that go through their control flow and wait for each other.

Up to three warps represent the warps of a role: two of one warpgroup, and one for the other warpgroups. What no two of
these may do at the same time, no two warps may. A role goes through its code once for all of them, as the scalars that
decide its path are the same in all."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any

from tessera.analysis.synchronization.clocks import Clock, Places, joined
from tessera.analysis.synchronization.flow import FLOW, Enough
from tessera.analysis.synchronization.memory import Access, Memory
from tessera.analysis.synchronization.phases import Barrier, Barriers
from tessera.analysis.synchronization.plan import Plan
from tessera.analysis.synchronization.rules import RULES
from tessera.analysis.synchronization.scalars import World, evaluate
from tessera.errors import SynchronizationError
from tessera.ir import Block, Module, Op, Value
from tessera.ops import (
    FuncOp,
    LocalAllocOp,
    LocalIndexOp,
    LocalLoadOp,
    MbarrierInitOp,
    WarpSpecializeOp,
)  # fmt: skip

GROUP_WARPS = 4  # of a warpgroup
Run = Generator[str, None, None]


@dataclass(slots=True)
class Group:
    """A warpgroup, or what stands for several: its number among the MMAs' places, its first warp, all its warps."""

    number: int
    leader: int
    members: list[int]
    times: int  # warpgroups that it stands for


@dataclass(slots=True)
class Role:
    """Warps that run the same code. `times`: how many warps each of `warps` stands for."""

    name: str
    warps: list[int]
    times: list[int]
    groups: list[Group]
    all_meet: bool = True  # whether it may use barriers of all its warps
    single: bool = False  # it has one thread
    committed: int = 0  # groups of asynchronous copies
    open: bool = False  # whether copies wait for a commit
    mmas: int = 0
    finished: int = 0
    bulk: int = 0

    @classmethod
    def of(cls, name: str, count: int, first: int, group: int) -> Role:
        """A role of `count` warps whose numbers begin at `first`."""
        sizes = [1, min(count, GROUP_WARPS) - 1, count - GROUP_WARPS]
        kept = [n for n in sizes if n > 0]
        warps = list(range(first, first + len(kept)))
        groups = [Group(group, warps[0], warps[:2], 1)]
        if count > GROUP_WARPS:
            groups.append(Group(group + 1, warps[2], warps[2:], count // GROUP_WARPS - 1))
        return cls(name, warps, kept, groups)


class Machine:
    """The state of a run."""

    def __init__(self, module: Module, plan: Plan, world: World, limit: int, bound: int = 0):
        self.module, self.plan, self.world = module, plan, world
        self.num_warps: int = module.attrs["num_warps"]
        func = next(f for f in module.body if isinstance(f, FuncOp) and f.kernel)
        self.func = func
        self.left = limit
        self.bound = bound  # iterations after which loops are left; 0: no limit
        self.shortened = False
        self.env: dict[Value, Any] = {}
        self.private: dict[Op, Any] = {}  # by buffer: the bytes of each thread
        # By bytes and types: the first conversion whose warps keep to parts of them.
        self.split: dict[tuple[object, ...], Op] = {}
        self.looks: dict[tuple[int, int], Clock] = {}  # by warpgroup and MMA
        self.reads: dict[Op, Access] = {}  # the last one of each op
        self.ping_pong = "close"  # the last op of the warpgroups' ping-pong
        self.seen: dict[Op, int] = {}  # ops that have run, and how often a loop did at most
        split = next((op for op in func.walk() if isinstance(op, WarpSpecializeOp)), None)
        self.main = Role.of("consumers", self.num_warps, 0, 0)
        count, groups = len(self.main.warps), len(self.main.groups)
        self.producer = Role("producer", [count], [1], [], all_meet=False, single=True)
        self.transpose = Role.of(
            "transpose role", max(1, split.transpose_warps if split else 1), count + 1, groups
        )
        self.transpose.all_meet = False
        self.main.all_meet = True
        self.places = Places(
            count + 1 + len(self.transpose.warps), groups + len(self.transpose.groups), _rows(func)
        )
        self.clocks: list[Clock] = [self.places.start() for _ in range(self.places.warps)]
        self.memory = Memory(self.places)
        self.barriers = Barriers(self.places)
        self.bars: dict[Op, list[Barrier]] = self.barriers.rows

    # --- control flow ---------------------------------------------------------------------------------------
    def run(self) -> None:
        for arg in self.func.body.args:
            self.env[arg] = self.world.argument(arg.index, arg.type)
        for why in self.block(self.main, self.func.body):
            if self.shortened:  # roles may depend on each other's iterations
                raise Enough
            raise SynchronizationError(f"the program waits for what nobody does: {why}")
        self.end()

    def block(self, role: Role, block: Block) -> Run:
        env, needed, uses, awaits = self.env, self.plan.needed, self.plan.uses, self.plan.awaits
        for op in self.plan.steps[block]:
            self.left -= 1
            if self.left < 0:
                raise Enough
            kind = type(op)
            self.seen[op] = self.seen.get(op, 0) or 1
            if op in uses:
                self.used(role, op)
            if op in awaits:
                self.arrived(role, awaits[op])
            rule = RULES.get(kind)
            if rule is not None and rule.applies(op):
                waits = rule.run(self, role, op)
                if waits is not None:
                    yield from waits
            flow = FLOW.get(kind)
            if flow is not None:
                yield from flow(self, role, op)
            elif op.results and any(r in needed for r in op.results):
                env.update(zip(op.results, evaluate(op, env, self.world), strict=False))

    def goes_on(self, trips: int) -> bool:
        """Whether a loop has another iteration as far as the bound is concerned."""
        self.shortened |= trips == self.bound > 0
        return not self.bound or trips < self.bound

    def hand(self, to: Sequence[Value], values: Sequence[object]) -> None:
        """Bind the values `to` to numbers, or to the MMAs that are in flight in them."""
        for v, x in zip(to, values, strict=True):
            self.env[v] = x

    def get(self, values: Sequence[Value]) -> list[Any]:
        return [self.env.get(v) for v in values]

    # --- memory ---------------------------------------------------------------------------------------------
    def span(self, view: Value) -> tuple[int, int, LocalAllocOp]:
        """Return the bytes of a view, and its buffer."""
        chain: list[LocalIndexOp] = []
        op = view.op
        while op is not None and not isinstance(op, LocalAllocOp):
            if isinstance(op, LocalIndexOp):
                chain.append(op)
            op = op.operands[0].op
        if op is None:
            raise SynchronizationError("a view of shared memory comes from nowhere")
        low, size = op.offset, op.bytes
        for index in reversed(chain):
            count = index.ring.type.shape[0]
            number = int(self.env[index.index])
            if not 0 <= number < count:
                raise SynchronizationError(
                    f"buffer {number} of a ring of {count} is asked for", loc=index.loc
                )
            size //= count
            low += number * size
        if chain:  # buffers of a ring may be padded
            size = chain[0].result.type.bytes
        return low, low + size, op

    def touch(
        self,
        role: Role,
        op: Op,
        span: tuple[int, int, Op],
        write: bool,
        warps: Sequence[int] | None = None,
        private: bool = False,
    ) -> None:
        """Record plain loads or stores by some warps, by default all warps of a role."""
        low, high, owner = span
        events: list[tuple[int, int]] = []
        observers: list[tuple[int, Clock]] = []
        for w in role.warps if warps is None else warps:
            clock = self.clocks[w]
            clock[w] += 1
            events.append((w, clock[w]))
            observers.append((w, clock))
        new = Access(op, op.opcode, write, True, owner, events, private)
        self.memory.access(low, high, new, observers)
        if isinstance(op, LocalLoadOp):
            self.reads[op] = new

    def arrived(self, role: Role, loads: Sequence[Op]) -> None:
        """Record that the results of loads are in registers, since an op uses them."""
        for load in loads:
            if load in self.reads:
                arrived = self.reads[load].arrived  # an earlier use counts
                for w in role.warps:
                    if w not in arrived:
                        self.clocks[w][w] += 1
                        arrived[w] = self.clocks[w][w]

    def behind(
        self,
        op: Op,
        span: tuple[int, int, Op],
        write: bool,
        events: list[tuple[int, int]],
        warps: Sequence[int],
        generic: bool = False,
        private: bool = False,
    ) -> None:
        """Record an access in the background that `warps` start and that is complete for warps that know `events`."""
        low, high, owner = span
        new = Access(op, op.opcode, write, generic, owner, events, private)
        self.memory.access(low, high, new, [(w, self.clocks[w]) for w in warps])

    # --- order ----------------------------------------------------------------------------------------------
    def meet(self, role: Role, op: Op, fence: bool = False) -> None:
        """Synchronise all warps of a role."""
        if not role.all_meet:
            raise SynchronizationError(
                f"{op.opcode} wants all warps to meet, in the code of the {role.name}", loc=op.loc
            )
        self.gather(role.warps, fence)

    def gather(self, warps: Sequence[int], fence: bool = False) -> None:
        """Let each of the warps know what any of them knows."""
        if fence:
            self.fence(warps)
        both = joined([self.clocks[w] for w in warps])
        for w in warps:
            self.clocks[w][:] = both

    def fence(self, warps: Sequence[int]) -> None:
        for w in warps:
            self.places.fence(self.clocks[w])

    def barrier(self, bars: Value, index: Value, op: Op, role: Role) -> Barrier:
        """Return one barrier of a row, which the role must see initialised."""
        low, high, owner = self.span(bars)
        row, number = self.bars.get(owner), int(self.env[index])
        if row is None:
            raise SynchronizationError(f"{op.opcode}: the barrier is not initialised", loc=op.loc)
        if not 0 <= number < len(row):
            raise SynchronizationError(
                f"barrier {number} of a row of {len(row)} is asked for", loc=op.loc
            )
        self.touch(role, op, (low, high, owner), False)
        return row[number]

    def wait(self, role: Role, op: Op, barrier: Barrier, parity: int) -> Run:
        """Wait until a phase has ended, for all warps of a role."""
        targets = [barrier.target(self.clocks[w], parity) for w in role.warps]
        while barrier.ended < max(targets):
            yield self.stuck(role, op, barrier)
        for w, target in zip(role.warps, targets, strict=True):
            barrier.wait(op, self.places.looks(w), self.clocks[w], target)

    def stuck(self, role: Role, op: Op, barrier: Barrier) -> str:
        where = f" at {op.loc.short()}" if op.loc is not None else ""
        return (
            f"the {role.name} wait for phase {barrier.ended} of {barrier.name}{where}, which lacks {barrier.left} of"
            f" {barrier.count} arrivals and {barrier.announced - barrier.brought} bytes"
        )

    # --- MMAs -------------------------------------------------------------------------------------------
    def start(self, role: Role, number: int) -> None:
        """Start an MMA, once all warps of its group have come to it. A warp that knows of its end knows which barriers
        the group had tested before, but nothing of the group's loads and stores."""
        first, last = self.places.looks(0), self.places.looks(self.places.warps)
        for group in role.groups:
            looks = joined([self.clocks[w][first:last] for w in group.members])
            self.looks[group.number, number] = looks

    def finish(self, role: Role, number: int) -> None:
        """Record that MMAs up to `number` have finished."""
        first, last = self.places.looks(0), self.places.looks(self.places.warps)
        for group in role.groups:
            place = self.places.mmas(group.number)
            looks = self.looks.get((group.number, number))
            for w in group.members:
                clock = self.clocks[w]
                clock[place] = max(clock[place], number)
                if looks is not None:
                    clock[first:last] = map(max, clock[first:last], looks)
        role.finished = max(role.finished, number)

    def used(self, role: Role, op: Op) -> None:
        """Raise an error if an op uses the result of an MMA that may still run."""
        for v in op.operands:
            number = self.env.get(v) if v in self.plan.in_flight else None
            if number is not None and number > role.finished:
                raise SynchronizationError(
                    f"{op.opcode} uses the result of an MMA that has not been waited for",
                    loc=op.loc,
                )

    def end(self) -> None:
        """Check what must be complete when a CTA ends."""
        role = self.main
        if self.ping_pong != "close":
            raise SynchronizationError(
                f"ping_pong {self.ping_pong} is the last one", loc=self.func.loc
            )
        if role.finished < role.mmas:
            raise SynchronizationError("an MMA still runs when the program ends", loc=self.func.loc)
        for w in role.warps:
            if self.clocks[w][self.places.copies(w)] < role.committed or role.open:
                raise SynchronizationError(
                    "asynchronous copies have not been waited for when the program ends",
                    loc=self.func.loc,
                )
        for barrier in self.barriers.all():
            known = max(clock[barrier.place] for clock in self.clocks)
            if barrier.remote and (known < barrier.ended or barrier.left != barrier.count):
                raise SynchronizationError(
                    f"a CTA may end before {barrier.name} has seen all that comes from others",
                    loc=barrier.init.loc,
                )
            if barrier.copied and known < barrier.ended:
                raise SynchronizationError(
                    f"a CTA may end while copies for {barrier.name} are under way",
                    loc=barrier.init.loc,
                )


def _rows(func: Op) -> int:
    """Return the number of mbarriers."""
    rows = [v for op in func.walk() if isinstance(op, MbarrierInitOp) for v in op.operands]
    return sum(v.type.shape[0] for v in rows)
