"""Loops that stream through memory: loads ahead in rings of the threads' own, and where they must stay."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tessera
import tessera.language as tl
from tests.simt_kit import Compiled

ROW = {"x": "*fp32", "out": "*fp32", "n": "i32", "BLOCK": "constexpr"}


@tessera.jit
def peaks(x, out, n, BLOCK: tl.constexpr):
    n = tl.multiple_of(n, 4)
    at = tl.arange(0, BLOCK)
    peak = tl.full((BLOCK,), -float("inf"), tl.float32)
    for start in range(0, n, BLOCK):
        peak = tl.maximum(peak, tl.load(x + start + at, start + at < n, other=-float("inf")))
    tl.store(out + tl.program_id(0), tl.max(peak, axis=0))


@tessera.jit
def totals(x, out, n, BLOCK: tl.constexpr):
    n = tl.multiple_of(n, 4)
    at = tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    p = x + at
    for start in range(0, n, BLOCK):
        total += tl.load(p, start + at < n)
        p += BLOCK
    tl.store(out + at, total)


@tessera.jit
def backwards(x, out, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    for start in range(n - BLOCK, -1, -BLOCK):
        total = total * 0.5 + tl.load(x + start + at)
    tl.store(out + at, total)


@tessera.jit
def doubled(x, out, n, STAGES: tl.constexpr, BLOCK: tl.constexpr):
    n = tl.multiple_of(n, 4)
    at = tl.arange(0, BLOCK)
    for start in tl.range(0, n, BLOCK, num_stages=STAGES):
        value = tl.load(x + start + at, start + at < n)
        tl.store(out + start + at, value * 2, start + at < n)


@tessera.jit
def chained(x, out, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    for start in tl.range(0, n - BLOCK, BLOCK, num_stages=3):
        tl.store(x + start + BLOCK + at, tl.load(x + start + at) + 1)


@tessera.jit
def counted(x, out, n, BLOCK: tl.constexpr):
    n = tl.multiple_of(n, 4)
    at = tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, n, BLOCK):
        total += tl.load(x + start + at)
        tl.atomic_add(out, 1.0)
    tl.store(x + at, total)


@tessera.jit
def swapped(x, out, n, BLOCK: tl.constexpr):
    a, b = x + tl.arange(0, BLOCK), out + tl.arange(0, BLOCK)
    for _ in tl.range(0, n, 1, num_stages=3):
        tl.store(b, tl.load(a) + 1)
        a, b = b, a


def build(fn: Any, stages: int = 3, cc: int = 90, **constants: int | None) -> Compiled:
    constants = {"BLOCK": 512, **constants}
    signature = {n: "constexpr" if n in constants else ROW[n] for n in fn.arg_names}
    return Compiled(fn, signature, constants, cc=cc, num_warps=4, num_stages=stages)


def values(n: int) -> np.ndarray:
    return np.random.default_rng(n).standard_normal(max(n, 1)).astype(np.float32)


@pytest.mark.parametrize("n", [0, 4, 512, 1000, 1536, 4000])
@pytest.mark.parametrize("stages", [2, 3, 4])
def test_other_fills_what_is_masked_off(n: int, stages: int) -> None:
    x, out = values(n), np.zeros(1, np.float32)
    kernel = build(peaks, stages)
    assert kernel.count(r"cp\.async\.cg") > 0
    kernel.run(x, out, n)
    assert out[0] == (x.max() if n else -np.inf)


@pytest.mark.parametrize("n", [4, 512, 1024, 3332])
@pytest.mark.parametrize("cc", [80, 90])
def test_carried_pointers(n: int, cc: int) -> None:
    x, out = values(n), np.zeros(512, np.float32)
    kernel = build(totals, cc=cc)
    assert kernel.count(r"cp\.async\.cg") > 0
    assert kernel.count(r"st\.shared") == 0  # the copies write the zeros of masked-off elements
    kernel.run(x, out, n)
    padded = np.zeros(-(-n // 512) * 512, np.float32)
    padded[:n] = x
    assert np.allclose(out, padded.reshape(-1, 512).sum(0), atol=1e-4)


@tessera.jit
def uncached(x, out, n, BLOCK: tl.constexpr):
    n = tl.multiple_of(n, 4)
    at = tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, n, BLOCK):
        total += tl.load(x + start + at, start + at < n, cache_modifier=".cv")
    tl.store(out + at, total)


@pytest.mark.parametrize("cc", [80, 90])
def test_loads_past_the_caches_stay_loads(cc: int) -> None:
    """Copies cannot read past caches, and would read what other programs write too early."""
    kernel = build(uncached, cc=cc)
    assert kernel.count(r"cp\.async") == 0
    assert kernel.count(r"ld\.global\.cv") > 0
    x, out = values(1024), np.zeros(512, np.float32)
    kernel.run(x, out, 1024)
    assert np.allclose(out, x.reshape(2, 512).sum(0), atol=1e-5)


@tessera.jit
def powers(x, by, steps, BLOCK: tl.constexpr):
    """Each product becomes an operand of the next one, by way of memory."""
    row = tl.arange(0, BLOCK)
    at = row[:, None] * BLOCK + row[None, :]
    factor = tl.load(by + at)
    for _ in range(0, steps):
        x += BLOCK * BLOCK
        product = tl.dot(tl.load(x - BLOCK * BLOCK + at), factor)
        tl.store(x + at, product.to(tl.float16))


@pytest.mark.parametrize("cc", [80, 90])
def test_operands_that_the_loop_stores_are_not_copied_ahead(cc: int) -> None:
    """A copy three iterations ahead would read what is stored in the iteration before its own."""
    signature = {"x": "*fp16", "by": "*fp16", "steps": "i32", "BLOCK": "constexpr"}
    kernel = Compiled(powers, signature, {"BLOCK": 64}, cc=cc, num_warps=4, num_stages=3)
    assert kernel.count(r"cp\.async") == 0
    x, by = np.zeros((6, 64, 64), np.float16), 2 * np.eye(64, dtype=np.float16)
    x[0] = by
    kernel.run(x, by, 5)
    assert (x == by * 2.0 ** np.arange(6)[:, None, None]).all()


@tessera.jit
def spread(x, out, n, BLOCK: tl.constexpr):
    """A branch follows the loop, and another loop, which reads what both make."""
    n = tl.multiple_of(n, 4)
    at = tl.arange(0, BLOCK)
    low, high = tl.full((BLOCK,), 9.0, tl.float32), tl.full((BLOCK,), -9.0, tl.float32)
    for start in range(0, n, BLOCK):
        value = tl.load(x + start + at, start + at < n, other=0.0)
        low, high = tl.minimum(low, value), tl.maximum(high, value)
    width = tl.max(high, axis=0) - tl.min(low, axis=0)
    if width > 1:
        width = width * 2
    for start in range(0, n, BLOCK):
        value = tl.load(x + start + at, start + at < n)
        tl.store(out + start + at, value + width, start + at < n)


@pytest.mark.parametrize("n", [4, 500, 512, 516, 1024, 1500])
@pytest.mark.parametrize("off", ["", "short-loops"])
def test_versions_for_one_iteration(n: int, off: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TESSERA_DISABLE", off)
    kernel = build(spread)
    assert kernel.count(r"cp\.async\.cg") > 0
    x, out = values(n), np.zeros(n, np.float32)
    kernel.run(x, out, n)
    padded = np.append(x, 0) if n % 512 else x
    width = padded.max() - padded.min()
    assert np.allclose(out, x + (2 * width if width > 1 else width), atol=1e-6)


@pytest.mark.parametrize("n", [0, 4, 512, 516, 2000])
def test_one_iteration_loads_to_registers(n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    x, out = values(n), np.zeros(1, np.float32)
    kernel = build(peaks)
    kernel.run(x, out, n)
    assert out[0] == (x.max() if n else -np.inf)
    monkeypatch.setenv("TESSERA_DISABLE", "short-loops")
    loads = r"ld\.global\.v4"
    assert kernel.count(loads) > build(peaks).count(loads) == 0


@pytest.mark.parametrize("rounds", [1, 2, 5])
def test_downwards(rounds: int) -> None:
    x, out = values(512 * rounds), np.zeros(512, np.float32)
    build(backwards).run(x, out, 512 * rounds)
    want = np.zeros(512, np.float32)
    for row in x.reshape(-1, 512)[::-1]:
        want = want * 0.5 + row
    assert np.allclose(out, want, atol=1e-5)


def test_no_barrier_in_the_loop() -> None:
    kernel = build(totals)
    assert kernel.count(r"cp\.async\.wait_group") >= 2
    assert kernel.count(r"bar\.sync|barrier") == 0


@pytest.mark.parametrize(("stages", "copies"), [(None, False), (2, True), (3, True)])
def test_stores_need_the_author(stages: int | None, copies: bool) -> None:
    kernel = build(doubled, STAGES=stages)
    assert (kernel.count(r"cp\.async\.cg") > 0) == copies
    x, out = values(1200), np.zeros(1200, np.float32)
    kernel.run(x, out, 1200)
    assert (out == x * 2).all()


def test_loads_of_what_the_loop_stores_stay() -> None:
    kernel = build(chained)
    assert kernel.count(r"cp\.async") == 0
    x, out = np.zeros(2048, np.float32), np.zeros(1, np.float32)
    kernel.run(x, out, 2048)
    assert (x == np.repeat(np.arange(4.0), 512)).all()


@pytest.mark.parametrize("n", [1, 4, 7])
def test_arrays_that_a_loop_swaps_are_read_after_they_are_written(n: int) -> None:
    kernel = build(swapped)
    assert kernel.count(r"cp\.async") == 0
    x, out = values(512), values(512)
    want = x + n
    kernel.run(x, out, n)
    assert np.allclose(out if n % 2 else x, want, atol=1e-5)


def test_atomics_keep_loads() -> None:
    assert build(counted).count(r"cp\.async") == 0


def test_one_stage_means_none() -> None:
    assert build(totals, stages=1).count(r"cp\.async") == 0
