"""Compiles what Dynamo captures: sets up AOTAutograd, and compiles the graphs that it makes."""

# pyright: basic
# torch gives most of its values no type.
from __future__ import annotations

import tempfile
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.guards import GuardBuilder, install_guard
from torch._dynamo.source import GlobalStateSource, RandomValueSource
from torch._guards import TracingContext
from torch._subclasses import FakeTensor
from torch.autograd import forward_ad

from tessera.config import knobs
from tessera.errors import LaunchError, NoDeviceError
from tessera.graph.calls.executable import Executable
from tessera.graph.calls.executable import compile_graph as compile_executable
from tessera.graph.index import Expr, Sym, expr
from tessera.graph.passes import optimize
from tessera.graph.torch.cache import KeptState, compiler, keep, keeping, operation
from tessera.graph.torch.cuda_graphs import CudaGraphs
from tessera.graph.torch.decompose import decompositions, repaired
from tessera.graph.torch.donate import Donations
from tessera.graph.torch.eager import SymbolValues, is_ragged, run_by_eager
from tessera.graph.torch.host import TorchHost, current, target_of
from tessera.graph.torch.importing import Imported, import_graph
from tessera.graph.torch.interpret import Interpreted
from tessera.graph.torch.layouts import beginning_at, report_strides
from tessera.graph.torch.masks import drop_known_masks
from tessera.graph.torch.options import Options, options_of
from tessera.graph.torch.partition import partition
from tessera.graph.torch.records import GraphRecord, note, watched
from tessera.graph.torch.types import NotLowered
from tessera.ir import parse_module, print_module, verify

Compiled = Callable[[list[Any]], Sequence[Any]]
PURPOSES = (  # what torch calls a compiler, and of which graphs
    ("inference_compiler", "inference"),
    ("fw_compiler", "forward"),
    ("bw_compiler", "backward"),
)


