"""Keeps the tensors of a graph's kernels on one device: what is elsewhere is copied there, or computed by eager."""

# pyright: basic
# torch gives most of its values no type.
from __future__ import annotations

from typing import Any

import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.utils._pytree import tree_leaves

from tessera.graph.index import IndexMap
from tessera.graph.ir.build import GraphBuilder
from tessera.graph.ir.types import Place, TensorType
from tessera.graph.torch.lowering.base import Tensor, whole
from tessera.graph.torch.types import ELEMENTS, MOVE, NotLowered
from tessera.ir import Value


class Devices:
    """The devices of the tensors of a graph whose kernels run on `device`. `moved`: copies on other devices."""

    def __init__(self, g: GraphBuilder, device: str) -> None:
        self.g, self.device = g, device
        self.moved: dict[tuple[Value, str], Value] = {}

    def refuse(self, out: Any, given: Any) -> None:
        """Raise `NotLowered` for results on another device: eager makes those. Numbers on the CPU that are the same in
        each call are made where the kernels run; what needs them elsewhere gets a copy."""
        results = out if isinstance(out, (list, tuple)) else [out]
        away = [x for x in results if isinstance(x, torch.Tensor) and str(x.device) != self.device]
        tensors = [x for x in tree_leaves(given) if isinstance(x, Tensor)]
        constant = all(x.home not in (None, x.device) for x in tensors)
        if away and not (constant and all(x.dim() == 0 and x.device.type == "cpu" for x in away)):
            raise NotLowered("its result is on another device than the graph's kernels")

    def here(self, value: Any) -> Any:
        """An argument of a rule with its tensors on the device; as in eager, a number may come from the CPU."""
        if isinstance(value, (list, tuple)):
            return [self.here(v) for v in value]
        if not isinstance(value, Tensor) or value.device == self.device:
            return value
        if value.rank or value.device != "cpu":
            raise NotLowered("a tensor is on another device than the graph's kernels")
        return whole(self.on(value, self.device))

    def on(self, x: Tensor, device: str) -> Value:
        """The tensor as a value of the IR on a device, in exactly torch's strides."""
        t, found = x.value.type, x.value
        if not x.map.is_identity or x.shape != t.shape:
            t = TensorType(x.shape, t.elem, x.strides, t.device)
            found = self.g.view(found, x.map, t)
        if t.device == device:
            return found
        if (found, device) not in self.moved:
            to = TensorType(t.shape, t.elem, t.strides, device)
            (self.moved[found, device],) = self.g.extern(MOVE, [found], [Place(0), device], [to])
        return self.moved[found, device]

    def is_literal(self, held: torch.Tensor) -> bool:
        """Whether it is a number on the CPU, of a graph on a GPU."""
        away = str(held.device) == "cpu" != self.device
        return away and held.dim() == 0 and held.dtype in ELEMENTS

    def literal(self, held: torch.Tensor) -> Tensor:
        """The number, computed where the kernels run."""
        with unset_fake_temporarily():
            number = held.item()
        value = self.g.loop([], lambda: self.g.const(number, ELEMENTS[held.dtype]))
        return Tensor(value, IndexMap.identity(0), (), (), str(held.device))
