"""Knows which tensors that a forward graph saves the backward graph may write to, once it has read them.

torch says which saved tensors nobody else has: they share memory with no input and no output of the program. Two of
them may share memory with each other, though, and whether they do is a matter of our plan: it lets a tensor and a view
of it be two results. So a forward graph notes the names of outputs that are alone in their memory; the placeholders of
the backward graph have the same names.
"""

# pyright: basic
# torch gives most of its values no type.
from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from torch._guards import TracingContext

from tessera.graph.planning.plan import FOREIGN, OUTPUT, PAGED


class Donations:
    """What the forward and the backward graph of one captured program share."""

    def __init__(self) -> None:
        self.alone: set[str] = set()

    def note(self, graph: torch.fx.GraphModule, outputs: list[Any], run: Any) -> None:
        """Note a forward graph, which `run` computes. `outputs`: the number of the result that each of the graph's
        outputs is; others are no tensors."""
        plan = getattr(run, "plan", None)
        if plan is None:
            return
        (node,) = graph.graph.find_nodes(op="output")
        pairs = zip(node.args[0], outputs, strict=True)
        homes = [(x, plan.memory(plan.results[o])) for x, o in pairs if isinstance(o, int)]
        count = Counter(home for _, home in homes)
        self.alone = {
            x.name
            for x, home in homes
            if count[home] == 1 and plan.place.get(home) in (OUTPUT, FOREIGN, PAGED)
        }

    def given(self, graph: torch.fx.GraphModule) -> set[str]:
        """The names of a backward graph's placeholders whose memory it may write to."""
        context = TracingContext.try_get()
        facts = None if context is None else context.fw_metadata
        numbers = getattr(facts, "bw_donated_idxs", None) or ()
        nodes = list(graph.graph.find_nodes(op="placeholder"))
        return {nodes[k].name for k in numbers} & self.alone
