"""Finds what masks of attention hold if nothing of a program's arguments is in them, and lets attention do without.

    m = arange(256) <= arange(256)[:, None]                   known when the graph is compiled: it is causal
    y = scaled_dot_product_attention(q, k, v, m)          →   y = scaled_dot_product_attention(q, k, v, is_causal=True)

Models build such masks of whole numbers, in many steps that depend on batch and heads by form only. In eager they often
leave them out; where they are traced they do not, since what a mask holds is not known there. It is done before torch
chooses who computes attention: some kernels take no mask, or not every mask.
"""

# pyright: basic
# torch gives most of its values no type.
from __future__ import annotations

from typing import Any

import torch
from torch.fx import Graph, Node
from torch.fx.node import map_arg
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from tessera.ir.applications import apply

ATTENTION = torch.nn.functional.scaled_dot_product_attention
PARAMETERS = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
MOST_BYTES = 1 << 27  # of a tensor that is computed when a graph is compiled
NOWHERE = -1e30  # what is below that counts as minus infinity: no score makes up for it
WRITES = ("setitem", "iadd", "isub", "imul", "iand", "ior", "ixor", "itruediv", "ifloordiv")


def drop_known_masks(module: torch.fx.GraphModule) -> None:
    """Let attention of a graph of Dynamo's say that it is causal, or without a mask, where its mask says just that."""
    graph = module.graph
    kinds: dict[tuple[Node, int, int], str | None] = {}
    for node in graph.find_nodes(op="call_function", target=ATTENTION):
        given = {**dict(zip(PARAMETERS, node.args, strict=False)), **node.kwargs}
        mask, causal = given.get("attn_mask"), given.get("is_causal", False)
        rows, columns = (_count(given[x]) for x in ("query", "key"))
        if not isinstance(mask, Node) or causal is not False or rows is None or columns is None:
            continue
        key = mask, rows, columns
        if key not in kinds:
            kinds[key] = kind_of_node(mask, rows, columns)
        if kinds[key] is None or not apply("graph-drop-masks", what="mask"):
            continue
        given |= {"attn_mask": None, "is_causal": kinds[key] == "causal"}
        node.args, node.kwargs = (), given
    _erase(graph, [mask for mask, _, _ in kinds])
    module.recompile()


def _count(x: Any) -> int | None:
    """The number of queries or keys, if it is known."""
    value = x.meta.get("example_value") if isinstance(x, Node) else None
    count = value.shape[-2] if isinstance(value, torch.Tensor) and value.dim() > 1 else None
    return count if type(count) is int else None


def kind_of_node(mask: Node, rows: int, columns: int) -> str | None:
    """What a mask says, see `kind_of`; None if that depends on arguments, is random, or too large."""
    order = _made_of(mask)
    if order is None or _is_written(order):
        return None
    try:
        with _disable_current_modes(), torch.no_grad(), OnCPU():
            return kind_of(_value(order), rows, columns)
    except (NotKnownError, RuntimeError, TypeError, ValueError, IndexError):
        return None


def _made_of(mask: Node) -> list[Node] | None:
    """What computes a node, in order; None if arguments are in it."""
    needed, order = {mask}, list[Node]()
    for x in reversed(mask.graph.nodes):
        if x in needed:
            if x.op not in ("call_function", "call_method"):
                return None
            order.append(x)
            needed.update(x.all_input_nodes)
    return order[::-1]


def _is_written(order: list[Node]) -> bool:
    """Whether something may write to what computes a mask, or to views of it."""
    reached = set(order)
    todo = list(order)
    while todo:
        for user in todo.pop().users:
            if user in reached:
                continue
            if user.target is not ATTENTION:
                reached.add(user)
                todo.append(user)
    return any(_writes(x) for x in reached)


def _writes(node: Node) -> bool:
    """Whether a node changes a tensor, by its name: `x.add_(y)`, `x[0] = y`, `x += y`; not `operator.and_`."""
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "_")
    if getattr(node.target, "__module__", None) == "_operator":
        return name in WRITES
    return "out" in node.kwargs or (name.endswith("_") and not name.endswith("__"))


def _value(order: list[Node]) -> torch.Tensor:
    """Compute nodes on the CPU; give the last one's value. What is not needed any more goes."""
    last = {x: y for y in order for x in (*y.all_input_nodes, y)}
    env: dict[Node, Any] = {}
    for node in order:
        args, keywords = map_arg((node.args, node.kwargs), env.__getitem__)
        if node.op == "call_method":
            env[node] = getattr(args[0], str(node.target))(*args[1:], **keywords)
        else:
            env[node] = node.target(*args, **keywords)  # type: ignore[operator]
        if node is not order[-1]:
            env = {x: v for x, v in env.items() if last[x] is not node or x is node}
    return env[order[-1]]


class NotKnownError(Exception):
    """An operation does more than to give the same each time, or what it gives is large."""


class OnCPU(TorchDispatchMode):
    """Runs operations that are functions, for CPU tensors."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        random = torch.Tag.nondeterministic_seeded in func.tags
        unset = "empty" in func._schema.name  # what is in such a tensor is nobody's to say
        if random or unset or func._schema.is_mutable:
            raise NotKnownError(str(func))
        kwargs = dict(kwargs or {})
        if kwargs.get("device") is not None:
            kwargs |= {"device": torch.device("cpu")}
        out = func(*args, **kwargs)
        if isinstance(out, torch.Tensor) and out.untyped_storage().nbytes() > MOST_BYTES:
            raise NotKnownError(str(func))
        return out


def kind_of(mask: torch.Tensor, rows: int, columns: int) -> str | None:
    """ "none" for a mask that hides nothing, "causal" for one that hides from each query the keys behind it; None for
    others. `rows`, `columns`: the number of queries and of keys."""
    for d, step in enumerate(mask.stride()):
        if step == 0 and d < mask.dim() - 2:
            mask = mask.narrow(d, 0, 1)
    seen = mask if mask.dtype == torch.bool else mask == 0
    if seen.all():
        return "none"
    causal = torch.ones(rows, columns, dtype=torch.bool).tril()
    if rows != columns or mask.shape[-2:] != causal.shape or not (seen == causal).all():
        return None
    hidden = mask.dtype == torch.bool or bool((mask < NOWHERE).logical_or(causal).all())
    return "causal" if hidden else None


def _erase(graph: Graph, nodes: list[Node]) -> None:
    """Remove what nobody uses any more."""
    todo = dict.fromkeys(nodes)
    while todo:
        x, _ = todo.popitem()
        if not x.users and x.op in ("call_function", "call_method") and not _writes(x):
            todo |= dict.fromkeys(x.all_input_nodes)
            graph.erase_node(x)