def backend(
    graph: torch.fx.GraphModule,
    inputs: Sequence[Any],
    *,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Callable[..., Any]:
    """Compile one graph that Dynamo captured: `torch.compile(f, backend="tessera", mode=mode, options=options)`.

    `mode`: a mode of torch.compile. `options`: the fields of `tessera.graph.torch.options.Options`, by name.
    Raises `UnknownOption` and `InvalidOption` for what it does not know, `NoDeviceError` for other devices.
    """
    chosen = options_of(mode, options)
    for x in inputs:
        if isinstance(x, torch.Tensor):
            check_device(x.device)
    ask_for_level()
    if why := unfit(inputs):
        note(GraphRecord("inference", None, [("the whole graph", why)]))
        return graph.forward
    drop_known_masks(graph)
    inputs = as_passed(graph, inputs)
    graphs = CudaGraphs(len(inputs)) if chosen.cuda_graphs else None
    donations = Donations()
    with repaired(), keeping(graph, inputs, chosen, revived) as key:
        compile_as: dict[str, Any] = {
            name: partial(
                compile_graph, options=chosen, purpose=purpose, graphs=graphs, donations=donations, key=key
            )
            for name, purpose in PURPOSES
        }  # fmt: skip
        if key:
            compile_as = {name: compiler(f) for name, f in compile_as.items()}
        return aot_autograd(
            **compile_as,
            decompositions=decompositions(),
            partition_fn=partition,
            keep_inference_input_mutations=True,
        )(graph, inputs)


def unfit(inputs: Sequence[Any]) -> str | None:
    """Why eager runs all of a graph, if it does."""
    if forward_ad._current_level >= 0:
        return "it was traced where forward derivatives are taken, which kernels do not carry on"
    traced = getattr(TracingContext.try_get(), "fake_mode", None)
    if traced and any(isinstance(x, FakeTensor) and x.fake_mode is not traced for x in inputs):
        return "the program calls it with fake tensors, which have no memory"
    return None


def as_passed(graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> list[Any]:
    """The inputs with random floats of Python's in the type of calls, fp64: Dynamo takes them for fp32."""
    nodes = graph.graph.find_nodes(op="placeholder")
    sources = [getattr(n.meta.get("grapharg"), "source", None) for n in nodes]
    random = [isinstance(s, RandomValueSource) for s in sources]
    found = zip(random, inputs, strict=True)
    return [x.double() if r and x.is_floating_point() else x for r, x in found]


def ask_for_level() -> None:
    """Have Dynamo's guards ask whether forward derivatives are taken, as they do by themselves only of programs that
    take some: a kernel would give results without any."""
    if TracingContext.try_get() is not None:
        install_guard(GlobalStateSource().make_guard(GuardBuilder.DUAL_LEVEL))


def check_device(device: torch.device) -> None:
    """Raise `NoDeviceError` for a device that no kernels are made for, or that is not there."""
    if device.type in ("cpu", "meta"):
        return
    if device.type != "cuda":
        raise NoDeviceError(
            f"a tensor is on {device}, which tessera has no back end for",
            help="it compiles for CUDA and CPUs: move the model and its inputs, or take another backend",
        )
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if (device.index or 0) >= count:
        raise NoDeviceError(
            f"a tensor is on {device}, but there is no CUDA device of this number",
            help=f"torch sees {count}: look at CUDA_VISIBLE_DEVICES, the driver and the build of torch",
        )


def compile_graph(
    graph: torch.fx.GraphModule,
    inputs: Sequence[Any],
    *,
    options: Options,
    purpose: str,
    graphs: CudaGraphs | None = None,
    donations: Donations | None = None,
    key: str = "",
) -> Compiled:
    """Compile one functional graph of ATen operations to a function of a list of inputs, which it empties. `key`: our
    part of the key under which torch keeps it, if it does.

    A fault of ours costs speed, not the program: without TESSERA_STRICT=1 a graph that does not compile is compiled
    without fusion, and if that fails, too, run by eager, with a warning and a reproducer."""
    attempts = [options, replace(options, fuse=False)] if options.fuse else [options]
    # What a CUDA graph was recorded with stays where it is.
    known = donations if graphs is None else None
    donated = known.given(graph) if known is not None and purpose == "backward" else set[str]()
    for attempt in attempts:
        try:
            imported = import_graph(graph, attempt, purpose, donated, inputs)
            optimized(imported, attempt)
            text = print_module(imported.module) if key else ""
            run = executable_of(imported, attempt)
        except NotLowered as why:
            note(GraphRecord(purpose, None, [("the whole graph", str(why))]))
            return run_by_eager(graph)
        except Exception as error:
            if knobs.compilation.strict:
                raise
            warn_of(error, as_imported(graph, attempt, purpose, donated), attempt)
        else:
            dump(run, attempt, purpose)
            report_strides(imported.module, imported.outputs)
            record = GraphRecord(purpose, imported, imported.externs, run)
            note(record)
            if known is not None and purpose == "forward":
                known.note(graph, imported.outputs, run)
            arguments = Arguments.of(graph)
            symbolic = imported.sizes or imported.symbols or getattr(run, "symbols", ())
            by_eager = run_by_eager(graph) if symbolic else None
            call = boxed(CompiledGraph(imported, watched(record), arguments, by_eager))
            if key:
                keep(call, graph, imported, attempt, text, key)
            if graphs is None or imported.offsets or not imported.device.startswith("cuda"):
                return call
            return graphs.wrap(call, graph, inputs, run, purpose)
    note(GraphRecord(purpose, None, [("the whole graph", "its compilation failed")]))
    return run_by_eager(graph)


def dump(run: Any, options: Options, purpose: str) -> None:
    """Write a graph to the folder that the options name, beside those that are there; say so if it cannot be done."""
    if options.dump is None or not isinstance(run, Executable):
        return
    place = Path(options.dump)
    try:
        place.mkdir(parents=True, exist_ok=True)
        run.dump(place / f"{len(list(place.iterdir()))}-{purpose}")
    except OSError as error:
        warnings.warn(f"a graph was not written to {place}: {error}", GraphWarning, stacklevel=2)


def warn_of(error: Exception, text: str, options: Options) -> None:
    """Say that a graph did not compile, and where its text is."""
    folder = Path(tempfile.mkdtemp(prefix="tessera-reproducer-"))
    (folder / "graph.gph").write_text(text)
    (folder / "run.py").write_text(
        REPRODUCE.format(path=str(folder / "graph.gph"), fuse=options.fuse)
    )
    then = "it is compiled without fusion" if options.fuse else "eager runs it"
    warnings.warn(
        f"a graph did not compile, {then} ({type(error).__name__}: {str(error)[:200]}); {folder} reproduces it",
        GraphWarning,
        stacklevel=2,
    )


class GraphWarning(UserWarning):
    """A graph did not compile as it should."""


REPRODUCE = """\
import tessera.graph.ir.ops
from tessera.graph.calls.executable import compile_graph
from tessera.graph.calls.host import NumpyHost
from tessera.graph.passes import optimize
from tessera.ir import parse_module, verify

module = parse_module(open({path!r}).read())
if {fuse}:
    optimize(module)
    verify(module)
compile_graph(module, NumpyHost())
"""


def as_imported(
    graph: torch.fx.GraphModule, options: Options, purpose: str, donated: Collection[str]
) -> str:
    """The text of a graph as passes get it, or torch's where it cannot be imported."""
    try:
        return print_module(import_graph(graph, options, purpose, donated).module)
    except Exception:
        return str(graph.graph)


def revived(state: KeptState) -> Compiled:
    """What runs a graph that was kept on disk."""
    targets = {name: operation(*found) for name, found in state.targets.items()}
    imported = Imported(
        parse_module(state.text), targets, state.objects, state.places,
        outputs=list(state.outputs), device=state.device,
    )  # fmt: skip
    run = executable_of(imported, state.options)
    return boxed(
        CompiledGraph(imported, run, Arguments(state.tensors, state.given, SymbolValues([])))
    )


def optimized(imported: Imported, options: Options) -> None:
    """Run the passes on a graph, in place."""
    if options.fuse:
        optimize(imported.module, round_between=options.numerics == "eager")
        verify(imported.module)  # a fault of a pass gives no wrong numbers


def executable_of(imported: Imported, options: Options) -> Callable[[list[Any]], list[Any]]:
    """What runs the graph's IR: takes a list of arguments, gives a list of results."""
    host = TorchHost(imported.targets, imported.objects, imported.device, imported.places)
    if options.kernels == "interpreted":
        return Interpreted(imported.module, host)
    target = target_of(imported.device)
    with current(imported.device):
        return compile_executable(
            imported.module,
            host,
            target,
            wrapper=options.wrapper,
            contract=options.numerics != "eager",
        )


def boxed(compiled: CompiledGraph) -> Compiled:
    """A function, which torch may wrap without losing the mark that it takes a list."""
    direct = compiled.direct()

    def run(inputs: list[Any]) -> Sequence[Any]:
        return compiled(inputs)

    chosen: Any = direct or run
    chosen._boxed_call = True
    return chosen


class Arguments(NamedTuple):
    """What a graph is called with: which of its arguments are tensors, how many there are, where symbols are found."""

    tensors: list[int]
    given: int
    symbols: SymbolValues

    @staticmethod
    def of(graph: torch.fx.GraphModule) -> Arguments:
        values = [n.meta.get("val") for n in graph.graph.find_nodes(op="placeholder")]
        tensors = [k for k, v in enumerate(values) if isinstance(v, torch.Tensor)]
        return Arguments(tensors, len(values), SymbolValues(values))


class CompiledGraph:
    """A graph as AOTAutograd calls it: with the arguments of torch's graph in a list, for its outputs."""

    def __init__(
        self,
        imported: Imported,
        run: Callable[[list[Any]], list[Any]],
        arguments: Arguments,
        by_eager: Compiled | None = None,
    ) -> None:
        self.imported, self.run, self.by_eager = imported, run, by_eager
        self.tensors, self.given, self.symbols = arguments
        self.others = sorted({*range(self.given)} - {*self.tensors}) if by_eager else []
        outputs = any(isinstance(o, Expr) for o in imported.outputs)
        self.sized = bool(imported.symbols or imported.numbers or imported.sizes) or outputs
        self.sized |= bool(imported.offsets)

    def direct(self) -> Compiled | None:
        """The executable's own function, where torch's arguments and outputs are just its arguments and results."""
        call = getattr(self.run, "call", None)
        plain = not (self.sized or self.imported.constants or self.by_eager)
        every = self.tensors == list(range(self.given))
        outputs = self.imported.outputs
        (function,) = self.imported.module.functions
        same = len(function.regions[0].terminator.operands) == len(outputs)
        return call if plain and every and same and outputs == list(range(len(outputs))) else None

    def __call__(self, inputs: list[Any]) -> list[Any]:
        given: list[Any] = [inputs[k] for k in self.tensors]
        values = self.symbols.of_call(inputs) if self.sized else {}
        sizes = {name: size(values) for name, size in self.imported.sizes.items()}
        values |= sizes
        numbers = [n for name in self.imported.symbols if not is_ragged(n := values[name])]
        if self.by_eager and min([*sizes.values(), *numbers], default=1) < 1:
            return list(self.by_eager(inputs))  # rules take symbols for positive
        others = [inputs[k] for k in self.others]
        inputs.clear()
        given += [0 if is_ragged(n := values[name]) else n for name in self.imported.symbols]
        given += self.imported.constants
        given += [number(values) for number in self.imported.numbers]
        try:
            results = self.run(given)
        except LaunchError:
            if self.by_eager is None or not given:  # the call had begun
                raise
            places = [*self.tensors, *self.others]
            kept = dict(zip(places, [*given[: len(self.tensors)], *others], strict=True))
            return list(self.by_eager([kept[k] for k in range(self.given)]))
        env = {Sym(name): n for name, n in values.items()}
        found = [
            results[o] if isinstance(o, int) else None if o is None else o.evaluate(env)
            for o in self.imported.outputs
        ]
        for k, offset in self.imported.offsets.items():
            tensor = found[k]
            assert tensor is not None
            found[k] = beginning_at(tensor, expr(offset).evaluate(env))
        return found
