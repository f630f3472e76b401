"""Lets what is random in checkpointed parts of a model be the same in the forward and in the backward graph.

Checkpointing asks for the forward's operations once more in the backward graph. For random ones torch saves the state
of a generator, and runs them with it again: by operations that hold whole operations, and arguments that are
generators. Here what is random is saved in its place: of a dropout the mask alone, which its gradient needs in any
case."""

# pyright: basic
# torch gives most of its values no type.
from __future__ import annotations

import operator
from typing import Any

import torch
from torch.fx import Graph, Node
from torch.utils.checkpoint import CheckpointPolicy

aten = torch.ops.aten
RECOMPUTED = (CheckpointPolicy.MUST_RECOMPUTE, CheckpointPolicy.PREFER_RECOMPUTE)


class Again:
    """An operation that counts as random for torch, and is not as it is called: it may run twice."""

    def __init__(self, run: Any) -> None:
        self.run, self.__name__ = run, str(run)

    def __call__(self, *args: Any, **keywords: Any) -> Any:
        return self.run(*args, **keywords)


def keep_random(joint: Graph) -> None:
    """Mark what a partition of a joint graph has to save. `as_called` is for the graphs that come of it."""
    for node in list(joint.nodes):
        if node.meta.get("recompute") in RECOMPUTED and _may_be_random(node.target):
            if _drops_nothing(node):
                node.target = Again(node.target)
            else:
                _save(joint, node)


def as_called(part: Graph) -> None:
    """Let a graph call what it called before `keep_random`."""
    for node in part.nodes:
        if isinstance(node.target, Again):
            node.target = node.target.run


def _may_be_random(target: Any) -> bool:
    return torch.Tag.nondeterministic_seeded in getattr(target, "tags", ())


def _drops_nothing(node: Node) -> bool:
    """Whether it is attention, or a dropout, with a probability of 0."""
    schema = node.target._schema.arguments  # type: ignore[union-attr]
    for k, argument in enumerate(schema):
        if argument.name in ("dropout_p", "p"):
            given = node.args[k] if k < len(node.args) else node.kwargs.get(argument.name)
            given = argument.default_value if given is None else given
            return bool(given == 0) and "bernoulli" not in str(node.target)
    return False


def _save(graph: Graph, node: Node) -> None:
    """Keep what a random operation gives for the backward graph."""
    node.meta["recompute"] = CheckpointPolicy.MUST_SAVE
    if node.target is aten.native_dropout.default:
        _by_mask(graph, node)
    for result in node.users:
        if result.target is operator.getitem:
            result.meta["recompute"] = CheckpointPolicy.MUST_SAVE


def _by_mask(graph: Graph, node: Node) -> None:
    """Let the result of a dropout be computed of its mask: so it may be computed again."""
    x, p, train = node.args[:3]
    results = [u for u in node.users if u.args[1] == 0]
    if not results or not isinstance(x, Node) or not isinstance(p, (float, int)):
        return
    of_result = {**results[0].meta, "recompute": CheckpointPolicy.MUST_RECOMPUTE}
    with graph.inserting_after(node):
        mask = graph.call_function(operator.getitem, (node, 1))
    mask.meta = {**of_result, "val": node.meta["val"][1]}
    with graph.inserting_after(mask):
        kept = graph.call_function(aten.mul.Tensor, (x, mask))
    with graph.inserting_after(kept):
        scale = 1.0 if train is False else 0.0 if p == 1 else 1 / (1 - p)
        made = graph.call_function(aten.mul.Tensor, (kept, scale))
    kept.meta, made.meta = dict(of_result), dict(of_result)
    for user in list(node.users):
        if user is not mask:
            user.replace_all_uses_with(made if user in results else mask)
            graph.erase_node(user)
