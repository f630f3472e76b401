"""Tensors with other strides, offsets or sizes: the same program must give what eager gives for them, too."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_unflatten


def laid(change: Callable[[torch.Tensor], torch.Tensor], values: Any) -> Any:
    """`values` with changed tensors; None where no tensor has become another."""
    leaves, shape = tree_flatten(values)
    changed = False
    for k, x in enumerate(leaves):
        if isinstance(x, torch.Tensor) and x.layout == torch.strided and x.dim():
            y = change(x.detach())
            if (y.shape, y.stride(), y.storage_offset()) != (
                x.shape,
                x.stride(),
                x.storage_offset(),
            ):
                changed = True
                leaves[k] = y.requires_grad_(x.requires_grad)
    return tree_unflatten(leaves, shape) if changed else None


def backwards(x: torch.Tensor) -> torch.Tensor:
    """The same elements, the first dimension contiguous."""
    order = list(range(x.dim()))[::-1]
    return x.permute(order).contiguous().permute(order)


def sliced(x: torch.Tensor) -> torch.Tensor:
    """The same elements, every second one in a row of a larger tensor, behind an offset."""
    base = x.new_zeros((*x.shape[:-1], 2 * x.shape[-1] + 3))
    part = base[..., 3:][..., ::2][..., : x.shape[-1]]
    return part.copy_(x)


def expanded(x: torch.Tensor, dim: int) -> torch.Tensor:
    """The first element along `dim` everywhere along it, with a stride of 0."""
    return x.narrow(dim, 0, 1).expand(x.shape) if x.shape[dim] > 1 else x


def empty(x: torch.Tensor, dim: int) -> torch.Tensor:
    """Nothing along `dim`."""
    return x.narrow(dim, 0, 0)


LAYOUTS: dict[str, Callable[[Any], Any]] = {
    "reversed": partial(laid, backwards),
    "sliced": partial(laid, sliced),
    "expanded": partial(laid, partial(expanded, dim=-1)),
    "expanded0": partial(laid, partial(expanded, dim=0)),
    "empty": partial(laid, partial(empty, dim=-1)),
    "empty0": partial(laid, partial(empty, dim=0)),
}
