"""Decides what a forward graph saves for the backward graph: torch's partitioner does, once the joint graph of both
shows it what is the same, and what is enough to save.

    y = softmax(x); z = clone(y)      y and z are both saved             →   z is y
    y, k = max_pool(x)                x and k, of int64, are saved       →   of k the place in its window, of int8
"""

# pyright: basic
# torch gives most of its values no type.
from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from math import prod
from typing import Any

import torch
from functorch.compile import min_cut_rematerialization_partition
from torch.utils.checkpoint import CheckpointPolicy

from tessera.graph.torch.again import compute_biases_again
from tessera.graph.torch.checkpoints import as_called, keep_random
from tessera.graph.torch.nodes import is_result, is_view
from tessera.ir.applications import apply

aten = torch.ops.aten
SAME = (
    aten.clone.default,
    aten.alias.default,
    aten.detach.default,
)  # what gives the elements it is given
# What finds the greatest or the least of elements, and what gives each of them its own again.
EXTREMA = (
    aten.amax.default, aten.amin.default, aten.max.default, aten.min.default, aten.scatter_reduce.two,
    aten.index_reduce.default, aten.linalg_vector_norm.default,
)  # fmt: skip
PICKS = (aten.gather.default, aten.index_select.default, aten.index.Tensor, aten.clone.default)
Node = torch.fx.Node


def partition(joint: torch.fx.GraphModule, inputs: Any, **options: Any) -> Any:
    """The forward and the backward graph of a joint one."""
    keep_before_writes(joint.graph)
    keep_compared(joint.graph)
    drop_copies(joint.graph)
    narrow_places(joint.graph)
    keep_random(joint.graph)
    compute_biases_again(joint.graph)
    joint.recompile()
    parts = min_cut_rematerialization_partition(joint, inputs, **options)
    for part in parts:
        as_called(part.graph)
        part.recompile()
    return parts


def keep_before_writes(graph: torch.fx.Graph) -> None:
    """Save what is made of an argument that the forward graph writes to: the backward graph would compute it again of
    what the argument holds by then."""
    for node in graph.find_nodes(op="call_function", target=aten.copy_.default):
        if node.args[0].op == "placeholder":
            for reader in _readers(node.args[0]):
                reader.meta["recompute"] = CheckpointPolicy.MUST_SAVE


def _readers(node: Node) -> Iterator[Node]:
    """What reads a tensor or a view of it."""
    for user in node.users:
        if is_view(user):
            yield from _readers(user)
        elif user.op == "call_function" and user.target is not aten.copy_.default:
            yield user


def keep_compared(graph: torch.fx.Graph) -> None:
    """Save what is compared with the greatest or least of itself, as gradients of those do: computed again, in another
    kernel, it may be another number by a rounding, the greatest of which is then nowhere to be found."""
    for node in graph.find_nodes(op="call_function", target=aten.eq.Tensor):
        roots = [_root(a) for a in node.args if isinstance(a, Node)]
        found = [r for r in roots if r.target in EXTREMA]
        for extremum in found:
            sources = [_root(a) for a in extremum.args if isinstance(a, Node)]
            if any(r in sources for r in roots):
                for x in (extremum, *roots):
                    if x.op == "call_function":
                        x.meta["recompute"] = CheckpointPolicy.MUST_SAVE


def _root(node: Node) -> Node:
    """What a node is a view of, or picks elements from."""
    while node.op == "call_function" and (is_view(node) or node.target in PICKS):
        node = node.args[0]  # type: ignore[assignment]
    return node


# --- copies -----------------------------------------------------------------------------------------------------------
def drop_copies(graph: torch.fx.Graph) -> None:
    """Let those who read a copy read what it is a copy of, as of a dropout that drops nothing. Results of the graph are
    memory of their own, and nobody may write to what a caller gave."""
    for node in list(graph.nodes):
        if node.op != "call_function" or node.target not in SAME:
            continue
        source = node.args[0]
        if _layout(node) != _layout(source) or is_result(node) or _is_given(source):
            continue
        if apply("graph-drop-copies", what="copy"):
            node.replace_all_uses_with(source)
            graph.erase_node(node)


def _layout(node: Any) -> Any:
    x = node.meta.get("val") if isinstance(node, Node) else None
    return (x.dtype, x.device, x.shape, x.stride()) if isinstance(x, torch.Tensor) else None


def _is_given(node: Node) -> bool:
    while is_view(node) or node.target in SAME:
        node = node.args[0]  # type: ignore[assignment]
    return node.op == "placeholder"


