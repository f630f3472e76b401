"""Lowers fused attention and its gradients to kernels of ours: those of CPUs, and gradients on GPUs where asked for."""

# pyright: basic
# torch gives most of its values no type.
from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from tessera.dtypes import dtype, float32
from tessera.graph.emit.attention_grads import waste
from tessera.graph.index import Expr, dim
from tessera.graph.ir.scalars import function, where
from tessera.graph.torch.lowering.base import Lowering, Tensor, broadcast, placed, rule, whole
from tessera.graph.torch.lowering.matmul import TYPES, accumulator, value_of
from tessera.graph.torch.lowering.pointwise import cast
from tessera.graph.torch.lowering.shared_heads import shared_heads
from tessera.graph.torch.lowering.view import coordinates, view
from tessera.graph.torch.types import NotLowered

MOST_WASTE = 1.15  # products that kernels in fp32 compute for each one of eager's


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
    _check(low, q, k, v, dropout)
    _check_sums(q, low.elem_of(low.out[1]))
    bias = None if attn_mask is None else value_of(low, _four(attn_mask, q, k))
    k, v = shared_heads(k, v, low.node.args[1:3])
    results = low.g.attention(
        value_of(low, q), value_of(low, k), value_of(low, v), _scale(q, scale), bias, causal,
        accumulator(q.elem),
    )  # fmt: skip
    return [whole(placed(x, o)) for x, o in zip(results, low.out, strict=True)]


@rule("_scaled_dot_product_flash_attention_for_cpu_backward")
def gradients(
    low: Lowering,
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    logs: Tensor,
    dropout: float,
    causal: bool,
    *,
    attn_mask: Tensor | None = None,
    scale: float | None = None,
) -> list[Tensor]:
    if low.products != "kernel" and not profitable(q, k, causal):
        raise NotLowered("eager's gradients are taken to be as fast")
    return _gradients(low, Forward(q, k, v, attn_mask, out, logs, dropout, causal, scale), grad)


@rule("_scaled_dot_product_flash_attention_backward")
def flash_gradients(
    low: Lowering, grad: Tensor, *given: Any, scale: float | None = None
) -> list[Tensor]:
    """Of queries and keys whose number torch also gives for each sequence of a batch."""
    _check_asked(low)
    q, k, v, out, logs, _, _, _, _, dropout, causal, *_ = given
    if causal and q.shape[2] != k.shape[2]:
        raise NotLowered("a causal mask that ends at the last key")
    return _gradients(low, Forward(q, k, v, None, out, logs, dropout, causal, scale), grad)


@rule("_scaled_dot_product_efficient_attention_backward")
def efficient_gradients(
    low: Lowering, grad: Tensor, *given: Any, scale: float | None = None
) -> list[Tensor | None]:
    _check_asked(low)
    q, k, v, bias, out, logs, _, _, dropout, wanted, *causal = given
    if not all(wanted[:3]):
        raise NotLowered("attention without a gradient of an operand")
    logs = view(logs, coordinates(3), q.shape[:3])  # whose rows are padded
    of = Forward(q, k, v, bias, out, logs, dropout, any(causal), scale)
    of_bias = of_scores(low, of, grad) if wanted[3] and bias is not None else None
    return [*_gradients(low, of, grad), of_bias]


def _check_asked(low: Lowering) -> None:
    if low.products != "kernel":
        raise NotLowered("on GPUs eager's gradients are taken to be as fast")


@dataclass(frozen=True)
class Forward:
    """An attention, and what it gave."""

    q: Tensor
    k: Tensor
    v: Tensor
    bias: Tensor | None
    out: Tensor
    logs: Tensor
    dropout: float
    causal: bool
    scale: float | None


def profitable(q: Tensor, k: Tensor, causal: bool) -> bool:
    """The rule of "auto" (docs/graph-fusion.md) for gradients on CPUs: eager computes what causal masks hide, and takes
    twice as long for fp64, and more for half types. In fp32 the blocks of the kernels must fit the sizes well."""
    if q.elem != float32:
        return True
    m, n, *heads = (q.shape[2], k.shape[2], *k.shape[:2])
    if not (isinstance(m, int) and isinstance(n, int) and all(isinstance(h, int) for h in heads)):
        return False
    return min(m, n) >= 16 and waste(m, n, causal) <= MOST_WASTE


