"""Writes the call of a compiled graph as Python text: what a person reads is what runs.

def call(inputs):
    x, w = inputs
    inputs.clear()
    pool = pool_of_threads()
    arena = strided((4096,), (1,), byte)
    y = strided((8, 128), (128, 1), fp32)
    # graph_exp_3f2a: 8 programs (x, arena + 0)
    # graph_add_77c1: 8 programs (arena + 0, w, y)
    failed = launch_0(pool, numbers_0, x, arena, w, y)
    if failed: failed_0(failed, pool, numbers_0, x, arena, w, y)
    del x, w, arena
    return [y]

`launch_0` starts all kernels up to the next call of the array library, in native code (`sequence`). With
`wrapper="python"` each kernel is launched by a line of its own. An arena that a CPU may keep for the next call comes
from `take(4096)`, and goes by `give(arena)`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import partial
from math import isfinite
from typing import TYPE_CHECKING, Any

from tessera.backends.cpu.exclusive import launch_needs
from tessera.backends.cpu.pool import get_pool
from tessera.config import epoch, knobs
from tessera.dtypes import uint8
from tessera.graph.calls.meaning import Meaning
from tessera.graph.calls.sequence import alignment_check
from tessera.graph.calls.source_sequence import Number, write_sequence
from tessera.graph.index import Expr, Sym
from tessera.graph.ir.types import TensorType, is_tensor
from tessera.graph.planning.plan import (
    IN_ARENAS,
    INPUT,
    OUTPUT,
    OWN,
    Extern,
    Interpret,
    Launch,
    Step,
)
from tessera.ir import Value
from tessera.runtime.drivers.host import cpu_failure
from tessera.runtime.native.launcher import make_launcher

if TYPE_CHECKING:
    from tessera.graph.calls.executable import Executable

Size = int | Expr


class PoolOfThreads:
    """Gives the handle of the thread pool that kernels run in; looks for another one when a knob was changed."""

    def __init__(self) -> None:
        self.known = (0, 0)  # the count of knob changes, the handle

    def __call__(self) -> int:
        seen, handle = self.known
        now = epoch.value
        if seen != now:
            handle = get_pool(knobs.runtime.num_threads).handle
            self.known = now, handle
        return handle


class Writer:
    """Writes one function. `tables`: what the numbers of each launch sequence are."""

    def __init__(self, exe: Executable):
        self.exe, self.plan = exe, exe.plan
        self.native = exe.wrapper == "native"
        self.on_gpu = exe.kernels.target.backend == "cuda"
        self.tables: list[list[Number]] = []
        self.lines: list[str] = []
        self.bindings: dict[str, Any] = {}
        self.sizes: list[Size | Value] = []  # what the numbers of a frame are
        self.names: dict[Value, str] = {}
        self.allocated: set[Value] = set()
        self.copies: dict[Value, str] = {}  # of arguments: their aligned copies
        self.dynamic = bool(exe.symbols)
        self.offsets: dict[Value, int] = {}
        arenas = self.plan.arenas
        alone = len(arenas) == 1
        self.arena_of = {v: k for k, arena in enumerate(arenas) for v in arena}
        self.arenas = ["arena" if alone else f"arena_{k}" for k in range(len(arenas))]
        self.arena_sizes = [f"at.arenas[{k}]" for k in range(len(arenas))]

    def line(self, text: str) -> None:
        self.lines.append(f"    {text}")

    # --- names and numbers --------------------------------------------------------------------------------
    def bind(self, name: str, value: Any) -> str:
        self.bindings[name] = value
        return name

    def name(self, v: Value) -> str:
        """The variable that holds a tensor or scalar."""
        found = self.names.get(v)
        if found is None:
            stem = re.sub(r"\W", "_", v.name) if v.name else "t"
            found = (
                f"{stem}_{len(self.names)}" if v.owner is not self.exe.function.body else f"{stem}_"
            )
            while found in self.names.values():
                found += "_"
            self.names[v] = found
        return found

    def number(self, n: Size | Value) -> str:
        """A size, or the offset of a tensor in the arena: a literal, or a number of the frame."""
        if isinstance(n, int):
            return str(n)
        if isinstance(n, Value) and not self.dynamic:
            return str(self.offsets[n])
        if isinstance(n, Expr) and isinstance(n.atom, Sym):
            return n.atom.name
        if n not in self.sizes:
            self.sizes.append(n)
        return f"n[{self.sizes.index(n)}]"

    def numbers(self, values: Iterable[Size]) -> str:
        parts = [self.number(n) for n in values]
        return f"({', '.join(parts)}{',' if len(parts) == 1 else ''})"

    # --- the function ---------------------------------------------------------------------------------------
    def write(self) -> None:
        args = [self.name(a) for a in self.plan.arguments]
        self.line(f"{', '.join(args)}{',' if len(args) == 1 else ''} = inputs" if args else "pass")
        self._symbols()
        at = len(self.lines)
        self.line("inputs.clear()")
        self._queue()
        copied = self._align()
        self._place()
        self._steps(copied)
        for v in copied:
            self.line(
                f"if {self.home(v)} is not {self.name(v)}: write_back({self.name(v)}, {self.home(v)})"
            )
        self._return()
        if self.sizes:
            self.lines.insert(at, "    n = at.numbers")
        if self.dynamic:
            self.lines.insert(at, f"    at = frame({', '.join(self.exe.symbols)})")

    def _queue(self) -> None:
        """What launches go into: the pool of threads, or the stream of the device."""
        if not self.on_gpu:
            self.bind("pool_of_threads", PoolOfThreads())
            self.line("pool = pool_of_threads()")
        else:
            self.bind("current_stream", self.exe.host.stream)
            self.line("stream = current_stream()")

    @property
    def queue(self) -> str:
        return "stream" if self.on_gpu else "pool"

    def wants_alignment(self) -> bool:
        """Whether kernels rely on arrays that begin at multiples of 16 bytes."""
        return self.on_gpu

    def _align(self) -> list[Value]:
        """Copy arguments of GPU kernels that do not begin at multiples of 16 bytes; those that are written."""
        if not self.wants_alignment():
            return []
        launches = [s for s in self.plan.steps if isinstance(s, Launch)]
        used = {
            self.plan.memory(p) for s in launches for p in (*s.reads, *s.writes) if is_tensor(p)
        }
        copied = [v for v in self.plan.arguments if v in used]
        if not copied:
            return []
        given = "".join(f"{self.name(v)}, " for v in copied).strip()
        self.copies = {v: f"{self.name(v)}_aligned" for v in copied}
        made = "".join(f"{self.home(v)}, " for v in copied).strip()
        self.bind("all_aligned", alignment_check(self.exe.host))
        self.bind("aligned", self.exe.host.aligned)
        self.bind("write_back", self.exe.host.write_back)
        self.line(f"{made} = ({given}) if all_aligned({given}) else map(aligned, ({given}))")
        written = {self.plan.memory(v) for s in launches for v in s.writes} - self.plan.donated
        return [v for v in copied if v in written]

    def home(self, v: Value) -> str:
        """The array that kernels get for a tensor whose memory is its own: an arena, for those that lie in one."""
        if self.plan.place[v] in IN_ARENAS:
            return self.arenas[self.arena_of[v]]
        return self.copies.get(v) or self.name(v)

    def _symbols(self) -> None:
        for symbol, (k, d) in self.exe.symbols.items():
            name = self.name(self.plan.arguments[k])
            self.line(f"{symbol} = {name}" if d is None else f"{symbol} = {name}.shape[{d}]")

    def _place(self) -> None:
        """Place the tensors of the arenas, where sizes are known."""
        if not self.dynamic:
            placed = self.plan.placed({})
            for arena, found in zip(self.plan.arenas, placed, strict=True):
                self.offsets |= zip(arena, found.offsets, strict=True)
            self.arena_sizes = [str(found.size) for found in placed]

    # --- steps --------------------------------------------------------------------------------------------------
    def _steps(self, kept: Sequence[Value]) -> None:
        """Write all steps. An arena is taken before the first one that needs it, and given back behind the last; what
        nobody needs any more is let go, but for the arguments in `kept`."""
        dying: dict[int, list[str]] = {}
        for number, v in self.plan.dying():
            if v not in kept:
                names = dict.fromkeys((self.name(v), self.home(v)))
                dying.setdefault(number, []).extend(names)
        spans = [self.plan.span(arena) for arena in self.plan.arenas]
        for group in self.plan.groups(self.native):
            steps = self.plan.steps[group.start : group.stop]
            for k, (first, _) in enumerate(spans):
                if first in group:
                    self.line(f"{self.arenas[k]} = {self._arena(k)}")
            for step in steps:
                self._allocate(step)
            self._group(steps)
            gone = [name for number in group for name in dying.get(number, ())]
            for k, (_, last) in enumerate(spans):
                if last in group:
                    gone.append(self.arenas[k])
                    if self._may_be_kept(k):
                        self.line(f"give({self.arenas[k]})")
            if gone:
                self.line(f"del {', '.join(gone)}")

    def _may_be_kept(self, k: int) -> bool:
        """Whether an arena may be large enough for being kept between calls; on GPUs the library keeps memory."""
        size = self.arena_sizes[k]
        return not self.on_gpu and (self.dynamic or self.exe.arenas.keeps(int(size)))

    def _arena(self, k: int) -> str:
        """What gives an arena."""
        if self._may_be_kept(k):
            return f"take({self.arena_sizes[k]})"
        self.bind("strided", self.exe.host.strided)
        byte = self.bind("byte", self.exe.host.kind(uint8))
        return f"strided(({self.arena_sizes[k]},), (1,), {byte})"

    def _group(self, steps: Sequence[Step]) -> None:
        first = steps[0]
        if isinstance(first, Extern):
            self._extern(first)
        elif isinstance(first, Interpret):
            self._interpret(first)
        elif self.native:
            write_sequence(self, [s for s in steps if isinstance(s, Launch)])
        else:
            self._launch(first)

    def _allocate(self, step: Step) -> None:
        for v in step.writes:
            home = self.plan.memory(v)
            if self.plan.place.get(home) in (OUTPUT, OWN) and home not in self.allocated:
                t: TensorType = home.type
                layout = f"{self.numbers(t.shape)}, {self.numbers(t.all_strides)}, {self.elem(t)}"
                self.bind("strided", self.exe.host.strided)
                self.line(f"{self.name(home)} = strided({layout})")
                self.allocated.add(home)

    def elem(self, t: TensorType) -> str:
        return self.bind(t.elem.short.replace(":", "_"), self.exe.host.kind(t.elem))

    def location(self, v: Value) -> tuple[str, list[Size | Value]]:
        """Where element 0 of a tensor lies: an array, and numbers of bytes whose sum is the distance from there."""
        home = self.plan.memory(v)
        parts: list[Size | Value] = [home] if self.plan.place[home] in IN_ARENAS else []
        inside = _plain(self.plan.view(v).offset * v.type.elem.storage_bytes)
        return self.home(home), parts if inside == 0 else [*parts, inside]

    def address(self, v: Value) -> str:
        """The same as an expression."""
        self.bind("address", self.exe.host.address)
        base, parts = self.location(v)
        return " + ".join([f"address({base})", *(self.number(n) for n in parts)])

    def _launch(self, step: Launch) -> None:
        code = step.code
        kernel = self.exe.kernels.load(code.name)
        values: list[str] = []
        for p in code.parameters:
            if isinstance(p, Sym):
                values.append(p.name)
            else:
                values.append(self.address(p) if is_tensor(p) else self.scalar(p))
        grid = self.number(code.programs)
        k = f"k_{code.name}"
        if self.on_gpu:
            self.bind(k, kernel.launcher)
            self.line(f"{k}({', '.join([grid, '1', '1', 'stream', *values])})")
            return
        self.bind(k, make_launcher(kernel.metadata.args, "cpu"))
        needs = launch_needs(kernel.metadata)
        lead = [grid, "1", "1", "pool", str(kernel.function), str(needs)]
        self.bind(f"fail_{code.name}", partial(cpu_failure, kernel))
        self.line(f"status = {k}({', '.join([*lead, *values])})")
        self.line(f"if status: raise fail_{code.name}(status)")

    def array(self, v: Value) -> str:
        """A tensor as an array of the host's library."""
        if not is_tensor(v):
            return self.scalar(v)
        home = self.plan.memory(v)
        given = self.plan.place[home] == INPUT and self.plan.root(v) is home
        base = self.name(home) if given else self.home(home)
        if v is home and self.plan.place[home] not in IN_ARENAS:
            return base
        view = self.plan.view(v)
        self.bind("view", self.exe.host.view)
        _, parts = self.location(v)
        offset = " + ".join(self.number(n) for n in parts) or "0"
        layout = f"{self.numbers(view.shape)}, {self.numbers(view.strides)}, {self.elem(v.type)}"
        return f"view({base}, {offset}, {layout})"

    def scalar(self, v: Value) -> str:
        if v.op is None:
            return self.name(v)
        if "value" in v.op.attrs:
            value = v.op.attrs["value"]
            return repr(value) if isinstance(value, int) or isfinite(value) else f"float('{value}')"
        return self.number(_plain(v.op.map.results[0]))  # type: ignore[attr-defined]

    def _symbol_values(self) -> str:
        return "{" + ", ".join(f"{s!r}: {s}" for s in self.exe.symbols) + "}"

    def _extern(self, step: Extern) -> None:
        op = step.op
        stem = re.sub(r"\W", "_", op.target.removeprefix("aten."))
        number = sum(name.startswith("extern_") for name in self.bindings)
        run = self.bind(f"extern_{number}_{stem}", self.exe.host.prepared(op))
        arrays = ", ".join(self.array(v) for v in op.args)
        found = "".join(f"{self.name(r)}, " for r in op.results).strip()
        call = f"{run}([{arrays}], {self._symbol_values()})"
        self.line(f"{found} = {call}" if found else call)

    def _interpret(self, step: Interpret) -> None:
        number = sum(name.startswith("meaning_") for name in self.bindings)
        meaning = Meaning(step.op, list(self.exe.symbols), self.exe.host)
        run = self.bind(f"meaning_{number}", meaning)
        arrays = ", ".join(f"{self.array(v)}" for v in step.reads)
        found = "".join(f"{self.name(r)}, " for r in step.op.results).strip()
        self.line(f"{found} = {run}([{arrays}], {self._symbol_values()})  # {step.reason}")

    def _return(self) -> None:
        found = [self.array(v) for v in self.plan.results]
        self.line(f"return [{', '.join(found)}]")


def _plain(n: Size) -> Size:
    if isinstance(n, Expr):
        value = n.value
        return n if value is None else value
    return n


def write_call(exe: Executable) -> tuple[str, Writer]:
    """The text of a function `call`, and its writer, which knows what names and numbers in it stand for."""
    w = Writer(exe)
    w.write()
    return "\n".join(["def call(inputs):", *w.lines]) + "\n", w
