"""Keeps packed operands in the thread's scratch memory for later programs that need the same ones.

Successive programs mostly need the same tile of B (those of one column of output tiles; the query tiles of one head),
or the same A (weights of a convolution). So packed operands, panels of B and copied rows of A, are in slots, and each
slot has tags: the numbers from which the addresses were computed that it was packed from, the first address in front.
A program with the same tags uses the slot without packing it again. That is sound if nothing else determines these
addresses and what masks hide, and nothing in the launch writes to the array: other arguments must not overlap it, which
the launch checks.

A dot that is multiplied in program order has one slot for each step of the innermost loop around it. The operands of a
loop that is packed as a whole (prepack_k.py) have a slot for each step, and those of a program are consecutive. The
slots of as many programs are kept as fit, and the first tag finds them.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import reduce

from tessera import ops
from tessera.analysis.provenance import reached
from tessera.backends.cpu.atomics import to_bits
from tessera.backends.cpu.dot_plan import DotPlan
from tessera.backends.cpu.few_rows import remainders, source, tile_sources, unmasked, whole
from tessera.backends.cpu.fusion import fill, finish_memo_buffers, prepare
from tessera.backends.cpu.lowering import Buffer, Lowering
from tessera.backends.cpu.operands import Panels
from tessera.backends.cpu.panels import fill_bias, fill_panels, materialise_reshapes
from tessera.backends.cpu.row_prefetch import address
from tessera.backends.cpu.transpose import Convert
from tessera.backends.cpu.values import Coord
from tessera.backends.elements.casts import cast
from tessera.dtypes import UNSIGNED_INTS, dtype, int32, int64
from tessera.ir import Op, TileType, Value, elem_of, shape_of
from tessera.ir.applications import apply

RING_BYTES = 2 << 20  # for each operand that a thread keeps: about a core's L2 cache
MOST_SLOTS = 64
LARGE_STEP = (
    16 << 10
)  # bytes of B in a step: less is packed as soon as it is found among many slots
KEPT = 4  # times the steps that are packed together: programs along a row of tiles come back to a panel after the row
MOST_TAGS = 64


def unless_packed(
    lo: Lowering,
    v: Value,
    tags: list[str],
    keys: str,
    fill_: Callable[[], None],
    often: bool = True,
) -> None:
    """Emit code that fills a slot unless the tags at `keys` say that it holds `v` already. `often`: masks mostly hold
    where a slot is filled."""
    em, known, rests = lo.em, "true", remainders(lo, v)
    places = [em.op(f"getelementptr i64, ptr {keys}, i64 {i}") for i in range(len(tags))]
    for place, tag in zip(places, tags, strict=True):
        same = em.op(f"icmp eq i64 {em.here(f'load i64, ptr {place}, align 8')}, {tag}")
        known = lo.both(known, same)
    plain = reduce(lo.both, rests.values(), whole(lo, v) if often else "true")
    twice = plain not in ("true", "false") and apply("whole-tiles", v.op)
    with em.branch(known, negate=True):
        for plainly in em.versions(plain) if twice else (False,):
            with unmasked(lo, v, often, rests) if plainly else nullcontext():
                fill_()
        for place, tag in zip(places, tags, strict=True):
            em.stmt(f"store i64 {tag}, ptr {place}, align 8")


# --- a dot in program order -----------------------------------------------------------------------------------------
def packed_panels(lo: Lowering, plan: DotPlan, op: ops.DotOp) -> Panels:
    """Return the panels of B of one dot."""
    materialise_reshapes(lo, op, plan)
    prepare(lo, [op.b], op, keep_top=False)
    size = -(-plan.k_groups * plan.n * plan.packed_bytes // 64) * 64
    sums = -(-plan.n * 4 // 64) * 64 if plan.path.bias else 0
    tags = tags_of(lo, op.b)

    def fill() -> None:
        fill_panels(lo, plan, op, target)
        if plan.path.bias:
            fill_bias(lo, plan, target)

    if tags is None or size + sums > RING_BYTES:
        plan.placed["B"] = "packed"
        count = size // plan.t.storage_bytes
        buffers = [lo.allocate(plan.t, (count,)), lo.allocate(int32, (plan.n,))]
        lo.temporaries += buffers
        bias = buffers[1].ptr if plan.path.bias else ""
        target = Panels(buffers[0].ptr, plan.packed_type, plan.k_groups, bias)
        fill()
    else:
        plan.placed["B"] = "shared"
        base, keys = _slot(lo, op, size + sums, len(tags))
        bias = lo.em.op(f"getelementptr i8, ptr {base}, i64 {size}") if plan.path.bias else ""
        target = Panels(base, plan.packed_type, plan.k_groups, bias)
        unless_packed(lo, op.b, tags, keys, fill)
    finish_memo_buffers(lo)
    return target


def shared_rows(lo: Lowering, plan: DotPlan, op: ops.DotOp, convert: Convert) -> str:
    """Return the address of a copy of A in rows that later programs can use; "" if it cannot be shared."""
    size = -(-plan.m * plan.k * plan.t.storage_bytes // 64) * 64
    tags = tags_of(lo, op.a) if len(op.a.uses) == 1 and size <= RING_BYTES else None
    if tags is None:
        return ""
    prepare(lo, [op.a], op, keep_top=False)
    base, keys = _slot(lo, op, size, len(tags))
    target = Buffer(base, plan.t, (plan.m, plan.k))
    unless_packed(lo, op.a, tags, keys, lambda: fill(lo, target, op.a, convert))
    finish_memo_buffers(lo)
    return base


def _slot(lo: Lowering, op: ops.DotOp, size: int, tags: int) -> tuple[str, str]:
    """Take the ring's slot for this step of the innermost loop; return the addresses of the operand and of its tags."""
    em, loop = lo.em, loop_around(op)
    slots = max(1, min(MOST_SLOTS, RING_BYTES // size)) if loop is not None else 1
    tag_bytes = -(-tags * 8 // 64) * 64
    ring = scratch(lo, slots * (size + tag_bytes))
    all_tags = em.entry_op(f"getelementptr i8, ptr {ring}, i64 {slots * size}")
    clear_once(lo, all_tags, slots * tag_bytes)
    if loop is None or slots == 1:
        return ring, all_tags
    trip = _wide(lo, loop.induction)
    low, step = _wide(lo, loop.lb), _wide(lo, loop.step)
    trip = em.op(f"sdiv i64 {em.op(f'sub i64 {trip}, {low}')}, {step}")
    which = em.op(f"urem i64 {trip}, {slots}")

    def at(base: str, bytes_: int) -> str:
        return em.op(f"getelementptr i8, ptr {base}, i64 {em.op(f'mul i64 {which}, {bytes_}')}")

    return at(ring, size), at(all_tags, tag_bytes)


def _wide(lo: Lowering, v: Value) -> str:
    t, text = elem_of(v.type), lo.scalar_text(v)
    if isinstance(t, dtype) and t.is_floating():
        bits = next(d for d in UNSIGNED_INTS if d.bits == t.bits)
        return cast(lo.lanes(1), to_bits(lo, t, text), bits, int64)
    if isinstance(t, dtype):
        return cast(lo.lanes(1), text, t, int64)
    return lo.em.op(f"ptrtoint ptr {text} to i64")


def loop_around(op: Op) -> ops.ForOp | None:
    """Return the innermost counted loop around an op."""
    parent = op.parent
    while parent is not None and not isinstance(parent, ops.ForOp):
        parent = parent.parent
    return parent


# --- the operands of all steps of a loop ------------------------------------------------------------------------
@dataclass(slots=True)
class Trip:
    """The iteration that packs: `number` of this step, of `most` steps at most, and an i1, whether it is the first."""

    number: str
    most: str
    first: str


@dataclass(slots=True)
class Ring:
    """The slots of one operand: `slots` steps, and one more so that rows do not begin in the same cache sets. `first`:
    the address of the number of the first slot in use."""

    base: str
    keys: str
    first: str
    slots: int
    place: str  # "shared" by programs that need the same, or "packed"


def cache_operand(
    lo: Lowering, v: Value, trip: Trip, slots: int, size: int, fill_: Callable[[Ring, str], None], unused: str = "",
) -> Ring:  # fmt: skip
    """Emit code that fills the slot of this step, unless it is filled or `unused` (an i1); return the operand's ring of
    slots."""
    em = lo.em
    tags = tags_of(lo, v)
    count = len(tags or [])
    base = scratch(lo, (slots + 1) * size + 64 * shape_of(v.type)[0])
    keys_bytes = (slots * count + 1) * 8
    keys = scratch(lo, keys_bytes)
    ring = Ring(base, keys, em.alloca("i64"), slots, "packed" if tags is None else "shared")
    if tags is not None:
        clear_once(lo, keys, keys_bytes)
    with em.branch(trip.first):
        if tags is None:
            em.stmt(f"store i64 0, ptr {ring.first}")
        else:
            _choose(lo, ring, trip, tags)
    with em.branch(unused, negate=True) if unused else nullcontext():
        if tags is None:
            fill_(ring, trip.number)
        else:
            slot = em.here(f"add i64 {em.here(f'load i64, ptr {ring.first}')}, {trip.number}")
            key = _key(lo, ring, slot, count)
            unless_packed(lo, v, tags, key, lambda: fill_(ring, slot), often=not unused)
    return ring


def slots_of_b(lo: Lowering, b: Value, slots: int, size: int) -> int:
    """Return the slots of `size` bytes for B of `slots` steps that are packed together."""
    many = size >= LARGE_STEP and constant_load(lo, b) is not None
    return max(slots, KEPT * RING_BYTES // size) if many else slots


def _key(lo: Lowering, ring: Ring, slot: str, count: int) -> str:
    index = lo.em.op(f"mul i64 {slot}, {count}")
    return lo.em.op(f"getelementptr i64, ptr {ring.keys}, i64 {index}")


def _choose(lo: Lowering, ring: Ring, trip: Trip, tags: list[str]) -> None:
    """Choose where the slots of this program begin: at those of an earlier program with the same first tag, else
    round-robin."""
    em = lo.em
    round_robin = em.op(f"getelementptr i64, ptr {ring.keys}, i64 {ring.slots * len(tags)}")
    places = em.op(f"udiv i64 {ring.slots}, {trip.most}")
    mine = em.here(f"load i64, ptr {round_robin}")
    own = em.op(f"mul i64 {em.op(f'urem i64 {mine}, {places}')}, {trip.most}")
    em.stmt(f"store i64 {own}, ptr {ring.first}")
    found = em.alloca("i64")
    em.stmt(f"store i64 0, ptr {found}")
    with em.counted("0", places, "1", always=False, guarded=False) as i:
        slot = em.op(f"mul i64 {i}, {trip.most}")
        key = em.here(f"load i64, ptr {_key(lo, ring, slot, len(tags))}, align 8")
        with em.branch(em.op(f"icmp eq i64 {key}, {tags[0]}")):
            em.stmt(f"store i64 {slot}, ptr {ring.first}")
            em.stmt(f"store i64 1, ptr {found}")
    hit = em.here(f"load i64, ptr {found}")
    following = em.op(f"sub i64 {em.op(f'add i64 {mine}, 1')}, {hit}")
    em.stmt(f"store i64 {following}, ptr {round_robin}")


# --- scratch memory and tags ------------------------------------------------------------------------------------
def scratch(lo: Lowering, size: int) -> str:
    """Return the address of `size` bytes of scratch memory that nothing else uses."""
    em, state = lo.em, lo.state
    first = state.scratch
    state.scratch += -(-size // 64) * 64
    where = em.entry_op(f"getelementptr i8, ptr {lo.context}, i64 16")
    base = em.entry_op(f"load ptr, ptr {where}, align 8, !invariant.load !0")
    return em.entry_op(f"getelementptr i8, ptr {base}, i64 {first}")


def clear_once(lo: Lowering, ptr: str, size: int) -> None:
    """Clear scratch memory in a thread's first call of a launch; if the function is not the kernel, in each call."""
    em = lo.em
    em.declare("void", "llvm.memset.p0.i64", "ptr", "i8", "i64", "i1")
    if not lo.kernel:
        em.at_entry(f"call void @llvm.memset.p0.i64(ptr {ptr}, i8 0, i64 {size}, i1 false)")
        return
    where = em.entry_op(f"getelementptr i8, ptr {lo.context}, i64 40")
    if not lo.clears:
        lo.clears = em.entry_op(f"load i32, ptr {where}, align 8")
        em.at_entry(f"store i32 1, ptr {where}, align 8")
    fresh = em.entry_op(f"icmp eq i32 {lo.clears}, 0")
    count = em.entry_op(f"select i1 {fresh}, i64 {size}, i64 0")
    em.at_entry(f"call void @llvm.memset.p0.i64(ptr {ptr}, i8 0, i64 {count}, i1 false)")


def tags_of(lo: Lowering, v: Value) -> list[str] | None:
    """Return the i64s that determine the addresses of all elements, what the mask hides, and what is there instead;
    where it hides nothing, zeros in place of the latter two. None if there are no such numbers, or memory changes."""
    load, em = constant_load(lo, v), lo.em
    found = [_scalars(x) for x in (load.mask, load.other) if x is not None] if load else []
    if load is None or None in found or not apply("shared-panels", load):
        return None
    inside, tags = whole(lo, v), [_wide(lo, x) for x in _scalars(load.ptr) or []]
    hidden = dict.fromkeys(_wide(lo, x) for xs in found for x in xs or ())
    if load.mask is not None:
        tags.append(em.op(f"zext i1 {inside} to i64"))
        tags += [em.op(f"select i1 {inside}, i64 0, i64 {x}") for x in hidden]
    first = address(lo, load.ptr, [Coord()] * len(shape_of(load.ptr.type)))
    return list(dict.fromkeys([first, *tags]))


def constant_load(lo: Lowering, v: Value) -> ops.LoadOp | None:
    """Return the load whose elements, cast and transposed, `v` consists of, if they are the same for equal tags."""
    load = source(lo, v).op
    if not isinstance(load, ops.LoadOp) or not lo.lazy(load.result) or load.volatile:
        return None
    return load if constant_memory(lo, load.ptr) and _scalars(load.ptr) is not None else None


def prepare_operand(lo: Lowering, v: Value, op: ops.DotOp) -> None:
    """Materialise what packing `v` should not compute itself. What one operand alone reads is read where it is packed,
    which is seldom."""
    load, once = constant_load(lo, v), v
    while load is not None and len(once.uses) == 1 and once is not load.result:
        assert once.op is not None
        (once,) = once.op.operands
    if load is None or len(once.uses) > 1:
        prepare(lo, [v], op)
    else:
        prepare(lo, list(load.operands), None, loop=[])


def _scalars(v: Value) -> list[Value] | None:
    """Return the numbers and pointers that alone determine a tile of addresses; None if memory does."""
    tiles = [x for x in reached([v], tile_sources) if isinstance(x.type, TileType)]
    if any(x.op is None or x.op.regions or x.op.effects for x in tiles):
        return None
    found = [x for x in reached([v], tile_sources) if not isinstance(x.type, TileType)]
    return None if len(found) > MOST_TAGS else found


def constant_memory(lo: Lowering, ptr: Value) -> bool:
    """Whether nothing that the kernel writes overlaps the array, on assumptions that the launch checks."""
    state = lo.state
    mine = state.position(ptr)
    if state.overlap or mine is None or state.written is None or mine in state.written:
        return False
    for other in state.written:
        state.assumed_disjoint[min(mine, other), max(mine, other)] = 0
    return True
