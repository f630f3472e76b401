"""Lowers the checks of checked builds: each tests a whole tile at once; if an element fails, the first one is found and
reported.

The launch passes the address of a report, which consists of 64-bit integers: the linear id of the reporting program
(2^63 - 1 while there is none), a lock, the number of the check, the element counted row by row, the values, and a byte
for each element of the tile: whether it fails. If several
programs fail, the report of the smallest id stays; programs with larger ids do not start.
"""

from __future__ import annotations

from typing import Any

from tessera.backends.cpu.fusion import prepare, run
from tessera.backends.cpu.llvm_text import scalar_type
from tessera.backends.cpu.loops import nest
from tessera.backends.cpu.lowering import Lowering, executes
from tessera.backends.cpu.values import Coord, Point, Val
from tessera.backends.elements.casts import cast
from tessera.dtypes import dtype, float64, int64
from tessera.ir import TileType, Value, elem_of, shape_of
from tessera.ops import memory

LONGEST = 128  # words of most reports before their map
HEADER = 4  # 64-bit integers of a report before its values

# Write a record of `n` 64-bit integers (check, element, values) unless a program with a smaller id has written one.
RECORD = """define internal void @record(ptr %report, i64 %pid, ptr %words, i64 %n) noinline cold nounwind {
entry:
  %lock = getelementptr i64, ptr %report, i64 1
  %to = getelementptr i64, ptr %report, i64 2
  br label %spin
spin:
  %x = cmpxchg ptr %lock, i64 0, i64 1 acquire monotonic
  %got = extractvalue { i64, i1 } %x, 1
  br i1 %got, label %look, label %spin
look:
  %best = load i64, ptr %report, align 8
  %first = icmp slt i64 %pid, %best
  br i1 %first, label %copy, label %out
copy:
  %i = phi i64 [ 0, %look ], [ %next, %copy ]
  %a = getelementptr i64, ptr %words, i64 %i
  %b = getelementptr i64, ptr %to, i64 %i
  %w = load i64, ptr %a, align 8
  store i64 %w, ptr %b, align 8
  %next = add i64 %i, 1
  %more = icmp slt i64 %next, %n
  br i1 %more, label %copy, label %done
done:
  store atomic i64 %pid, ptr %report monotonic, align 8
  br label %out
out:
  store atomic i64 0, ptr %lock release, align 8
  ret void
}"""


def _linear_id(lo: Lowering) -> str:
    em = lo.em
    x, y, z = (em.op(f"zext i32 {lo.text(lo.programs[d], 1)} to i64") for d in range(3))
    gx, gy = (em.op(f"zext i32 {lo.text(lo.sizes[d], 1)} to i64") for d in range(2))
    rows = em.op(f"add i64 {y}, {em.op(f'mul i64 {gy}, {z}')}")
    return em.op(f"add i64 {x}, {em.op(f'mul i64 {gx}, {rows}')}")


def leave(lo: Lowering) -> None:
    """Emit the end of the program; the rest of this branch is unreachable."""
    lo.em.stmt(f"br label %{lo.exit_label}")
    lo.em.label(lo.em.new_label("after"))


def leave_if_reported(lo: Lowering, waits: bool = False) -> None:
    """End the program if it, or one with a smaller id, has written a report. If it `waits`, perhaps for a lock that a
    failed program holds, the report of any program ends it."""
    best = lo.em.here(f"load atomic i64, ptr {lo.report} monotonic, align 8")
    last = str((1 << 63) - 2) if waits else _linear_id(lo)
    with lo.em.branch(lo.em.here(f"icmp sle i64 {best}, {last}")):
        leave(lo)


@executes(memory.CheckOp)
def _check(lo: Lowering, op: memory.CheckOp) -> None:
    shown = [v for v in op.values if isinstance(v.type, TileType)]
    prepare(lo, shown, op, loop=[], keep_top=False)
    if not isinstance(op.bad.type, TileType):
        bad = lo.scalar(op.bad)
        if bad.const is not False:
            with lo.em.branch(lo.text(bad, 1)):
                _leave_report(lo, op, "0", Point((), 1))
        return
    found = _any(lo, op)
    with lo.em.branch(found):
        _leave_report(lo, op, *_first(lo, op.bad))


def _any(lo: Lowering, op: memory.CheckOp) -> str:
    """Return an i1, whether any element fails the check. Lanes are collected as words, which vectors of any processor
    combine as they are, and are looked at once."""
    em, v = lo.em, op.bad
    prepare(lo, [v], op)
    plan = nest(lo, shape_of(v.type))
    words = f"<{plan.lanes} x i32>"
    cell = em.alloca("i32", plan.lanes, align=64)
    em.stmt(f"store {words} zeroinitializer, ptr {cell}")

    def body(at: Point) -> None:
        text = lo.text(lo.value(v, at), plan.lanes)
        bits = text if plan.lanes > 1 else em.op(f"insertelement <1 x i1> poison, i1 {text}, i32 0")
        wide = em.op(f"sext <{plan.lanes} x i1> {bits} to {words}")
        before = em.here(f"load {words}, ptr {cell}")
        em.stmt(f"store {words} {em.here(f'or {words} {wide}, {before}')}, ptr {cell}")

    run(lo, plan, body, [v])
    found = em.here(f"load {words}, ptr {cell}")
    word = em.call("i32", f"llvm.vector.reduce.or.v{plan.lanes}i32", f"{words} {found}")
    return em.here(f"icmp ne i32 {word}, 0")


