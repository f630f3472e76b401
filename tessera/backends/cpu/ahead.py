"""Rows fetched ahead: a kernel that works on one row a program reads memory while it computes on the row before.

Such a kernel walks its row several times: the first walk waits for memory, the others compute from the caches, and the
store waits again, as the processor reads what it will overwrite. So the most expensive walk (of the reductions along
one dimension) also asks for the lines of the next program's loads and of this program's stores:

    for row in programs:  max(x)  →  sum(exp(x - max)), prefetch x of the next row and out of this row  →  store out

Where they will lie is guessed: at the same distance as from the program before to this one. A wrong guess only costs
its fetch; of the memory that is guessed nothing is read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tessera.backends.cpu.loops import UNROLL
from tessera.backends.cpu.lowering import Lowering
from tessera.backends.cpu.plan import contiguous_along, cost
from tessera.backends.cpu.values import Coord, Point
from tessera.ir import Block, Op, TileType, Value, elem_of, shape_of
from tessera.ops import LoadOp, ProgramIdOp, ReduceOp, StoreOp

LINE = 64


@dataclass(frozen=True, slots=True)
class Stream:
    """A load's or store's rows. `last`: cell with the address of the row before; `guess`: that of a store's next."""

    op: LoadOp | StoreOp
    last: str
    guess: str

    @property
    def writes(self) -> bool:
        return isinstance(self.op, StoreOp)

    @property
    def element_bytes(self) -> int:
        return elem_of(self.op.ptr.type).element_ty.storage_bytes


@dataclass(slots=True)
class Ahead:
    """Which reduction asks for which rows, in a kernel without loops."""

    carrier: Op | None
    streams: dict[Op, Stream]


def plan_ahead(lo: Lowering, block: Block) -> Ahead:
    """Choose before the kernel's body is lowered."""
    none = Ahead(None, {})
    if any(op.regions and not isinstance(op, ReduceOp) for op in block):
        return none
    walks = [op for op in block if isinstance(op, ReduceOp) and _long_row(lo, op.inputs[0])]
    if not walks:
        return none
    carrier = max(walks, key=lambda op: sum(cost(lo, v) for v in op.inputs))
    shape = shape_of(carrier.inputs[0].type)
    streams: dict[Op, Stream] = {}
    for op in block:
        if isinstance(op, (LoadOp, StoreOp)) and shape_of(op.ptr.type) == shape and _moves(op.ptr):
            streams[op] = Stream(op, _cell(lo), _cell(lo))
    return Ahead(carrier, streams)


def _long_row(lo: Lowering, v: Value) -> bool:
    shape = shape_of(v.type)
    return (
        len(shape) == 1 and shape[0] % lo.facts.lanes == 0 and shape[0] // lo.facts.lanes > UNROLL
    )


def _moves(ptr: Value) -> bool:
    """Whether a tile of pointers depends on the program."""
    seen: set[Value] = set()
    todo = [ptr]
    while todo:
        v = todo.pop()
        if v.op is None or v in seen:
            continue
        seen.add(v)
        if isinstance(v.op, ProgramIdOp):
            return True
        if isinstance(v.type, TileType) or not isinstance(v.op, LoadOp):
            todo += v.op.operands
    return False


def _cell(lo: Lowering) -> str:
    cell = lo.em.alloca("i64", align=8)
    lo.em.at_entry(f"store i64 0, ptr {cell}")
    return cell


def _distance(lo: Lowering, stream: Stream) -> tuple[str, str] | None:
    """(address of this program's row, bytes from the row before to it); None where rows are not contiguous."""
    ptr = stream.op.ptr
    if not contiguous_along(lo, ptr, 0, lo.facts.lanes):
        return None
    em = lo.em
    lo.memo = {}
    first = lo.text(lo.value(ptr, Point((Coord(),), 1)), 1)
    lo.memo = {}
    here = em.op(f"ptrtoint ptr {first} to i64")
    before = em.here(f"load i64, ptr {stream.last}, align 8")
    em.stmt(f"store i64 {here}, ptr {stream.last}, align 8")
    known = em.op(f"icmp ne i64 {before}, 0")
    step = em.op(f"sub i64 {here}, {before}")
    return here, em.op(f"select i1 {known}, i64 {step}, i64 0")


def note(lo: Lowering, op: Op) -> None:
    """At a store: guess where the next program stores."""
    stream = lo.ahead.streams.get(op) if lo.ahead is not None else None
    found = _distance(lo, stream) if stream is not None else None
    if stream is not None and found is not None:
        here, step = found
        lo.em.stmt(f"store i64 {lo.em.op(f'add i64 {here}, {step}')}, ptr {stream.guess}, align 8")


Row = tuple[str, int, int]  # address, bytes of an element, 1 where it is written


def rows_ahead(lo: Lowering, op: Op) -> list[Row]:
    """What the walk `op` asks for."""
    if lo.ahead is None or op is not lo.ahead.carrier:
        return []
    found: list[Row] = []
    for stream in lo.ahead.streams.values():
        if stream.writes:
            guess = lo.em.here(f"load i64, ptr {stream.guess}, align 8")
            found.append((guess, stream.element_bytes, 1))
            continue
        where = _distance(lo, stream)
        if where is not None:
            found.append((lo.em.op(f"add i64 {where[0]}, {where[1]}"), stream.element_bytes, 0))
    return found


def prefetch(lo: Lowering, rows: Sequence[Row], at: Coord, elements: int) -> None:
    """Ask for `elements` of each row from `at` on."""
    em = lo.em
    if rows:
        em.declare("void", "llvm.prefetch.p0", "ptr", "i32", "i32", "i32")
    for address, size, writes in rows:
        first = em.op(f"add i64 {address}, {lo.coord_text(at.times(size))}")
        for offset in range(0, elements * size, LINE):
            ptr = em.op(f"inttoptr i64 {em.op(f'add i64 {first}, {offset}')} to ptr")
            em.stmt(
                f"call void @llvm.prefetch.p0(ptr {ptr}, i32 {writes}, i32 {3 if writes else 2}, i32 1)"
            )
