"""Loops that are split where a branch turns: places of the turn, results, what stays whole."""

# annotations of kernels name dtypes
# pyright: reportInvalidTypeForm=false, reportUndefinedVariable=false
from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tessera
import tessera.language as tl
from tessera.compiler import CompiledKernel
from tessera.interp import run
from tessera.ir import parse_module
from tessera.ops import ForOp, IfOp, WgmmaOp
from tests.unit.tensor_maps_kit import built, flat


@tessera.jit
def branching_sum(a, b, out, n, turn, kind: tl.constexpr, M: tl.constexpr):
    """Products of the iterations on one side of the turn are doubled."""
    acc = tl.zeros((M, M), tl.float32)
    for i in range(0, n, 16):
        x = a.load([0, i])
        s = tl.dot(x, b.load([i, 0]))
        if kind == "gt":
            if i + 16 > turn:
                s = s * 2.0
        elif kind == "ge":
            if i >= turn:
                s = s * 2.0
        elif kind == "lt":
            if i + 3 < turn:
                s = s * 2.0
        elif kind == "mirrored":
            if turn <= i:
                s = s * 2.0
        elif kind == "twice":
            if i % 32 > turn:
                s = s * 2.0
        elif i + 64 > turn:  # further than the next step
            s = s * 2.0
        acc += s
    out.store([0, 0], acc.to(out.dtype))


TURNS: dict[str, Any] = {
    "gt": lambda i, turn: i + 16 > turn, "ge": lambda i, turn: i >= turn, "lt": lambda i, turn: i + 3 < turn,
    "mirrored": lambda i, turn: turn <= i, "twice": lambda i, turn: i % 32 > turn, "far": lambda i, turn: i + 64 > turn,
}  # fmt: skip


def compiled(kind: str) -> CompiledKernel:
    types = {
        "a": "tensordesc<fp16[64, 16]>",
        "b": "tensordesc<fp16[16, 64]>",
        "out": "tensordesc<fp16[64, 64]>",
        "n": "i32",
        "turn": "i32",
    }
    return built(branching_sum, types, {"kind": kind, "M": 64}, num_warps=4, num_stages=3)


def loops(kernel: CompiledKernel) -> list[ForOp]:
    found = [op for op in parse_module(kernel.asm["gir"]).walk() if isinstance(op, ForOp)]
    return [x for x in found if any(isinstance(op, WgmmaOp) for op in x.body)]


CASES = [(96, turn) for turn in (40, 48, 47, 49, 0, -50, 1000, -(2**31), 2**31 - 1)]


@pytest.mark.parametrize(("n", "turn"), [*CASES, (16, 5), (0, 0)])
@pytest.mark.parametrize("kind", list(TURNS))
def test_results(kind: str, n: int, turn: int) -> None:
    rng = np.random.default_rng(0)
    a = rng.standard_normal((64, 96)).astype(np.float16)
    b, out = rng.standard_normal((96, 64)).astype(np.float16), np.zeros((64, 64), np.float16)
    run(parse_module(compiled(kind).asm["gir"]), (1,), [*flat(a, b, out), n, turn])
    want = np.zeros((64, 64))
    for i in range(0, n, 16):
        part = a[:, i : i + 16].astype(np.float64) @ b[i : i + 16].astype(np.float64)
        want += part * (2 if TURNS[kind](i, turn) else 1)
    assert np.abs(out - want).max() <= 2e-3 * max(1.0, np.abs(want).max())


@pytest.mark.parametrize("kind", ["gt", "ge", "lt", "mirrored"])
def test_one_turn_makes_two_loops_without_a_branch(kind: str) -> None:
    found = loops(compiled(kind))
    assert len(found) == 2
    assert not any(isinstance(op, IfOp) for loop in found for op in loop.body)


@pytest.mark.parametrize("kind", ["twice", "far"])
def test_other_conditions_stay(kind: str) -> None:
    found = loops(compiled(kind))
    assert len(found) == 1
    assert any(isinstance(op, IfOp) for op in found[0].body)