def _first(lo: Lowering, bad: Value) -> tuple[str, Point]:
    """Return the first element that fails, counted row by row, and its point; the caller knows that there is one."""
    em, shape = lo.em, shape_of(bad.type)
    slot, k = em.alloca("i64", align=8), em.new_label("first")
    em.stmt(f"store i64 -1, ptr {slot}")
    em.stmt(f"br label %{k}")
    em.label(k)
    with em.region():
        number = em.here(f"add i64 {em.here(f'load i64, ptr {slot}')}, 1")
        em.stmt(f"store i64 {number}, ptr {slot}")
        lo.memo = {}
        x = lo.text(lo.value(bad, _point(lo, number, shape)), 1)
        em.stmt(f"br i1 {x}, label %{k}.found, label %{k}")
        em.label(f"{k}.found")
    lo.memo = {}
    number = em.here(f"load i64, ptr {slot}")
    return number, _point(lo, number, shape)


def _point(lo: Lowering, number: str, shape: tuple[int, ...]) -> Point:
    """Return the point of an element counted row by row."""
    coords: list[Coord] = []
    for size in reversed(shape[1:]):
        coords.append(lo.index(lo.em.here(f"urem i64 {number}, {size}"), 1, size))
        number = lo.em.here(f"udiv i64 {number}, {size}")
    first = lo.em.here(f"add i64 {number}, 0")
    return Point((lo.index(first, 1, shape[0]), *reversed(coords)), 1)


def _leave_report(lo: Lowering, op: memory.CheckOp, number: str, at: Point) -> None:
    em = lo.em
    words: list[str] = [str(len(lo.state.checks)), number]
    lo.state.checks.append(op.row())
    for v in op.values:
        samples, shape = op.samples(v), shape_of(v.type)
        points = [at] if samples is None else [_constant_point(i, shape) for i in samples]
        words += [_word(lo, v, lo.value(v, p)) for p in points]
    size = len(words) + -(-op.mapped // 8)
    record = _record(lo, size)
    for i, word in enumerate(words):
        em.stmt(f"store i64 {word}, ptr {em.op(f'getelementptr i64, ptr {record}, i64 {i}')}")
    if op.mapped:
        _map(lo, op, em.op(f"getelementptr i64, ptr {record}, i64 {len(words)}"))
    args = f"ptr {lo.report}, i64 {_linear_id(lo)}, ptr {record}, i64 {size}"
    em.stmt(f"call void @record({args})")
    lo.memo = {}
    leave(lo)


def _record(lo: Lowering, size: int) -> str:
    """Return memory of `size` words for a report."""
    most = LONGEST + memory.MOST_MAPPED // 8
    if size > most:
        return lo.em.alloca("i64", size, align=8)
    lo.record = lo.record or lo.em.alloca("i64", most, align=8)
    return lo.record


def _map(lo: Lowering, op: memory.CheckOp, where: str) -> None:
    """Store a byte for each element at `where`: whether it fails."""
    em = lo.em
    slot, k = em.alloca("i64", align=8), em.new_label("map")
    em.stmt(f"store i64 0, ptr {slot}")
    em.stmt(f"br label %{k}")
    em.label(k)
    with em.region():
        lo.memo = {}
        number = em.here(f"load i64, ptr {slot}")
        x = lo.text(lo.value(op.bad, _point(lo, number, shape_of(op.bad.type))), 1)
        at = em.here(f"getelementptr i8, ptr {where}, i64 {number}")
        em.stmt(f"store i8 {em.here(f'zext i1 {x} to i8')}, ptr {at}")
        following = em.here(f"add i64 {number}, 1")
        em.stmt(f"store i64 {following}, ptr {slot}")
        more = em.here(f"icmp ult i64 {following}, {op.mapped}")
        em.stmt(f"br i1 {more}, label %{k}, label %{k}.end")
        em.label(f"{k}.end")
    lo.memo = {}


def _constant_point(number: int, shape: tuple[int, ...]) -> Point:
    coords: list[Coord] = []
    for size in reversed(shape):
        number, i = divmod(number, size)
        coords.append(Coord(i, (), None, size))
    return Point(tuple(reversed(coords)), 1)


def _word(lo: Lowering, v: Value, x: Val) -> str:
    """Return a value in 64 bits: integers extended, floats as doubles, pointers as addresses."""
    t: Any = elem_of(v.type)
    text = lo.text(x, 1)
    if not isinstance(t, dtype):
        return lo.em.op(f"ptrtoint {scalar_type(t)} {text} to i64")
    if not t.is_floating():
        return cast(lo.lanes(1), text, t, int64)
    return lo.em.op(f"bitcast double {cast(lo.lanes(1), text, t, float64)} to i64")
