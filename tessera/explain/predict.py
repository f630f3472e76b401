"""Predicts how long a launch takes from its counts and what the machine can do: a roofline with several roofs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import ceil

from tessera.analysis.machines import Machine
from tessera.analysis.reports import Occupancy, Roofline

HIDDEN = 0.2  # of the shorter one of a CPU's memory and arithmetic, how much the other hides: by predicted.py, Zen 3


@dataclass
class Totals:
    """What a whole launch does. `loaded` and `stored`: bytes by argument; `read` and `written`: those of the sectors or
    lines that hold them; `sizes`: of the arguments, where known; `products`: operations by type; `operations`:
    instructions on single elements outside of products."""

    loaded: dict[str, float] = field(default_factory=dict[str, float])
    stored: dict[str, float] = field(default_factory=dict[str, float])
    read: dict[str, float] = field(default_factory=dict[str, float])
    written: dict[str, float] = field(default_factory=dict[str, float])
    sizes: dict[str, int] = field(default_factory=dict[str, int])
    products: dict[str, float] = field(default_factory=dict[str, float])
    flops: float = 0.0
    operations: float = 0.0
    fetched: float = 0.0  # bytes of sectors or lines
    bank_passes: float = 0.0
    programs: int = 1
    streamed: bool = False  # stores bypass a CPU's caches

    def move(self, argument: str, bytes: float, fetched: float, *, store: bool) -> None:
        """Count an access of `bytes` of an argument, in sectors or lines of `fetched` bytes."""
        for total, n in (
            (self.stored if store else self.loaded, bytes),
            (self.written if store else self.read, fetched),
        ):
            total[argument] = total.get(argument, 0.0) + n

    def reads(self) -> float:
        """Bytes that memory gives if each sector of an argument is read once. Of an argument whose size is not known
        that is what is asked for."""
        return self._once(self.loaded, self.read)

    def writes(self) -> float:
        return self._once(self.stored, self.written)

    def _once(self, moved: Mapping[str, float], fetched: Mapping[str, float]) -> float:
        return sum(min(fetched.get(k, n), self.sizes.get(k, n)) for k, n in moved.items())


def predict(t: Totals, machine: Machine, on_gpu: bool, occupancy: Occupancy | None) -> Roofline:
    """Return the roofline of a launch."""
    reads, writes = t.reads(), t.writes()
    products = sum(n / rate(machine, kind) for kind, n in t.products.items())
    arithmetic = t.operations / (machine.flops / 2)
    times = {"memory": 0.0, "caches": 0.0, "arithmetic": arithmetic, "matrix products": products}
    if on_gpu:
        times["caches"] = t.fetched / machine.memory[0][1]
        times["shared memory"] = t.bank_passes / machine.banks
        spread = _spread(occupancy)
        times = {part: seconds * spread for part, seconds in times.items()}
        times["memory"] = (reads + writes) / machine.memory[-1][1]
        main = max(times.values())
    else:
        idle = max(1.0, machine.units / max(1, t.programs))
        footprint = sum(
            min(max(t.loaded.get(k, 0.0), t.stored.get(k, 0.0)), t.sizes.get(k, 1 << 62))
            for k in {**t.loaded, **t.stored}
        )
        writing = machine.streamed if t.streamed else machine.writing(footprint)
        times["memory"] = reads / machine.bandwidth(footprint) + writes / writing
        times["caches"] = t.fetched / machine.memory[0][1]
        computed = (arithmetic + products) * idle
        fetched = max(times["memory"], times["caches"]) * idle
        main = max(fetched, computed) + (1 - HIDDEN) * min(fetched, computed)
    bound = max(times, key=lambda k: times[k])
    overhead = machine.launch + machine.ramp
    times["launch"] = overhead
    if overhead > main:
        bound = "launch"
    total = sum(t.loaded.values()) + sum(t.stored.values())
    return Roofline(machine.name, total, reads + writes, t.flops, times, bound, main + overhead)


def rate(machine: Machine, kind: str) -> float:
    """Return operations of products a second; types without a unit of their own are computed in fp32."""
    return machine.products.get(kind) or machine.products["fp32"]


def _spread(occupancy: Occupancy | None) -> float:
    """Return how much more work the SM with the most CTAs has than the mean of all SMs. Memory is not an SM's: few SMs
    ask for as much as it gives, up to what caches give each of them."""
    if occupancy is None or occupancy.waves <= 0:
        return 1.0
    each = occupancy.waves * occupancy.ctas
    return ceil(each) / each
