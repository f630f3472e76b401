"""Finds loads of a loop that may be copied to shared memory iterations ahead, and what computes their addresses."""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterable, Iterator, KeysView, Sequence
from contextlib import contextmanager, suppress
from typing import NamedTuple, ParamSpec

from tessera.analysis.allocation import bytes_around, scratch_beside
from tessera.analysis.axis import AxisAnalysis
from tessera.analysis.machines import CP_ASYNC_BYTES
from tessera.analysis.provenance import reached
from tessera.dtypes import int1, pointer_type
from tessera.ir import Builder, Effect, Module, Op, SharedType, TileType, Value, with_elem
from tessera.ir.applications import Declined
from tessera.layout import LinearLayout, offset_map
from tessera.ops import AndOp, DotOp, ForOp, FuncOp, LoadOp, LocalAllocOp, MmaOp, SplatOp
from tessera.passes.gpu_facts import GpuFacts
from tessera.passes.gpu_layout.coalesce import access_width
from tessera.passes.gpu_loops.rings import put_buffer
from tessera.passes.gpu_movement.memory_effects import arrays_written, is_apart
from tessera.passes.neutral.fold import is_zero
from tessera.passes.neutral.loops import runs_at_all
from tessera.passes.neutral.remarks import place_of, remark

P = ParamSpec("P")

COPY_BYTES = 16  # of what goes back to registers: smaller copies cost more than they hide


class Stream(NamedTuple):
    """A load that may be copied ahead, and the buffer that it fills."""

    load: LoadOp
    alloc: LocalAllocOp

    @property
    def bytes(self) -> int:
        return self.alloc.result.type.slot_bytes


def staged_loops(
    module: Module, facts: GpuFacts, is_wanted: Callable[[ForOp], bool] = lambda _: True
) -> Iterator[tuple[ForOp, AxisAnalysis, int]]:
    """Yield the loops that ask for several stages, with what is known of addresses and the number of stages; none
    without `cp.async`."""
    default: int = module.attrs.get("num_stages", 1)
    for func in module.body if facts.has_cp_async else ():
        assert isinstance(func, FuncOp)
        loops = [op for op in func.walk() if isinstance(op, ForOp)]
        loops = [op for op in loops if (op.num_stages or default) > 1 and is_wanted(op)]
        axis = AxisAnalysis(func) if loops else None
        for loop in loops:
            assert axis is not None
            yield loop, axis, loop.num_stages or default


def stream_of(
    load: Op, loop: ForOp, axis: AxisAnalysis, facts: GpuFacts, early: Collection[Op] = ()
) -> Stream | None:
    """Return the stream of a load, or None, as `stream_or_reason` does, which raises the reason."""
    with suppress(Declined):
        return stream_or_reason(load, loop, axis, facts, early)
    return None


def stream_or_reason(
    load: Op, loop: ForOp, axis: AxisAnalysis, facts: GpuFacts, early: Collection[Op] = ()
) -> Stream | None:
    """Return the stream of a load, if it can be copied asynchronously ahead of its iteration. Its address may depend on
    `early` loads, which run ahead to registers. Raises Declined, with the reason, if it fills a buffer and cannot."""
    if not isinstance(load, LoadOp) or not isinstance(load.ptr.type, TileType):
        return None
    users = load.result.users()
    if (
        len(users) != 1
        or not isinstance(users[0], LocalAllocOp)
        or users[0].parent is not loop.body
    ):
        return None
    if load.volatile:
        raise Declined("it is volatile")
    require_ahead(load, loop, early)
    if load.other is not None and not is_zero(load.other):
        raise Declined("masked elements are no zeros, with which asynchronous copies fill")
    alloc = users[0]
    shared: SharedType = alloc.result.type
    order = fastest_dimension(load.result.type.layout)
    bits = shared.elem.storage_bits
    vec = min(
        access_width(axis, load.ptr, load.mask, order, facts.max_vector_bytes, is_partial(load)),
        _neighbours(load.result.type.layout, shared.layout),
    )
    if vec * bits // 8 < CP_ASYNC_BYTES:
        raise Declined(
            f"a thread reads {vec * bits // 8} bytes at once, a copy moves {CP_ASYNC_BYTES} or more"
        )
    return Stream(load, alloc)


def is_partial(load: Op) -> bool:
    """Whether a copy of what is loaded may end within a vector, as coalescing found."""
    return "partial" in load.attrs


def require_ahead(load: LoadOp, loop: ForOp, early: Collection[Op] = ()) -> None:
    """Raise the reason unless a load can run in iterations before its own."""
    if not is_apart(load.ptr, arrays_written(loop)):
        raise Declined("a store of the loop may write what it reads")
    slice_of(load.operands, loop, early)


def is_met(require: Callable[P, object], *given: P.args, **options: P.kwargs) -> bool:
    """Whether a requirement is met, whose function raises Declined otherwise."""
    try:
        require(*given, **options)
    except Declined:
        return False
    return True


@contextmanager
def noting(module: Module, load: Op) -> Generator[None]:
    """Say in a remark why a load is not copied ahead, if the code inside declines that."""
    try:
        yield
    except Declined as reason:
        remark(module, f"the load{place_of(load)} is not copied ahead: {reason}")


def _neighbours(held: LinearLayout, shared: LinearLayout) -> int:
    """Return how many first registers of a thread are adjacent in shared memory, in order."""
    count = 1
    for column in offset_map(held, shared).register:
        if column != count:
            break
        count *= 2
    return count


def fastest_dimension(layout: LinearLayout) -> int:
    """Return the dimension along which a thread's registers run first."""
    first = next((b for b in layout.bases("register") if any(b)), None)
    return next(d for d, c in enumerate(first) if c) if first is not None else len(layout.shape) - 1


