"""Finds heads of keys and values that a program copied for each of the heads of queries that read them.

    k: (b, 2, n, d)  →  expand (b, 2, 4, n, d), clone, view (b, 8, n, d)  →  attention(q: (b, 8, m, d), …)

The kernel of attention reads the two heads where they are, and the copies are not made.
"""

# pyright: basic
# torch gives most of its values no type.
from __future__ import annotations

from torch.fx import Node

from tessera.graph.index import Ranges, dim
from tessera.graph.ir.ops import LoadOp, LoopOp, yielded
from tessera.graph.torch.lowering.base import Tensor
from tessera.graph.torch.lowering.matmul import VIEWS, packet
from tessera.ir.applications import apply


def shared_heads(k: Tensor, v: Tensor, nodes: tuple[Node, Node]) -> tuple[Tensor, Tensor]:
    """Keys and values with a head for each group of equal ones. `nodes`: what they are in torch's graph."""
    heads = k.shape[1]
    if not isinstance(heads, int):
        return k, v
    pairs = zip((k, v), nodes, strict=True)
    found = [_source(x) if _is_read_once(node) else x for x, node in pairs]
    for groups in range(1, heads // 2 + 1):
        if heads % groups == 0:
            few = [_of_groups(x, groups) for x in found]
            if few[0] is not None and few[1] is not None:
                done = apply("graph-share-heads", what="attention")
                return (few[0], few[1]) if done else (k, v)
    return k, v


def _is_read_once(node: Node) -> bool:
    """Whether a copy, or a view of one, has no other reader: for one that is made in any case, what it was made of
    would be kept as well."""
    while len(node.users) == 1 and packet(node) in VIEWS and isinstance(node.args[0], Node):
        node = node.args[0]
    return len(node.users) == 1 and packet(node) == "clone"


def _source(x: Tensor) -> Tensor:
    """What a copy was made of, as a view; other tensors as they are."""
    loop = x.value.op
    if not isinstance(loop, LoopOp):
        return x
    load = yielded(loop.body)[x.value.index].op
    args = list(loop.body.args)
    if not isinstance(load, LoadOp) or load.mask is not None or load.parent is not loop.body:
        return x
    if any(i not in args for i in load.indices):
        return x
    map = load.map.at([dim(args.index(i)) for i in load.indices], len(args))
    return Tensor(load.tensor, map.compose(x.map), x.shape)


def _of_groups(x: Tensor, groups: int) -> Tensor | None:
    """One head of each group, if those of each are the same elements."""
    batch, heads, n, deep = x.shape
    assert isinstance(heads, int)
    shape = batch, groups, heads // groups, n, deep
    head = dim(1) * (heads // groups) + dim(2)
    map = x.map.at([dim(0), head, dim(3), dim(4)], 5).simplify(Ranges.of_extents(shape))
    if any(2 in r.dims for r in map.results):
        return None
    few = map.at([dim(0), dim(1), 0, dim(2), dim(3)], 4)
    return Tensor(x.value, few, (batch, groups, n, deep))
