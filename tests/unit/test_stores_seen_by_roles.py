"""Kernels that read again what they have stored through descriptors: no role may read ahead of such stores."""

# annotations of kernels name dtypes
# pyright: reportInvalidTypeForm=false, reportUndefinedVariable=false, reportOperatorIssue=false
from __future__ import annotations

import numpy as np
import pytest

import tessera
import tessera.language as tl
from tests.unit.pointer_tma_kit import HOWS, compiled, simulate

STEPS = 3


@tessera.jit
def chained(a, b, c, d, STEPS: tl.constexpr, STORE: tl.constexpr, HOW: tl.constexpr):
    """Each step stores where the next one finds its rows."""
    x = tl.make_tensor_descriptor(a, [256, 64], [64, 1], [64, 64])
    y = tl.make_tensor_descriptor(b, [64, 64], [64, 1], [64, 64])
    out = tl.make_tensor_descriptor(d, [64 * STEPS, 64], [64, 1], [64, 64])
    rows = tl.make_tensor_descriptor(c, [STEPS + 1, 8], [8, 1], [1, 8])
    for i in range(STEPS):
        row = tl.load(c + i * 8, cache_modifier=HOW)
        total = tl.zeros((64, 64), tl.float32)
        for _ in range(2):
            total = tl.dot(x.load([row, 0]), y.load([0, 0]), total)
        out.store([64 * i, 0], total.to(tl.float16))
        if STORE:
            rows.store([i + 1, 0], tl.full((1, 8), 64, tl.int32) + row)


@tessera.jit
def hinted(a, b, c, STEPS: tl.constexpr, POINTER: tl.constexpr):
    """Stores to an array, and loads from it by a pointer or descriptor of which more is said."""
    x = tl.make_tensor_descriptor(a, [64, 64], [64, 1], [64, 64])
    y = tl.make_tensor_descriptor(b, [64, 64], [64, 1], [64, 64])
    out = tl.make_tensor_descriptor(tl.multiple_of(b, 64), [64, 64], [64, 1], [64, 64])
    out.store([0, 0], tl.full((64, 64), 2.0, tl.float16))
    total = tl.zeros((64, 64), tl.float32)
    for _ in range(STEPS):
        total = tl.dot(x.load([0, 0]), y.load([0, 0]), total)
    if POINTER:
        at = tl.arange(0, 64)[:, None] * 64 + tl.arange(0, 64)[None, :]
        total += tl.load(b + 4095 - at)
    tl.store(c + tl.arange(0, 64)[:, None] * 64 + tl.arange(0, 64)[None, :], total.to(tl.int32))


@pytest.mark.parametrize("how", HOWS)
def test_numbers_that_were_stored_are_not_read_ahead(how: str) -> None:
    constants = {"STEPS": STEPS, "STORE": True, "HOW": ""}
    kernel = compiled(chained, constants, "abcd", elements={"c": "i32"})
    assert "descriptor_store" in kernel.asm["gir"]
    a = np.random.default_rng(0).integers(-2, 3, (256, 64)).astype(np.float16)
    b, c = 2 * np.eye(64, dtype=np.float16), np.zeros((STEPS + 1, 8), np.int32)
    d = np.zeros((64 * STEPS, 64), np.float16)
    simulate(kernel, [a, b, c, d], (1,), how, "late")
    np.testing.assert_array_equal(c[:, 0], 64 * np.arange(STEPS + 1))
    np.testing.assert_array_equal(d, 4 * a[: 64 * STEPS])


@pytest.mark.parametrize(("how", "ahead"), [("", True), (".cg", True), (".cv", False)])
def test_each_role_may_read_what_nobody_changes(how: str, ahead: bool) -> None:
    """But not what other programs may change meanwhile (`.cv`), which roles would see at different times."""
    constants = {"STEPS": STEPS, "STORE": False, "HOW": how}
    kernel = compiled(chained, constants, "abcd", elements={"c": "i32"})
    assert ("warp_specialize" in kernel.asm["gir"]) == ahead


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("pointer", [False, True])
def test_hints_do_not_hide_an_array(pointer: bool, how: str) -> None:
    constants = {"STEPS": STEPS, "POINTER": pointer}
    kernel = compiled(hinted, constants, elements={"c": "i32"})
    a = np.random.default_rng(0).integers(-2, 3, (64, 64)).astype(np.float16)
    b, c = np.zeros((64, 64), np.float16), np.zeros((64, 64), np.int32)
    simulate(kernel, [a, b, c], (1,), how, "late")
    want = np.broadcast_to(2 * STEPS * a.astype(np.float32).sum(1, keepdims=True), (64, 64))
    np.testing.assert_array_equal(c, want + 2 * pointer)
