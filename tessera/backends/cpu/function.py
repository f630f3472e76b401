"""Lowers a module to LLVM IR text: each function's frame, the loop over program ids, and the metadata for the
launch."""

from __future__ import annotations

import platform
from dataclasses import dataclass
from typing import Any

from tessera import ops
from tessera.backends.cpu import (
    atomics,
    checks,
    control,
    dot,
    effects,
    host,
    lazy_ops,
    prepack_k,
    reduce,
    scan,
    trace,
)
from tessera.backends.cpu.atomics import alone_up_to
from tessera.backends.cpu.exclusive import ends_by_itself, entering, has_atomics
from tessera.backends.cpu.interrupt import leave_if_interrupted, may_stop, may_take_long
from tessera.backends.cpu.llvm_text import ATTRIBUTES, memory_type, scalar_type
from tessera.backends.cpu.lowering import EVALUATORS, Lowering, ModuleState, executes, make
from tessera.backends.cpu.memory import ACCESS, unpack
from tessera.backends.cpu.row_prefetch import plan_row_prefetch
from tessera.backends.cpu.slots import Slot, write_slots
from tessera.backends.cpu.target import CpuFacts
from tessera.backends.cpu.values import Val, power_in
from tessera.dtypes import dtype, int1, int32, pointer_type
from tessera.errors import CompilationError
from tessera.ir import Effect, Module, Op, TileType, Value, elem_of, shape_of

# Imported for the lowerings that they register.
_REGISTERED = (
    atomics, checks, control, lazy_ops, dot, effects, host, reduce, scan, prepack_k, trace
)  # fmt: skip


RECORDS = (ops.TraceBeginOp, ops.TraceRecordOp, ops.TraceEndOp)


@dataclass(frozen=True, slots=True)
class LoweredModule:
    """LLVM IR and the facts for the launch: bytes of scratch memory for each thread, up to how many threads one alone
    is faster (0: never), the kinds of the arguments, and the pairs of them that the code assumes to be disjoint
    (positions i < j, and 1 if they may be the same array)."""

    text: str
    name: str
    scratch_bytes: int
    alone_up_to: int
    assumed_disjoint: list[tuple[int, int, int]]
    args: list[str]
    assertions: list[str]
    checks: list[dict[str, Any]]
    remarks: tuple[str, ...]


def lower_module(
    module: Module,
    facts: CpuFacts,
    fuse: bool = True,
    overlap: bool = False,
    line_info: bool = False,
) -> LoweredModule:
    """Return the LLVM IR text of a module at tile level. CompilationError for what the back end does not support.

    `fuse`: contract multiplications and additions to fma. `overlap`: arguments may overlap in any way. `line_info`: add
    comments with the source lines of instructions.
    """
    checked = any(isinstance(op, ops.CheckOp) for op in module.walk())
    state = ModuleState(
        facts, fuse=fuse, overlap=overlap or checked, checked=checked, line_info=line_info
    )
    state.has_atomics, state.may_exclude = has_atomics(module), ends_by_itself(module)
    if checked:
        state.globals[checks.RECORD] = None
    functions: list[str] = []
    kernel: ops.FuncOp | None = None
    for f in module.body:
        assert isinstance(f, ops.FuncOp)
        if f.kernel:
            kernel = f
            functions.append(_kernel(state, f, f.name))
        else:
            functions.append(_function(state, f))
    if kernel is None:
        raise CompilationError("the module has no kernel")
    parts = [d for d in state.globals if not d.startswith("@tessera.")]
    own = {line.split("@", 1)[1].split("(", 1)[0] for line in parts if line.startswith("define")}
    declarations = [d for d in state.declarations if d.split("@", 1)[1].split("(", 1)[0] not in own]
    plans = [f"; {plan}" for plan in state.plans]
    text = "\n".join([*plans, *parts, *declarations, *functions, "!0 = !{}", "!1 = !{i32 1}", ""])
    kinds = [a.type.short for a in kernel.body.args]
    if checked:
        kinds.append("ptr")  # the report's address
    pairs = [(i, j, same) for (i, j), same in sorted(state.assumed_disjoint.items())]
    return LoweredModule(text, kernel.name, state.scratch, alone_up_to(kernel, state.atomics), pairs, kinds,
                         state.assertions, state.checks, tuple(state.remarks))  # fmt: skip


