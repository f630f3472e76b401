"""Finds functions of torch that do the same as operations of its graphs, and read their arguments faster.

torch.ops.aten.convolution.default (x, w, b, [1, 1], …)           reads arguments by the operation's schema
torch._C._VariableFunctions.convolution (x, w, b, [1, 1], …)      by a parser that is made for it

Of a convolution of small images that is about half of the call.
"""

# pyright: basic
# torch gives most of its values no type.
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

_C: Any = torch._C  # whose stubs lack most of it
HOMES = [
    getattr(_C, name, None) for name in ("_VariableFunctions", "_nn", "_linalg", "_fft", "_special")
]


def quick(target: Callable[..., Any]) -> Callable[..., Any]:
    """A function that does the same as an operation, or the operation itself where torch has none, or where the same
    arguments may mean another overload there."""
    if not isinstance(target, torch._ops.OpOverload) or target.namespace != "aten":
        return target
    arguments = target._schema.arguments
    tensors = any(isinstance(a.type, torch.TensorType) for a in arguments)  # others make tensors
    if not tensors or target._overloadname != "default" or _may_mean_another(target):
        return target
    name = target._schema.name.removeprefix("aten::")
    found = (getattr(home, name, None) for home in HOMES)
    return next((f for f in found if callable(f)), target)


def _may_mean_another(target: Any) -> bool:
    """Whether another overload needs no argument that this one has not."""
    known = {a.name for a in target._schema.arguments}
    packet = target.overloadpacket
    others = (getattr(packet, name)._schema for name in packet.overloads() if name != "default")
    return any(
        all(a.name in known for a in other.arguments if not a.has_default_value())
        for other in others
    )
