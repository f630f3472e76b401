"""Accounts for the memory that a step of a model holds on a GPU, with no GPU: what each compiled graph takes and gives
back, as CUDA's caching allocator counts it.

Eager computes the step on the CPU. For each graph the call that the backend wrote for a GPU then runs once more, on
tensors without elements: kernels do nothing, externs give tensors of the right sizes, and each memory that is taken or
given back is counted in pages. What is held between graphs is what torch's profiler sees. What libraries need while
they run (workspaces of convolutions and attention) is in no account.
"""

# pyright: basic, reportMissingImports=false, reportAttributeAccessIssue=false, reportArgumentType=false
from __future__ import annotations

import re
import sys
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from inductor_code import writing_for_h200
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.multiprocessing.reductions import StorageWeakRef
from torch.profiler import ProfilerActivity, profile, record_function
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

from tessera.graph.planning.memory import Buffer, place

PAGE = 512  # bytes: what the allocator rounds up to
MARK = "graph "


def rounded(n: int) -> int:
    return -(-n // PAGE) * PAGE


# --- one graph --------------------------------------------------------------------------------------------------------
@dataclass
class Held:
    """The most that a call holds beside what was there before it, and what it holds at each change, with what was
    taken: (bytes in all, bytes of this one, by which operation)."""

    most: int = 0
    events: list[tuple[int, int, str]] = field(default_factory=list)


class Ledger(TorchDispatchMode):
    """Counts the memory of tensors that live."""

    def __init__(self, given: Sequence[Any]):
        super().__init__()
        self.live: dict[int, tuple[StorageWeakRef, int]] = {}
        self.add(given)
        self.before = self.now()
        self.held = Held()

    def now(self) -> int:
        self.live = {k: (ref, n) for k, (ref, n) in self.live.items() if not ref.expired()}
        return sum(n for _, n in self.live.values())

    def add(self, tensors: Sequence[Any]) -> int:
        found = 0
        for x in tensors:
            if isinstance(x, torch.Tensor):
                s = x.untyped_storage()
                if s._cdata not in self.live:
                    n = rounded(s.nbytes())
                    self.live[s._cdata] = StorageWeakRef(s), n
                    found += n
        return found

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        self.now()
        new = self.add(tree_flatten(out)[0])
        if new:
            total = self.now() - self.before
            self.held.most = max(self.held.most, total)
            self.held.events.append((total, new, str(func)))
        return out


class Accounts:
    """What stands in place of compiled graphs: eager computes them, and `held` gets what a call of each holds."""

    def __init__(self) -> None:
        self.held: list[Held] = []

    def account(
        self, compute: Callable[..., Any], replay: Callable[[list[Any]], Any]
    ) -> Callable[[list[Any]], Any]:
        def run(inputs: list[Any]) -> Any:
            with record_function(f"{MARK}{len(self.held)}"):
                given = list(inputs)
                inputs.clear()
                out = compute(list(given))
                layouts = [layout(x) for x in given]
                refs = [
                    StorageWeakRef(x.untyped_storage()) if isinstance(x, torch.Tensor) else None
                    for x in given
                ]
                given.clear()
                ours = [ref is not None and ref.expired() for ref in refs]
                self.held.append(replayed(replay, layouts, ours))
            return out

        run._boxed_call = True  # type: ignore[attr-defined]
        return run


def layout(x: Any) -> Any:
    if not isinstance(x, torch.Tensor):
        return x
    s = x.untyped_storage()
    return s._cdata, s.nbytes(), x.shape, x.stride(), x.storage_offset(), x.dtype


def replayed(
    replay: Callable[[list[Any]], Any], layouts: Sequence[Any], ours: Sequence[bool]
) -> Held:
    """Run a call on tensors without elements. `ours`: which of them nobody else holds."""
    with FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad():
        bases: dict[int, Any] = {}
        inputs: list[Any] = []
        kept: list[Any] = []
        for x, own in zip(layouts, ours, strict=True):
            if isinstance(x, tuple):
                key, n, shape, strides, offset, dtype = x
                base = bases.get(key)
                if base is None:
                    base = bases[key] = torch.empty(n, dtype=torch.uint8)
                n = n // dtype.itemsize * dtype.itemsize
                x = base[:n].view(dtype).as_strided(shape, strides, offset)
                if not own:
                    kept.append(base)
            inputs.append(x)
        bases.clear()
        base = x = None
        with Ledger([*inputs, *kept]) as ledger:
            out = replay(inputs)
            del out
        return ledger.held


# --- a step -----------------------------------------------------------------------------------------------------------
def peak_of(step: Callable[[], Any], accounts: Accounts) -> int:
    """The most that a step holds beside what was there before it."""
    step()
    accounts.held.clear()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as p:
        result = step()
    del result
    assert p.profiler is not None and p.profiler.kineto_results is not None
    events = p.profiler.kineto_results.events()
    marks = {
        int(e.name()[len(MARK) :]): (e.start_ns(), e.start_ns() + e.duration_ns())
        for e in events
        if e.name().startswith(MARK)
    }
    now = most = 0
    memory = sorted((e.start_ns(), e.nbytes()) for e in events if e.name() == "[memory]")
    for k, (start, _) in marks.items():
        before = sum(signed(n) for at, n in memory if at < start)
        most = max(most, before + accounts.held[k].most)
    for at, n in memory:
        now += signed(n)
        if not any(start <= at <= end for start, end in marks.values()):
            most = max(most, now)
    return most


def signed(n: int) -> int:
    return rounded(n) if n > 0 else -rounded(-n)


# --- tessera ----------------------------------------------------------------------------------------------------------
@contextmanager
def tessera_plans() -> Generator[Accounts]:
    """Let the backend write calls for a GPU for graphs of CPU tensors."""
    from tessera.backends.compiler import GPUTarget
    from tessera.graph.calls import executable, source
    from tessera.graph.passes import cost
    from tessera.graph.passes.layouts import FREE
    from tessera.graph.planning.planner import Planner
    from tessera.graph.planning.settle import settle
    from tessera.graph.torch import backend, host
    from tessera.graph.torch.eager import run_by_eager
    from tessera.graph.torch.lowering import matmul
    from tests.graph.gpu_plans import GPU, moved

    accounts = Accounts()
    profitable, boxed, arguments_of = matmul.profitable, backend.boxed, backend.Arguments.of
    last: list[Any] = []

    def compiled(module: Any, host: Any, target: Any, **options: Any) -> Any:
        function = next(iter(module.functions))
        plan = Planner(function, GPU, saved=module.attrs.get(FREE, ())).run()
        settle(plan, {})
        host.strided = lambda shape, strides, kind: torch.empty_strided(shape, strides, dtype=kind)
        kernels = SimpleNamespace(target=GPUTarget("cpu", "native", 1))
        return executable.Executable(function, plan, kernels, host)

    def arguments(graph: Any) -> Any:
        last[:] = [graph]
        return arguments_of(graph)

    def accounted(call: Any) -> Any:
        compute, plan, outputs = run_by_eager(last[0]), call.run.plan, call.imported.outputs
        results = [plan.results[o] if isinstance(o, int) else None for o in outputs]
        homes = [plan.memory(v) if v in plan.saved else None for v in results]

        def paged(given: list[Any]) -> list[Any]:
            found = list(compute(given))
            for page in plan.pages:
                together([found[k] for k, home in enumerate(homes) if home in page])
            return found

        return accounts.account(paged, boxed(call))

    def apart(results: Sequence[Any], tensors: Sequence[Any]) -> list[Any]:
        seen = {x.untyped_storage()._cdata for x in tensors if isinstance(x, torch.Tensor)}
        found = []
        for x in results:
            if x is not None and x.untyped_storage()._cdata in seen:
                x = x.clone()
            found.append(x)
        return found

    with ExitStack() as stack:
        for place, name, function in (
            (cost, "machine_of", lambda device: cost.GPU),
            (matmul, "_machine", lambda device: GPU),
            (matmul, "profitable", lambda low, a, b: profitable(low, moved(a), moved(b))),
            (backend, "compile_executable", compiled),
            (backend.Arguments, "of", staticmethod(arguments)),
            (backend, "boxed", accounted),
            (backend, "watched", lambda record: record.run),
            (source, "write_sequence", lambda w, steps: w.line("pass")),
            (host, "reinterpret", reinterpret),
            (host, "_apart", apart),
            (executable, "LARGE", sys.maxsize),
            (host.TorchHost, "empty", lambda self, size: torch.empty(size, dtype=torch.uint8)),
        ):
            stack.enter_context(mock.patch.object(place, name, function))
        yield accounts


def together(tensors: Sequence[Any]) -> None:
    """Let small tensors lie in one memory, as those of a page do."""
    memory = torch.empty(PAGE, dtype=torch.uint8).untyped_storage()
    sizes = [x.untyped_storage().nbytes() for x in tensors]
    offsets = place([Buffer(0, 0, n) for n in sizes]).offsets
    for x, at in zip(tensors, offsets, strict=True):
        given = x.clone()
        x.set_(memory, at // x.element_size(), x.shape, x.stride()).copy_(given)


def reinterpret(x: Any, shape: Any, strides: Any, offset: int = 0) -> Any:
    return torch.as_strided(x, shape, strides, x.storage_offset() + offset)


# --- Inductor ---------------------------------------------------------------------------------------------------------
class Externs:
    """`extern_kernels` of Inductor's code."""

    def __getattr__(self, name: str) -> Any:
        if name == "bias_addmm":
            return torch.addmm
        return getattr(torch, name)


def inductor_call(code: str, constants: dict[str, Any]) -> Callable[[list[Any]], Any]:
    """The call of Inductor's code, whose kernels do nothing."""
    text = code.partition("async_compile.wait(globals())")[2].partition("def get_args")[0]
    text = text.partition("def benchmark_compiled_module")[0].replace("del async_compile", "")
    text = text.replace(".item()", ".dim()")  # of what kernels take as numbers
    nothing = SimpleNamespace(run=lambda *args, **kwargs: None)
    space: dict[str, Any] = dict.fromkeys(re.findall(r"(\w+)\.run\(", text), nothing)

    def strided(shape: Any, strides: Any, dtype: Any) -> Any:
        return torch.empty_strided(shape, strides, dtype=dtype)

    space |= {
        "torch": torch, "aten": torch.ops.aten, "inductor_ops": torch.ops.inductor, "device": torch.device,
        "extern_kernels": Externs(), "reinterpret_tensor": reinterpret, "empty_strided": torch.empty_strided,
        "empty_strided_cpu": strided, "empty_strided_cuda": strided, "nan": float("nan"), "inf": float("inf"),
        "assert_size_stride": lambda *args: None, "assert_alignment": lambda *args: None,
        "get_raw_stream": lambda *args: 0, "rand_strided": None, **constants,
    }  # fmt: skip
    exec(text, space)
    return space["call"]


@contextmanager
def inductor_plans() -> Generator[Accounts]:
    """Let Inductor write calls for an H200 for graphs of CPU tensors."""
    accounts = Accounts()

    def counted(graph: Any, text: str) -> Any:
        original = graph.orig_gm

        def compute(given: list[Any]) -> Any:
            return original(*given)

        replay = inductor_call(text, dict(graph.constants))
        call = accounts.account(compute, replay)
        call.code = text  # type: ignore[attr-defined]
        accounts.codes = [*getattr(accounts, "codes", []), text]  # type: ignore[attr-defined]
        return call

    with writing_for_h200(counted, cpu_backend="triton", fallback_random=True):
        yield accounts
