"""Loops that end where masks leave out all that follows: the results are those of loops that run on."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tessera
import tessera.language as tl
from tessera.backends.compiler import GPUTarget
from tessera.compiler import ASTSource
from tessera.config import knobs
from tests.unit.cpu_kit import agree, floats, native

B = 1024
BOUNDS = [-5, 0, 1, 63, 64, 65, 300, 512, 1000, 1023, 1024, 5000]


@tessera.jit
def largest(a, b):
    return tl.where(a > b, a, b)


@tessera.jit
def blended(a, b):
    return a * 0.5 + b * 0.5


@tessera.jit
def reduced(x, out, n, OTHER: tl.constexpr, HOW: tl.constexpr, B: tl.constexpr):
    at = tl.arange(0, B)
    v = tl.load(x + at, mask=at < n, other=OTHER)
    if HOW == "sum":
        r = tl.sum(v, axis=0)
    elif HOW == "exponentials":
        r = tl.sum(tl.exp(v), axis=0)
    elif HOW == "max":
        r = tl.max(v, axis=0)
    elif HOW == "own":
        r = tl.reduce(v, 0, largest)
    elif HOW == "index":
        r = tl.argmax(v, axis=0).to(tl.float32)
    else:
        r = tl.sum(tl.where(at < n, v * v, 2.0), axis=0)
    tl.store(out, r)


@pytest.mark.parametrize("how", ["sum", "exponentials", "max", "own", "index", "chosen"])
@pytest.mark.parametrize("other", [0.0, 1.0, -float("inf"), float("nan")])
def test_what_masks_leave_out_is_combined(how: str, other: float):
    """Elements that are not read count as often as there are some: 24 that are 1 make a sum 24 larger."""
    for n in BOUNDS:
        x = floats(B, seed=n & 7)
        expected = np.where(np.arange(B) < n, x, np.float32(other))
        with np.errstate(invalid="ignore"):
            wanted = {
                "sum": expected.sum(dtype=np.float64),
                "exponentials": np.exp(expected.astype(np.float64)).sum(),
                "chosen": np.where(np.arange(B) < n, expected**2.0, 2.0).sum(dtype=np.float64),
            }.get(how)
        if wanted is None and np.isnan(expected).any():
            continue  # comparisons with NaN depend on the order
        if wanted is None:
            wanted = float(expected.argmax()) if how == "index" else expected.max()
        out = np.zeros(1, np.float32)
        native(reduced, (1,), x, out, n, OTHER=other, HOW=how, B=B)
        np.testing.assert_allclose(out[0], wanted, rtol=2e-5, atol=1e-4, err_msg=f"n = {n}")


@tessera.jit
def zeros_of_both_signs(x, out, n, B: tl.constexpr):
    at = tl.arange(0, B)
    tl.store(out, tl.sum(tl.load(x + at, mask=at < n, other=0.0), axis=0))


@pytest.mark.parametrize("n", BOUNDS)
def test_sums_of_negative_zeros(n: int):
    x, out = np.full(B, -0.0, np.float32), np.ones(1, np.float32)
    native(zeros_of_both_signs, (1,), x, out, n, B=B)
    assert np.signbit(out[0]) == (n >= B) and out[0] == 0


@tessera.jit
def two_bounds(x, y, out, n, m, B: tl.constexpr):
    at = tl.arange(0, B)
    v = tl.load(x + at, mask=at < n, other=1.0) + tl.load(y + at, mask=(at < m) & (at < n + m))
    tl.store(out, tl.sum(v, axis=0))


@pytest.mark.parametrize("n", BOUNDS)
@pytest.mark.parametrize("m", [-1, 200, 1000, 2000])
def test_masks_with_other_bounds(n: int, m: int):
    agree(
        two_bounds,
        (1,),
        floats(B),
        floats(B, seed=1),
        np.zeros(1, np.float32),
        n,
        m,
        B=B,
        rtol=1e-4,
    )


@tessera.jit
def kept(x, out, sums, n, B: tl.constexpr):
    """The powers are computed while they are summed, and all of them are stored."""
    at = tl.arange(0, B)
    v = tl.load(x + at, mask=at < n, other=-1.0)
    powers = tl.exp(v * 2.0 - 1.0) * tl.exp(v)
    total = tl.sum(tl.where(at < n, powers, 0.0), axis=0)
    tl.store(out + at, powers / total)
    tl.store(sums, tl.max(powers, axis=0))


@pytest.mark.parametrize("n", BOUNDS[2:])
def test_memoised_values_behind_the_end(n: int):
    agree(
        kept, (1,), floats(B), np.zeros(B, np.float32), np.zeros(1, np.float32), n, B=B, rtol=1e-5
    )


@tessera.jit
def columns(
    x, out, powers, M, N, AXIS: tl.constexpr, KEEP: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr
):
    i, j = tl.arange(0, BM)[:, None], tl.arange(0, BN)[None, :]
    v = tl.load(x + i * N + j, mask=(i < M) & (j < N), other=0.5)
    p = tl.exp(v) * tl.exp2(v)
    r = tl.sum(p, axis=AXIS)
    tl.store(out + tl.arange(0, BN if AXIS == 0 else BM), r)
    if KEEP:
        tl.store(powers + i * BN + j, p / tl.max(r, axis=0))


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize(
    "shape", [(64, 128), (3, 128), (40, 100), (33, 1), (1, 77), (0, 5), (70, 130)]
)
def test_both_dimensions(axis: int, keep: bool, shape: tuple[int, int]):
    m, n = shape
    x, out = floats(80 * 140), np.zeros(128 if axis == 0 else 64, np.float32)
    powers = np.zeros((64, 128), np.float32)
    agree(columns, (1,), x, out, powers, m, n, AXIS=axis, KEEP=keep, BM=64, BN=128, rtol=2e-5)


@tessera.jit
def then(a, b, c, d):
    """One affine map after another."""
    return a * c, b * c + d


@tessera.jit
def scanned(x, out, n, OTHER: tl.constexpr, HOW: tl.constexpr, B: tl.constexpr):
    at = tl.arange(0, B)
    v = tl.load(x + at, mask=at < n, other=OTHER)
    if HOW == "sum":
        r = tl.cumsum(v, axis=0)
    elif HOW == "max":
        r = tl.associative_scan(v, 0, largest)
    elif HOW == "reverse":
        r = tl.cumsum(v, axis=0, reverse=True)
    elif HOW == "maps":
        a, b = tl.associative_scan((v * 0.5, v), 0, then)
        r = a + b
    else:
        powers = tl.exp(v) * tl.exp(v * 0.5)
        r = tl.cumsum(tl.where(at < n, powers, 1.0), axis=0) - powers
    tl.store(out + at, r)


@pytest.mark.parametrize("how", ["sum", "max", "reverse", "maps", "chosen"])
@pytest.mark.parametrize("other", [0.0, 1.0, -2.0])
@pytest.mark.parametrize("off", ["", "scan-stores"])
def test_scans_of_what_masks_leave_out(
    how: str, other: float, off: str, monkeypatch: pytest.MonkeyPatch
):
    """All results are stored: those behind the end count what was not read, too."""
    monkeypatch.setattr(knobs.compilation, "disable", off)
    for n in BOUNDS:
        x, out = floats(B, seed=n & 7) * 0.5, np.zeros(B, np.float32)
        agree(scanned, (1,), x, out, n, OTHER=other, HOW=how, B=B, rtol=1e-4, atol=1e-4)


@tessera.jit
def scanned_rows(x, out, powers, M, N, BM: tl.constexpr, BN: tl.constexpr):
    """Rows and columns of a tile end; what is scanned is stored, too."""
    i, j = tl.arange(0, BM)[:, None], tl.arange(0, BN)[None, :]
    v = tl.load(x + i * N + j, mask=(i < M) & (j < N), other=-100.0)
    p = tl.exp(v) * tl.exp2(v)
    tl.store(out + i * BN + j, tl.cumsum(p, axis=1))
    tl.store(powers + i * BN + j, p)


@pytest.mark.parametrize("shape", [(8, 256), (3, 256), (8, 130), (5, 100), (5, 1), (0, 5)])
def test_scans_of_rows(shape: tuple[int, int]):
    out, powers = np.zeros((8, 256), np.float32), np.zeros((8, 256), np.float32)
    agree(scanned_rows, (1,), floats(8 * 256), out, powers, *shape, BM=8, BN=256, rtol=2e-5)


@tessera.jit
def within_range(x, out, sums, start, n, TYPE: tl.constexpr, B: tl.constexpr):
    at = tl.arange(0, B)
    inside = (at + start).to(TYPE) < n.to(TYPE)
    v = tl.load(x + at, mask=inside, other=0.0)
    tl.store(sums, tl.sum(v, axis=0))
    tl.store(out + at, v * 2 + tl.cumsum(v, axis=0), mask=inside)


@pytest.mark.parametrize("kind", [tl.uint32, tl.uint64, tl.int32], ids=str)
@pytest.mark.parametrize(
    ("start", "n"),
    [(-500, 100), (-1, 2000), (0, -1), (2**31 - 300, 5), (2**31 - 1000, 2**31 - 500)],
)
def test_masks_of_numbers_that_wrap(kind: tl.dtype, start: int, n: int):
    """Such a mask is false before it is true: one comparison tests both ends of a range."""
    args = floats(B), np.full(B, 7, np.float32), np.zeros(1, np.float32)
    agree(within_range, (1,), *args, start, n, TYPE=kind, B=B, rtol=1e-4, atol=1e-4)


@tessera.jit
def rows(x, out, n, B: tl.constexpr):
    at = tl.arange(0, B)
    tl.store(out + tl.program_id(0) * n + at, tl.load(x + at, mask=at < n) * 2, mask=at < n)


def test_stores_end_and_write_nothing_else():
    for n in BOUNDS[1:-1]:
        out = np.full(B + 8, 7, np.float32)
        x = floats(B)
        native(rows, (1,), x, out, n, B=B)
        assert (out[:n] == x[:n] * 2).all() and (out[n:] == 7).all()


@pytest.mark.parametrize("arch", ["generic", "avx2", "avx512"])
@pytest.mark.parametrize("kernel", [reduced, scanned, rows], ids=lambda k: k.__name__)
def test_the_optimisation_can_be_left_out(kernel: Any, arch: str):
    texts: list[str] = []
    kinds = {"x": "*fp32", "out": "*fp32", "n": "i32"}
    constants = {"OTHER": 0.0, "HOW": "sum", "B": B} if kernel is not rows else {"B": B}
    for off in ("scan-stores", "scan-stores,mask-ends"):
        with knobs.scope():
            knobs.compilation.disable = off
            source = ASTSource(kernel, kinds | dict.fromkeys(constants, "constexpr"), constants)
            texts.append(tessera.compile(source, target=GPUTarget("cpu", arch, 1)).asm["llir"])
    assert texts[0] != texts[1]
    assert ("i1 false, i1 %more" in texts[0]) == (kernel is not rows)
    assert "i1 false, i1 %more" not in texts[1]
