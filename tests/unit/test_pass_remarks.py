"""Passes for GPUs say what they have not done: a kernel for each reason, with its line and a remedy."""

from __future__ import annotations

import inspect
import re
from typing import Any

import pytest

import tessera
import tessera.language as tl
from tessera.backends.compiler import GPUTarget
from tessera.compiler import ASTSource
from tessera.explain.remarks import passes_said

TARGET = GPUTarget("cuda", 90, 32)


@tessera.jit
def product(x, y, out, K, M: tl.constexpr, N: tl.constexpr, STEP: tl.constexpr, HOW: tl.constexpr):
    i, j, k = tl.arange(0, M), tl.arange(0, N), tl.arange(0, STEP)
    acc = tl.zeros([M, N], tl.float32)
    for at in range(0, K, STEP):
        a = tl.load(x + i[:, None] * 1024 + (at + k)[None, :])
        b = tl.load(y + (at + k)[:, None] * 1024 + j[None, :])
        acc = tl.dot(a, b, acc, input_precision=HOW)
    tl.store(out + i[:, None] * 1024 + j[None, :], acc)


@tessera.jit
def followed(x, y, out, K):
    i, k = tl.arange(0, 64), tl.arange(0, 64)
    acc = tl.zeros([64, 64], tl.float32)
    at = 0
    for step in range(0, K):
        a = tl.load(x + step * 64 + i[:, None] * 1024 + k[None, :])
        b = tl.load(y + k[:, None] * 1024 + i[None, :] + at * 64)
        acc = tl.dot(a, b, acc)
        at += tl.sum(acc).to(tl.int32)
    tl.store(out + i[:, None] * 1024 + k[None, :], acc)


@tessera.jit
def filled(x, y, out, K, n):
    i, k = tl.arange(0, 64), tl.arange(0, 64)
    acc = tl.zeros([64, 64], tl.float32)
    for at in range(0, K, 64):
        a = tl.load(x + i[:, None] * 1024 + (at + k)[None, :], mask=(k < n)[None, :], other=1.0)
        b = tl.load(y + (at + k)[:, None] * 1024 + i[None, :])
        acc = tl.dot(a, b, acc)
    tl.store(out + i[:, None] * 1024 + k[None, :], acc)


@tessera.jit
def scattered(x, y, out, K):
    i, k = tl.arange(0, 64), tl.arange(0, 64)
    acc = tl.zeros([64, 64], tl.float32)
    for at in range(0, K, 64):
        a = tl.load(x + i[:, None] * 1024 + (at + k)[None, :] * 3)
        b = tl.load(y + (at + k)[:, None] * 1024 + i[None, :])
        acc = tl.dot(a, b, acc)
    tl.store(out + i[:, None] * 1024 + k[None, :], acc)


@tessera.jit
def stepped(x, out, n, step):
    total = 0.0
    for k in tl.range(0, n, step, loop_unroll_factor=4):
        total += tl.load(x + k)
    tl.store(out, total)


@tessera.jit
def powers(x, y, out, K):
    i, k = tl.arange(0, 64), tl.arange(0, 64)
    acc = tl.zeros([64, 64], tl.float32)
    for at in range(0, K, 64):
        a = tl.load(x + i[:, None] * 1024 + (at + k)[None, :])
        b = tl.load(y + (at + k)[:, None] * 1024 + i[None, :])
        acc += tl.exp2(tl.dot(a, b))
    tl.store(out + i[:, None] * 1024 + k[None, :], acc)


@tessera.jit
def branching(x, y, out, K, n):
    i, k = tl.arange(0, 64), tl.arange(0, 64)
    acc = tl.zeros([64, 64], tl.float32)
    for at in range(0, K, 64):
        a = tl.load(x + i[:, None] * 1024 + (at + k)[None, :])
        b = tl.load(y + (at + k)[:, None] * 1024 + i[None, :])
        acc = tl.dot(a, b, acc)
        if at % 128 == n:
            acc = acc * 0.5
    tl.store(out + i[:, None] * 1024 + k[None, :], acc)


@tessera.jit
def attention(x, y, out, K, D: tl.constexpr):
    i, d = tl.arange(0, 128), tl.arange(0, D)
    q = tl.load(x + i[:, None] * D + d[None, :])
    acc = tl.zeros([128, D], tl.float32)
    for at in range(0, K, 128):
        k = tl.load(x + (at + i)[None, :] * D + d[:, None])
        v = tl.load(y + (at + i)[:, None] * D + d[None, :])
        w = tl.exp2(tl.dot(q, k))
        acc = tl.dot(w.to(v.dtype), v, acc * 0.5)
    tl.store(out + i[:, None] * D + d[None, :], acc)


@tessera.jit
def summed(x, out, n, STRIDE: tl.constexpr, B: tl.constexpr, WRITES: tl.constexpr):
    i = tl.arange(0, B)
    total = tl.zeros([B], tl.float32)
    for at in range(0, n, B):
        total += tl.load(x + at * STRIDE + i * STRIDE)
        if WRITES == 1:
            tl.store(out + i + at, total)
    tl.store(out + i, total)


@tessera.jit
def in_place(x, out, n):
    i = tl.arange(0, 1024)
    for at in tl.range(0, n, 1024, num_stages=3):
        tl.store(x + at + i, tl.load(x + at + i) * 2.0)


