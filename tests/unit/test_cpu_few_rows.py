"""Dots of few rows on the CPU: B is read once, as it is computed, and along k where memory is contiguous along k."""

from __future__ import annotations

import re
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tessera
import tessera.language as tl
from tessera.backends.compiler import GPUTarget
from tessera.backends.cpu.target import lacking
from tessera.compiler import ASTSource
from tessera.config import knobs
from tests.unit.cpu_kit import agree, floats, native


@tessera.jit
def few(
    a, b, c, rows, depth, R: tl.constexpr, K: tl.constexpr, N: tl.constexpr, COLUMNS: tl.constexpr,
    ADD: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    """c (+)= a @ b of R rows; B's columns are those of memory or its rows, of which `rows` x `depth` are there."""
    r, k, n = tl.arange(0, R), tl.arange(0, K), tl.arange(0, N)
    left = tl.load(a + r[:, None] * K + k[None, :])
    if COLUMNS:
        tile = n[:, None] * K + k[None, :]
        right = tl.load(b + tile, mask=(n[:, None] < rows) & (k[None, :] < depth), other=0).T
    else:
        tile = k[:, None] * N + n[None, :]
        right = tl.load(b + tile, mask=(k[:, None] < depth) & (n[None, :] < rows), other=0)
    at = r[:, None] * N + n[None, :]
    total = tl.zeros((R, N), ACC)
    if ADD:
        total = tl.load(c + at)
    tl.store(c + at, tl.dot(left.to(right.dtype), right, total, out_dtype=ACC))


def sizes(m: int, acc: Any = tl.float32) -> dict[str, Any]:
    return {"R": m, "K": 32, "N": 64, "ACC": acc}


def plan(compiled: Any) -> str:
    return compiled.asm["llir"].split("\n", 1)[0]


@pytest.mark.parametrize("isa", ["native", "avx2", "generic"])
@pytest.mark.parametrize("inside", [(64, 32), (41, 32), (64, 19), (0, 0)])
@pytest.mark.parametrize("m", [1, 2, 4, 8])
def test_masks_that_hide_parts_of_b(isa: str, inside: tuple[int, int], m: int):
    if lack := lacking(isa) if isa == "avx2" else "":
        pytest.skip(f"this machine lacks {lack}")
    for columns in (False, True):
        arrays = floats(m, 32), floats(64, 32, seed=1), floats(m, 64, seed=2)
        with knobs.scope():
            knobs.cpu.isa = isa
            options = {**sizes(m), "COLUMNS": columns, "ADD": m > 1}
            agree(few, (1,), *arrays, *inside, **options, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("columns", [False, True])
@pytest.mark.parametrize("t", [np.float16, ml_dtypes.bfloat16, np.float64])
def test_types(t: Any, columns: bool):
    wide = t is np.float64
    shapes = ((2, 32), t), ((64, 32), t), ((2, 64), t if wide else np.float32)
    arrays = [floats(*s, seed=i).astype(k) for i, (s, k) in enumerate(shapes)]
    options = {**sizes(2, tl.float64 if wide else tl.float32), "COLUMNS": columns, "ADD": True}
    found = agree(few, (1,), *arrays, 50, 32, **options, rtol=1e-5, atol=1e-4)
    assert f"B read {'along k' if columns else 'once'}" in plan(found)


def test_the_whole_of_b_is_read_without_masks():
    """Of the two versions only the one that packs has masked loads."""
    for columns in (False, True):
        constants = {**sizes(1), "COLUMNS": columns, "ADD": False}
        kinds = {**dict.fromkeys("abc", "*fp32"), "rows": "i32", "depth": "i32"}
        source = ASTSource(few, kinds | dict.fromkeys(constants, "constexpr"), constants)
        text = tessera.compile(source, target=GPUTarget("cpu", "avx2", 1)).asm["llir"]
        _, whole, masked = re.split(r"^ *(?:then|else)\d+:", text, maxsplit=2, flags=re.MULTILINE)
        assert "masked.load" in masked
        assert "masked.load" not in whole


@pytest.mark.parametrize(
    ("m", "columns", "where"),
    [
        (1, True, "read along k"),
        (4, True, "read along k"),
        (8, True, "shared"),
        (4, False, "read once"),
    ],
)
def test_where_b_is_read(m: int, columns: bool, where: str):
    with knobs.scope():
        knobs.cpu.isa = "generic" if lacking("avx2") else "avx2"
        arrays = floats(m, 32), floats(64, 32), floats(m, 64)
        options = {**sizes(m), "COLUMNS": columns, "ADD": False}
        assert f"B {where}" in plan(native(few, (1,), *arrays, 64, 32, **options))
        knobs.compilation.disable = "few-rows"
        assert "B read" not in plan(native(few, (1,), *arrays, 64, 32, **options))
