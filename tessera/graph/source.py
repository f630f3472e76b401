"""Writes the call of a compiled graph as Python text: what a person reads is what runs.

def call(inputs):
    x, w = inputs
    inputs.clear()
    arena = take(4096)
    a = address(arena[1])
    y = strided((8, 128), (128, 1), fp32)
    if k0(8, 1, 1, pool(), f0, 0, address(x), a): fail(k0)
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

from tessera.backends.cpu.pool import get_pool
from tessera.config import knobs
from tessera.graph.index import Expr, Sym
from tessera.graph.meaning import Meaning
from tessera.graph.memory import place
from tessera.graph.plan import (
    INPUT,
    OUTPUT,
    TEMPORARY,
    Extern,
    Interpret,
    Launch,
    Step,
)
from tessera.graph.types import TensorType
from tessera.ir import Value
from tessera.runtime.drivers.host import cpu_failure
from tessera.runtime.native.launcher import make_launcher

if TYPE_CHECKING:
    from tessera.graph.executable import Executable

Size = int | Expr


class _Writer:
    def __init__(self, exe: Executable):
        self.exe, self.plan = exe, exe.plan
        self.lines: list[str] = []
        self.bindings: dict[str, Any] = {}
        self.sizes: list[Size | Value] = []  # what the numbers of a frame are
        self.names: dict[Value, str] = {}
        self.addresses: set[Value] = set()
        self.dynamic = bool(exe.symbols)
        self.offsets: dict[Value, int] = {}

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
        self.line("inputs.clear()")
        self._queue()
        self._symbols()
        at = len(self.lines)
        self._arena()
        self._steps()
        self._write_back()
        self._return()
        if self.sizes:
            self.lines.insert(at, "    n = at.numbers")
        if self.dynamic:
            self.lines.insert(at, f"    at = frame({', '.join(self.exe.symbols)})")

    def _queue(self) -> None:
        """What launches go into: the pool of threads, or the stream of the device."""
        if self.exe.kernels.target.backend == "cpu":
            self.bind("pool_of_threads", lambda: get_pool(knobs.runtime.num_threads).handle)
            self.line("pool = pool_of_threads()")
        else:
            self.bind("current_stream", self.exe.host.stream)
            self.line("stream = current_stream()")

    def _write_back(self) -> None:
        """Give arguments what kernels wrote to their copies: see `_addressed`."""
        written = {self.plan.memory(v) for step in self.plan.steps for v in step.writes}
        for v in self.plan.arguments:
            if self.is_copied(v) and v in self.addresses and v in written:
                self.bind("write_back", self.exe.host.write_back)
                self.line(f"if a_{self.name(v)} != address({self.name(v)}):")
                self.line(f"    write_back({self.name(v)}, {self.name(v)}_aligned)")

    def is_copied(self, v: Value) -> bool:
        """Whether kernels get a copy of an argument that does not begin at a multiple of 16 bytes."""
        return self.plan.place.get(v) == INPUT and self.exe.kernels.target.backend == "cuda"

    def _symbols(self) -> None:
        for symbol, (k, d) in self.exe.symbols.items():
            name = self.name(self.plan.arguments[k])
            self.line(f"{symbol} = {name}" if d is None else f"{symbol} = {name}.shape[{d}]")

    def _arena(self) -> None:
        if not self.plan.buffers():
            return
        size = "at.arena"
        if not self.dynamic:
            placed = place(self.plan.arena({}))
            self.offsets = dict(zip(self.plan.buffers(), placed.offsets, strict=True))
            size = str(placed.size)
        self.line(f"arena = take({size})")
        self.line("a = address(arena[1])")
        self.bind("address", self.exe.host.address)

    def _steps(self) -> None:
        dying: dict[int, list[Value]] = {}
        for number, v in self.plan.dying():
            dying.setdefault(number, []).append(v)
        for number, step in enumerate(self.plan.steps):
            self._allocate(step)
            if isinstance(step, Launch):
                self._launch(step)
            elif isinstance(step, Extern):
                self._extern(step)
            else:
                self._interpret(step)
            gone = [self.name(v) for v in dying.get(number, ())]
            if gone:
                self.line(f"del {', '.join(gone)}")

    def _allocate(self, step: Step) -> None:
        for v in step.writes:
            home = self.plan.memory(v)
            if self.plan.place.get(home) == OUTPUT and home not in self.addresses:
                t: TensorType = home.type
                layout = f"{self.numbers(t.shape)}, {self.numbers(t.all_strides)}, {self.elem(t)}"
                self.bind("strided", self.exe.host.strided)
                self.line(f"{self.name(home)} = strided({layout})")
                self._addressed(home)

    def elem(self, t: TensorType) -> str:
        return self.bind(t.elem.short.replace(":", "_"), t.elem)

    def _addressed(self, v: Value) -> str:
        """The variable that holds the address of a tensor outside of the arena."""
        name = f"a_{self.name(v)}"
        if v not in self.addresses:
            self.addresses.add(v)
            self.bind("address", self.exe.host.address)
            if self.is_copied(v):
                self.bind("aligned", self.exe.host.aligned)
                self.line(f"{name} = address({self.name(v)})")
                self.line(f"if {name} & 15:")
                self.line(f"    {self.name(v)}_aligned = aligned({self.name(v)})")
                self.line(f"    {name} = address({self.name(v)}_aligned)")
            else:
                self.line(f"{name} = address({self.name(v)})")
        return name

    def address(self, v: Value) -> str:
        """Where element 0 of a tensor lies."""
        view = self.plan.view(v)
        home = self.plan.memory(v)
        bytes_in = view.offset * v.type.elem.storage_bytes
        inside = "" if bytes_in == 0 else f" + {self.number(_plain(bytes_in))}"
        if self.plan.place[home] == TEMPORARY:
            return f"a + {self.number(home)}{inside}"
        return self._addressed(home) + inside

    def _launch(self, step: Launch) -> None:
        code = step.code
        kernel = self.exe.kernels.load(code.name)
        values: list[str] = []
        for p in code.parameters:
            if isinstance(p, Sym):
                values.append(p.name)
            else:
                tensor = isinstance(p.type, TensorType)
                values.append(self.address(p) if tensor else self.scalar(p))
        grid = self.number(code.programs)
        k = f"k_{code.name}"
        if self.exe.kernels.target.backend != "cpu":
            self.bind(k, kernel.launcher)
            self.line(f"{k}({', '.join([grid, '1', '1', 'stream', *values])})")
            return
        self.bind(k, make_launcher(kernel.metadata.args, "cpu"))
        scratch = getattr(kernel.metadata, "scratch_bytes", 0)
        lead = [grid, "1", "1", "pool", str(kernel.function), str(scratch)]
        self.bind(f"fail_{code.name}", partial(cpu_failure, kernel))
        self.line(f"status = {k}({', '.join([*lead, *values])})")
        self.line(f"if status: raise fail_{code.name}(status)")

    def array(self, v: Value) -> str:
        """A tensor as an array of the host's library."""
        if not isinstance(v.type, TensorType):
            return self.scalar(v)
        view, home = self.plan.view(v), self.plan.memory(v)
        where = self.plan.place[home]
        if v is home and where != TEMPORARY:
            return self.name(v)
        self.bind("view", self.exe.host.view)
        bytes_in = _plain(view.offset * v.type.elem.storage_bytes)
        base, offset = self.name(home), self.number(bytes_in)
        if where == TEMPORARY:
            base = "arena[1]"
            offset = self.number(home) + ("" if bytes_in == 0 else f" + {offset}")
        layout = f"{self.numbers(view.shape)}, {self.numbers(view.strides)}, {self.elem(v.type)}"
        return f"view({base}, {offset}, {layout})"

    def scalar(self, v: Value) -> str:
        if v.op is None:
            return self.name(v)
        if "value" in v.op.attrs:
            return repr(v.op.attrs["value"])
        return self.number(_plain(v.op.map.results[0]))  # type: ignore[attr-defined]

    def _symbol_values(self) -> str:
        return "{" + ", ".join(f"{s!r}: {s}" for s in self.exe.symbols) + "}"

    def _extern(self, step: Extern) -> None:
        op = step.op
        number = sum(name.startswith("op_") for name in self.bindings)
        self.bind("extern", self.exe.host.extern)
        where = self.bind(f"op_{number}", op)
        arrays = ", ".join(self.array(v) for v in op.args)
        found = "".join(f"{self.name(r)}, " for r in op.results).strip()
        call = f"extern({where}, [{arrays}], {self._symbol_values()})  # {op.target}"
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
        if self.plan.buffers():
            self.bind("give", self.exe.give)
            self.line("give(arena)")
        self.line(f"return [{', '.join(found)}]")


def _plain(n: Size) -> Size:
    if isinstance(n, Expr):
        value = n.value
        return n if value is None else value
    return n


def write_call(exe: Executable) -> tuple[str, dict[str, Any], list[Size | Value]]:
    """(text of a function `call`, what it names, what the numbers of its frame are)."""
    w = _Writer(exe)
    w.write()
    return "\n".join(["def call(inputs):", *w.lines]) + "\n", w.bindings, w.sizes
