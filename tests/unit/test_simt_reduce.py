"""Reductions over warps: each thread combines all parts of its results, or few parts for all threads."""

# pyright: basic
from __future__ import annotations

import numpy as np
import pytest

import tessera
import tessera.language as tl
from tessera.config import knobs
from tessera.runtime.driver import driver
from tests.simt_kit import Compiled


@tessera.jit
def merged(mean, m2, count, mean2, m22, count2):
    total = count + count2
    part = tl.where(total == 0.0, 0.0, count2 / total)
    delta = mean2 - mean
    return mean + delta * part, m2 + m22 + delta * delta * count * part, total


@tessera.jit
def columns(x, out, more, HOW: tl.constexpr, R: tl.constexpr, N: tl.constexpr):
    i, j = tl.arange(0, R)[:, None], tl.arange(0, N)[None, :]
    v = tl.load(x + i * N + j)
    if HOW == "sum":
        tl.store(out + tl.arange(0, N), tl.sum(v, axis=0))
    elif HOW == "max":
        tl.store(out + tl.arange(0, N), tl.max(v.to(tl.float16), axis=0).to(tl.float32))
    elif HOW == "index":
        tl.store(out + tl.arange(0, N), tl.argmin(v, axis=0).to(tl.float32))
    elif HOW == "int64":
        tl.store(out + tl.arange(0, N), tl.sum((v * 8).to(tl.int64), axis=0).to(tl.float32))
    else:
        mean, m2, count = tl.reduce((v, v * 0, v * 0 + 1), 0, merged)
        tl.store(out + tl.arange(0, N), mean)
        tl.store(more + tl.arange(0, N), m2 / count)


SIGNATURE = {
    "x": "*fp32",
    "out": "*fp32",
    "more": "*fp32",
    **dict.fromkeys(("HOW", "R", "N"), "constexpr"),
}
SHAPES = [
    (64, 32, 8),
    (64, 32, 4),
    (128, 64, 16),
    (256, 8, 8),
    (32, 256, 8),
    (512, 2, 16),
    (16, 128, 16),
]


def expected(x: np.ndarray, how: str) -> list[np.ndarray]:
    if how == "sum":
        return [x.sum(axis=0)]
    if how == "max":
        return [x.astype(np.float16).max(axis=0)]
    if how == "index":
        return [x.argmin(axis=0)]
    if how == "int64":
        return [(x * 8).astype(np.int64).sum(axis=0)]
    return [x.mean(axis=0), x.var(axis=0)]


@pytest.mark.parametrize("how", ["sum", "max", "index", "int64", "moments"])
@pytest.mark.parametrize(("rows", "width", "warps"), SHAPES)
@pytest.mark.parametrize("off", ["", "share-parts"])
def test_columns(how: str, rows: int, width: int, warps: int, off: str):
    x = np.random.default_rng(rows).standard_normal((rows, width)).astype(np.float32)
    out, more = np.zeros((2, width), np.float32)
    with knobs.scope():
        knobs.compilation.disable = off
        compiled = Compiled(
            columns, SIGNATURE, {"HOW": how, "R": rows, "N": width}, num_warps=warps
        )
    compiled.run(x, out, more)
    for found, want in zip(
        (out, more), expected(x.astype(np.float64 if how != "max" else x.dtype), how)
    ):
        np.testing.assert_allclose(found, want, rtol=2e-5, atol=1e-5)


def test_many_results_are_shared_between_threads():
    """Eight results of eight warps: 16 reads of 16 bytes and 56 sums in each thread, or one read and three sums."""
    constants = {"HOW": "sum", "R": 64, "N": 64}
    texts: dict[str, Compiled] = {}
    for off in ("", "share-parts"):
        with knobs.scope():
            knobs.compilation.disable = off
            texts[off] = Compiled(columns, SIGNATURE, constants, num_warps=8)
    reads = {off: c.count(r"ld\.shared") for off, c in texts.items()}
    sums = {off: c.count(r"add\.(rn\.)?f32") for off, c in texts.items()}
    assert reads[""] < reads["share-parts"] / 2 and sums[""] <= sums["share-parts"] / 2
    assert texts[""].count(r"bar(rier)?\.(cta\.)?sync") == 2
    assert texts["share-parts"].count(r"bar(rier)?\.(cta\.)?sync") == 1


