"""Records the last accesses to bytes of shared memory, and checks that each new access is ordered after them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tessera.analysis.synchronization.clocks import Clock, Places
from tessera.errors import SynchronizationError
from tessera.ir import Op

Warp = tuple[int, Clock]


@dataclass(slots=True)
class Access:
    """One op's access to bytes low..high-1 of the buffer `owner`. Later accesses must know all `events` (place,
    number). `generic`: it goes through the proxy of loads and stores, not through that of the TMA unit and the MMAs.
    `private`: each thread keeps to bytes of its own. `arrived`, for a read: by warp, the event at which the value was
    certainly in registers, since an op used it."""

    op: Op
    what: str
    write: bool
    generic: bool
    owner: Op
    events: list[tuple[int, int]]
    private: bool = False
    low: int = 0
    high: int = 0
    arrived: dict[int, int] = field(default_factory=lambda: {})

    def covers(self, other: Access) -> bool:
        return self.low <= other.low and other.high <= self.high


@dataclass(slots=True)
class Region:
    """The bytes low..high-1, the last writes that later ones have not covered, and the reads since then."""

    low: int
    high: int
    writes: list[Access] = field(default_factory=lambda: [])
    reads: dict[Op, Access] = field(default_factory=lambda: {})
    meets: list[Region] = field(default_factory=lambda: [])


def name_of(owner: Op) -> str:
    """Return how messages name a buffer."""
    name = owner.results[0].name if owner.results else ""
    return f"`{name}`" if name else f"the memory of {owner.opcode}"


class Memory:
    """All regions that were accessed so far."""

    def __init__(self, places: Places):
        self.places = places
        self.regions: dict[tuple[int, int], Region] = {}

    def _region(self, low: int, high: int) -> Region:
        found = self.regions.get((low, high))
        if found is None:
            found = Region(low, high)
            for other in self.regions.values():
                if other.low < high and low < other.high:
                    found.meets.append(other)
                    other.meets.append(found)
            self.regions[low, high] = found
        return found

    def access(self, low: int, high: int, new: Access, warps: Sequence[Warp]) -> None:
        """Record an access by some warps. Raises an error if one of them may run before what the access depends on."""
        region = self._region(low, high)
        new.low, new.high = low, high
        for other in (region, *region.meets):
            for old in other.writes:
                self._ordered(old, new, warps, region)
            if new.write:
                for old in other.reads.values():
                    self._ordered(old, new, warps, region)
        if new.write:
            self._written(region, new)
        else:
            self._valid(region, new)
            region.reads[new.op] = new

    def _ordered(self, old: Access, new: Access, warps: Sequence[Warp], region: Region) -> None:
        if old.low >= new.high or new.low >= old.high:
            return
        own = old.private and new.private and old.owner is new.owner
        cross = old.generic and not new.generic
        places = self.places
        for place, number in old.events:
            for warp, clock in warps:
                if own and place % places.warps != warp:
                    continue
                if clock[place] < number:
                    raise _race(old, new, region, "")
                if not cross or not places.crosses(place):
                    continue
                there = old.arrived.get(place)
                if (there is None or clock[place] < there) and clock[places.fenced(place)] < number:
                    raise _race(old, new, region, "a fence between the proxies")

    def _written(self, region: Region, new: Access) -> None:
        """Record a write. Whatever is ordered after it is ordered after the accesses that it covers, too."""
        for other in region.meets:
            other.writes = [x for x in other.writes if not new.covers(x)]
            other.writes.append(new)
            if other.reads:
                other.reads = {k: x for k, x in other.reads.items() if not new.covers(x)}
        region.writes, region.reads = [new], {}

    def _valid(self, region: Region, new: Access) -> None:
        """Check that what is read was last written through the same buffer."""
        if not region.writes:
            raise SynchronizationError(
                f"{new.what} of {name_of(new.owner)}, which nobody has written", loc=new.op.loc
            )
        for old in region.writes:
            if old.owner is not new.owner and old.low < new.high and new.low < old.high:
                error = SynchronizationError(
                    f"{new.what} of {name_of(new.owner)} (bytes {region.low} to {region.high}), whose bytes"
                    f" {old.what} of {name_of(old.owner)} has overwritten",
                    loc=new.op.loc,
                )
                raise _other(error, old)


def _race(old: Access, new: Access, region: Region, missing: str) -> SynchronizationError:
    then = "writes" if new.write else "reads"
    before = "written" if old.write else "read"
    missing = missing or ("the end of the write" if old.write else "the end of the read")
    error = SynchronizationError(
        f"{new.what} {then} {name_of(new.owner)} (bytes {region.low} to {region.high}) without {missing}:"
        f" {old.what} may not have {before} it yet",
        loc=new.op.loc,
    )
    return _other(error, old)


def _other(error: SynchronizationError, old: Access) -> SynchronizationError:
    where = f" at {old.op.loc.short()}" if old.op.loc is not None else ""
    return error.note(f"the other access is {old.what} of {name_of(old.owner)}{where}")
