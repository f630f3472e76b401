"""Makes the report of a compiled kernel: compiles its IR once more, counts its work, and reads its machine code."""

from __future__ import annotations

import dataclasses
import linecache
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from posixpath import basename
from typing import Any

from tessera import ops
from tessera.analysis.axis import AxisAnalysis
from tessera.analysis.loop_times import LoopChoice, product_type
from tessera.analysis.machines import Machine, gpu
from tessera.analysis.provenance import argument_of
from tessera.analysis.reports import (
    AccessReport,
    BufferReport,
    LineReport,
    Occupancy,
    Remark,
    Report,
)
from tessera.backends.compiler import Options
from tessera.backends.cpu.effects import STREAM_BYTES
from tessera.backends.nvidia.target import facts_for
from tessera.compiler.kernel import CompiledKernel
from tessera.config.optimizations import names_in
from tessera.errors import LaunchError
from tessera.explain import costs
from tessera.explain.accesses import is_store, on_cpu, on_gpu
from tessera.explain.counting import Work, count_work
from tessera.explain.cpu_machine import cpu, is_native
from tessera.explain.levels import code_by_line, levels_of
from tessera.explain.memory import bind, known_bytes
from tessera.explain.needed import BLOCKS, GATHERS, POINTERS, needed_values
from tessera.explain.pictures import layouts_of
from tessera.explain.predict import Totals, predict, rate
from tessera.explain.remarks import (
    of_access,
    of_line,
    of_occupancy,
    of_plans,
    of_spills,
    passes_said,
)
from tessera.explain.schedule import live_registers, occupancy_of, place, schedule_of
from tessera.explain.shared import banks_of, buffers
from tessera.explain.widths import (
    ACCESSES,
    WIDE,
    access_name,
    by_place,
    elements_at_once,
    is_elementwise,
    why_narrow,
)
from tessera.interp.machine import kernel_of
from tessera.ir import Module, Op, TileType, print_with_lines
from tessera.ir.applications import Session
from tessera.ops.tile import Matmul
from tessera.passes.gpu_facts import GpuFacts
from tessera.runtime.benchmark import device_name

GPU = "cuda"


@dataclass
class Compiled:
    """The IR of a kernel, level by level: `module` is the last one; `texts`: text and the line of each op by level."""

    kernel: CompiledKernel
    module: Module
    texts: dict[str, tuple[str, dict[Op, int]]]
    places: dict[str, dict[int, tuple[str, int]]]
    applied: list[str]
    llir: str = ""
    choices: list[LoopChoice] = field(default_factory=list[LoopChoice])  # of plans for loops

    @property
    def on_gpu(self) -> bool:
        return self.kernel.target.backend == GPU

    @property
    def facts(self) -> GpuFacts:
        return facts_for(int(self.kernel.target.arch)) if self.on_gpu else GpuFacts()


def key_of(op: Op) -> tuple[str, int] | None:
    """Return the file's name and the line of an op, the innermost one of inlined calls."""
    return (op.loc.file, op.loc.line) if op.loc is not None else None


def options_of(kernel: CompiledKernel) -> Options:
    names = {f.name for f in dataclasses.fields(Options)} - {"target"}
    given = {k: v for k, v in kernel.metadata._asdict().items() if k in names}
    given["debug"] = given["debug"] is True  # a checked build is explained without its checks
    return kernel.backend.parse_options(given)


