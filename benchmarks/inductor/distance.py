"""How far two lists of gradients are apart."""

from __future__ import annotations

import torch


def distance(found: list[torch.Tensor], expected: list[torch.Tensor]) -> float:
    """The largest norm of a difference, relative to the norm of what is expected.

    Gradients a hundred times smaller than the largest one (zero but for rounding) count relative to a hundredth of it.
    """
    least = 0.01 * max(x.norm() for x in expected)
    pairs = zip(found, expected, strict=True)
    return max(((a - b).norm() / b.norm().clamp(min=least)).item() for a, b in pairs)
