"""Products through pointers on a GPU: matrices with strides of all kinds, a launch, the check of its result."""

# pyright: basic
from __future__ import annotations

import pytest

from tests.unit.pointer_tma_kit import wrapped

torch = pytest.importorskip("torch")


def matrix(rows: int, cols: int, order: str, room: int, start: int, dtype=torch.float16):
    """A matrix whose rows (or columns) have `room` elements behind them, `start` elements into its storage."""
    outer, inner = (rows, cols) if order == "row" else (cols, rows)
    pitch = inner + room
    whole = torch.randn(outer * pitch + start, device="cuda").to(dtype)
    found = whole[start:].view(outer, pitch)[:, :inner]
    return found if order == "row" else found.T


def product(a, b, how: str, blocks: tuple[int, int, int], warps: int, stages: int = 3):
    (m, k), n = a.shape, b.shape[1]
    bm, bn, bk = blocks
    c = torch.full((m, n), float("nan"), device="cuda", dtype=torch.float16)
    grid = (-(-m // bm) * -(-n // bn),)
    kernel = wrapped[grid](
        a, b, c, m, n, k, a.stride(0), a.stride(1), b.stride(0), b.stride(1), n, how, True, bm, bn, bk,
        num_warps=warps, num_stages=stages,
    )  # fmt: skip
    return c, kernel


def close(c, a, b) -> None:
    want = a.float() @ b.float()
    assert (c.float() - want).abs().max() <= 3e-3 * want.abs().max()
