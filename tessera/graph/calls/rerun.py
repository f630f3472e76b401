"""Runs the kernels of a dumped graph (dump.py) with random arguments: compares each with its meaning, and times it."""

from __future__ import annotations

import importlib.util
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tessera.backends.compiler import GPUTarget
from tessera.compiler import ASTSource, CompiledKernel, IRSource
from tessera.errors import LaunchError
from tessera.graph.calls.host import NumpyHost
from tessera.graph.index import Sym, parse_expr
from tessera.graph.ir.interp import bind_symbols, function_of, interpret
from tessera.graph.ir.ops import ExternOp, ScatterOp, WriteOp
from tessera.graph.ir.types import ForeignType, TensorType
from tessera.graph.planning.plan import number
from tessera.interp.numerics import carrier, from_storage, to_storage
from tessera.ir import Value, parse_module
from tessera.ops import FuncOp, ReturnOp
from tessera.runtime.jit import compile as compile_kernel

CALLS = 20
CPU = GPUTarget("cpu", "native", 1)
# How far a kernel may be from its meaning, as a part of the largest element: sums are added up in other orders.
TOLERANCE = {"fp64": 1e-9, "fp32": 1e-3, "fp16": 1e-2, "bf16": 5e-2}


class KernelMismatch(LaunchError):
    """A kernel computes something else than the graph says."""


@dataclass(frozen=True)
class Kernel:
    """A launch: `arguments` are names of values and of sizes; `programs` is an expression of sizes."""

    name: str
    arguments: list[str]
    written: list[int]
    programs: str
    warps: int


def random_arguments(function: FuncOp, size: int, seed: int = 0) -> list[Any]:
    """Arguments for a graph whose symbols are all `size`, as values: numbers around 0, indices that are 0, sizes."""
    draw = np.random.default_rng(seed)
    sizes = {Sym(name): size for name in _symbols(function)}
    return [
        _random(draw, a.type, sizes) if isinstance(a.type, TensorType) else size
        for a in function.body.args
    ]


def _random(draw: np.random.Generator, t: TensorType, sizes: Mapping[Sym, int]) -> Any:
    shape = tuple(number(n, sizes) for n in t.shape)
    if isinstance(t.elem, ForeignType) or not t.elem.is_floating():
        return np.zeros(shape, np.int64 if isinstance(t.elem, ForeignType) else carrier(t.elem))
    values = draw.standard_normal(shape).astype(carrier(t.elem))
    return from_storage(np.asarray(to_storage(values, t.elem)), t.elem)


def _symbols(function: FuncOp) -> set[str]:
    tensors = [a.type for a in function.body.args if isinstance(a.type, TensorType)]
    return {name for t in tensors for n in t.shape if not isinstance(n, int) for name in n.syms}


def all_values(function: FuncOp, arguments: Sequence[Any]) -> dict[Value, Any]:
    """What every value of a graph is, by the meaning of its ops. Results of externs, which are functions of other
    libraries, are random numbers."""
    whole = function.clone(mapping := {})
    made = [r for op in function.body for r in op.results]
    whole.body.last.erase()  # type: ignore[union-attr]
    whole.body.append(ReturnOp([mapping[v] for v in made]))
    draw = np.random.default_rng(1)

    def extern(op: ExternOp, arrays: list[Any], symbols: Mapping[str, int]) -> list[Any]:
        sizes = {Sym(name): n for name, n in symbols.items()}
        return [_random(draw, r.type, sizes) for r in op.results]

    found = interpret(whole, [np.copy(x) for x in arguments], extern)
    return {
        **dict(zip(function.body.args, arguments, strict=True)),
        **dict(zip(made, found, strict=True)),
    }


def load_kernel(folder: Path, k: Kernel) -> CompiledKernel:
    """Compile a kernel from its source; from its tile IR where that has none."""
    path = folder / "kernels" / f"{k.name}.py"
    options = {"num_warps": k.warps, "any_extent": True}
    spec = importlib.util.spec_from_file_location(k.name, path)
    assert spec is not None and spec.loader is not None
    room = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(room)
    fn = getattr(room, k.name, None)
    if fn is None:
        return compile_kernel(IRSource(str(path.with_suffix(".tir"))), CPU, options)
    signature = {p.name: p.annotation_type for p in fn.params}
    aligned = {(p.num,): [["tt.divisibility", 16]] for p in fn.params if "*" in p.annotation_type}
    return compile_kernel(ASTSource(fn, signature, attrs=aligned), CPU, options)


