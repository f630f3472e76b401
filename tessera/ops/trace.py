"""Defines the ops of traced builds, which record when a warp passes the boundaries of stages (docs/profiling.md).

Each warp has a *place* in the launch's buffer of 64-bit words: a header, and a ring of *units* behind it. A unit of
four words has up to seven records that follow each other, so that their events need one number. The counts of records
and units are advanced after a *run* of records, so that the units of a run have constant offsets from its first one;
behind the ring there is room for the second unit of a run that begins at its end.

    0  tag of the build (high half) and SM, or the thread on a CPU    4  counts of units (high half) and records
    1  clock at the start                                             5  clock at the end
    2  nanoseconds at the start                                       6  nanoseconds at the end
    8… units of eight halves: the first event (16 low bits) and the number of records, and the clock's low half at each

The clock is that of an SM (`clock64`, `clock`) beside `globaltimer`, the monotonic clock of a CPU, the simulator's
count of steps, or the interpreter's count of records."""

from __future__ import annotations

from collections.abc import Sequence

from tessera.dtypes import int32, int64, pointer_type
from tessera.ir import Effect, Op, Type, Value, attr, operand, require
from tessera.ops.memory import Diagnostic

__all__ = [
    "LINES_MODE", "TRACE_ADDED", "TRACE_BEHIND", "TRACE_EVENTS", "TRACE_HEADER", "TRACE_MODE", "TRACE_RUN",
    "TRACE_TOGETHER", "TRACE_UNIT", "TraceBeginOp", "TraceEndOp", "TraceRecordOp",
]  # fmt: skip

TRACE_MODE = "trace"  # the option `instrumentation_mode` of traced builds
LINES_MODE = "lines"  # that of the interpreter's builds that a debugger follows
TRACE_ADDED = (
    "*i64",
    "i32",
    "i32",
)  # arguments after a kernel's own: buffer, mask of a ring's units, CTAs to record
TRACE_HEADER = 8  # words of a place in front of its units
TRACE_UNIT = 4  # words of a unit
TRACE_TOGETHER = 2 * TRACE_UNIT - 1  # records of a unit at most: one half is its head
TRACE_RUN = 2 * TRACE_TOGETHER  # records of a run at most
TRACE_BEHIND = TRACE_UNIT  # words behind a ring
TRACE_EVENTS = 1 << 16  # an event has 16 bits of a record


def _require_place(op: Op, place: Value) -> None:
    ok = isinstance(place.type, pointer_type) and place.type.element_ty == int64
    require(ok, op, "the place is no pointer to int64")


class TraceBeginOp(Diagnostic, opcode="trace_begin", effects=Effect.WRITE):
    """The place of the warp that runs this in `buffer`, after its header's first half is stored; null in warps of CTAs
    from number `ctas` on, and in all lanes of a warp but one. A ring has `mask` + 1 units, a power of two.
    A CTA has `warps` warps; the first one of the role that runs this is number `warp`. `tag`: not zero."""

    buffer: Value = operand()
    mask: Value = operand()
    ctas: Value = operand()
    warp: int = attr(default=0)
    warps: int = attr(default=1)
    tag: int = attr()

    def infer(self) -> Sequence[Type]:
        return (self.buffer.type,)

    def verify(self) -> None:
        _require_place(self, self.buffer)
        scalars = self.mask.type == self.ctas.type == int32
        require(scalars, self, "the mask and the number of CTAs are not int32")
        require(0 < self.tag < 1 << 31, self, "the tag is no positive int32")


class TraceRecordOp(Diagnostic, opcode="trace_record", effects=Effect.WRITE):
    """Store record number `index` of a run, which begins at unit `slot` of the ring in `place`: `clock` (int32, the low
    half), by default the one of now. In front of the first record of a unit goes its head: its `event`, and `count`,
    the number of the unit's records."""

    place: Value = operand()
    slot: Value = operand()
    clock: Value | None = operand(optional=True)
    event: int = attr()
    index: int = attr(default=0)
    count: int = attr(default=1)

    @property
    def half(self) -> int:
        """The number of the clock's half in the run's units; the half in front of a unit's first clock is its head."""
        unit, position = divmod(self.index, TRACE_TOGETHER)
        return 2 * TRACE_UNIT * unit + position + 1

    @property
    def head(self) -> int | None:
        """The head of the unit that begins here; None within a unit."""
        return None if self.index % TRACE_TOGETHER else self.count << 16 | self.event

    def verify(self) -> None:
        _require_place(self, self.place)
        require(self.slot.type == int32, self, "the slot is not int32")
        require(self.clock is None or self.clock.type == int32, self, "the clock is not int32")
        require(0 <= self.index < TRACE_RUN, self, f"the run has more than {TRACE_RUN} records")
        require(0 <= self.event < TRACE_EVENTS, self, "the event does not fit 16 bits")
        require(0 < self.count <= TRACE_TOGETHER, self, f"a unit has 1 to {TRACE_TOGETHER} records")


class TraceEndOp(Diagnostic, opcode="trace_end", effects=Effect.WRITE):
    """Store the second half of the header of `place`: the numbers of records (`count`) and units, and the clocks
    now."""

    place: Value = operand()
    count: Value = operand()
    units: Value = operand()

    def verify(self) -> None:
        _require_place(self, self.place)
        both = self.count.type == self.units.type == int32
        require(both, self, "the numbers of records and units are not int32")
