"""What the GPU benchmarks share: a case, the timing of calls, and random arrays."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import sources  # noqa: F401  (finds the examples' helpers)
import torch

import common

DEVICE = common.Device("cuda")
LEAD = (
    5  # fills of 256 MiB, 0.3 ms on an H200: one was shorter than a round's launches on a busy host
)


@dataclass
class Case:
    """One kernel on one shape: `build(compiler)` gives a call and the array it fills."""

    name: str
    shape: str
    dtype: str
    work: float  # bytes or operations
    unit: str
    build: Callable[[str], tuple[Callable[[], Any], Any]]
    reference: Callable[[], Any]
    # Of a result; without it, the difference from the reference.
    error: Callable[[Any], Any] | None = None


def in_turn(
    calls: dict[Any, Callable[[], Any]], rep: float, most: int = 1000, cold: bool = True
) -> dict[Any, float]:
    """Median ms of each call; in each round one call of each, in any order. About `rep` ms for each, five rounds at
    least and `most` at most. The GPU is busy for LEAD fills before a round's first call, so that none is timed waiting
    for the host, which takes long to launch some. Without `cold` L2 keeps what the call before left there."""
    flush = torch.empty(64 << 20, dtype=torch.int32, device="cuda")
    times: dict[Any, list[float]] = {name: [] for name in calls}
    shuffled = random.Random(0)
    for call in calls.values():
        call()
    spent, rounds = 0.0, 0
    while rounds < 5 or (spent < rep * len(calls) and rounds < most):
        order = shuffled.sample(list(calls), len(calls))
        marks = [
            (torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True))
            for _ in order
        ]
        for _ in range(LEAD):
            flush.zero_()
        for name, (start, end) in zip(order, marks, strict=True):
            if cold:
                flush.zero_()
            start.record()
            calls[name]()
            end.record()
        torch.cuda.synchronize()
        for name, (start, end) in zip(order, marks, strict=True):
            times[name].append(start.elapsed_time(end))
            spent += times[name][-1]
        rounds += 1
    return {name: sorted(found)[len(found) // 2] for name, found in times.items()}


def last_line(error: Exception) -> str:
    """What a compiler's message ends with: the lines before are the kernel's."""
    return next((line for line in reversed(str(error).splitlines()) if line.strip(" ^")), "")[:200]


def normal(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, device="cuda", dtype=torch.float32).to(dtype)


def extents(m: int, n: int, k: int) -> str:
    """Of a matmul: 4096^3, or 8192x8192x512."""
    return f"{m}^3" if m == n == k else f"{m}x{n}x{k}"


def name_of(dtype: torch.dtype) -> str:
    """fp32, bf16, fp8, …"""
    name = str(dtype).removeprefix("torch.").partition("_")[0]
    return name.replace("bfloat", "bf").replace("float", "fp")
