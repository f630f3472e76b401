"""Loops that only sum products: the operands of all steps are packed first, so that sums stay in registers.

    for k in 0, n, 1:  acc = dot(a_k, b_k, acc)
      →  for k in 0, n, 1:  A[:, k] = a_k;  B[k, :] = b_k
         for each block of acc:  sum A @ B over all of k in registers

Both operands lie in scratch memory of the thread, in slots of one step each. Beside a slot stand the addresses that it
was packed from, its tags: programs that share rows or columns take what an earlier one packed (see packing.py for why
that is sound). All slots of a program follow one another; as many programs' slots are kept as there is room for.
A loop longer than that is cut.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from tessera.backends.cpu import control
from tessera.backends.cpu.arith import TABLE
from tessera.backends.cpu.casts import cast
from tessera.backends.cpu.defer import packs_all_steps, summed_products
from tessera.backends.cpu.dot import (
    Scheme,
    blocks_of_rows,
    casting,
    form_of,
    left_in_place,
    multiply,
    multiply_rows,
    scheme_of,
)
from tessera.backends.cpu.loops import Strips
from tessera.backends.cpu.lowering import Buffer, Lowering, executes, make
from tessera.backends.cpu.microkernel import Product
from tessera.backends.cpu.operands import InPlace, Packed, Panels, all_inside
from tessera.backends.cpu.packing import Form, constant_memory, fill_bias, fill_panels, tags_of
from tessera.backends.cpu.plan import fill, finish_side, prepare
from tessera.backends.cpu.text import scalar_type
from tessera.backends.cpu.values import Coord, Val
from tessera.dtypes import int32, int64
from tessera.ir import Effect, Op, TileType, Value, elem_of, shape_of
from tessera.ops import (
    AddOp,
    AddPtrOp,
    BroadcastOp,
    ConstOp,
    DotOp,
    ExpandDimsOp,
    ForOp,
    HintOp,
    LoadOp,
    SplatOp,
    StoreOp,
)  # fmt: skip

RING_BYTES = 2 << 20  # of each operand that a thread keeps: about a core's second cache
MOST_SLOTS = 64


@executes(ForOp)
def _for(lo: Lowering, op: ForOp) -> None:
    if packs_all_steps(op):
        _summed(lo, op)
    else:
        control.lower_for(lo, op)


def scalar_ops(loop: ForOp) -> list[Op]:
    """The operations of a loop's body that are executed once an iteration."""
    return [x for x in loop.body if x.results and not isinstance(x.results[0].type, TileType)]


def growth(loop: ForOp, v: Value) -> int | None:
    """By how much all elements of a value grow from one iteration to the next; None where that is not one number."""
    op = v.op
    if v is loop.induction:
        return _number(loop.step)
    if op is None and v in loop.carried:
        following = loop.body.terminator.operands[v.index - 1].op
        known = isinstance(following, AddOp) and following.lhs is v
        return _number(following.operands[1]) if following is not None and known else None
    if op is None or not op.is_inside(loop):
        return 0
    parts = [growth(loop, x) for x in op.operands]
    if not any(parts) and None not in parts:
        return 0
    if isinstance(op, (AddOp, AddPtrOp)):
        return None if None in parts else sum(x for x in parts if x is not None)
    return parts[0] if isinstance(op, (SplatOp, BroadcastOp, ExpandDimsOp, HintOp)) else None


def _number(v: Value) -> int | None:
    return int(v.op.value) if isinstance(v.op, ConstOp) else None


def only_store(v: Value) -> StoreOp | None:
    """The one store, in the same block, that a tile reaches, through element-wise operations only."""
    found: set[StoreOp] = set()
    todo, seen = [v], {v}
    while todo:
        for user, place in todo.pop().uses:
            if isinstance(user, StoreOp) and place == 1:
                found.add(user)
            elif type(user) in TABLE and not isinstance(user, HintOp):
                todo += [r for r in user.results if r not in seen]
                seen.update(user.results)
            else:
                return None
    (store, *more) = found or (None,)
    if store is None or more or v.op is None or store.parent is not v.op.parent:
        return None
    between = v.op.next
    while between is not store:
        if between is None or between.all_effects() & (Effect.WRITE | Effect.SYNC):
            return None
        between = between.next
    return store


