"""Random ways to walk through matrices by pointers: where a precondition holds, copies through tensor maps give what
the pointers give."""

# annotations of kernels name dtypes
# pyright: reportInvalidTypeForm=false, reportUndefinedVariable=false, reportOperatorIssue=false
from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tessera
import tessera.language as tl
from tessera.errors import InterpreterError
from tessera.interp import run
from tessera.ir import parse_module
from tests.unit.pointer_tma_kit import compiled, copies, passes


@tessera.jit
def walk(
    a, b, c, M, K, sam, sbk, off, lo, ROWS: tl.constexpr, STEPS: tl.constexpr, WHERE: tl.constexpr,
    MASK: tl.constexpr, CLIPPED: tl.constexpr, B: tl.constexpr,
):  # fmt: skip
    """c[p] = the sum over blocks of K of rows p·B… of a times rows k… of b."""
    p = tl.program_id(0)
    i, ks = tl.arange(0, B), tl.arange(0, B)
    rows = p * B + i
    if ROWS == "halo":
        rows = p * B - off + i
    elif ROWS == "reversed":
        rows = (tl.num_programs(0) - 1 - p) * B + i
    ar = rows
    if ROWS == "rem":
        ar = rows % M
    elif ROWS == "where":
        ar = tl.where(rows < M, rows, 0)
    elif ROWS == "min":
        ar = tl.minimum(rows, M - 1)
    x = a + ar[:, None] * sam + ks[None, :]
    y = b + ks[:, None] * sbk + tl.arange(0, B)[None, :]
    if WHERE == "rows":
        x += off * sam
    elif WHERE == "columns":
        x += off
        y += off * sbk
    elif WHERE == "program":
        y += p * 16
    acc = tl.zeros((B, B), tl.float32)
    start, step, end = lo, B, K
    if STEPS == "count":
        start, step, end = 0, 1, tl.cdiv(K, B)
    elif STEPS == "half":
        step = B // 2
    for k in range(start, end, step):
        if STEPS == "count":
            left = K - k * B
        elif STEPS == "index":
            left = K - k
        else:
            left = K - (k - lo) * 2 if STEPS == "half" else K - (k - lo)
        px, py = x, y
        if STEPS == "index":
            px = x + k
            py = y + k * sbk
        mask = ks[None, :] < left
        if MASK == "rows":
            mask = mask & (rows[:, None] < M)
            mask = mask & (rows >= 0)[:, None]
        u = tl.load(px, mask=mask, other=0.0)
        v = tl.load(py, mask=(ks < left)[:, None])
        acc = tl.dot(u, v, acc)
        if STEPS != "index":
            x += B
            y += B * sbk
    out = c + (rows[:, None] + 64) * B + tl.arange(0, B)[None, :]
    tl.store(out, acc.to(tl.float16), mask=(rows < M)[:, None] if CLIPPED else None)


def outcome(text: str, grid: int, values: list[Any]) -> np.ndarray | None:
    """c afterwards; None if the kernel leaves its arrays."""
    arrays = [v.copy() if isinstance(v, np.ndarray) else v for v in values]
    try:
        run(parse_module(text), (grid,), arrays)
    except InterpreterError:
        return None
    return arrays[2]


@pytest.mark.parametrize("seed", range(150))
def test_copies_give_what_pointers_give(seed: int) -> None:
    rng = np.random.default_rng(seed)

    def one(*choices: Any) -> Any:
        return choices[int(rng.integers(len(choices)))]

    constants = {
        "ROWS": one("plain", "rem", "where", "min", "halo", "reversed"),
        "STEPS": one("add", "count", "index", "half"),
        "WHERE": one("none", "rows", "columns", "program"),
        "MASK": one("none", "rows"),
        "CLIPPED": one(True, True, False),
        "B": 64,
    }
    odd = ("M", "K", "sam", "sbk", *one((), (), ("off",), ("lo",)))
    kernel = compiled(walk, constants, odd=odd)
    whole = compiled(walk, constants, odd=odd, pointer_maps=False)
    assert copies(whole) == 0
    if not copies(kernel):
        return
    for _ in range(3):
        m, k = int(rng.integers(1, 200)), int(rng.integers(1, 200))
        sam, sbk = one(256, 200, 264, 250, 256), one(128, 136, 100, 128)
        off = one(8, 5, 1) if "off" in odd else one(0, 16, 32)
        lo = one(8, 3, 1) if "lo" in odd else one(0, 0, 64, 16)
        grid = -(-m // 64) + one(0, 0, 1)
        a, b = (rng.integers(-3, 4, n).astype(np.float16) for n in (300 * 264 + 512, 520 * 136))
        values = [a, b, np.zeros(64 * 512, np.float16), m, k, sam, sbk, off, lo]
        if not passes(kernel, values, (grid, 1, 1)):
            continue
        want = outcome(whole.asm["gir"], grid, values)
        if want is not None:
            np.testing.assert_array_equal(outcome(kernel.asm["gir"], grid, values), want)
