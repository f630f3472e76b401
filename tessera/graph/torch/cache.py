"""Lets torch keep compiled graphs on disk: another process that captures the same graph need not trace it again.

torch keeps what AOTAutograd makes under a key of the captured graph, its inputs and torch's settings, beside what the
backend compiled: here the graph's text behind the passes, from which plan and call are made anew; kernels come from
our own disk cache. What of ours decides (sources, knobs, options) is an attribute of the captured graph, which torch
hashes as well, and is compared once more when an entry is read.

Graphs with gradients are compiled in two parts, the second one in the first backward pass. torch keeps them where the
program says `torch._functorch.config.bundled_autograd_cache = True` for all of its run.
"""

# pyright: basic
# torch gives most of its values no type.
from __future__ import annotations

import pickle
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
from torch._functorch import config
from torch._functorch._aot_autograd.autograd_cache import BypassAOTAutogradCache
from torch._inductor.output_code import OutputCode

from tessera.config import knobs
from tessera.graph.torch.options import Options
from tessera.graph.torch.records import listened
from tessera.graph.torch.types import Places
from tessera.runtime.cache.disk import key_of, toolchain_fingerprint

SINCE = (2, 13)  # older torches have other classes for this
MARK = "_tessera_key"  # the attribute of a captured graph
Run = Callable[[list[Any]], Sequence[Any]]
# Our part of the key of what is compiled now, and what makes a call of what was kept.
_now: ContextVar[tuple[str, Callable[[KeptState], Run]] | None] = ContextVar("now", default=None)


@dataclass(frozen=True)
class KeptState:
    """What a graph's call is made of again. `targets`: names of the operations that run as externs; `tensors`: the
    numbers of the `given` inputs that are tensors; `outputs`: for each output the number of a result, or None."""

    key: str
    text: str
    options: Options
    targets: dict[str, tuple[str, str]]
    objects: dict[str, Any]
    places: Places
    device: str
    tensors: list[int]
    given: int
    outputs: list[int | None]


class KeptGraph(OutputCode):
    """A compiled graph in torch's terms. `state`: None where it cannot be kept, and `why`."""

    def __init__(self, state: KeptState | None, run: Run | None, why: str = "") -> None:
        super().__init__()
        self._boxed_call = True  # of the object: wrappers take over what it holds
        self.state, self.run, self.why = state, run, why

    def __call__(self, inputs: Any) -> Any:
        assert self.run is not None
        return self.run(inputs)

    def prepare_for_serialization(self) -> None:
        """Called on a copy, which is pickled."""
        if self.state is None:
            raise BypassAOTAutogradCache(self.why)
        self.run = None

    def post_compile(self, example_inputs: Any, constants: Any, graph_kwargs: Any) -> None:
        """Called on what was read. An error is a miss to torch."""
        if self.run is None:
            now = _now.get()
            if self.state is None or now is None or self.state.key != now[0]:
                raise BypassAOTAutogradCache("another tessera made it")
            self.run = now[1](self.state)

    def set_triton_bundle(self, triton_bundle: Any) -> None:
        """There is none."""


def state_of(
    graph: torch.fx.GraphModule, imported: Any, options: Options, text: str, key: str
) -> KeptState:
    """What is kept of a graph. Raises `ValueError` with the reason if it cannot be."""
    if graph.graph.find_nodes(op="get_attr"):
        raise ValueError("the graph has constants or other graphs, which torch's key does not tell")
    if imported.symbols or imported.numbers or imported.sizes or imported.offsets:
        raise ValueError("its sizes are not known")
    if not all(o is None or isinstance(o, int) for o in imported.outputs):
        raise ValueError("an output is a size")
    for name, target in imported.targets.items():
        if not isinstance(target, torch._ops.OpOverload):
            raise ValueError(f"{name} is no operation of torch's")
    names = {n: (t._schema.name, t._overloadname) for n, t in imported.targets.items()}
    values = [n.meta.get("val") for n in graph.graph.find_nodes(op="placeholder")]
    if any(isinstance(v, torch.SymInt) for v in values):
        raise ValueError("its sizes are not known")
    tensors = [k for k, v in enumerate(values) if isinstance(v, torch.Tensor)]
    state = KeptState(
        key, text, options, names, imported.objects, imported.places, imported.device, tensors,
        len(values), imported.outputs,
    )  # fmt: skip
    try:
        pickle.dumps(state)
    except Exception as error:
        raise ValueError(str(error)) from None
    return state


def operation(name: str, overload: str) -> Any:
    """An operation of torch's by the name of its schema, such as aten::mm, and its overload's."""
    space, _, short = name.partition("::")
    return getattr(getattr(getattr(torch.ops, space), short), overload or "default")


# --- when -----------------------------------------------------------------------------------------------------------
@contextmanager
def keeping(
    graph: torch.fx.GraphModule,
    inputs: Sequence[Any],
    options: Options,
    revive: Callable[[KeptState], Run],
) -> Generator[str]:
    """A region in which torch looks for a captured graph in its cache and saves it there; gives our part of the key,
    or nothing where it does not look. `revive` makes a call of what was kept."""
    if not _wanted(inputs, options):
        yield ""
        return
    parts = (toolchain_fingerprint(), repr(knobs.cache_key_values()), repr(options))
    key = key_of("graph", *parts)
    setattr(graph, MARK, key)
    token = _now.set((key, revive))
    try:
        with config.patch(bundled_autograd_cache=True):
            yield key
    finally:
        _now.reset(token)


def _wanted(inputs: Sequence[Any], options: Options) -> bool:
    """Whether a graph is worth a look: nobody listens to or looks into its compilation."""
    if tuple(map(int, torch.__version__.split(".")[:2])) < SINCE:
        return False
    plain = options.kernels == "compiled" and options.dump is None and not options.cuda_graphs
    by_rules = options.matmul != "timed"
    watched = knobs.compilation.opt_limit is not None or knobs.compilation.always_compile
    trained = torch.is_grad_enabled() and any(
        isinstance(x, torch.Tensor) and x.requires_grad for x in inputs
    )
    kept = config.bundled_autograd_cache or not trained
    return plain and by_rules and kept and not watched and not listened()


def compiler(compile_: Callable[..., Run]) -> Any:
    """A compiler of graphs whose results torch may keep."""
    from torch._functorch._aot_autograd.schemas import SerializableAOTDispatchCompiler

    def compiled(graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> Run:
        run: Any = compile_(graph, inputs)
        if not hasattr(run, "__wrapped__"):  # where torch looks for what it keeps
            run.__wrapped__ = KeptGraph(None, None, "eager runs it, or a part of it is CUDA's")
        return run

    return SerializableAOTDispatchCompiler(OutputCode, compiled)  # type: ignore[type-var]


def keep(
    run: Any, graph: torch.fx.GraphModule, imported: Any, options: Options, text: str, key: str
) -> None:
    """Note for torch what is to be kept of a graph that `run` computes."""
    try:
        run.__wrapped__ = KeptGraph(state_of(graph, imported, options, text, key), run)
    except ValueError as why:
        run.__wrapped__ = KeptGraph(None, None, str(why))
