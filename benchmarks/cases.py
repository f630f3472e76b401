"""What the GPU benchmarks share: a case, and random arrays."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import sources  # noqa: F401  (finds the examples' helpers)
import torch

import common

DEVICE = common.Device("cuda")


@dataclass
class Case:
    """One kernel on one shape: `build(compiler)` gives a call and the array it fills."""

    name: str
    shape: str
    work: float
    unit: str
    build: Callable[[str], tuple[Callable[[], Any], Any]]
    reference: Callable[[], Any]
    # Of a result; without it, the difference from the reference.
    error: Callable[[Any], Any] | None = None


def last_line(error: Exception) -> str:
    """What a compiler's message ends with: the lines before are the kernel's."""
    return next((line for line in reversed(str(error).splitlines()) if line.strip(" ^")), "")[:200]


def normal(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, device="cuda", dtype=torch.float32).to(dtype)


def name_of(dtype: torch.dtype) -> str:
    """fp32, bf16, …"""
    return str(dtype).removeprefix("torch.").replace("bfloat", "bf").replace("float", "fp")
