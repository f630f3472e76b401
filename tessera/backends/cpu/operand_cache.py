"""Keeps the operands of all steps of a loop in the thread's scratch memory, for later programs that need the same ones.

Each step has one slot. Beside a slot are its tags, the addresses that it was packed from: a program whose tags are the
same uses the slot without packing it again (panel_cache.py says why that is sound). The slots of a program follow one
another; as many programs' slots are kept as there is room for, and the first tag finds them. After the tags comes the
number of the program's slots to replace next.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tessera.backends.cpu.lowering import Lowering
from tessera.backends.cpu.operands import all_inside
from tessera.backends.cpu.panel_cache import clear_once, tags_of
from tessera.ir import Value, shape_of

RING_BYTES = 2 << 20  # of each operand that a thread keeps: about a core's L2 cache
MOST_SLOTS = 64


@dataclass(slots=True)
class Trip:
    """The iteration that packs: `number` of this step, of `count` steps, and an i1, whether it is the first of them."""

    number: str
    count: str
    first: str


@dataclass(slots=True)
class Ring:
    """Memory of one operand: `slots` steps and one more, so that rows do not begin in the same sets of a cache.
    `first`: address of the number of the first slot in use."""

    base: str
    keys: str
    first: str
    slots: int


def cache_operand(
    lo: Lowering, v: Value, trip: Trip, slots: int, size: int, fill_: Callable[[Ring, str], None]
) -> Ring:
    """Emit code that fills the slot of this step, unless it is filled; gives the operand's ring of slots."""
    em = lo.em
    tags = tags_of(lo, [v])
    count = len(tags or [])
    base = _scratch(lo, (slots + 1) * size + 64 * shape_of(v.type)[0])
    keys_bytes = (slots * count + 1) * 8
    keys = _scratch(lo, keys_bytes)
    ring = Ring(base, keys, em.alloca("i64"), slots)
    if tags is None:
        with em.branch(trip.first):
            em.stmt(f"store i64 0, ptr {ring.first}")
        fill_(ring, trip.number)
        return ring
    clear_once(lo, keys, keys_bytes)
    with em.branch(trip.first):
        _choose(lo, ring, trip, tags)
    slot = em.here(f"add i64 {em.here(f'load i64, ptr {ring.first}')}, {trip.number}")
    inside = all_inside(lo, [v])
    known = inside
    where = _key(lo, ring, slot, count)
    places = [em.op(f"getelementptr i64, ptr {where}, i64 {i}") for i in range(count)]
    for place, tag in zip(places, tags, strict=True):
        same = em.op(f"icmp eq i64 {em.here(f'load i64, ptr {place}, align 8')}, {tag}")
        known = em.op(f"and i1 {known}, {same}")
    with em.branch(known, negate=True):
        fill_(ring, slot)
        for i, (place, tag) in enumerate(zip(places, tags, strict=True)):
            stored_tag = tag if i else em.op(f"select i1 {inside}, i64 {tag}, i64 0")
            em.stmt(f"store i64 {stored_tag}, ptr {place}, align 8")
    return ring


def _scratch(lo: Lowering, size: int) -> str:
    """The address of `size` bytes of scratch memory that nothing else uses."""
    em, state = lo.em, lo.state
    first = state.scratch
    state.scratch += -(-size // 64) * 64
    where = em.entry_op(f"getelementptr i8, ptr {lo.context}, i64 16")
    base = em.entry_op(f"load ptr, ptr {where}, align 8, !invariant.load !0")
    return em.entry_op(f"getelementptr i8, ptr {base}, i64 {first}")


def _key(lo: Lowering, ring: Ring, slot: str, count: int) -> str:
    index = lo.em.op(f"mul i64 {slot}, {count}")
    return lo.em.op(f"getelementptr i64, ptr {ring.keys}, i64 {index}")


def _choose(lo: Lowering, ring: Ring, trip: Trip, tags: list[str]) -> None:
    """Choose where the slots of this program begin: at those of an earlier program with the same first tag, else
    round-robin."""
    em = lo.em
    round_robin = em.op(f"getelementptr i64, ptr {ring.keys}, i64 {ring.slots * len(tags)}")
    places = em.op(f"udiv i64 {ring.slots}, {trip.count}")
    mine = em.here(f"load i64, ptr {round_robin}")
    own = em.op(f"mul i64 {em.op(f'urem i64 {mine}, {places}')}, {trip.count}")
    em.stmt(f"store i64 {own}, ptr {ring.first}")
    found = em.alloca("i64")
    em.stmt(f"store i64 0, ptr {found}")
    with em.counted("0", places, "1", always=False, guarded=False) as i:
        slot = em.op(f"mul i64 {i}, {trip.count}")
        key = em.here(f"load i64, ptr {_key(lo, ring, slot, len(tags))}, align 8")
        with em.branch(em.op(f"icmp eq i64 {key}, {tags[0]}")):
            em.stmt(f"store i64 {slot}, ptr {ring.first}")
            em.stmt(f"store i64 1, ptr {found}")
    hit = em.here(f"load i64, ptr {found}")
    following = em.op(f"sub i64 {em.op(f'add i64 {mine}, 1')}, {hit}")
    em.stmt(f"store i64 {following}, ptr {round_robin}")
