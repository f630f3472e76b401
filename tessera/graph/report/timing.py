"""Runs the steps of an executable one by one, and measures each: what a report says of times.

Each tensor has its memory apart, not in an arena; a launch is measured with other memory for what it writes, so that
later steps read what they should. Times of launches are those of one among many that follow each other.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from tessera.dtypes import float32
from tessera.graph.calls.executable import Executable, compile_graph
from tessera.graph.calls.host import Host
from tessera.graph.calls.meaning import Meaning
from tessera.graph.index import Sym
from tessera.graph.ir.build import GraphBuilder
from tessera.graph.ir.interp import bind_symbols
from tessera.graph.ir.types import TensorType
from tessera.graph.planning.plan import IN_ARENAS, INPUT, Extern, Launch, Step, number, storage_size
from tessera.ir import Value
from tessera.runtime.driver import driver_named

LEAST = 2e-3  # seconds that a measurement takes
COPIED = (
    1 << 26
)  # elements of fp32 that the measurement of the bandwidth copies: more than caches hold
MOST = 200  # launches of a measurement


def measured(run: Callable[[], object], wait: Callable[[], object]) -> float:
    """Seconds of one call among several that follow each other; `wait` returns when the device has done them."""
    run()
    wait()
    start = time.perf_counter()
    run()
    wait()
    once = time.perf_counter() - start
    calls = max(2, min(MOST, int(LEAST / max(once, 1e-7))))
    best = once
    for _ in range(3):
        start = time.perf_counter()
        for _ in range(calls):
            run()
        wait()
        best = min(best, (time.perf_counter() - start) / calls)
    return best


class Stepper:
    """Runs an executable's steps for these arguments."""

    def __init__(self, exe: Executable, arguments: Sequence[Any], wait: Callable[[], object]):
        self.exe, self.plan, self.host, self.wait = exe, exe.plan, exe.host, wait
        self.symbols = bind_symbols(exe.function, arguments)
        self.sizes = {Sym(name): n for name, n in self.symbols.items()}
        self.given = dict(zip(exe.plan.arguments, arguments, strict=True))
        self.memory: dict[Value, Any] = {}
        self.driver = driver_named(exe.kernels.target.backend)

    def numbers(self, values: Sequence[Any]) -> tuple[int, ...]:
        return tuple(number(n, self.sizes) for n in values)

    def home(self, v: Value) -> Any:
        """The memory that a tensor lies in."""
        found = self.plan.memory(v)
        if found not in self.memory:
            if self.plan.place.get(found, INPUT) == INPUT and found in self.given:
                self.memory[found] = self.given[found]
            else:
                self.memory[found] = self.new(found)
        return self.memory[found]

    def new(self, v: Value) -> Any:
        if self.plan.place.get(v) in IN_ARENAS:
            return self.host.empty(max(1, number(storage_size(v.type), self.sizes)))
        t: TensorType = v.type
        return self.host.strided(
            self.numbers(t.shape), self.numbers(t.all_strides), self.host.kind(t.elem)
        )

    def array(self, v: Value, base: Any = None) -> Any:
        """A tensor as an array, or a scalar's number. `base`: other memory than its own."""
        t = v.type
        if not isinstance(t, TensorType):
            return self.scalar(v)
        memory = self.home(v) if base is None else base
        view = self.plan.view(v)
        if v is self.plan.memory(v) and self.plan.place.get(v) not in IN_ARENAS:
            return memory
        offset = number(view.offset, self.sizes) * t.elem.storage_bytes
        shape, strides = self.numbers(view.shape), self.numbers(view.strides)
        return self.host.view(memory, offset, shape, strides, self.host.kind(t.elem))

    def scalar(self, v: Value) -> Any:
        if v.op is None:
            return self.given[v]
        if "value" in v.op.attrs:
            return v.op.attrs["value"]
        return number(v.op.map.results[0], self.sizes)  # type: ignore[attr-defined]

    # --- steps --------------------------------------------------------------------------------------------
    def run(self, step: Step) -> float:
        """Run a step; the seconds that it takes."""
        if isinstance(step, Launch):
            return self.launch(step)
        arrays = [self.array(v) for v in step.reads]
        if isinstance(step, Extern):
            call = lambda: self.host.extern(step.op, arrays, self.symbols)  # noqa: E731
        else:
            meaning = Meaning(step.op, list(self.exe.symbols), self.host)
            call = lambda: meaning(arrays, self.symbols)  # noqa: E731
        for v, x in zip(step.writes, call(), strict=True):
            self.memory[self.plan.memory(v)] = x
        return measured(call, self.wait)

    def launch(self, step: Launch) -> float:
        self._launcher(step, [self._argument(p) for p in step.code.parameters])()
        scratch = {self.plan.memory(v): None for v in step.writes}
        given: list[Any] = []
        for p in step.code.parameters:
            if isinstance(p, Sym) or self.plan.memory(p) not in scratch:
                given.append(self._argument(p))
                continue
            home = self.plan.memory(p)
            if scratch[home] is None:
                scratch[home] = self.new(home)
            given.append(self.array(p, scratch[home]))
        return measured(self._launcher(step, given), self.wait)

    def _argument(self, p: Value | Sym) -> Any:
        return self.symbols[p.name] if isinstance(p, Sym) else self.array(p)

    def _launcher(self, step: Launch, given: list[Any]) -> Callable[[], object]:
        kernel = self.exe.kernels.load(step.code.name)
        values = list(self.driver.arguments(kernel, given))
        stream, programs = self.host.stream(), number(step.code.programs, self.sizes)
        if self.exe.kernels.target.backend == "cpu":
            stream = self.driver.get_current_stream(self.driver.get_current_device())

        def launch() -> None:
            kernel.run(
                programs,
                1,
                1,
                stream,
                kernel.function,
                kernel.packed_metadata,
                None,
                None,
                None,
                *values,
            )

        return launch


def bandwidth_of(host: Host, target: Any, device: str, wait: Callable[[], object]) -> float:
    """Bytes a second that a kernel which copies 256 MiB moves, read and written."""
    n = COPIED
    g = GraphBuilder("copy", device=device)
    t = TensorType((n,), float32, device=device)
    x = g.input("x", t)
    element: Callable[[Value], Value] = lambda i: g.load(x, i)  # noqa: E731
    g.output(g.loop([n], element))
    exe = compile_graph(g.finish(), host, target)
    source = host.strided((n,), (1,), host.kind(float32))
    stepper = Stepper(exe, [source], wait)
    (step,) = exe.plan.steps
    return 2 * 4 * n / stepper.run(step)
