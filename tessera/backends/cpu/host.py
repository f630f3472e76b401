"""Lowers print and assert by calls of the C library of the process."""

from __future__ import annotations

from tessera.backends.cpu.atomics import to_bits
from tessera.backends.cpu.fusion import finish_memo_buffers, prepare, run
from tessera.backends.cpu.llvm_text import quoted
from tessera.backends.cpu.loops import each, nest, scalar_nest
from tessera.backends.cpu.lowering import Lowering, executes
from tessera.backends.cpu.values import Point
from tessera.backends.cpu.waiting import may_wait
from tessera.backends.elements.casts import cast
from tessera.dtypes import UNSIGNED_INTS, dtype, float64, int64
from tessera.ir import Module, Op, TileType, Value, elem_of, shape_of
from tessera.ir.types import Type
from tessera.ops import memory


def string(lo: Lowering, text: str) -> str:
    """Return the address of a constant C string."""
    known = lo.state.strings
    if text not in known:
        name = f"@text{len(known)}"
        literal, size = quoted(text)
        known[text] = name
        lo.state.globals[f"{name} = private unnamed_addr constant [{size} x i8] {literal}"] = None
    return known[text]


def printf(lo: Lowering, format_: str, *args: str) -> None:
    lo.state.declarations["declare i32 @printf(ptr, ...)"] = None
    lo.em.stmt(f"call i32 (ptr, ...) @printf({', '.join([f'ptr {string(lo, format_)}', *args])})")


class Printed:
    """Text that is made in memory, so that a statement's lines of a program are written at once, with nothing of other
    threads between them."""

    def __init__(self, lo: Lowering) -> None:
        self.lo, em = lo, lo.em
        self.text, self.size = em.alloca("ptr", align=8), em.alloca("i64", align=8)
        self.stream = em.call_here("ptr", "open_memstream", f"ptr {self.text}", f"ptr {self.size}")

    def printf(self, format_: str, *args: str) -> None:
        self.lo.state.declarations["declare i32 @fprintf(ptr, ptr, ...)"] = None
        given = ", ".join([f"ptr {self.stream}", f"ptr {string(self.lo, format_)}", *args])
        self.lo.em.stmt(f"call i32 (ptr, ptr, ...) @fprintf({given})")

    def write(self) -> None:
        em = self.lo.em
        em.call_here("i32", "fclose", f"ptr {self.stream}")
        em.call_here("i32", "fflush", "ptr null")  # what the program has printed before
        text = em.here(f"load ptr, ptr {self.text}, align 8")
        size = em.here(f"load i64, ptr {self.size}, align 8")
        em.call_here("i64", "write", "i32 1", f"ptr {text}", f"i64 {size}")
        em.call_here("void", "free", f"ptr {text}")


def program_args(lo: Lowering) -> list[str]:
    return [f"i32 {lo.text(lo.programs[d], 1)}" for d in range(3)]


def _number(lo: Lowering, t: Type, text: str, hexadecimal: bool) -> tuple[str, str]:
    """Return (conversion of printf, argument)."""
    x = lo.lanes(1)
    if not isinstance(t, dtype):
        return "%p", f"ptr {text}"
    if hexadecimal and not t.is_bool():
        wide = cast(x, to_bits(lo, t, text), _unsigned(t), int64)
        return f"0x%0{t.storage_bits // 4}llx", f"i64 {wide}"
    if t.is_floating():
        return "%f", f"double {cast(x, text, t, float64)}"
    return ("%lld" if t.signed or t.bits < 64 else "%llu"), f"i64 {cast(x, text, t, int64)}"


def _unsigned(t: dtype) -> dtype:
    return _UNSIGNED[t.storage_bits]


_UNSIGNED = {d.bits: d for d in UNSIGNED_INTS}


def _literal(text: str) -> str:
    """Return a text as part of a printf format."""
    return text.replace("%", "%%")


@executes(memory.PrintOp)
def _print(lo: Lowering, op: memory.PrintOp) -> None:
    head = "pid (%d, %d, %d)"
    prepare(lo, [v for v in op.args if isinstance(v.type, TileType)], op)
    out = Printed(lo)
    if not op.args:
        out.printf(f"{head}{_literal(op.prefix)}\n", *program_args(lo))
    for k, v in enumerate(op.args):
        t = elem_of(v.type)
        label = _literal(op.label(k))
        if not isinstance(v.type, TileType):
            form, arg = _number(lo, t, lo.scalar_text(v), op.hex)
            out.printf(f"{head} idx (){label}{form}\n", *program_args(lo), arg)
            continue
        indices = ", ".join(f"%{w or ''}lld" for w in op.widths(k))

        def element(
            at: Point, v: Value = v, t: Type = t, label: str = label, indices: str = indices
        ) -> None:
            form, arg = _number(lo, t, lo.text(lo.value(v, at), 1), op.hex)
            where = [f"i64 {lo.coord_text(c)}" for c in at.coords]
            out.printf(f"{head} idx ({indices}){label}{form}\n", *program_args(lo), *where, arg)

        each(lo, scalar_nest(shape_of(v.type)), element)
    finish_memo_buffers(lo)
    out.write()


def prints_in_order(module: Module) -> bool:
    """Whether a launch's programs should run one after another: they print, and do not wait for each other."""
    return any(isinstance(op, memory.PrintOp) for op in module.walk()) and not may_wait(module)


@executes(memory.AssertOp)
def _assert(lo: Lowering, op: memory.AssertOp) -> None:
    """Print the message, set the status to the number of the assertion (from 1), and leave the program."""
    em = lo.em
    v = op.condition
    if isinstance(v.type, TileType):
        prepare(lo, [v], op)
        cell = em.alloca("i1", align=8)
        em.stmt(f"store i1 true, ptr {cell}")

        def body(at: Point) -> None:
            x = lo.value(v, at)
            text = lo.text(x, x.lanes)
            if x.lanes > 1:
                text = em.call(
                    "i1", f"llvm.vector.reduce.and.v{x.lanes}i1", f"<{x.lanes} x i1> {text}"
                )
            before = em.here(f"load i1, ptr {cell}")
            em.stmt(f"store i1 {em.here(f'and i1 {text}, {before}')}, ptr {cell}")

        run(lo, nest(lo, shape_of(v.type)), body, [v])
        ok = em.here(f"load i1, ptr {cell}")
    else:
        ok = lo.scalar_text(v)
    place = f"{op.loc.short()}: " if op.loc is not None else ""
    with em.branch(ok, negate=True):
        message = f"{place}pid (%d, %d, %d): assertion failed: {op.message.replace('%', '%%')}\n"
        printf(lo, message, *program_args(lo))
        em.call_here("i32", "fflush", "ptr null")
        where = em.op(f"getelementptr i8, ptr {lo.context}, i64 32")
        slot = em.here(f"load ptr, ptr {where}, align 8")
        lo.state.assertions.append(f"{place}{op.message}")
        em.stmt(f"store atomic i32 {len(lo.state.assertions)}, ptr {slot} monotonic, align 4")
        if lo.exit_label:
            # What follows in this branch is unreachable: the program has ended.
            k = em.new_label("after")
            em.stmt(f"br label %{lo.exit_label}")
            em.label(k)


@executes(memory.AssumeOp, memory.BarrierOp)
def _nothing(lo: Lowering, op: Op) -> None:
    """Emit nothing: promises are for analyses, and one thread runs a program."""