def compile_again(kernel: CompiledKernel) -> Compiled:
    """Compile a kernel up to the IR that is counted, which has the locations that its text lacks."""
    options = options_of(kernel)
    made = kernel.src.make_ir(options) if hasattr(kernel.src, "make_ir") else None
    if not isinstance(made, Module):
        raise LaunchError(
            f"explain needs the tile IR of kernel {kernel.name}, which was compiled of another level",
            help="explain the kernel function, or a kernel that was compiled from `.tir`",
        )
    stages, metadata = kernel.backend.stages(options), dict[str, Any](name=kernel.name, shared=0)
    texts: dict[str, tuple[str, dict[Op, int]]] = {}
    places: dict[str, dict[int, tuple[str, int]]] = {}
    disabled = frozenset(names_in(options.disable_optimizations))
    llir = ""
    with Session(kernel.name, disabled, notes=True) as session:
        for level in ("tir", "gir"):
            if level in stages:
                made = stages[level](made, metadata)
                texts[level] = print_with_lines(made)
                places[level] = {n: k for op, n in texts[level][1].items() if (k := key_of(op))}
        if kernel.target.backend != GPU:
            llir = stages["llir"](made.clone(), metadata)
    applied = [
        f"{a.name}: {a.what}{f' at {a.loc.line_chain()}' if a.loc else ''}" for a in session.applied
    ]
    choices = [c for c in session.plans if isinstance(c, LoopChoice)]
    return Compiled(kernel, made, texts, places, list(dict.fromkeys(applied)), llir, choices)


def machine_for(kernel: CompiledKernel) -> Machine:
    """Return the machine whose time is predicted: the one at hand if the kernel is for it."""
    if kernel.target.backend == GPU:
        return gpu(int(kernel.target.arch), device_name())
    return cpu()


