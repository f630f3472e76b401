"""What the cases of `untuned.py` share: a problem, random arrays on the device at hand, sizes for GPU and simulator."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
LOG2_E = 1.4426950408889634
Call = Callable[[], Any]
Config = dict[str, int]  # constants and options of a launch


@dataclass
class Problem:
    """One kernel text on one shape. `launch(kernels, config)` gives a call of one compiler's kernels. `checked` are
    (parts of) the arrays that it fills; `wanted` computes the same in fp32. `library`: calls of cuBLAS, cuDNN or torch
    that do the same."""

    name: str
    shape: str
    dtype: str
    work: float  # operations, or bytes
    unit: str
    configs: Sequence[Config]
    launch: Callable[[Any, Config], Call]
    checked: Sequence[torch.Tensor]
    wanted: Callable[[], Sequence[torch.Tensor]]
    library: dict[str, Call] = field(default_factory=dict[str, Call])
    tolerance: float = 0.01  # of the largest element


Problems = Iterator[tuple[str, Callable[[], Problem]]]


def normal(*shape: int, dtype: torch.dtype = torch.float16, scale: float = 1.0) -> torch.Tensor:
    return (torch.randn(shape, device=DEVICE, dtype=torch.float32) * scale).to(dtype)


def empty(*shape: int, dtype: torch.dtype = torch.float16) -> torch.Tensor:
    return torch.full(shape, float("nan"), device=DEVICE, dtype=torch.float32).to(dtype)


def whole(low: int, high: int, *shape: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
    """Random integers of [low, high)."""
    return torch.randint(low, high, shape, device=DEVICE, dtype=torch.int64).to(dtype)


def tiles(*table: tuple[int, ...], names: str = "BM BN num_warps num_stages") -> list[Config]:
    """Configurations from rows of numbers."""
    return [dict(zip(names.split(), row, strict=True)) for row in table]
