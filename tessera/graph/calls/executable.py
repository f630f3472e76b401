"""Compiles a graph function and runs it: kernels are built, the plan becomes a Python function, whose text is kept.

exe = compile_graph(module, NumpyHost())
(y,) = exe([x])
print(exe.source)                      # what runs; with wrapper="python" it shows each launch
exe.peak_bytes({"s0": 8})              # known before anything runs
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import inf, prod
from pathlib import Path
from threading import Lock
from typing import Any, ClassVar
from weakref import WeakValueDictionary

from tessera.analysis.machines import GPUS
from tessera.backends.compiler import GPUTarget
from tessera.backends.cpu.pool import default_threads
from tessera.compiler import CompiledKernel
from tessera.errors import LaunchError
from tessera.graph.calls.build_kernels import Kernels
from tessera.graph.calls.dump import write_folder
from tessera.graph.calls.host import GraphCall, Host
from tessera.graph.calls.source import write_call
from tessera.graph.calls.source_sequence import NARROW
from tessera.graph.emit.tiling import Machine
from tessera.graph.index import Expr, Sym
from tessera.graph.ir.types import TensorType
from tessera.graph.passes.layouts import FREE
from tessera.graph.planning.plan import Plan, number, storage_size
from tessera.graph.planning.planner import Planner
from tessera.graph.planning.settle import PAGE, settle
from tessera.ir import Module, Op, Value
from tessera.ops import FuncOp

HOPPER = 90  # compute capability times ten
WIDE = NARROW  # elements from which on offsets need 64 bits
LARGE = (
    32 << 20
)  # bytes from which glibc always asks the system: the most that M_MMAP_THRESHOLD grows to


def machine_of(target: GPUTarget) -> Machine:
    """What tilings depend on of a target. The numbers for GPUs were the best of those tried on an H200 by
    benchmarks/graph_fused.py."""
    if target.backend == "cuda":
        return Machine(
            "cuda", False, tile=1024, row=8192, step=4096, lanes=GPUS["H200"].units, columns=2048, walk=32,
            products=target.arch == HOPPER,
        )  # fmt: skip
    lanes = default_threads()
    return Machine(
        "cpu", True, tile=8192, row=16384, step=2048, lanes=lanes, columns=32768, walk=64
    )


@dataclass(frozen=True, slots=True)
class Frame:
    """What a call needs that depends on sizes: numbers in the order in which the call's text names them."""

    arenas: tuple[int, ...]  # their bytes
    offsets: Mapping[Value, int]
    numbers: tuple[int, ...]
    tables: tuple[bytes, ...]  # the numbers of each launch sequence, 8 bytes each


class Arenas:
    """Large memory for temporary tensors on a CPU, kept between calls: for all graphs of a kind of arrays, since graphs
    run one after the other. It goes with the last of them. The C library itself keeps smaller memory that is let go;
    what is `LARGE` goes back to the system, and to get pages anew takes longer than to write to them."""

    of: ClassVar[WeakValueDictionary[type[Host], Arenas]] = WeakValueDictionary()

    def __init__(self) -> None:
        self.spare: list[Any] = []  # what no call has at the moment
        self.lock = Lock()

    def keeps(self, size: int) -> bool:
        """Whether memory of so many bytes is kept for the next call."""
        return size >= LARGE

    def take(self, host: Host, size: int) -> Any:
        """Memory of at least `size` bytes: of what is kept the smallest that is no more than twice as large. If all is
        too small, new memory takes the place of what is at least half as large."""
        if not self.keeps(size):
            return host.empty(size)
        with self.lock:
            near = [k for k, x in enumerate(self.spare) if size <= 2 * len(x) <= 4 * size]
            fits = [k for k in near if len(self.spare[k]) >= size]
            if fits:
                return self.spare.pop(min(fits, key=lambda k: len(self.spare[k])))
            if near:
                del self.spare[near[0]]
        return host.empty(size)

    def give(self, arena: Any) -> None:
        """Keep large memory for the next call."""
        if self.keeps(len(arena)):
            with self.lock:
                self.spare.append(arena)