def slice_of(values: Iterable[Value], loop: ForOp, early: Collection[Op] = ()) -> KeysView[Value]:
    """Return the values that compute some in the loop, across iterations. Raises Declined unless all ops are pure, but
    for `early` loads."""

    def sources(v: Value) -> Sequence[Value]:
        op = v.op
        if op is None or not op.is_inside(loop):
            number = v.index - 1 if v.owner is loop.body else -1
            return [loop.body.terminator.operands[number]] if number >= 0 else ()
        pure = op.effects is Effect.NONE or op in early
        if op.parent is not loop.body or op.regions or not pure or isinstance(op, DotOp | MmaOp):
            raise Declined("its address is not known in iterations before")
        return op.operands

    return reached(values, sources)


class Ahead:
    """Repeats, for other iterations of a loop, what computes the operands of some loads, as `slice_of` finds it, with
    the values that the loop carries for that."""

    def __init__(self, loop: ForOp, loads: Iterable[LoadOp], early: Collection[Op] = ()):
        found = slice_of([v for x in loads for v in x.operands], loop, early)
        self.index, self.ub, self.step = loop.induction, loop.ub, loop.step
        self.ops = [op for op in loop.body if not found.isdisjoint(op.results)]
        numbers = [n for n, v in enumerate(loop.carried) if v in found]
        self.args = [loop.carried[n] for n in numbers]
        self.inits = [loop.inits[n] for n in numbers]
        self.yields = [loop.body.terminator.operands[n] for n in numbers]

    def emit(
        self, b: Builder, values: Sequence[Value], index: Value
    ) -> tuple[dict[Value, Value], Value, list[Value]]:
        """Emit the slice for the iteration of `index`. Return what became of its values, whether the loop has that
        iteration, and the carried values after it."""
        mapping = dict(zip(self.args, values, strict=True))
        mapping[self.index] = index
        runs = runs_at_all(b, index, self.ub, self.step)
        for op in self.ops:
            b.insert(op.clone(mapping))
        return mapping, runs, [mapping.get(v, v) for v in self.yields]

    def read(
        self, b: Builder, load: LoadOp, mapping: dict[Value, Value], runs: Value | None
    ) -> tuple[Value, Value | None, Value | None]:
        """Return address, mask and other value of a load of such an iteration, masked unless that `runs`."""
        given = (load.ptr, load.mask, load.other)
        ptr, mask, other = (mapping.get(v, v) if v is not None else None for v in given)
        assert ptr is not None
        if runs is not None and isinstance(ptr.type, TileType):
            runs = b.emit(SplatOp(runs, results=[with_elem(ptr.type, int1)]))
        if runs is not None:
            mask = runs if mask is None else b.emit(AndOp(mask, runs))
        return ptr, mask, other


def vector_of(op: LoadOp, axis: AxisAnalysis, facts: GpuFacts) -> int:
    """Return the elements of one copy."""
    layout: LinearLayout = op.result.type.layout
    dim = fastest_dimension(layout)
    rank = len(layout.shape)
    along = layout.contiguity((dim, *[d for d in range(rank) if d != dim]))
    return min(access_width(axis, op.ptr, op.mask, dim, facts.max_vector_bytes), along)


def require_buffer(op: LoadOp, axis: AxisAnalysis, facts: GpuFacts) -> None:
    """Raise the reason unless threads may copy what they load to a buffer, and read it there again: by whole vectors,
    which no other thread holds."""
    t = op.result.type
    layout: LinearLayout = t.layout
    if t.elem is int1 or isinstance(t.elem, pointer_type):
        raise Declined("it loads pointers or truth values")
    if not layout.is_bijective():
        raise Declined("several threads hold the same element")
    size = vector_of(op, axis, facts) * t.elem.storage_bytes
    if size < COPY_BYTES:
        raise Declined(f"a thread reads {size} bytes at once, a copy moves {COPY_BYTES}")


def through_buffer(
    op: LoadOp, axis: AxisAnalysis, facts: GpuFacts, private: bool = False
) -> LocalAllocOp:
    """Put a buffer, in which lanes are adjacent, a vector each, between a load and its users. `private`: threads read
    what they copied themselves, and wait for no other one."""
    t = op.result.type
    layout: LinearLayout = t.layout
    bits = vector_of(op, axis, facts).bit_length() - 1
    registers = layout.columns("register")
    columns = [
        *registers[:bits], *layout.columns("lane"), *layout.columns("warp"), *registers[bits:],
    ]  # fmt: skip
    shared = SharedType(t.shape, t.elem, LinearLayout.packed(t.shape, {"offset": columns}))
    return put_buffer(op, shared, op.result.name, private)[0]


def bytes_beside(loop: ForOp, rings: Collection[Op], num_warps: int, facts: GpuFacts) -> int:
    """Return the bytes of shared memory that are in use besides a loop's rings while it runs. `rings`: allocations that
    become rings."""
    allocs = [op for op in loop.walk() if isinstance(op, LocalAllocOp) and op not in rings]
    others = sum(op.bytes * op.attrs.get("slots", 1) for op in allocs)
    around = bytes_around(loop, num_warps, facts)
    return around + others + scratch_beside(loop.walk(), num_warps, facts)


def write_copies(
    loop: ForOp,
    copied: Sequence[tuple[LoadOp, LocalAllocOp]],
    ahead: int,
    slots: int,
    signal: str,
) -> None:
    """Write into the schedule that tiles are copied `ahead` iterations ahead to rings of `slots` buffers."""
    loop.main_stage = ahead
    for load, alloc in copied:
        load.attrs["stage"] = alloc.attrs["stage"] = 0
        alloc.attrs |= {"slots": slots, "signal": signal}