def test_single_results_are_combined_by_every_thread():
    constants = {"HOW": "sum", "R": 4096, "N": 1}
    assert (
        Compiled(columns, SIGNATURE, constants, num_warps=8).count(r"bar(rier)?\.(cta\.)?sync") == 1
    )


@pytest.mark.parametrize("off", ["", "share-parts"])
@pytest.mark.parametrize(
    ("rows", "width", "warps"), [(64, 128, 8), (16, 128, 8), (64, 64, 8), (128, 32, 16)]
)
def test_warps_exchange_results_of_lanes_without_bank_conflicts(
    rows: int, width: int, warps: int, off: str
):
    """128 results, of which a lane holds four: lanes that wrote parts of one result side by side were in one bank."""
    x = np.random.default_rng(rows).standard_normal((rows, width)).astype(np.float32)
    out, more = np.zeros((2, width), np.float32)
    with knobs.scope():
        knobs.simulator.banks = True
        knobs.compilation.always_compile = True
        driver.set_active("simt")
        found = columns[(1,)](
            x, out, more, HOW="sum", R=rows, N=width, num_warps=warps, disable_optimizations=off
        )
        driver.reset_active()
    traffic = list(found.simulation.banks.values())
    assert sum(t.passes for t in traffic) > 0
    assert sum(t.conflicts for t in traffic) == 0


@tessera.jit
def chosen(target, out, M: tl.constexpr, N: tl.constexpr):
    """One of N classes for each of M places, from the places' numbers alone: nothing of M x N is loaded."""
    at = tl.arange(0, M)[:, None]
    which = tl.load(target + at)
    found = tl.where(which == tl.arange(0, N)[None, :], which.to(tl.float32) + 1.0, 0.0)
    tl.store(out + at, tl.sum(found, axis=1)[:, None])


@pytest.mark.parametrize(("places", "warps"), [(128, 2), (32, 2), (8, 2), (128, 4)])
def test_what_is_computed_from_a_column_is_reduced_where_the_column_is(places: int, warps: int):
    signature = {"target": "*i32", "out": "*fp32", "M": "constexpr", "N": "constexpr"}
    compiled = Compiled(chosen, signature, {"M": places, "N": 32}, num_warps=warps)
    target = np.random.default_rng(0).integers(-8, 40, places).astype(np.int32)
    out = np.zeros(places, np.float32)
    compiled.run(target, out)
    inside = (target >= 0) & (target < 32)
    np.testing.assert_array_equal(out, np.where(inside, target + 1, 0))
    if places == 32 * warps * 2 or places == 32 * warps:
        assert compiled.count(r"shfl") == compiled.count(r"ld\.shared") == 0


@tessera.jit
def pairs(x, out, N: tl.constexpr):
    at = tl.arange(0, N)
    v = tl.reshape(tl.load(x + at), (N // 64, 2, 32))
    found = tl.broadcast_to(tl.sum(v, 1)[:, None, :], (N // 64, 2, 32))
    tl.store(out + at, tl.reshape(found, (N,)))


def test_partners_exchange_each_result_once():
    """Lanes that share the work would exchange half of the results to combine them, and then all to hand them round."""
    signature = {"x": "*fp32", "out": "*fp32", "N": "constexpr"}
    size = 32 * 4 * 8
    compiled = Compiled(pairs, signature, {"N": size}, num_warps=4)
    x = np.random.default_rng(0).standard_normal(size).astype(np.float32)
    out = np.zeros_like(x)
    compiled.run(x, out)
    of_pairs = x.reshape(-1, 2, 32).sum(1, keepdims=True)
    np.testing.assert_allclose(
        out, np.broadcast_to(of_pairs, (size // 64, 2, 32)).ravel(), rtol=1e-6
    )
    assert compiled.count(r"shfl\.sync") == 8
    assert compiled.count(r"selp") == 0