class Executable:
    """A compiled graph. Calling it with the arguments in a list, which it empties, gives a list of results. Where it
    refuses sizes, by a LaunchError, the list is as it was."""

    def __init__(
        self, function: FuncOp, plan: Plan, kernels: Kernels, host: Host, wrapper: str = "native"
    ):
        self.function, self.plan, self.kernels, self.host = function, plan, kernels, host
        self.wrapper = wrapper
        self.symbols = _symbols(function)
        self.frames: dict[tuple[int, ...], Frame] = {}
        self.arenas = Arenas.of.setdefault(type(host), Arenas())
        self.source, writer = write_call(self)
        self.sizes, self.tables = writer.sizes, writer.tables
        space: dict[str, Any] = {
            **writer.bindings,
            "frame": self.frame,
            "take": partial(self.arenas.take, host),
            "give": self.arenas.give,
        }
        if not self.symbols:
            space |= {f"numbers_{k}": table for k, table in enumerate(self.frame().tables)}
        exec(compile(self.source, f"<graph {function.name}>", "exec"), space)
        self.call: GraphCall = host.on_device(space["call"])

    def __call__(self, inputs: list[Any]) -> list[Any]:
        return self.call(inputs)

    def dump(self, folder: str | Path) -> Path:
        """Write graph, call and kernels to a folder that runs by itself."""
        return write_folder(self, folder)

    def compiled(self) -> list[CompiledKernel]:
        """The kernels, each once."""
        return list(self.kernels.compiled.values())

    # --- sizes --------------------------------------------------------------------------------------------
    def frame(self, *values: int) -> Frame:
        """The numbers of a call with these values of the symbols, in the order of `symbols`."""
        found = self.frames.get(values)
        if found is None:
            found = self.frames[values] = self._make_frame(values)
        return found

    def _make_frame(self, values: Sequence[int]) -> Frame:
        sizes = {Sym(name): n for name, n in zip(self.symbols, values, strict=True)}
        for v in () if self.plan.wide else self.plan.place:
            if number(storage_size(v.type), sizes) // v.type.elem.storage_bytes >= WIDE:
                self.kernels.check_wide(v.type.short)
        placed = self.plan.placed(sizes)
        offsets: dict[Value, int] = {}
        for arena, found in zip(self.plan.arenas, placed, strict=True):
            offsets |= zip(arena, found.offsets, strict=True)

        def known(n: int | Expr | Value) -> int:
            return offsets[n] if isinstance(n, Value) else number(n, sizes)

        tables = [[n.value(known) for n in table] for table in self.tables]
        packed = tuple(struct.pack(f"={len(table)}q", *table) for table in tables)
        arenas = tuple(found.size for found in placed)
        return Frame(arenas, offsets, tuple(map(known, self.sizes)), packed)

    def peak_bytes(self, sizes: Mapping[str, int] | None = None) -> int:
        """The most bytes that a call holds beside what is there when it begins: arenas, results, and what the library
        allocates for those of externs. Arguments that the caller does not need any more count less than nothing when
        they have gone."""
        values = [(sizes or {})[name] for name in self.symbols]
        known = {Sym(name): n for name, n in zip(self.symbols, values, strict=True)}
        page = PAGE if self.kernels.target.backend == "cuda" else 1
        return self.plan.peak_bytes(known, page, self.wrapper == "native")


def _symbols(function: FuncOp) -> dict[str, tuple[int, int | None]]:
    """Where the values of symbols come from: the number of an argument, and its dimension if it is a tensor."""
    found: dict[str, tuple[int, int | None]] = {}
    facts = function.arg_attrs or ((),) * len(function.body.args)
    for k, (a, about) in enumerate(zip(function.body.args, facts, strict=True)):
        symbol = dict(about).get("symbol")
        if symbol:
            found[symbol] = (k, None)
        elif isinstance(a.type, TensorType):
            for d, n in enumerate(a.type.shape):
                if isinstance(n, Expr) and isinstance(n.atom, Sym):
                    found.setdefault(n.atom.name, (k, d))
    used = {name for x in function.walk() for v in (*x.operands, *x.results) for name in _names(v)}
    missing = used - found.keys()
    if missing:
        raise LaunchError(
            f"the size {sorted(missing)[0]} follows from no argument of the graph",
            help="give an int64 argument for it, with the fact `symbol`",
        )
    return found


def _is_wide(function: FuncOp) -> bool:
    """Whether a tensor of a known size needs offsets of 64 bits, or a nest of loops counts so far."""
    made = [r for op in function.body for r in op.results]
    types = [v.type for v in (*function.body.args, *made) if isinstance(v.type, TensorType)]
    sizes = [(storage_size(t), t.elem.storage_bytes) for t in types]
    far = any(isinstance(n, int) and n // width >= WIDE for n, width in sizes)
    return far or any(_steps(op) >= WIDE for op in function.body)


def _steps(op: Op) -> int:
    """How often what is innermost in a nest runs, as far as sizes are known."""
    inner = [_steps(x) for region in op.regions for x in region]
    known = [n for n in getattr(op, "extents", ()) if isinstance(n, int)]
    return prod(known) * max(inner, default=1)


def _names(v: Value) -> frozenset[str]:
    if not isinstance(v.type, TensorType):
        return frozenset()
    sizes = (*v.type.shape, *(v.type.strides or ()))
    return frozenset[str]().union(*(n.syms for n in sizes if isinstance(n, Expr)))


def compile_graph(
    module: Module | FuncOp,
    host: Host,
    target: GPUTarget | None = None,
    machine: Machine | None = None,
    wrapper: str = "native",
    contract: bool = True,
) -> Executable:
    """Compile the one function of a graph module for the tensors of `host`; `target`: by default this machine's CPU.
    `machine`: what tilings are chosen for, if not for the target. `wrapper`: "python" launches each kernel by a line of
    Python, for people to read and change; "native" all of them that follow each other at once. `contract`: whether
    a * b + c may be rounded once."""
    function = module if isinstance(module, FuncOp) else next(iter(module.body))
    assert isinstance(function, FuncOp)
    target = target or GPUTarget("cpu", "native", 1)
    machine = machine or machine_of(target)
    saved = module.attrs.get(FREE, ()) if isinstance(module, Module) else ()
    plan = Planner(function, machine, _is_wide(function), saved).run()
    kernels = Kernels(target, contract)
    kernels.build(plan)
    on_cpu = target.backend == "cpu"
    settle(plan, kernels.forbidden(), LARGE if on_cpu else inf, page=1 if on_cpu else PAGE)
    return Executable(function, plan, kernels, host, wrapper)
