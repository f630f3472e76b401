"""Tells which nodes of graphs of torch are views, and which a graph gives to its caller."""

# pyright: basic
# torch gives most of its values no type.
from __future__ import annotations

import operator

import torch

Node = torch.fx.Node
VIEWS = (  # beside those whose schemas say so
    torch.ops.aten.reshape.default,
    torch.ops.aten._unsafe_view.default,
)


def is_view(node: Node) -> bool:
    """Whether a node may give memory that it is given."""
    if node.target is operator.getitem:
        return is_view(node.args[0])  # type: ignore[arg-type]
    schema = getattr(node.target, "_schema", None)
    aliases = schema is not None and any(r.alias_info is not None for r in schema.returns)
    return aliases or node.target in VIEWS


def is_result(node: Node) -> bool:
    """Whether a graph gives a tensor, or a view of it, to its caller."""
    return any(u.op == "output" or (is_view(u) and is_result(u)) for u in node.users)
