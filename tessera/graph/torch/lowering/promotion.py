"""Says in which types eager computes element-wise operations: torch's promotion, and what it does to numbers."""

# pyright: basic
# torch gives most of its values no type.
from __future__ import annotations

from typing import Any

import torch
from torch._prims_common import ELEMENTWISE_TYPE_PROMOTION_KIND as Kind
from torch._prims_common import elementwise_dtypes
from torch._subclasses.fake_tensor import unset_fake_temporarily

from tessera.dtypes import dtype
from tessera.graph.index import Expr
from tessera.graph.torch.lowering.base import Float, Tensor
from tessera.graph.torch.types import element_of, torch_type


def computed_in(kind: Kind, taking_part: list[Any]) -> dtype:
    """The type that eager computes in: half types in fp32, integers for which there is no function in fp32."""
    examples = [_example(x) for x in taking_part]
    return element_of(elementwise_dtypes(*examples, type_promotion_kind=kind)[0])


def common_type(kind: Kind, taking_part: list[Any]) -> dtype:
    """The type that eager converts operands to, before it computes with them in the type of `computed_in`."""
    examples = [_example(x) for x in taking_part]
    kind = Kind.DEFAULT if kind == Kind.ALWAYS_BOOL else kind
    return element_of(elementwise_dtypes(*examples, type_promotion_kind=kind)[1])


def _example(x: Any) -> Any:
    """What torch's rules for types need to know of an operand."""
    if isinstance(x, Tensor):
        shape = [1] * x.rank
        return torch.empty(shape, dtype=torch_type(x.elem), device="meta")
    return 1 if isinstance(x, Expr) else 1.0 if isinstance(x, Float) else x


def rounds(common: dtype, inside: dtype) -> bool:
    """Whether an operand may lose digits on its way to what eager computes with."""
    return common.is_floating() and common.bits < inside.bits


def rounded_number(x: float, elem: dtype) -> float:
    """A number as one of a narrower type; beyond its range infinite."""
    with unset_fake_temporarily():
        return torch.tensor(float(x), dtype=torch.float32, device="cpu").to(torch_type(elem)).item()