@tessera.jit
def repeats(x, y, out, n, step):
    i = tl.arange(0, 1024)
    total = tl.zeros([1024], tl.float32)
    for at in range(0, n, 1024):
        weight = tl.load(y + i)
        total += weight * tl.load(x + at + i)
        total += n // step
    tl.store(out + i, total)


@tessera.jit
def waits(x, out, n):
    i = tl.arange(0, 1024)
    total = tl.zeros([1024], tl.float32)
    at = 0
    while at < n:
        total += tl.load(x + at + i)
        at += tl.load(out).to(tl.int32)
    tl.store(out + i, total)


def remarks(
    kernel: Any, constants: dict[str, Any], kind: str = "fp16", **options: Any
) -> tuple[str, ...]:
    """What is said of a kernel for Hopper whose arrays are of a kind."""
    names = [p for p in kernel.arg_names if p not in constants]
    kinds = {p: f"*{kind}" if p in ("x", "y") else "*fp32" if p == "out" else "i32" for p in names}
    signature = {p: kinds.get(p, "constexpr") for p in kernel.arg_names}
    aligned = {
        (i,): [["tt.divisibility", 16]]
        for i, p in enumerate(kernel.arg_names)
        if p in ("x", "y", "out", "K")
    }
    source = ASTSource(kernel, signature, constants, aligned)
    return tuple(
        getattr(tessera.compile(source, target=TARGET, options=options).metadata, "remarks", ())
    )


def tiles(m: int, n: int, k: int, how: str = "tf32") -> dict[str, Any]:
    return {"M": m, "N": n, "STEP": k, "HOW": how}


CASES = {
    "precision": (
        (product, tiles(64, 64, 32, "ieee"), "fp32"), {}, "tl.dot", 'computed by FMAs: its precision is "ieee"',
    ),
    "warps": ((product, tiles(64, 64, 64)), {"num_warps": 2}, "tl.dot", "not of warpgroups: 2 warps are no warpgroups"),
    "rows": (
        (product, tiles(32, 32, 64)), {}, "tl.dot", "not of warpgroups: its tile is 32x32, an instruction has 64 rows",
    ),
    "registers": (
        (product, tiles(256, 256, 32)), {"num_warps": 4}, "tl.dot",
        "not of warpgroups: its results take 512 registers of a thread",
    ),
    "address": ((followed, {}), {}, "tl.load(y", "not copied ahead: its address is not known in iterations before"),
    "other": ((filled, {}), {}, "for at", "pointers for the tiles of the loop: masked elements are no zeros"),
    "stride": ((scattered, {}), {}, "for at", "the tiles of the loop: there is not one dimension of stride 1"),
    "result": (
        (powers, {}), {}, "tl.dot", "is waited for as soon as it is started: the exp2 uses its result",
    ),
    "in flight": (
        (attention, {"D": 128}), {"num_warps": 4}, "w = tl.exp2",
        "not started early: products in flight hold 256 registers of a thread, at most 208",
    ),
    "branch": (
        (branching, {}), {}, "for at", "is not split at the branch: its condition compares no sum of the loop's index",
    ),
    "narrow": (
        (summed, {"STRIDE": 3, "B": 1024, "WRITES": 0}, "fp32"), {}, "tl.load",
        "not copied ahead: a thread reads 4 bytes at once, a copy moves 16",
    ),
    "held": (
        (summed, {"STRIDE": 1, "B": 64, "WRITES": 0}, "fp32"), {}, "tl.load",
        "not copied ahead: several threads hold the same element",
    ),
    "large": (
        (summed, {"STRIDE": 1, "B": 32768, "WRITES": 0}, "fp32"), {}, "tl.load",
        "not copied ahead: two iterations load 262144 bytes, too much beside other CTAs",
    ),
    "stores": (
        (summed, {"STRIDE": 1, "B": 1024, "WRITES": 1}, "fp32"), {}, "tl.load",
        "not copied ahead: the loop stores, and does not ask for stages",
    ),
    "in place": (
        (in_place, {}, "fp32"), {}, "tl.load", "not copied ahead: a store of the loop may write what it reads",
    ),
    "invariant": (
        (repeats, {}, "fp32"), {}, "weight =", "the load stays in its loop: the loop may not run at all",
    ),
    "division": (
        (repeats, {}, "fp32"), {}, "n // step",
        "the division stays in its loop: it may divide by zero, and the loop may not run at all",
    ),
    "while": (
        (waits, {}, "fp32"), {}, "while at", "the loop does not count: its condition is no comparison of a number",
    ),
    "step": ((stepped, {}, "fp32"), {}, "tl.range", "not unrolled: its step is no positive constant"),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_reason(name: str) -> None:
    (kernel, *given), options, line, reason = CASES[name]
    found = remarks(kernel, *given, **options)
    said = [text for text in found if reason in re.sub(r" at \S+\.py(:\d+)+", "", text)]
    assert len(said) == 1, found
    lines, first = inspect.getsourcelines(kernel.fn)
    where = first + next(i for i, text in enumerate(lines) if line in text)
    (remark,) = passes_said(said)
    assert remark.place == f"test_pass_remarks.py:{where}"
    assert remark.reason
    assert not remark.remedy.startswith("see the place")


def test_what_is_done_is_not_remarked() -> None:
    said = remarks(product, tiles(128, 128, 64))
    assert not [text for text in said if "FMAs" in text or "warpgroups" in text or "ahead" in text]