def _is_simple(op: Op) -> bool:
    """Whether an op is evaluated lazily, is a store, or emits no code."""
    return type(op) in EVALUATORS or isinstance(
        op, (ops.StoreOp, ops.ProgramIdOp, ops.NumProgramsOp, ops.ReturnOp, *RECORDS)
    )


def symbol(name: str) -> str:
    return f'"{name}"'


def _start(state: ModuleState, f: ops.FuncOp) -> Lowering:
    lo = Lowering(state, ACCESS)
    lo.number(f.body)
    return lo


def _kernel(state: ModuleState, f: ops.FuncOp, name: str) -> str:
    lo = _start(state, f)
    em = lo.em
    for p in ("%args", "%begin", "%end", "%ctx"):
        em.parameter(p)
    lo.exit_label = lo.stop_label = "exit"
    lo.kernel = True
    lo.elementwise = all(_is_simple(op) for op in f.body)
    lo.straight = all(_is_simple(op) or isinstance(op, ops.ReduceOp) for op in f.body)
    loops = may_take_long(f)
    state.arguments = {arg: i for i, arg in enumerate(f.body.args)}
    state.written = written_arguments(state, f)
    lo.loaded = [op.ptr for op in f.body if isinstance(op, ops.LoadOp)]
    lo.row_prefetch = plan_row_prefetch(lo, f.body)
    for i, (arg, attrs) in enumerate(zip(f.body.args, _attributes(f), strict=True)):
        lo.scalars[arg] = _argument(lo, arg, i, dict(attrs))
    if state.checked:
        where = em.op(f"getelementptr i8, ptr %args, i64 {8 * len(f.body.args)}")
        lo.report = em.op(f"load ptr, ptr {where}, align 8, !invariant.load !0")
    sizes = [em.op(_context_field(lo, d)) for d in range(3)]
    lo.sizes = [make(int32, 1, s) for s in sizes]
    with em.counted("%begin", "%end", "1", always=False) as pid:
        flat = em.op(f"trunc i64 {pid} to i32")
        _programs(lo, flat, sizes)
        if state.checked:
            checks.leave_if_reported(lo)
        if loops:
            leave_if_interrupted(lo)
        control.lower_block(lo, f.body)
    em.stmt("br label %exit")
    em.label("exit")
    level = lo.facts.name  # of the target, which need not be this machine
    x86 = platform.machine() in ("x86_64", "AMD64") if level == "baseline" else level != "neon"
    if lo.straight and x86:
        em.call_here("void", "llvm.x86.sse.sfence")  # after stores that bypass the caches
    if lo.tiles:
        em.call_here("void", "llvm.x86.tilerelease")
    em.stmt("ret void")
    shares = state.has_atomics
    own = symbol(f"{name}.programs") if shares else symbol(name)
    head = f"define {'internal ' * shares}void @{own}(ptr noalias %args, i64 %begin, i64 %end, ptr noalias %ctx)"
    text = f"{head} nounwind {ATTRIBUTES} {{\nentry:\n  {em.body()}\n}}"
    if not shares:
        return text
    start = entering(symbol(name), own, state.may_exclude, f"nounwind {ATTRIBUTES}")
    return f"{text}\n{start}"


def written_arguments(state: ModuleState, f: ops.FuncOp) -> set[int] | None:
    """Return the positions of the arguments through which the kernel may write; None if they are not known."""
    found: set[int] = set()
    for op in f.body.walk():
        if not op.effects & Effect.WRITE or isinstance(op, ops.Diagnostic | ops.CheckOp):
            continue
        target = op.operands[0] if isinstance(op, ops.PointerWrite) else None
        position = None if target is None else state.position(target)
        if position is None:
            return None
        found.add(position)
    return found


def _attributes(f: ops.FuncOp) -> list[Any]:
    attrs = list(f.arg_attrs)
    return [*attrs, *([()] * (len(f.body.args) - len(attrs)))]


def _context_field(lo: Lowering, d: int) -> str:
    where = lo.em.op(f"getelementptr i32, ptr {lo.context}, i64 {d}")
    return f"load i32, ptr {where}, align 4, !invariant.load !0"


def _programs(lo: Lowering, flat: str, sizes: list[str]) -> None:
    """Compute the program ids of a linear id, x fastest."""
    em = lo.em
    row = em.op(f"udiv i32 {flat}, {sizes[0]}")
    ids = [em.op(f"urem i32 {flat}, {sizes[0]}"), em.op(f"urem i32 {row}, {sizes[1]}"),
           em.op(f"udiv i32 {row}, {sizes[1]}")]  # fmt: skip
    lo.programs = {d: Val(int32, 1, text, True, text) for d, text in enumerate(ids)}