@dataclass(slots=True)
class Trip:
    """Where in the loop the packing is: `number` of this step, of `count`, and an i1: the first of them."""

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


def _summed(lo: Lowering, op: ForOp) -> None:
    em = lo.em
    lb, ub, step = (
        cast(lo.lanes(1), lo.scalar_text(v), v.type, int64) for v in (op.lb, op.ub, op.step)
    )
    sums = frozenset(i for i in range(len(op.inits)) if control.starts_at_zero(op, i))
    slots = control.initial(lo, op, op.inits, sums)
    control.clear_unless_run(lo, op, [slots[i] for i in sums], lb, ub)
    control.enter(lo, op, repeats=True)
    start = Start.of(lo, op)
    pairs = [_Pair.of(lo, start, dot, sums) for dot in summed_products(op)]
    results = [s for x in pairs if isinstance(s := slots[x.place], Buffer)]
    span = em.op(f"mul i64 {step}, {min(x.slots for x in pairs)}")
    with em.counted(lb, ub, span, always=False) as low:
        start.save(lo, low, slots)
        high = em.op(f"add i64 {low}, {span}")
        end = em.call("i64", "llvm.smin.i64", f"i64 {high}", f"i64 {ub}")
        more = em.op(f"sub i64 {em.op(f'sub i64 {end}, {low}')}, 1")
        count = em.op(f"add i64 {em.op(f'sdiv i64 {more}, {step}')}, 1")
        with em.counted(low, end, step, always=True, guarded=False) as k:
            start.count(lo, k)
            number = em.op(f"sdiv i64 {em.op(f'sub i64 {k}, {low}')}, {step}")
            trip = Trip(number, count, em.op(f"icmp eq i64 {k}, {low}"))
            lo.packs = {x.op: lambda x=x: x.pack(lo, trip) for x in pairs}
            control.body(lo, op.body, op.carried, slots)
            lo.packs = {}
        for x, c in zip(pairs, results, strict=True):
            zero = em.op(f"icmp eq i64 {low}, {lb}") if x.fresh else "false"
            if x.store is None:
                multiply(lo, x.scheme, x.product(lo, c, zero, count))
                c.version = lo.new_version()
                continue
            last = em.op(f"icmp sge i64 {end}, {ub}")
            em.stmt(f"store i64 {em.op(f'select i1 {last}, i64 {count}, i64 0')}, ptr {x.count}")
            with em.branch(last, negate=True):
                multiply(lo, x.scheme, x.product(lo, c, zero, count))
                em.stmt(f"store i1 false, ptr {x.zero}")
    control.leave(lo, op, slots)
    for x, c in zip(pairs, results, strict=True):
        if x.store is not None:
            lo.strips[x.store] = x.strips(lo, c)


@dataclass(frozen=True, slots=True)
class Start:
    """The scalars of a loop's body in the first of the steps that are packed: `first` is the address of its index,
    `cells` those of what the loop carries."""

    loop: ForOp
    first: str
    cells: dict[Value, str]

    @staticmethod
    def of(lo: Lowering, loop: ForOp) -> Start:
        carried = [v for v in loop.carried if not isinstance(v.type, TileType)]
        cells = {v: lo.em.alloca(scalar_type(v.type), align=8) for v in carried}
        return Start(loop, lo.em.alloca("i64"), cells)

    def save(self, lo: Lowering, low: str, slots: Sequence[control.Slot]) -> None:
        em = lo.em
        em.stmt(f"store i64 {low}, ptr {self.first}")
        for v, cell in self.cells.items():
            t = scalar_type(v.type)
            em.stmt(f"store {t} {em.here(f'load {t}, ptr {slots[v.index - 1]}')}, ptr {cell}")

    def count(self, lo: Lowering, k: str) -> None:
        """`k` is the loop's index."""
        align = lo.align[k] = min(lo.scalar(self.loop.lb).align, lo.scalar(self.loop.step).align)
        v = self.loop.induction
        lo.scalars[v] = Val(v.type, 1, "", True, "0", (k,), align=align)

    def rewind(self, lo: Lowering) -> None:
        """Compute the scalars anew."""
        em = lo.em
        self.count(lo, em.here(f"load i64, ptr {self.first}"))
        for v, cell in self.cells.items():
            lo.scalars[v] = make(v.type, 1, em.here(f"load {scalar_type(v.type)}, ptr {cell}"))
        for op in scalar_ops(self.loop):
            control.lower_op(lo, op)