class Builder:
    """Fills a report, line by line."""

    def __init__(
        self, compiled: Compiled, args: Sequence[object], grid: tuple[int, int, int]
    ) -> None:
        self.compiled, self.module, self.grid = compiled, compiled.module, grid
        self.on_gpu, self.facts = compiled.on_gpu, compiled.facts
        kernel = kernel_of(self.module)
        values, memory = bind(kernel.body.args[: len(args)], args)
        measure = (on_gpu if self.on_gpu else on_cpu)(self.module)
        self.needed = needed_values(self.module)
        self.work: Work = count_work(self.module, values, memory, grid, self.needed, measure)
        self.totals = Totals(sizes=known_bytes(memory), programs=self.work.programs)
        self.lines: dict[tuple[str, int], LineReport] = {}
        self.machine = machine_for(compiled.kernel)
        self.code = by_place(compiled.llir)
        self.remarks: list[Remark] = []
        self._source_lines()
        for func in self.module.body:
            assert isinstance(func, ops.FuncOp)
            self._function(func)
        stored = sum(self.totals.stored.values())
        self.totals.streamed = "!nontemporal" in compiled.llir and stored >= STREAM_BYTES

    def _source_lines(self) -> None:
        """Begin with all lines of the kernel's source."""
        fn = getattr(self.compiled.kernel.src, "fn", None)
        if fn is None:
            return
        first: int = fn.def_file_line_number
        for line in range(first, first + len(fn.src.splitlines())):
            self.line((fn.file_name, line))

    def line(self, key: tuple[str, int]) -> LineReport:
        if key not in self.lines:
            self.lines[key] = LineReport(*key, linecache.getline(*key).rstrip("\n"))
        return self.lines[key]

    # --- counts ---------------------------------------------------------------------------------------------
    def _function(self, func: ops.FuncOp) -> None:
        axis = AxisAnalysis(func)
        live = live_registers(func, self.needed) if self.on_gpu else {}
        around = _lines_of_regions(func)
        for op in func.walk():
            key, count = key_of(op) or around.get(op), self.work.counts.get(op)
            if key is None or count is None:
                continue
            line = self.line(key)
            line.live_registers = max(line.live_registers, live.get(op, 0))
            self._computes(op, line, count.runs)
            banks = banks_of(op, self.facts, axis) if self.on_gpu else None
            if banks is not None:  # copies that are masked off write nothing
                copied = isinstance(op, ops.AsyncCopyOp)
                runs = count.requests / banks.accesses if copied else count.runs
                line.bank_passes += banks.passes * runs
                line.bank_conflicts += (banks.passes - banks.ideal) * runs
                self.totals.bank_passes += banks.passes * runs
            if isinstance(op, POINTERS + BLOCKS + GATHERS):
                self._access(op, line, axis)

    def _computes(self, op: Op, line: LineReport, runs: float) -> None:
        flops = costs.flops(op) * runs
        line.flops += flops
        self.totals.flops += flops
        if isinstance(op, Matmul):
            kind = product_type(op)
            self.totals.products[kind] = self.totals.products.get(kind, 0.0) + flops
            line.seconds += flops / rate(self.machine, kind)
        elif not (op.results and op.results[0] in self.needed):  # addresses and masks hardly cost
            operations = costs.operations(op, self.on_gpu) * runs
            line.operations += operations
            self.totals.operations += operations

    def _access(self, op: Op, line: LineReport, axis: AxisAnalysis) -> None:
        count, store = self.work.counts[op], is_store(op)
        argument = _argument(op)
        fetched = count.sectors * (32 if self.on_gpu else 64)
        self.totals.move(argument, count.bytes, fetched, store=store)
        if isinstance(op, ops.AtomicRmwOp | ops.AtomicCasOp):
            self.totals.move(argument, count.bytes, fetched, store=True)
        self.totals.fetched += fetched
        line.loaded += 0.0 if store else count.bytes
        line.stored += count.bytes if store else 0.0
        width, why = self._width(op, axis)
        where = place(op)
        what = access_name(op) if isinstance(op, (*ACCESSES, *BLOCKS)) else op.opcode
        same = next(
            (a for a in line.accesses if (a.what, a.place, a.width) == (what, where, width)), None
        )
        if same is None:
            same = AccessReport(what, argument, where, width, 0.0, 0.0, 0.0, 0.0, why)
            line.accesses.append(same)
        same.bytes += count.bytes
        same.requests += count.requests
        same.sectors += count.sectors
        same.ideal += count.ideal

    def _width(self, op: Op, axis: AxisAnalysis) -> tuple[str, str]:
        """Return how much an access moves at once, and why it is no more."""
        if isinstance(op, (*BLOCKS, *GATHERS)):
            return "blocks (TMA)" if self.on_gpu else "rows", ""
        if not isinstance(op, ACCESSES) or not isinstance(op.ptr.type, TileType):
            return "scalar", ""
        if self.on_gpu:
            count = elements_at_once(op, axis)
            size = count * op.ptr.type.elem.element_ty.storage_bytes
            return f"{size} of {WIDE} bytes", why_narrow(op, axis, 2 * count) if size < WIDE else ""
        text = self.code.get(place(op), "")
        if is_elementwise(op, text):
            return "one element at a time", why_narrow(op, axis, 2)
        return ("vectors" if "x " in text and "<" in text else "scalars"), ""

    # --- the parts of the report ----------------------------------------------------------------------------
    def report(self, measured: float | None) -> Report:
        kernel = self.compiled.kernel
        m = kernel.metadata
        occupancy = self._occupancy()
        roofline = predict(self.totals, self.machine, self.on_gpu, occupancy)
        roofline.measured = measured
        by_line, code = code_by_line(kernel, self.compiled.llir)
        paths = {basename(file): file for file, _ in self.lines}
        for (file, number), found in by_line.items():
            if number:  # 0: of no line
                line = self.line((paths.get(file, file), number))
                line.instructions, line.spills = found.instructions, found.spills
                line.kinds, line.registers = found.kinds, found.registers
        self._shares()
        ordered = sorted(
            self.lines.values(), key=lambda x: (x.file != self._main_file(), x.file, x.line)
        )
        notes = list(self.work.notes)
        choices = self.compiled.choices
        schedule = schedule_of(self.module, self.work, choices, self.machine, occupancy)
        self.remarks += of_plans(schedule.loops)
        if not self.on_gpu and not is_native(kernel.target):
            notes.append("the time is that of the machine at hand, not of the target")
        return Report(
            kernel.name, str(kernel.target), self.grid, _options(m), self.work.programs, self.work.walked, ordered,
            self._buffers(), m.shared, getattr(m, "registers", 0), getattr(m, "spills", 0),
            sum(x.instructions for x in by_line.values()), code, occupancy,
            schedule, roofline, self._remarks(ordered, m.remarks, occupancy), notes,
            self.compiled.applied, layouts_of(self.module) if self.on_gpu else [],
            levels_of(kernel, self.compiled.texts, self.compiled.places, ordered, self.compiled.llir),
        )  # fmt: skip

    def _main_file(self) -> str:
        return next(iter(self.lines), ("", 0))[0]

    def _occupancy(self) -> Occupancy | None:
        if not self.on_gpu:
            return None
        m = self.compiled.kernel.metadata
        return occupancy_of(m, self.module, self.facts, self.work.programs, self.machine.units)

    def _shares(self) -> None:
        """Give each line its part of the time: of memory by bytes, of units by operations."""
        t, machine = self.totals, self.machine
        moved = sum(x.loaded + x.stored for x in self.lines.values()) or 1.0
        memory = (t.reads() + t.writes()) / machine.memory[-1][1]
        for x in self.lines.values():
            x.seconds += memory * (x.loaded + x.stored) / moved + x.operations / (machine.flops / 2)
            x.seconds += x.bank_passes / machine.banks
        total = sum(x.seconds for x in self.lines.values()) or 1.0
        for x in self.lines.values():
            x.share = x.seconds / total

    def _buffers(self) -> list[BufferReport]:
        found: list[BufferReport] = []
        for func in self.module.body if self.on_gpu else ():
            assert isinstance(func, ops.FuncOp)
            order = {op: i for i, op in enumerate(func.walk())}
            for b in buffers(func, self.module.attrs["num_warps"], self.facts):
                text = b.op.result.type.layout.text() if isinstance(b.op, ops.LocalAllocOp) else ""
                found.append(BufferReport(
                    b.name, place(b.op), b.size, b.offset, _line(b.first), _line(b.last), order[b.first],
                    order[b.last], text,
                ))  # fmt: skip
        return found

    def _remarks(
        self, lines: Iterable[LineReport], said: Sequence[str], occupancy: Occupancy | None
    ) -> list[Remark]:
        found = [*passes_said(said), *self.remarks]
        for line in lines:
            found += of_line(line)
            for access in line.accesses:
                found += of_access(access, "sector" if self.on_gpu else "line")
        if occupancy is not None:
            found += of_occupancy(occupancy)
            found += of_spills(list(self.lines.values()), self.compiled.kernel.metadata.spills)
        unique = {(r.place, r.what, r.reason): r for r in found}
        return list(unique.values())


def _lines_of_regions(func: ops.FuncOp) -> dict[Op, tuple[str, int]]:
    """Return the place of the op around for ops without one."""
    found: dict[Op, tuple[str, int]] = {}
    for op in func.walk():
        if op.loc is None:
            around = op.parent_op()
            if around is not None:
                key = key_of(around) or found.get(around)
                if key is not None:
                    found[op] = key
    return found


def _line(op: Op) -> int:
    around: Op | None = op
    while around is not None and around.loc is None:
        around = around.parent_op()
    return around.loc.line if around is not None and around.loc is not None else 0


def _argument(op: Op) -> str:
    base = op.ptr if isinstance(op, POINTERS) else None
    if base is None and isinstance(op.operands[0].op, ops.MakeDescriptorOp):
        base = op.operands[0].op.base
    found = argument_of(base) if base is not None else None
    return found.name if found is not None else "?"


def _options(m: Any) -> dict[str, int]:
    return {name: getattr(m, name) for name in ("num_warps", "num_stages", "num_ctas")}
