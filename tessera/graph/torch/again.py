"""Lets what is made of a few numbers be computed again for the gradients, rather than be saved.

    bias = where(k <= q and seen[n, k], 0, -inf)      an element of `seen` for a token, one of `bias` for a pair
    rows = embedding(weight, arange(n))               rows of an argument, which the caller holds

torch's partitioner saves rows of tables, and what the backward graph hands to a call of the library, since to compute
it again is a kernel of its own there. That kernel writes a bias once; saved, it is held from the forward pass of its
layer to the end of the backward pass.
"""

# pyright: basic
# torch gives most of its values no type.
from __future__ import annotations

from math import prod
from typing import Any

import torch
from torch.utils.checkpoint import CheckpointPolicy

from tessera.graph.torch.nodes import is_result, is_view
from tessera.ir.applications import apply

Node = torch.fx.Node
EMBEDDING, AGAIN = torch.ops.aten.embedding.default, CheckpointPolicy.MUST_RECOMPUTE
BIASES = ("attn_bias", "attn_mask")  # as the gradients of attention call them
PART = 4  # of a bias: what it is made of takes at most one of so many parts of its bytes
MOST_OPS = 64  # of those that a bias is made by: a mask of several conditions takes about 30


def compute_biases_again(graph: torch.fx.Graph) -> None:
    """Mark, in a joint graph, what biases of attention and rows of tables are made by for being computed again."""
    chosen: list[Node] = []
    for node in graph.nodes:
        if (bias := bias_of_gradient(node)) is not None:
            if (made := _made_by(bias)) and apply("graph-recompute-biases", what="attention"):
                chosen += made
        elif _picks_rows(node) and (made := _made_by(node.args[1])):
            chosen += [node, *made] if apply("graph-recompute-rows", what="rows") else []
    for x in chosen:
        x.meta["recompute"] = AGAIN


def _picks_rows(node: Node) -> bool:
    """Whether a node looks up rows of an argument, which nobody is given, or has said something of."""
    plain = node.target is EMBEDDING and not is_result(node) and "recompute" not in node.meta
    return plain and node.all_input_nodes[0].op == "placeholder"


def bias_of_gradient(node: Node) -> Node | None:
    """The bias that the gradients of attention are computed with; None for other operations."""
    schema = getattr(node.target, "_schema", None)
    name = "" if schema is None else schema.name
    if not (name.startswith("aten::_scaled_dot_product") and name.endswith("_backward")):
        return None
    assert schema is not None
    for k, argument in enumerate(schema.arguments):
        if argument.name in BIASES:
            found = node.args[k] if k < len(node.args) else node.kwargs.get(argument.name)
            return found if isinstance(found, Node) else None
    return None


def _made_by(bias: Node) -> list[Node] | None:
    """The operations on arguments and numbers that a bias is made by; None if these are many, or if the arguments take
    much memory, or if it matters when they run, or if the caller holds the bias or something as large anyway."""
    found: dict[Node, None] = {}
    given: dict[Node, None] = {}
    todo = [bias]
    while todo:
        node = todo.pop()
        if node in found or node in given:
            continue
        if node.op == "placeholder":
            given[node] = None
            continue
        if not _is_cheap(node) or len(found) == MOST_OPS:
            return None
        if is_result(node) and not _is_part(_bytes(node), _bytes(bias)):
            return None
        found[node] = None
        todo += node.all_input_nodes
    sizes = [_bytes(x) for x in given]
    known = [n for n in sizes if n is not None]
    few = len(known) == len(sizes) and _is_part(sum(known), _bytes(bias))
    return list(found) if few else None


def _is_part(size: int | None, whole: int | None) -> bool:
    """Whether bytes are few beside others."""
    return size is not None and whole is not None and PART * size <= whole


def _is_cheap(node: Node) -> bool:
    """Whether a node gives the same whenever it runs, by an operation on single elements, a view, or numbers alone, and
    nobody has said that it is saved."""
    target: Any = node.target
    if node.meta.get("recompute") is not None or _bytes(node) is None:
        return False
    tags, schema = getattr(target, "tags", ()), getattr(target, "_schema", None)
    if schema is None or schema.is_mutable or torch.Tag.nondeterministic_seeded in tags:
        return False
    return is_view(node) or torch.Tag.pointwise in tags or schema.name in PLAIN


# Operations without the tag of those on single elements that move elements, or make numbers.
PLAIN = frozenset(
    f"aten::{name}"
    for name in (
        "_to_copy", "arange", "cat", "clone", "constant_pad_nd", "full", "full_like",
        "index", "iota", "ones", "ones_like", "repeat", "scalar_tensor", "tril", "triu", "where", "zeros",
        "zeros_like",
    )
) | {"prims::iota"}  # fmt: skip


def _bytes(node: Node) -> int | None:
    """The bytes of a tensor; None where its sizes are not known."""
    x = node.meta.get("val")
    if not isinstance(x, torch.Tensor) or not all(isinstance(n, int) for n in x.shape):
        return None
    steps = zip(x.shape, x.stride(), strict=True)
    return prod(n for n, step in steps if step) * x.element_size()
