"""Chooses the order of a plan's steps, where another one than the graph's holds less memory at a time.

dx = mm (dy, w)        2 MB                      dw = mm (dyᵀ, x)     4 MB, then x goes, of 2 MB
dw = mm (dyᵀ, x)       4 MB, a result     →      dx = mm (dy, w)      2 MB
                       x goes

The step at which most is held is looked at, again and again: what lives there is made later, with all that needs it, or
read to its end earlier, with all that this needs. A move is taken if less is held then. Nothing passes a step that it
depends on, nor one with an effect.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from tessera.graph.ir.types import TensorType
from tessera.graph.planning.plan import (
    LIKELY,
    Extern,
    Interpret,
    Launch,
    Plan,
    Step,
    number,
    storage_size,
)
from tessera.ir import Value
from tessera.ir.applications import apply

# The part of what a graph holds at most that has to be saved for another order.
LEAST = 1 / 128
WORK = 1_000_000  # tensors of steps that are looked at in all: some tenths of a second
# Operations of torch that are done when their results are waited for: what is between is to run beside them.
COLLECTIVES = "_c10d_functional."


@dataclass
class Memory:
    """Memory of its own: that of a tensor that the graph makes, or of an argument that goes with its last reader.
    `steps`: those that touch it."""

    bytes: int
    given: bool
    kept: bool
    steps: list[int] = field(default_factory=list[int])


@dataclass(frozen=True, slots=True)
class Held:
    """Bytes at each place of an order, and where each memory is touched first and last."""

    at: list[int]
    lives: list[tuple[int, int]]

    @property
    def key(self) -> tuple[int, int]:
        """What is to be small: the most that is held, and at how many places that is."""
        most = max(self.at)
        return most, self.at.count(most)


class Steps:
    """What the steps of a plan touch, and which of them have to come before which. `needs`: the steps that one depends
    on itself; `shared`: memory of operands that results may take, by step, where they die there."""

    def __init__(self, plan: Plan, page: int):
        self.plan, self.count = plan, len(plan.steps)
        self.needs: list[set[int]] = [set() for _ in plan.steps]
        self.feeds: list[set[int]] = [set() for _ in plan.steps]
        self.memories: list[Memory] = []
        self.shared: list[list[tuple[int, int]]] = [[] for _ in plan.steps]
        results = {plan.memory(v) for v in plan.results if isinstance(v.type, TensorType)}
        self.given = set(plan.arguments)
        numbers: dict[Value, int] = {}
        for k, step in enumerate(plan.steps):
            for v in (*step.reads, *step.writes):
                home = plan.memory(v) if isinstance(v.type, TensorType) else None
                if home is None or (home in self.given and home not in plan.donated - results):
                    continue
                if home not in numbers:
                    n = -(-number(storage_size(home.type), LIKELY) // page) * page
                    numbers[home] = len(self.memories)
                    self.memories.append(Memory(n, home in plan.donated, home in results))
                touched = self.memories[numbers[home]].steps
                if touched[-1:] != [k]:
                    touched.append(k)
            if isinstance(step, Launch):
                self.shared[k] = list(self._shared(step, numbers))
        self._depend()
        self.work = sum(len(m.steps) + 2 for m in self.memories) + self.count

    def _shared(self, step: Launch, numbers: Mapping[Value, int]) -> Iterator[tuple[int, int]]:
        given = step.code.parameters
        for pair in step.code.reusable:
            homes = [self.plan.memory(v) for k in pair if isinstance(v := given[k], Value)]
            found = [numbers[v] for v in homes if v in numbers]
            if len(set(found)) == 2 and len({self.memories[n].bytes for n in found}) == 1:
                yield found[0], found[1]

    def _depend(self) -> None:
        """A step depends on those that write what it reads, and on those that read or write what it writes."""
        written: dict[Value, int] = {}
        readers: dict[Value, list[int]] = {}
        last_effect = -1
        for k, step in enumerate(self.plan.steps):
            reads = {self.plan.memory(v) for v in step.reads if isinstance(v.type, TensorType)}
            writes = {self.plan.memory(v) for v in step.writes if isinstance(v.type, TensorType)}
            scalars = {v for v in (*step.reads, *step.writes) if not isinstance(v.type, TensorType)}
            found = {written[v] for v in (*reads, *writes, *scalars) if v in written}
            for v in writes:
                found.update(readers.pop(v, ()))
            fixed = self._is_fixed(step, writes)
            found |= set(range(last_effect if last_effect >= 0 else 0, k)) if fixed else set()
            if last_effect >= 0:
                found.add(last_effect)
            if fixed:
                last_effect = k
            written |= dict.fromkeys((*writes, *(v for v in step.writes if v in scalars)), k)
            for v in reads:
                readers.setdefault(v, []).append(k)
            self.needs[k] = found - {k}
            for other in self.needs[k]:
                self.feeds[other].add(k)

    def _is_fixed(self, step: Step, writes: set[Value]) -> bool:
        """Whether a step stays behind all before it, and in front of all behind it."""
        if isinstance(step, Extern) and (
            not step.op.pure or step.op.target.startswith(COLLECTIVES)
        ):
            return True
        return isinstance(step, Interpret) or not writes.isdisjoint(self.given)

    # --- what an order holds ------------------------------------------------------------------------------------------
    def held(self, order: Sequence[int]) -> Held:
        place = [0] * self.count
        for p, k in enumerate(order):
            place[k] = p
        change = [0] * (self.count + 1)
        lives: list[tuple[int, int]] = []
        for m in self.memories:
            at = [place[k] for k in m.steps]
            first, last = min(at), max(at)
            if m.given:
                change[last + 1] -= m.bytes
            else:
                change[first] += m.bytes
                if not m.kept:
                    change[last + 1] -= m.bytes
            lives.append((first, self.count if m.kept else last))
        found = list(accumulate(change))[: self.count]
        for k, pairs in enumerate(self.shared):
            taken = set[int]()
            for r, x in pairs:
                p = place[k]
                if lives[r][0] == p == lives[x][1] and taken.isdisjoint((r, x)):
                    taken |= {r, x}
                    found[p] -= self.memories[r].bytes
        return Held(found, lives)

    def before(self, most: int) -> int:
        """The most that is held, with the arguments that go."""
        return most + sum(m.bytes for m in self.memories if m.given)

    # --- moves --------------------------------------------------------------------------------------------------------
    def moves(self, order: list[int], held: Held) -> Iterator[list[int]]:
        """Orders in which less may be held where most is now; those first that move what is largest."""
        most = max(held.at)
        peak = held.at.index(most)
        least = LEAST * self.before(most)
        alive = [
            n
            for n, (first, last) in enumerate(held.lives)
            if (self.memories[n].given or first <= peak) and last >= peak
        ]
        alive.sort(key=lambda n: -self.memories[n].bytes)
        made = set[int]()
        for n in alive:
            m, (first, last) = self.memories[n], held.lives[n]
            if m.bytes < least:
                break
            if not m.given and first not in made:
                made.add(first)
                yield from self._later(order, held, first, peak)
            if last > peak and not m.kept:
                yield from self._earlier(order, set(m.steps), peak)

    def _later(self, order: list[int], held: Held, first: int, peak: int) -> Iterator[list[int]]:
        """The step at place `first`, and all up to `peak` that needs it, behind that; as far behind as what is held is
        least, or as they are needed."""
        moved = self._closure(order[first : peak + 1], {order[first]}, self.needs)
        if order[peak] in moved and first != peak:
            return
        needed = (
            p for p in range(peak + 1, self.count) if not moved.isdisjoint(self.needs[order[p]])
        )
        end = next(needed, self.count)
        if end == peak + 1 and first == peak:
            return
        low = min(range(peak + 1, end + 1), key=lambda p: held.at[p] if p < end else held.at[p - 1])
        for to in dict.fromkeys((peak + 1, low, end) if first < peak else (low, end)):
            rest = [k for k in order[first:to] if k not in moved]
            yield [*order[:first], *rest, *(k for k in order[first:to] if k in moved), *order[to:]]

    def _earlier(self, order: list[int], touching: set[int], peak: int) -> Iterator[list[int]]:
        """The steps behind `peak` that touch a memory, and all that these need, in front of it."""
        behind = order[peak + 1 :]
        moved = self._closure(behind[::-1], touching.intersection(behind), self.feeds)
        if any(order[peak] in self.needs[k] for k in moved):
            return
        yield [
            *order[:peak], *(k for k in behind if k in moved), order[peak],
            *(k for k in behind if k not in moved),
        ]  # fmt: skip

    def _closure(
        self, steps: Sequence[int], found: set[int], links: Sequence[set[int]]
    ) -> set[int]:
        """`found`, and of `steps`, in their order, those that `links` lead from to one of it."""
        for k in steps:
            if k not in found and not found.isdisjoint(links[k]):
                found.add(k)
        return found


def order_steps(plan: Plan, page: int) -> None:
    """Put the steps of a plan in an order in which less is held, if that is by more than the part `LEAST`."""
    order = better_order(Steps(plan, page))
    if order is not None and apply("graph-order-steps", what="order"):
        plan.steps[:] = [plan.steps[k] for k in order]


def better_order(steps: Steps) -> list[int] | None:
    """An order that holds less, by more than the part `LEAST`; None if none is found."""
    if not steps.memories:
        return None
    order = list(range(steps.count))
    held = steps.held(order)
    before, work = max(held.at), WORK
    while work > 0:
        best, found = held, order
        for tried in steps.moves(order, held):
            then = steps.held(tried)
            if then.key < best.key:
                best, found = then, tried
            work -= steps.work
            if work <= 0:
                break
        if best is held:
            break
        held, order = best, found
    return order if before - max(held.at) > LEAST * steps.before(before) else None