@dataclass(slots=True)
class _Pair:
    """The operands of one dot, in their rings."""

    op: DotOp
    scheme: Scheme
    form: Form
    slots: int
    place: int  # among the carried values
    fresh: bool  # the sum starts at zero
    store: StoreOp | None  # that computes the last product
    count: str  # address of the steps that this last product has, and
    zero: str  # of an i1: whether there was none before
    start: Start
    left: Ring | InPlace | None = None
    right: Ring | None = None

    @staticmethod
    def of(lo: Lowering, start: Start, op: DotOp, sums: frozenset[int]) -> _Pair:
        em, scheme, place = lo.em, scheme_of(lo, op), op.acc.index - 1
        (m, k), n = shape_of(op.a.type), shape_of(op.b.type)[1]
        size = scheme.t.storage_bytes * k * max(m, n)
        slots, fresh = max(1, min(MOST_SLOTS, RING_BYTES // size)), place in sums
        count, zero = em.alloca("i64"), em.alloca("i1", align=1)
        em.stmt(f"store i64 0, ptr {count}")
        em.stmt(f"store i1 {str(fresh).lower()}, ptr {zero}")
        store = only_store(start.loop.results[place])
        form = form_of(lo, op, scheme)
        return _Pair(op, scheme, form, slots, place, fresh, store, count, zero, start)

    def pack(self, lo: Lowering, trip: Trip) -> None:
        """Both operands of this step, unless they are there."""
        op, t = self.op, self.scheme.t
        (m, k), n = shape_of(op.a.type), shape_of(op.b.type)[1]
        prepare(lo, [op.a, op.b], op)
        source = casting(lo, elem_of(op.a.type), t)

        def left(ring: Ring, slot: str) -> None:
            first = lo.em.op(f"mul i64 {slot}, {k * t.storage_bytes}")
            ptr = lo.em.op(f"getelementptr i8, ptr {ring.base}, i64 {first}")
            fill(lo, Buffer(ptr, t, (m, k), pitch=self.pitch), op.a, source)

        def right(ring: Ring, slot: str) -> None:
            fill_panels(lo, self.form, [op], self._panels(lo, ring, slot))

        a_bytes, b_bytes = (m * k * t.storage_bytes, k * n * t.storage_bytes)
        self.left = self._in_place(lo) or _kept(lo, op.a, trip, self.slots, a_bytes, left)
        self.right = _kept(lo, op.b, trip, self.slots, b_bytes, right)
        finish_side(lo)

    def _in_place(self, lo: Lowering) -> InPlace | None:
        """A where it lies, if its steps are one matrix that nothing writes to."""
        load, op = self.op.a.op, self.op
        placed = left_in_place(lo, op, self.scheme)
        if placed is None or not isinstance(load, LoadOp) or load.mask is not None:
            return None
        loop = self.start.loop
        whole = placed.affine and growth(loop, load.ptr) == shape_of(op.a.type)[1]
        pure = all(type(x) in TABLE or isinstance(x, ConstOp) for x in scalar_ops(loop))
        return placed if whole and pure and constant_memory(lo, load.ptr) else None

    @property
    def pitch(self) -> int:
        """Elements from one row of A to the next: a line more than the slots take."""
        return self.slots * shape_of(self.op.a.type)[1] + 64 // self.scheme.t.storage_bytes

    def _panels(self, lo: Lowering, ring: Ring, slot: str) -> Panels:
        words = shape_of(self.op.a.type)[1] // self.scheme.group
        first = lo.index(slot, 1, ring.slots).times(words)
        return Panels(ring.base, self.form.word, (ring.slots + 1) * words, first=first)

    def product(self, lo: Lowering, c: Buffer, zero: str, count: str) -> Product:
        """Of the `count` steps that are packed now."""
        em, scheme = lo.em, self.scheme
        assert self.left is not None and self.right is not None
        k, n = shape_of(self.op.b.type)
        if isinstance(self.left, Ring):
            first = em.here(f"load i64, ptr {self.left.first}")
            offset = em.op(f"mul i64 {first}, {k * scheme.t.storage_bytes}")
            ptr = em.op(f"getelementptr i8, ptr {self.left.base}, i64 {offset}")
            a = Packed(ptr, scheme.word, self.pitch // scheme.group)
        else:
            self.start.rewind(lo)
            a = self.left
        second = em.here(f"load i64, ptr {self.right.first}")
        b, words = self._panels(lo, self.right, second), k // scheme.group
        if self.form.bias:
            b = replace(b, bias=lo.allocate(int32, (n,)).ptr)
            fill_bias(lo, self.form, b, em.op(f"mul i64 {count}, {words}"))
        word = {2: "pair", 4: "bytes"}.get(scheme.group, "")
        return Product(c.elem, c.shape[0], n, [(a, b, words)], c.ptr, zero, word, steps=count)

    def strips(self, lo: Lowering, c: Buffer) -> Strips:
        """The last product, by blocks of rows: where it is the only one in a buffer of that size."""
        em, n = lo.em, c.shape[1]
        zero = em.here(f"load i1, ptr {self.zero}")
        whole = self.product(lo, c, zero, em.here(f"load i64, ptr {self.count}"))
        blocks = blocks_of_rows(lo, self.scheme, whole)
        strip = lo.allocate(c.elem, (max(rows for rows, *_ in blocks), n))

        def make(row: Coord, rows: int) -> None:
            back = em.op(f"sub i64 0, {lo.coord_text(row.times(n))}")
            near = em.op(f"getelementptr {scalar_type(c.elem)}, ptr {strip.ptr}, i64 {back}")
            c.ptr = em.op(f"select i1 {zero}, ptr {near}, ptr {whole.c}")
            c.version = lo.new_version()
            multiply_rows(lo, self.scheme, replace(whole, c=c.ptr), row, rows)

        def finish() -> None:
            multiply(lo, self.scheme, whole)
            c.version = lo.new_version()

        return Strips(blocks, make, finish)


def _kept(
    lo: Lowering, v: Value, trip: Trip, slots: int, size: int, fill_: Callable[[Ring, str], None]
) -> Ring:
    """The ring of an operand, in which the slot of this step has been filled."""
    em = lo.em
    tags = tags_of(lo, [v])
    count = len(tags or [])
    base = _scratch(lo, (slots + 1) * size + 64 * shape_of(v.type)[0])
    keys = _scratch(lo, slots * count * 8)
    ring = Ring(base, keys, em.alloca("i64"), slots)
    if tags is None:
        with em.branch(trip.first):
            em.stmt(f"store i64 0, ptr {ring.first}")
        fill_(ring, trip.number)
        return ring
    em.declare("void", "llvm.memset.p0.i64", "ptr", "i8", "i64", "i1")
    em.at_entry(
        f"call void @llvm.memset.p0.i64(ptr {keys}, i8 0, i64 {slots * count * 8}, i1 false)"
    )
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
            kept = tag if i else em.op(f"select i1 {inside}, i64 {tag}, i64 0")
            em.stmt(f"store i64 {kept}, ptr {place}, align 8")
    return ring


def _scratch(lo: Lowering, size: int) -> str:
    """The address of scratch memory of its own."""
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
    """Where the slots of this program begin: at those of an earlier program with the same first tag, else in turn."""
    em = lo.em
    turn = em.alloca("i64")
    em.at_entry(f"store i64 0, ptr {turn}")
    places = em.op(f"udiv i64 {ring.slots}, {trip.count}")
    mine = em.here(f"load i64, ptr {turn}")
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
    em.stmt(f"store i64 {following}, ptr {turn}")
