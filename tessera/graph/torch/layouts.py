"""Agrees with torch on the strides of what a forward graph saves for the backward graph, which are ours to choose."""

# pyright: basic
# torch gives most of its values no type.
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch._functorch._aot_autograd.schemas import OutputType
from torch._guards import TracingContext
from torch.fx import Node

from tessera.graph.index import Expr
from tessera.graph.ir.build import GraphBuilder
from tessera.graph.ir.types import TensorType
from tessera.graph.passes.convolutions import lies_so
from tessera.graph.passes.layouts import FREE, copied
from tessera.graph.torch.host import reinterpret
from tessera.graph.torch.lowering.base import Tensor, whole
from tessera.graph.torch.types import sizes_of
from tessera.ir import Module, Value


def first_saved(purpose: str) -> int | None:
    """The number of the first output of a forward graph that is saved; None where torch does not say, or is not told
    other strides: with tensors of subclasses, of which each is several, and with tokens of effects."""
    context = TracingContext.try_get()
    facts: Any = None if context is None else context.fw_metadata
    if purpose != "forward" or facts is None or context.output_strides is None:  # type: ignore[union-attr]
        return None
    given = (*facts.subclass_inp_meta, *facts.subclass_fw_graph_out_meta)
    several = any(hasattr(x, "flat_tensor_start_idx") and hasattr(x, "arg_count") for x in given)
    return None if several or facts.tokens else facts.num_forward


def offsets_of(purpose: str, outputs: Sequence[object]) -> dict[int, int | Expr]:
    """By the number of an output, where in the storage it begins as torch traced it: of outputs that are views of
    inputs, and that torch does not make by its views once more, as their sizes are symbols. It makes them of the inputs
    by shape, strides and this number of the tensors that we give, which lie elsewhere."""
    context = TracingContext.try_get()
    facts = None if context is None else context.fw_metadata
    if purpose == "backward" or facts is None:
        return {}
    found: dict[int, int | Expr] = {}
    for k, info in enumerate(facts.output_info, facts.num_mutated_inp_runtime_indices):
        node = outputs[k] if k < len(outputs) else None
        fake = node.meta.get("val") if isinstance(node, Node) else None
        views = getattr(info, "view_meta_sequence", None)
        again = views is not None and not any(v.has_symbolic_inputs for v in views.sequence)
        if (
            info.output_type is OutputType.alias_of_input
            and isinstance(fake, torch.Tensor)
            and not again
        ):
            (found[k],) = sizes_of([fake.storage_offset()])
    return found


def beginning_at(x: torch.Tensor, offset: int) -> torch.Tensor:
    """The tensor as if it began there in its storage, which may end before: only to be asked for its layout."""
    return (
        x
        if reinterpret is None
        else reinterpret(x, x.shape, x.stride(), offset - x.storage_offset())
    )


def report_strides(module: Module, outputs: Sequence[Any]) -> None:
    """Tell torch the strides of what is saved. `outputs`: the number of the result that each of torch's outputs is; an
    expression, which may be equal to such a number, where it is a size."""
    context = TracingContext.try_get()
    free = module.attrs.get(FREE)
    if free is None or context is None or context.output_strides is None:
        return
    types = module.functions[0].attrs["returns"]
    context.output_strides[:] = [
        tuple(types[o].all_strides)
        if isinstance(o, int)
        and o in free
        and all(isinstance(n, int) for n in types[o].all_strides)
        else None
        for o in outputs
    ]


def given_strides(purpose: str, inputs: Sequence[Any]) -> list[torch.Tensor | None]:
    """For each argument of a backward graph the tensor that says in which strides it comes: those of saved tensors may
    not be those that torch traced."""
    if purpose != "backward":
        return [None] * len(inputs)
    return [x if isinstance(x, torch.Tensor) else None for x in inputs]


class Restrided:
    """Arguments in other strides than torch traced: `copies` of them in the traced ones, for those who are told these,
    once somebody needs one."""

    def __init__(self, g: GraphBuilder) -> None:
        self.g = g
        self.copies: dict[Value, Value | None] = {}

    def argument(self, value: Value, traced: TensorType) -> Tensor:
        """What stands for an argument in torch's graph."""
        if not lies_so(value.type, traced.all_strides):
            self.copies[value] = None
        return replace(whole(value), strides=traced.all_strides)

    def as_traced(self, x: Tensor) -> Value | None:
        """The argument that a tensor is, in the strides that torch traced; None for other tensors."""
        whole_argument = x.map.is_identity and x.shape == x.value.type.shape
        if x.value not in self.copies or not whole_argument:
            return None
        if self.copies[x.value] is None:
            t = TensorType(x.shape, x.elem, x.strides, x.device)
            self.copies[x.value] = copied(x.value, t, self.g.b)
        return self.copies[x.value]
