"""Plans graphs of CPU tensors as those of a GPU: which kernels and externs a step would launch there."""

# pyright: basic, reportMissingImports=false
from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch

from tessera.backends.compiler import GPUTarget
from tessera.graph.calls.executable import machine_of
from tessera.graph.passes import cost
from tessera.graph.passes.layouts import FREE
from tessera.graph.planning.plan import Launch, Plan
from tessera.graph.planning.planner import Planner
from tessera.graph.planning.settle import settle
from tessera.graph.torch import backend
from tessera.graph.torch.eager import run_by_eager
from tessera.graph.torch.lowering import matmul
from tessera.graph.torch.records import recording

GPU = machine_of(GPUTarget("cuda", 90, 32))


@dataclass
class Planned:
    """What stands in place of an executable: a plan, whose kernels nobody compiled."""

    plan: Plan


@dataclass
class Steps:
    """What the graphs of a step launch: `own` by the names of kernels, `externs` by those of operations."""

    own: list[str]
    externs: list[str]

    @property
    def count(self) -> int:
        return len(self.own) + len(self.externs)


def _planned(module: Any, host: Any, target: Any, **options: Any) -> Planned:
    function = next(iter(module.functions))
    plan = Planner(function, GPU, saved=module.attrs.get(FREE, ())).run()
    settle(plan, {})
    return Planned(plan)


def moved(x: Any) -> Any:
    """What the rule for products asks of an operand, as if it was on a GPU."""
    return SimpleNamespace(shape=x.shape, elem=x.elem, strides=x.strides, device="cuda:0")


@contextmanager
def as_on_a_gpu(products: bool = True) -> Generator[None]:
    """Let the backend plan graphs of CPU tensors as for a GPU, while eager computes them. `products`: whether products
    of half types are kernels by the rule of GPUs; else all are externs."""
    profitable = matmul.profitable

    def on_gpus(low: Any, a: Any, b: Any) -> bool:
        return products and profitable(low, moved(a), moved(b))

    with ExitStack() as stack:
        for place, name, function in (
            (cost, "machine_of", lambda device: cost.GPU),
            (matmul, "_machine", lambda device: GPU),
            (matmul, "profitable", on_gpus),
            (backend, "compile_executable", _planned),
            (backend, "Arguments", SimpleNamespace(of=lambda graph: graph)),
            (backend, "CompiledGraph", lambda imported, run, graph, by_eager: graph),
            (backend, "watched", lambda record: record.run),
            (backend, "boxed", run_by_eager),
        ):
            stack.enter_context(mock.patch.object(place, name, function))
        yield


def launched(step: Callable[[], object]) -> Steps:
    """What the graphs that `step` compiles would launch on a GPU."""
    torch._dynamo.reset()
    with as_on_a_gpu(), recording() as records:
        step()
    found = Steps([], [])
    for record in records:
        for x in record.run.plan.steps if record.run is not None else ():
            if isinstance(x, Launch):
                found.own.append(x.code.name.rpartition("_")[0])
            else:
                found.externs.append(str(getattr(x.op, "target", x.op.opcode)))
    return found
