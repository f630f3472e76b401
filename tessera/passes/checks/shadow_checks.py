"""Adds the checks of programs that race and of elements that nothing has stored, in launches that keep shadows.

The programs of a launch run in any order and concurrently: what one stores, another may neither read nor store. A
checked launch runs them one after another, and a shadow of each storage says who was the first to read an element, the
last to store it, and the last to change it:

    total = tl.load(out)         program (1, 0, 0) reads what program (0, 0, 0) has changed: a race
    tl.store(out, total + s)

Storing the value that is already there conflicts with nothing. Kernels with atomics, volatile loads or pointers of
unknown origin order their accesses in ways that are not modelled: they have no shadows.

A shadow is three rows of int32, read, written and changed, with an entry for each unit of the storage (as many bytes as
the narrowest access): 0, or the *event* 1 + program * sites + site, where a site is an access in the source; in the
third row -1 stands for memory that nothing has stored. Its address is 0 where the launch keeps none, as no program
stores there, or its events have no place in an int32.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tessera.analysis.provenance import argument_of
from tessera.dtypes import dtype, float32, int32, int64, pointer_type, uint32
from tessera.errors import ProgramRace, UninitialisedRead
from tessera.ir import Block, Module, Value, elem_of
from tessera.ops import arith, control, memory, tile
from tessera.passes.checks.check_builder import CheckBuilder

_READ, _WRITTEN, _CHANGED = range(3)
_ORDERED = (memory.Atomic, memory.DescriptorStoreOp)
Extent = tuple[Value, ...]  # of a pointer: begin and end of its storage, address of the shadow


def keeps_shadows(module: Module) -> bool:
    """Whether a module lacks everything by which its programs could order their accesses or reach unknown storage."""
    return not any(
        isinstance(op, _ORDERED)
        or (isinstance(op, memory.LoadOp) and (op.volatile or _is_pointer(op.result)))
        or (isinstance(op, (arith.CastOp, arith.BitcastOp)) and _is_pointer(op.result) and not _is_pointer(op.x))
        for op in module.walk()
    )  # fmt: skip


def _is_pointer(v: Value) -> bool:
    return isinstance(elem_of(v.type), pointer_type)


def _width(op: memory.PointerAccess) -> int:
    e = elem_of(op.ptr.type).element_ty
    return e.storage_bytes if isinstance(e, dtype) else 8


@dataclass(slots=True)
class ShadowChecks:
    """Puts the checks of shadows beside accesses. `extents`: begin, end and shadow of each pointer argument's storage;
    `unit`: bytes of an entry; `sites`: the accesses, which are numbered; `firsts`: the first event of the program that
    runs, by function."""

    extents: dict[Value, Extent]
    unit: int = 0
    sites: dict[memory.PointerAccess, int] = field(default_factory=lambda: {})
    firsts: dict[Block, tuple[Value, Value, Value]] = field(default_factory=lambda: {})

    def prepare(self, module: Module) -> None:
        """Find the accesses of known arguments."""
        for op in module.walk():
            if isinstance(op, (memory.LoadOp, memory.StoreOp)):
                base = argument_of(op.ptr)
                if base is not None and base in self.extents:
                    self.sites[op] = len(self.sites)
        self.unit = min(map(_width, self.sites), default=1)
        module.attrs[memory.SHADOW_UNIT] = self.unit
        module.attrs[memory.SHADOW_SITES] = len(self.sites)

    def program(self, body: Block) -> tuple[Value, Value, Value]:
        """Return the first event of the program, as int32, and the grid's extents along x and y, as int64, from where a
        function begins."""
        known = self.firsts.get(body)
        if known is not None:
            return known
        b = CheckBuilder.at_start(body)
        x, y, z = (b.cast(b.emit(tile.ProgramIdOp(axis=i)), int64) for i in range(3))
        gx, gy = (b.cast(b.emit(tile.NumProgramsOp(axis=i)), int64) for i in range(2))
        row = b.emit(arith.AddOp(y, b.emit(arith.MulOp(z, gy))))
        number = b.emit(arith.AddOp(x, b.emit(arith.MulOp(row, gx))))
        events = b.emit(arith.MulOp(number, b.constant(len(self.sites), int64)))
        first = b.cast(b.emit(arith.AddOp(events, b.constant(1, int64))), int32)
        self.firsts[body] = first, gx, gy
        return self.firsts[body]

    def access(self, op: memory.PointerAccess) -> None:
        """Check an access against the shadow of its storage, if the launch keeps one, and record it there."""
        base = argument_of(op.ptr)
        if base is None or op not in self.sites:
            return
        assert isinstance(base.owner, Block)
        assert isinstance(op, (memory.LoadOp, memory.StoreOp))
        program = self.program(base.owner)
        b = CheckBuilder.before_op(op)
        shadow = self.extents[base][2]
        kept = b.compare("ne", b.cast(shadow, int64), 0)
        branch = b.insert(control.IfOp(kept, results=[], regions=[Block(), Block()]))
        for block in branch.regions:
            CheckBuilder(block, None, op.loc).insert(control.YieldOp([]))
        body = branch.regions[0]
        inside = _Access(self, op, base, program, CheckBuilder(body, body.first, op.loc))
        if isinstance(op, memory.LoadOp):
            inside.load()
        else:
            inside.store(op.value)


@dataclass(slots=True)
class _Access:
    """One access beside the shadow of its storage."""

    of: ShadowChecks
    op: memory.LoadOp | memory.StoreOp
    base: Value
    program: tuple[Value, Value, Value]
    b: CheckBuilder
    entry: Value = field(init=False)  # the number of each element's entry
    rows: Value = field(init=False)  # the length of a row

    def __post_init__(self) -> None:
        b, t = self.b, self.op.ptr.type
        low, high, _ = self.of.extents[self.base]
        shift = b.constant(self.of.unit.bit_length() - 1, int64)
        distance = b.emit(arith.SubOp(b.cast(self.op.ptr, int64), b.spread(low, t)))
        self.entry = b.emit(arith.ShrOp(distance, b.spread(shift, t)))
        size = b.emit(
            arith.AddOp(b.emit(arith.SubOp(high, low)), b.constant(self.of.unit - 1, int64))
        )
        self.rows = b.emit(arith.ShrOp(size, shift))

    @property
    def units(self) -> range:
        """The entries of an element, some of which a narrower access may have changed."""
        return range(_width(self.op) // self.of.unit)

    def load(self) -> None:
        for k in self.units:
            changed = self.events(_CHANGED, k)
            unset = self.b.compare("lt", changed, self.event(0))
            message = (
                f"program {{}} reads element {{}} of `{self.base.name}`, which nothing has stored"
            )
            self.report(UninitialisedRead.code, unset, message, changed)
            self.refuse(changed, None, "reads", "has stored")
            read = self.events(_READ, k)
            self.record(_READ, k, first=read)

    def store(self, value: Value) -> None:
        differs = self.differs(value)
        for k in self.units:
            self.refuse(self.events(_READ, k), differs, "stores", "has read")
            self.refuse(self.events(_WRITTEN, k), differs, "stores", "has stored")
            changed = self.events(_CHANGED, k)
            same = self.b.compare("eq", changed, self.event(0))
            self.record(_CHANGED, k, self.b.negated(self.b.both(same, self.b.negated(differs))))
            self.record(_WRITTEN, k)

    def constant(self, value: int) -> Value:
        return self.b.spread(self.b.constant(value, int64), self.op.ptr.type)

    def event(self, number: int) -> Value:
        return self.spread(self.b.constant(number, int32))

    def spread(self, v: Value) -> Value:
        return self.b.spread(v, self.op.ptr.type)

    def place(self, row: int, further: int = 0) -> Value:
        """Return the addresses of entries in a row of the shadow, some units further on."""
        b = self.b
        start = b.emit(arith.MulOp(self.rows, b.constant(row, int64)))
        if further:
            start = b.emit(arith.AddOp(start, b.constant(further, int64)))
        first = b.emit(arith.AddPtrOp(self.of.extents[self.base][2], start))
        return b.emit(arith.AddPtrOp(self.spread(first), self.entry))

    def events(self, row: int, k: int) -> Value:
        """Return what the shadow has for the k-th unit of each element."""
        return self.b.emit(memory.LoadOp(self.place(row, k), self.op.mask, None))

    def record(
        self, row: int, k: int, where: Value | None = None, first: Value | None = None
    ) -> None:
        """Write this access's event for the k-th units, 0 unless `where`; `first`: what is there already stays, unless
        it is 0. The stores are of whole vectors: those that leave elements out take many times as long with AVX2."""
        b, zero = self.b, self.event(0)
        number = b.constant(self.of.sites[self.op], int32)
        event = self.spread(b.emit(arith.AddOp(self.program[0], number)))
        if where is not None:
            event = b.emit(arith.SelectOp(where, event, zero))
        if first is not None:  # the smaller one of those that are not 0: events grow
            one = self.event(1)
            known, new = (b.cast(b.emit(arith.SubOp(x, one)), uint32) for x in (first, event))
            event = b.emit(arith.AddOp(b.cast(b.emit(arith.MinOp(known, new)), int32), one))
        b.insert(memory.StoreOp(self.place(row, k), event, self.op.mask))

    def differs(self, new: Value) -> Value:
        """Return where a store changes what is in memory; a NaN stays a NaN."""
        b = self.b
        old = b.emit(memory.LoadOp(self.op.ptr, self.op.mask, None))
        e = elem_of(new.type)
        if not isinstance(e, dtype):
            old, new = b.cast(old, int64), b.cast(new, int64)
        elif e.is_floating():
            if e.bits < 32:
                old, new = b.cast(old, float32), b.cast(new, float32)
            nans = b.both(b.compare("ne", old, old), b.compare("ne", new, new))
            return b.both(b.compare("ne", old, new), b.negated(nans))
        elif e.is_bool():
            old, new = b.cast(old, int32), b.cast(new, int32)
        return b.compare("ne", old, new)

    def refuse(self, events: Value, where: Value | None, does: str, did: str) -> None:
        """Report elements that a program in front of this one has accessed."""
        b = self.b
        first = self.spread(self.program[0])
        bad = b.both(b.compare("gt", events, self.event(0)), b.compare("lt", events, first))
        if where is not None:
            bad = b.both(bad, where)
        message = (
            f"program {{}} {does} element {{}} of `{self.base.name}`, which program {{}} {did}"
        )
        self.report(ProgramRace.code, bad, message, events)

    def report(self, kind: str, bad: Value, message: str, events: Value) -> None:
        """Check `bad` under the mask; the report has the element and, from the event, the other program and site."""
        b, t = self.b, self.op.ptr.type
        if self.op.mask is not None:
            bad = b.both(bad, self.op.mask)
        start = b.spread(b.cast(self.base, int64), t)
        distance = b.emit(arith.SubOp(b.cast(self.op.ptr, int64), start))
        element = b.emit(arith.DivOp(distance, self.constant(_width(self.op))))
        facts = [element, *self._decoded(events)]
        b.insert(
            memory.CheckOp(bad, facts, kind=kind, message=message, site=self.of.sites[self.op])
        )

    def _decoded(self, events: Value) -> Sequence[Value]:
        """Return the program id along x, y and z and the site of an event."""
        b = self.b
        _, gx, gy = (self.spread(v) for v in self.program)
        count = self.constant(len(self.of.sites))
        event = b.emit(arith.SubOp(b.cast(events, int64), self.constant(1)))
        number = b.emit(arith.DivOp(event, count))
        row = b.emit(arith.DivOp(number, gx))
        return [
            b.emit(arith.RemOp(number, gx)), b.emit(arith.RemOp(row, gy)),
            b.emit(arith.DivOp(row, gy)), b.emit(arith.RemOp(event, count)),
        ]  # fmt: skip
