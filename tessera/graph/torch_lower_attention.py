"""Lowers fused attention to a kernel of ours: on CPUs, whose operation eager has a kernel for, too."""

# pyright: basic
# torch gives most of its values no type.
from __future__ import annotations

from tessera.graph.index import dim
from tessera.graph.torch_lower import Lowering, Tensor, broadcast, placed, rule, whole
from tessera.graph.torch_lower_matmul import TYPES, accumulator, value_of
from tessera.graph.torch_lower_view import view
from tessera.graph.torch_types import NotLowered


@rule("_scaled_dot_product_flash_attention_for_cpu")
def attention(
    low: Lowering,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    dropout: float = 0.0,
    causal: bool = False,
    *,
    attn_mask: Tensor | None = None,
    scale: float | None = None,
) -> list[Tensor]:
    if low.products == "extern":
        raise NotLowered("the options say so")
    deep = q.shape[3]
    if (
        dropout
        or q.elem not in TYPES
        or not isinstance(deep, int)
        or not isinstance(v.shape[3], int)
    ):
        raise NotLowered("attention with dropout, or of a type or dimension that is not known")
    if k.shape[2] == 0 or q.shape[0] != k.shape[0] or k.shape[:3] != v.shape[:3]:
        raise NotLowered("attention of sizes that are not known to fit")
    heads, groups = q.shape[1], k.shape[1]
    if heads != groups and not (isinstance(heads, int) and isinstance(groups, int)):
        raise NotLowered("an unknown number of heads")
    bias = None if attn_mask is None else value_of(low, _four(attn_mask, q, k))
    results = low.g.attention(
        value_of(low, q), value_of(low, k), value_of(low, v),
        deep**-0.5 if scale is None else scale, bias, causal, accumulator(q.elem),
    )  # fmt: skip
    return [whole(placed(x, o)) for x, o in zip(results, low.out, strict=True)]


def _four(mask: Tensor, q: Tensor, k: Tensor) -> Tensor:
    """A mask with dimensions for batch and heads, and those of queries and keys in full."""
    shape = [*[1] * (4 - mask.rank), *mask.shape[:-2], q.shape[2], k.shape[2]]
    return view(mask, broadcast(mask, [dim(d) for d in range(4)]), shape)
