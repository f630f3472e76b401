"""Intervals that code bounds, and what they decide."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import numpy as np
import pytest

import tessera
import tessera.language as tl
from tessera.analysis.ranges import IntegerRanges, compared
from tessera.config import knobs
from tessera.ir import parse_module
from tessera.runtime import driver


def intervals(code: str, args: str = "%x: i32") -> dict[str, object]:
    text = f"module {{}} {{ func {{name='f'}} ({args}) {{\n{code}\nreturn [] }} }}"
    module = parse_module(text)
    ranges = IntegerRanges(module)
    return {v.name: ranges.of(v) for op in module.walk() for v in op.results if v.name}


def test_arithmetic() -> None:
    found = intervals(
        """
        %pid: i32 = program_id {axis=0}
        %c: i32 = const {value=-3}
        %d: i32 = const {value=10}
        %small: i32 = rem %pid, %d
        %sum: i32 = add %small, %c
        %times: i32 = mul %sum, %c
        %signed: i32 = rem %x, %d
        %wraps: i32 = mul %pid, %d
        %byte: i8 = cast %sum
        %lost: i8 = cast %pid
        %most: i32 = max %x, %c
        %bool: i1 = cmp %x, %c {predicate='lt'}
        """
    )
    assert found["pid"] == (0, 2**31 - 2)
    assert found["small"] == (0, 9) and found["sum"] == (-3, 6) and found["times"] == (-18, 9)
    assert found["signed"] == (-9, 9) and found["byte"] == (-3, 6)
    assert found["most"] == (-3, 2**31 - 1)
    assert found["wraps"] is found["lost"] is found["bool"] is None


def test_unsigned_numbers_have_no_sign() -> None:
    found = intervals("%c: u32 = const {value=4294967295}\n%y: u32 = max %x, %c", "%x: u32")
    assert found["y"] == (2**32 - 1, 2**32 - 1)


@pytest.mark.parametrize("predicate", ["eq", "ne", "lt", "le", "gt", "ge"])
def test_comparisons_of_intervals_are_those_of_all_their_numbers(predicate: str) -> None:
    spans = [(a, b) for a in range(4) for b in range(a, 4)]
    holds = {
        "eq": int.__eq__, "ne": int.__ne__, "lt": int.__lt__, "le": int.__le__, "gt": int.__gt__, "ge": int.__ge__,
    }[predicate]  # fmt: skip
    for a, b in product(spans, spans):
        answers = {holds(x, y) for x in range(a[0], a[1] + 1) for y in range(b[0], b[1] + 1)}
        assert compared(predicate, a, b) == (answers.pop() if len(answers) == 1 else None)


@tessera.jit
def running_mean(x, out, n: tl.constexpr, B: tl.constexpr):
    mean = tl.zeros((B,), tl.float32)
    count = tl.zeros((B,), tl.float32)
    for start in tl.range(0, n, B):
        at = start + tl.arange(0, B)
        block = tl.load(x + at, at < n, 0.0)
        if start == 0:
            new, more = block, count + 1.0
        else:
            more = count + 1.0
            new = mean + (block - mean) / more
        mean = tl.where(at < n, new, mean)
        count = tl.where(at < n, more, count)
    tl.store(out + tl.arange(0, B), mean)


@pytest.fixture
def simulated() -> Iterator[None]:
    with knobs.scope():
        knobs.compilation.always_compile = True
        driver.set_active("simt")
        yield
    driver.reset_active()


@pytest.mark.usefixtures("simulated")
@pytest.mark.parametrize("n", [64, 256, 250])
@pytest.mark.parametrize("off", ["", "peel-first,known-comparisons"])
def test_a_mean_of_blocks(n: int, off: str) -> None:
    x, out = np.random.default_rng(0).standard_normal(n, np.float32), np.zeros(64, np.float32)
    running_mean[(1,)](x, out, n=n, B=64, disable_optimizations=off)
    blocks = np.pad(x, (0, -n % 64), constant_values=np.nan).reshape(-1, 64)
    np.testing.assert_allclose(out, np.nanmean(blocks, axis=0), rtol=1e-5, atol=1e-6)
