"""Where loops of the CPU were not fused, or products not packed once: remarks with lines and remedies."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tessera
import tessera.language as tl

LINE = "test_cpu_remarks.py"


@tessera.jit
def used_later(x, y, z, B: tl.constexpr):
    i = tl.arange(0, B)
    a = tl.load(x + i)
    tl.store(y + i, a * 2)
    tl.store(z + i, a + tl.load(y + (B - 1) - i))


@tessera.jit
def shifted(x, B: tl.constexpr):
    i = tl.arange(0, B)
    a = tl.load(x + i + 1)
    tl.store(x + i, a)


@tessera.jit
def in_place(x, B: tl.constexpr):
    i = tl.arange(0, B)
    tl.store(x + i, tl.load(x + i) + 1)


@tessera.jit
def product(a, b, c, d, K, B: tl.constexpr, WRITES: tl.constexpr):
    i, j = tl.arange(0, B)[:, None], tl.arange(0, B)[None, :]
    acc = tl.zeros((B, B), tl.float32)
    for k in range(0, K, B):
        acc = tl.dot(tl.load(a + i * K + k + j), tl.load(b + (k + i) * B + j), acc)
        if WRITES:
            tl.store(d + k, k)
    tl.store(c + i * B + j, acc)


@tessera.jit
def masked(x, y, n, B: tl.constexpr, WHICH: tl.constexpr):
    i = tl.arange(0, B)
    if WHICH == 0:
        mask = i < n
    elif WHICH == 1:
        mask = (i % 2 == 0) & (i >= n)
    else:
        mask = tl.full((B,), 1, tl.int1) & (n > 0)
    tl.store(y + i, tl.load(x + i, mask, 0.0) * 2, mask)


@tessera.jit
def together(a, b):
    return a + b


@tessera.jit
def modulo(a, b):
    return (a + b) % (a + 1)


@tessera.jit
def combined(x, y, B: tl.constexpr, fn: tl.constexpr):
    tl.store(y, tl.reduce(tl.load(x + tl.arange(0, B)), 0, fn))


@tessera.jit
def again(x, y, n, B: tl.constexpr):
    i = tl.arange(0, B)
    total = tl.zeros((B,), tl.float32)
    for k in range(n):
        total += tl.load(x + i) * k
    tl.store(y + i, total)


def remarks(kernel: Any, *args: Any, **options: Any) -> tuple[str, ...]:
    return kernel[(1,)](*args, **options).metadata.remarks


def test_a_load_that_a_store_must_not_overtake():
    x = np.arange(5000, dtype=np.float32)
    (text,) = remarks(shifted, x, B=4096)
    np.testing.assert_array_equal(x[:4096], np.arange(1, 4097))
    assert text.startswith("the tile `a` loaded at " + LINE)
    assert "may come from elements that are written by the store at " + LINE in text
    (remark,) = shifted.explain(x, B=4096, grid=(1,)).remarks
    assert remark.place.startswith(LINE)
    assert remark.remedy.startswith("store after the last use")


def test_a_load_that_is_used_after_a_store():
    x, y, z = (np.ones(4096, np.float32) for _ in range(3))
    (text,) = remarks(used_later, x, y, z, B=4096)
    assert "it is used after the store at " + LINE in text
    np.testing.assert_array_equal(z, 3)
    assert remarks(used_later, x[:64], y, z, B=64) == ()  # too small to matter


def test_loops_that_are_fused_have_no_remark():
    assert remarks(in_place, np.zeros(4096, np.float32), B=4096) == ()


@pytest.mark.parametrize("writes", [False, True])
def test_a_loop_of_products_that_writes(writes: bool):
    a, b = np.ones((64, 128), np.float32), np.ones((128, 64), np.float32)
    c, d = np.zeros((64, 64), np.float32), np.zeros(200, np.int32)
    said = remarks(product, a, b, c, d, 128, B=64, WRITES=writes)
    assert (c == 128).all()
    assert [("packed in each step" in text, "the loop writes" in text) for text in said] == [
        (True, True)
    ] * writes


@pytest.mark.parametrize("which", [0, 1, 2])
def test_a_mask_that_does_not_end_at_an_index(which: int):
    x, y = np.ones(4096, np.float32), np.zeros(4096, np.float32)
    said = remarks(masked, x, y, 5, B=4096, WHICH=which)
    assert y.sum() == (10, 4090, 8192)[which]
    assert len(said) == (2 if which == 1 else 0), said
    for text, op in zip(said, ("load", "store"), strict=False):
        assert text.startswith(f"the mask of the {op} at {LINE}")
        assert text.endswith(
            "is tested for each vector: it is no comparison of an index, which grows by 1 along them, with a bound"
        )
    if which == 1:
        found = masked.explain(x, y, 5, B=4096, WHICH=1, grid=(1,)).remarks
        assert "masks `index < bound`" in {r.remedy.split(",")[0] for r in found}
        small = remarks(masked, x[:64], y, 5, B=64, WHICH=1)
        assert small == ()


def test_a_reduction_of_one_element_after_another():
    x, y = np.ones(4096, np.int32), np.zeros(1, np.int32)
    assert remarks(combined, x, y, B=4096, fn=together) == ()
    (text,) = remarks(combined, x, y, B=4096, fn=modulo)
    assert text.startswith(f"the reduce at {LINE}")
    assert text.endswith(
        "combines one element after another, not vectors: its function divides integers, of which lanes without an "
        "element may be zero"
    )
    (remark,) = combined.explain(x, y, B=4096, fn=modulo, grid=(1,)).remarks
    assert remark.remedy.startswith("a combine function of additions")


def test_a_load_that_a_loop_repeats():
    x, y = np.ones(4096, np.float32), np.zeros(4096, np.float32)
    (text,) = remarks(again, x, y, 3, B=4096)
    assert (y == 3).all()
    assert text.startswith(f"the load at {LINE}")
    assert text.endswith(": the loop may not run at all")