class Folder:
    """A dumped graph with random arguments, and what each of its values is."""

    def __init__(self, folder: Path, size: int):
        self.folder = folder
        self.function = function_of(
            parse_module((folder / "graph.gph").read_text(encoding="utf-8"))
        )
        arguments = random_arguments(self.function, size)
        self.values = all_values(self.function, arguments)
        self.symbols = bind_symbols(self.function, arguments)
        self.sizes = {Sym(name): n for name, n in self.symbols.items()}
        self.named = {v.name: v for v in self.values}
        self.host = NumpyHost()

    def array(self, v: Value, values: Any) -> Any:
        """Values as they lie in the memory of a tensor."""
        t: TensorType = v.type
        shape, strides = (
            tuple(number(n, self.sizes) for n in ns) for ns in (t.shape, t.all_strides)
        )
        made = self.host.strided(shape, strides, self.host.kind(t.elem))
        self.host.fill(made, np.asarray(to_storage(values, t.elem)), t.elem)
        return made

    def before(self, v: Value) -> Any:
        """What a tensor holds before a kernel writes it: nothing, or the base of a scatter."""
        if isinstance(v.op, ScatterOp):
            return self.values[v.op.base]
        t: TensorType = v.type
        return np.zeros([number(n, self.sizes) for n in t.shape], carrier(t.elem))

    def after(self, k: Kernel, v: Value) -> Any:
        """What a kernel leaves in a tensor; a kernel of one array read copies that."""
        for op in self.function.body:
            if isinstance(op, WriteOp) and op.target is v:
                return self.values[op.value]
        copies = k.name.startswith("graph_copy")
        return self.values[v.op.base] if copies and isinstance(v.op, ScatterOp) else self.values[v]

    def run(self, k: Kernel) -> tuple[float, float]:
        """(seconds of a launch, how far its results are from their meaning as a part of what is allowed)."""
        compiled = load_kernel(self.folder, k)
        given: list[Any] = []
        for i, name in enumerate(k.arguments):
            v = self.named.get(name)
            if v is None or not isinstance(v.type, TensorType):
                given.append(self.symbols[name] if v is None else self.values[v])
            else:
                given.append(self.array(v, self.before(v) if i in k.written else self.values[v]))
        programs = int(parse_expr(k.programs).evaluate(self.sizes))
        launch = compiled[(programs, 1, 1)]
        launch(*given)
        worst = max(
            (self.distance(self.named[k.arguments[i]], given[i], k) for i in k.written), default=0.0
        )
        times: list[float] = []
        for _ in range(CALLS):
            start = time.perf_counter()
            launch(*given)
            times.append(time.perf_counter() - start)
        return statistics.median(times), worst

    def distance(self, v: Value, array: Any, k: Kernel) -> float:
        elem = v.type.elem
        got = np.asarray(from_storage(np.asarray(array), elem), np.float64)
        want = np.broadcast_to(np.asarray(self.after(k, v), np.float64), got.shape)
        same = (got == want) | (np.isnan(got) & np.isnan(want))
        if same.all():
            return 0.0
        finite = np.isfinite(want)
        if not np.isfinite(got[finite]).all() or not same[~finite].all():
            return float("inf")
        largest = max(1e-6, float(np.abs(want[finite]).max()))
        allowed = TOLERANCE.get(elem.short, 0.3 if elem.is_floating() else 0.0)
        off = float(np.abs(got - want)[finite].max()) / largest
        return off / allowed if allowed else float("inf")


def run_folder(
    script: str | Path,
    size: int = 16,
    show: Callable[[str], None] = print,
    kernels: Sequence[Kernel] = (),
) -> float:
    """Run, check and time the kernels of a folder on the CPU; the seconds of all launches of a call, one after the
    other. KernelMismatch names the kernels that do not compute what the graph says."""
    folder = Folder(Path(script).parent, size)
    total, wrong = 0.0, list[str]()
    for k in kernels:
        seconds, off = folder.run(k)
        total += seconds
        right = "right" if off <= 1 else "WRONG"
        show(f"{seconds * 1e6:10.1f} us  {right}  {k.name}({', '.join(k.arguments)})")
        wrong += [k.name] if off > 1 else []
    show(f"{len(kernels)} launches, {total * 1e6:.1f} us; symbols are {size}")
    if wrong:
        names = ", ".join(dict.fromkeys(wrong))
        raise KernelMismatch(
            f"not what the graph says: {names}", help=f"{folder.folder}/graph.gph is its meaning"
        )
    return total