# --- maxima of windows ------------------------------------------------------------------------------------------------
def narrow_places(graph: torch.fx.Graph) -> None:
    """Let the gradient of max pooling need but the place of each maximum in its window, and no element of what is
    pooled: it reads these for their shape alone."""
    backward = aten.max_pool2d_with_indices_backward.default
    for node in graph.find_nodes(op="call_function", target=backward):
        grad, x, *window, places = node.args
        pooled = places.args[0] if places.target is operator.getitem else None
        if pooled is None or pooled.target is not aten.max_pool2d_with_indices.default:
            continue
        if not _are_numbers(x, places) or not apply("graph-narrow-places", what="max pooling"):
            continue
        kernel, step, pad, spread = (
            _pair(w) for w in (window[0], window[1] or window[0], *window[2:4])
        )
        if prod(kernel) > torch.iinfo(torch.int8).max:
            continue
        with graph.inserting_before(places.next):
            found = Windows(Writer(graph, places), x, places, kernel, step, pad, spread).again()
        with graph.inserting_before(node):
            given = x.meta["val"]
            like = Writer(graph, node).call(
                aten.empty_strided.default, list(given.shape), list(given.stride()), dtype=given.dtype,
                device=given.device,
            )  # fmt: skip
        node.args = (grad, like, *window, found)


def _are_numbers(*nodes: Any) -> bool:
    values = [n.meta.get("val") for n in nodes]
    return all(
        isinstance(v, torch.Tensor) and all(isinstance(n, int) for n in (*v.shape, *v.stride()))
        for v in values
    )


def _pair(value: Any) -> tuple[int, int]:
    found = [value] if isinstance(value, int) else list(value)
    return (found[0], found[-1])


class Writer:
    """Writes calls behind each other, from a node on, and says what tracing would of their results."""

    def __init__(self, graph: torch.fx.Graph, at: Node):
        self.graph, self.mode = graph, at.meta["val"].fake_mode
        self.meta = {k: v for k, v in at.meta.items() if k not in ("val", "tensor_meta")}

    def call(self, target: Callable[..., Any], *args: Any, **keywords: Any) -> Node:
        node = self.graph.call_function(target, args, keywords)
        values = [a.meta["val"] if isinstance(a, Node) else a for a in args]
        with self.mode:
            node.meta = {**self.meta, "val": target(*values, **keywords)}
        return node


class Windows:
    """The places of maxima, in elements of what is pooled, and in those of windows."""

    def __init__(self, write: Writer, x: Node, places: Node, *window: tuple[int, int]):
        self.write, self.places = write, places
        self.kernel, self.step, self.pad, self.spread = window
        self.columns = x.meta["val"].shape[-1]
        self.shape, self.device = places.meta["val"].shape[-2:], places.meta["val"].device

    def _first(self, k: int) -> Node:
        """Where each window begins, along dimension k of two."""
        call = self.write.call
        found = call(aten.arange.start_step, 0, self.shape[k], 1, device=self.device)
        found = call(aten.sub.Tensor, call(aten.mul.Tensor, found, self.step[k]), self.pad[k])
        return call(aten.unsqueeze.default, found, 1) if k == 0 else found

    def _parts(self, x: Node, by: int) -> Iterator[Node]:
        """The quotient and the rest of whole numbers that are not negative."""
        yield self.write.call(aten.div.Tensor_mode, x, by, rounding_mode="floor")
        yield self.write.call(aten.remainder.Scalar, x, by)

    def again(self) -> Node:
        """The places, computed from those in windows."""
        call = self.write.call
        inside = [
            call(aten.div.Tensor_mode, call(aten.sub.Tensor, at, self._first(k)), self.spread[k], rounding_mode="floor")
            for k, at in enumerate(self._parts(self.places, self.columns))
        ]  # fmt: skip
        whole = call(aten.add.Tensor, call(aten.mul.Tensor, inside[0], self.kernel[1]), inside[1])
        small = call(aten._to_copy.default, whole, dtype=torch.int8)
        wide = call(aten._to_copy.default, small, dtype=torch.int64)
        row, column = (
            call(aten.add.Tensor, call(aten.mul.Tensor, part, self.spread[k]), self._first(k))
            for k, part in enumerate(self._parts(wide, self.kernel[1]))
        )
        return call(aten.add.Tensor, call(aten.mul.Tensor, row, self.columns), column)