def _gradients(low: Lowering, of: Forward, grad: Tensor) -> list[Tensor]:
    q, k, v = of.q, of.k, of.v
    _check(low, q, k, v, of.dropout)
    _check_sums(q, of.logs.elem)
    bias = None if of.bias is None else value_of(low, _four(of.bias, q, k))
    results = low.g.attention_grads(
        value_of(low, q), value_of(low, k), value_of(low, v), value_of(low, grad),
        value_of(low, of.logs), _deltas(low, of, grad).value, _scale(q, of.scale), bias, of.causal,
    )  # fmt: skip
    return [whole(placed(x, o)) for x, o in zip(results, low.out[:3], strict=True)]


def _deltas(low: Lowering, of: Forward, grad: Tensor) -> Tensor:
    """(grad * attention).sum(-1)."""
    acc = accumulator(of.q.elem)

    def delta(i: list[Expr]) -> Any:
        def term(e: list[Expr]) -> Any:
            return cast(low.load(grad, [*i, *e]), acc) * cast(low.load(of.out, [*i, *e]), acc)

        return low.reduce("sum", [of.v.shape[3]], term)

    return low.inner(of.q.shape[:3], delta)[0]


def of_scores(low: Lowering, of: Forward, grad: Tensor) -> Tensor:
    """The gradient of the scores, which is that of a bias of their shape: two products, and what becomes of them."""
    q, k, v = of.q, of.k, of.v
    assert of.bias is not None
    if q.shape[1] != k.shape[1]:
        raise NotLowered("a gradient of a bias of heads that share keys")
    acc, scale = accumulator(q.elem), _scale(q, of.scale)
    products = [_of_heads(low, a, b, acc) for a, b in ((q, k), (grad, v))]
    deltas, bias = _deltas(low, of, grad), _four(of.bias, q, k)

    def body(i: list[Expr]) -> Any:
        dots, dp = (low.load(x, i) for x in products)
        score = dots * scale + cast(low.load(bias, broadcast(bias, i)), acc)
        if of.causal:
            score = where(low.position(i[3]) <= low.position(i[2]), score, -math.inf)
        logs = low.load(of.logs, i[:3])
        none = logs.eq(-math.inf)  # of a query that sees no key
        weight = function("exp", score - where(none, 0, logs))
        return (weight * (dp - low.load(deltas, i[:3]))).rounded(low.elem_of(low.out[3]))

    return low.loop([*q.shape[:3], k.shape[2]], body, low.out[3])


def _of_heads(low: Lowering, a: Tensor, b: Tensor, acc: dtype) -> Tensor:
    """a @ b.T of each head, in the type that it is added up in."""
    turned = view(b, [dim(0), dim(1), dim(3), dim(2)], [*b.shape[:2], b.shape[3], b.shape[2]])
    return whole(low.g.matmul(value_of(low, a), value_of(low, turned), acc, acc))


def _scale(q: Tensor, given: float | None) -> float:
    deep = q.shape[3]
    assert isinstance(deep, int)
    return deep**-0.5 if given is None else given


def _check_sums(q: Tensor, said: dtype) -> None:
    """Raise `NotLowered` where torch says another type of the logarithms than they have: torch 2.11 does, in fp64."""
    if said != accumulator(q.elem):
        raise NotLowered(f"torch foretells sums of {said.name}")


def _check(low: Lowering, q: Tensor, k: Tensor, v: Tensor, dropout: float) -> None:
    """NotLowered for an attention that has no kernel of ours."""
    if low.products == "extern":
        raise NotLowered("the options say so")
    known = isinstance(q.shape[3], int) and isinstance(v.shape[3], int)
    if dropout or q.elem not in TYPES or not known:
        raise NotLowered("attention with dropout, or of a type or dimension that is not known")
    if k.shape[2] == 0 or q.shape[0] != k.shape[0] or k.shape[:3] != v.shape[:3]:
        raise NotLowered("attention of sizes that are not known to fit")
    heads, groups = q.shape[1], k.shape[1]
    if heads != groups and not (isinstance(heads, int) and isinstance(groups, int)):
        raise NotLowered("an unknown number of heads")


def _four(mask: Tensor, q: Tensor, k: Tensor) -> Tensor:
    """A mask with dimensions for batch and heads, and those of queries and keys in full."""
    shape = [*[1] * (4 - mask.rank), *mask.shape[:-2], q.shape[2], k.shape[2]]
    return view(mask, broadcast(mask, [dim(d) for d in range(4)]), shape)
