"""Runs a graph of ATen operations by torch's own kernels: for graphs that hold what the IR has no values for."""

# pyright: basic
# torch gives most of its values no type.
from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import sympy
import torch


class SymbolValues:
    """Finds what symbolic sizes are in a call: from arguments that are numbers, and from sizes of tensors.

    `placeholders`: the fake value of each argument."""

    def __init__(self, placeholders: Sequence[Any]) -> None:
        self.sources: dict[str, tuple[int, int | None, int]] = {}
        for k, value in enumerate(placeholders):
            if isinstance(value, torch.SymInt):
                self._found(value, k, None)
            elif isinstance(value, torch.Tensor):
                for d, n in enumerate(value.shape):
                    if isinstance(n, torch.SymInt):
                        self._found(n, k, d)

    def _found(self, value: torch.SymInt, argument: int, dimension: int | None) -> None:
        """A symbol, or a multiple of one, says what the symbol is."""
        factor, symbol = value.node.expr.as_coeff_Mul()
        if isinstance(symbol, sympy.Symbol):
            self.sources.setdefault(str(symbol), (argument, dimension, int(factor)))

    def of_call(self, inputs: Sequence[Any]) -> dict[str, int]:
        """The symbols' values by name."""
        found: dict[str, int] = {}
        for name, (argument, dimension, factor) in self.sources.items():
            given = inputs[argument]
            n = given if dimension is None else given.shape[dimension]
            found[name] = n if is_ragged(n) else int(n) // factor
        return found


def is_ragged(n: Any) -> bool:
    """Whether a size is that of rows of unequal length, of a jagged tensor: a graph hands it on, and computes nothing
    with it."""
    return isinstance(n, torch.SymInt) and n.node.is_nested_int()


def _evaluated(value: Any, values: dict[str, int]) -> int:
    """A size or stride, which may be symbolic, for one call."""
    if not isinstance(value, torch.SymInt):
        return int(value)
    of = {s: values[str(s)] for s in value.node.expr.free_symbols}
    return int(value.node.expr.xreplace(of))


def _with_strides(found: Any, wanted: Any, values: dict[str, int]) -> Any:
    """`found`, or a copy of it with the strides of the fake tensor `wanted`."""
    if not isinstance(wanted, torch.Tensor) or not isinstance(found, torch.Tensor):
        return found
    if wanted.layout != torch.strided or found.layout != torch.strided:
        return found
    try:
        strides = tuple(_evaluated(s, values) for s in wanted.stride())
    except KeyError:  # a size that depends on the data
        return found
    if tuple(found.stride()) == strides:
        return found
    copied = torch.empty_strided(found.shape, strides, dtype=found.dtype, device=found.device)
    return copied.copy_(found)


def run_by_eager(graph: torch.fx.GraphModule) -> Callable[[list[Any]], Sequence[Any]]:
    """A function that runs every operation by eager's kernel. Results have the strides that autograd was told."""
    placeholders = [n.meta.get("val") for n in graph.graph.find_nodes(op="placeholder")]
    (output,) = graph.graph.find_nodes(op="output")
    wanted = [n.meta.get("val") if isinstance(n, torch.fx.Node) else n for n in output.args[0]]
    symbols = SymbolValues(placeholders)

    def run(inputs: list[Any]) -> list[Any]:
        values = symbols.of_call(inputs)
        given = list(inputs)
        inputs.clear()
        found = graph(*given)
        return [_with_strides(f, w, values) for f, w in zip(found, wanted, strict=True)]

    run._boxed_call = True  # type: ignore[attr-defined]
    return run