def _argument(lo: Lowering, arg: Value, index: int, attrs: dict[str, Any]) -> Val:
    """Return a kernel argument, loaded from its slot."""
    t = arg.type
    if not isinstance(t, (dtype, pointer_type)):
        raise CompilationError(f"an argument of type {t.short} is not supported by the CPU back end")  # fmt: skip
    where = lo.em.op(f"getelementptr i8, ptr %args, i64 {8 * index}")
    text = lo.em.op(f"load {memory_type(t)}, ptr {where}, align 8, !invariant.load !0")
    x = make(t, 1, unpack(lo.lanes(1), t, text))
    if isinstance(t, dtype) and t.is_int() and t is not int1:
        x.align = power_in(int(attrs.get("divisibility", 1)))
    return x


def _function(state: ModuleState, f: ops.FuncOp) -> str:
    """Lower a function that was not inlined: scalars are passed by value, tiles and results by address."""
    lo = _start(state, f)
    em = lo.em
    params = [f"ptr {em.parameter('%ctx')}"]
    for d in range(3):
        text = em.parameter(f"%pid{d}")
        params.append(f"i32 {text}")
        lo.programs[d] = Val(int32, 1, text, True, text)
    lo.sizes = [make(int32, 1, em.op(_context_field(lo, d))) for d in range(3)]
    if state.checked:
        lo.report, lo.exit_label = em.parameter("%report"), "exit"
        params.append("ptr %report")
    for i, arg in enumerate(f.body.args):
        text = em.parameter(f"%arg{i}")
        if isinstance(arg.type, TileType):
            params.append(f"ptr {text}")
            buffer = lo.allocate(elem_of(arg.type), ())
            buffer.ptr, buffer.shape, buffer.bytes = text, shape_of(arg.type), 0
            lo.buffers[arg] = buffer
        else:
            params.append(f"{scalar_type(arg.type)} {text}")
            lo.scalars[arg] = make(arg.type, 1, text)
    outs = [em.parameter(f"%out{i}") for i in range(len(f.returns))]
    if may_stop(f):
        lo.stop_label = lo.exit_label or "stop"
    end = control.lower_block(lo, f.body)
    _return(lo, end, outs)
    if lo.exit_label:
        em.stmt("br label %exit")
        em.label("exit")
    elif lo.stop_label:
        em.stmt(f"br label %{lo.stop_label}")
        em.label(lo.stop_label)
    em.stmt("ret void")
    params += [f"ptr {o}" for o in outs]
    head = f"define internal void @{symbol(f.name)}({', '.join(params)}) nounwind {ATTRIBUTES}"
    return f"{head} {{\nentry:\n  {em.body()}\n}}"


def _return(lo: Lowering, end: Op, outs: list[str]) -> None:
    slots: list[Slot] = []
    for v, out in zip(end.operands, outs, strict=True):
        if isinstance(v.type, TileType):
            buffer = lo.allocate(elem_of(v.type), ())
            buffer.ptr, buffer.shape = out, shape_of(v.type)
            slots.append(buffer)
        else:
            slots.append(out)
    write_slots(lo, end, end.operands, slots)


@executes(ops.ProgramIdOp)
def _program_id(lo: Lowering, op: ops.ProgramIdOp) -> None:
    lo.scalars[op.result] = lo.programs[op.axis]


@executes(ops.NumProgramsOp)
def _num_programs(lo: Lowering, op: ops.NumProgramsOp) -> None:
    axis: int = op.axis
    text = lo.sizes[axis].text
    lo.scalars[op.result] = Val(int32, 1, text, True, text)


@executes(ops.SpecialRegisterOp)
def _special_register(lo: Lowering, op: ops.SpecialRegisterOp) -> None:
    """Read the monotonic clock in nanoseconds, or for `smid` the thread's number in place of an SM's."""
    if op.name == "smid":
        lo.scalars[op.result] = make(int32, 1, lo.em.here(_context_field(lo, 3)))
        return
    now = trace.clock(lo)
    low = lo.em.here(f"trunc i64 {now} to i32") if op.name == "clock" else now
    lo.scalars[op.result] = make(op.result.type, 1, low)


@executes(ops.GridDependencyOp)
def _grid_dependency(lo: Lowering, op: Op) -> None:
    """Emit nothing: launches are executed one after another anyway."""
