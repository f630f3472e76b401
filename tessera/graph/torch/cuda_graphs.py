"""Records compiled graphs as CUDA graphs, by torch's own trees of CUDA graphs: what mode="reduce-overhead" asks for.

torch's trees record a graph the second time that it runs, keep its memory in a pool of its own, copy what it is given
to where it was recorded, and know which results are still in use. A call of ours can be recorded: it launches on the
current stream and takes all memory from torch's allocator. What cannot be recorded runs as it would without.
"""

# pyright: basic
# torch gives most of its values no type.
from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

import torch

from tessera.graph.planning.plan import Interpret

Compiled = Callable[[list[Any]], Sequence[Any]]
of_torch: Any = import_module("torch._dynamo.backends.cudagraphs")  # none of it is public


def why_not(graph: torch.fx.GraphModule, run: Any, fixed: int) -> str | None:
    """Why a graph cannot be recorded; None if it can."""
    plan = getattr(run, "plan", None)
    if plan is None or any(isinstance(step, Interpret) for step in plan.steps):
        return "a part of it runs on the host"
    return of_torch.check_for_skip(graph, fixed)


class CudaGraphs:
    """What the forward and the backward graph of one captured program share. `arguments`: of the program."""

    def __init__(self, arguments: int) -> None:
        self.arguments = arguments
        self.device: int | None = None  # of a forward graph that is recorded

    def wrap(
        self, call: Compiled, graph: torch.fx.GraphModule, inputs: Sequence[Any], run: Any, purpose: str
    ) -> Compiled:  # fmt: skip
        """The call recorded at its second run and replayed from then on, where that can be. `run`: its executable."""
        backward = purpose == "backward"
        if backward and self.device is None:
            return call  # as its forward graph
        fixed = (
            of_torch.count_tangents(graph)
            if backward
            else of_torch.num_fw_fixed_arguments(self.arguments, len(inputs))
        )
        if why_not(graph, run, fixed) is not None:
            return self._in_backward(call) if backward else call
        if not backward:
            self.device = of_torch.get_device_index(graph)
        recorded: Any = _trees().cudagraphify_impl(
            call, inputs, range(fixed), device_index=of_torch.get_device_index(graph), is_backward=backward,
            is_inference=purpose == "inference", stack_traces=of_torch.get_stack_traces(graph),
            placeholders=of_torch.get_placeholder_info(graph.graph),
            mutated_input_idxs=of_torch.find_input_mutations(graph.graph),
        )  # fmt: skip
        recorded._boxed_call = True
        return recorded

    def _in_backward(self, call: Compiled) -> Compiled:
        """A backward graph that is not recorded tells the trees that it runs, since they free the forward's memory."""

        def run(inputs: list[Any]) -> Sequence[Any]:
            manager = _trees().get_manager(self.device, create_if_none_exists=False)
            if manager is not None:
                manager.set_to_running_backward()
            return call(inputs)

        run._boxed_call = True  # type: ignore[attr-defined]
        return run


def _trees() -> Any:
    """torch's trees of CUDA graphs; to import them costs time."""
    return import_module("torch._inductor.cudagraph_trees")
