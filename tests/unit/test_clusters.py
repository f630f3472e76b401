"""Programs spread over the CTAs of a cluster: which dimensions are cut, results by the interpreter and the lane
simulator, and why a program stays with one block."""

# annotations of kernels name dtypes
# pyright: reportInvalidTypeForm=false, reportUndefinedVariable=false, reportOperatorIssue=false
from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tessera
import tessera.language as tl
from tessera.backends.compiler import GPUTarget
from tessera.backends.nvidia import ptxas
from tessera.backends.nvidia.simulator import Report, run_kernel
from tessera.compiler import ASTSource, CompiledKernel
from tessera.errors import InvalidOption, LaunchError, ToolNotFound
from tessera.interp import run
from tessera.ir import parse_module
from tessera.layout import box_layout, boxes_of
from tessera.runtime.drivers.variants import fallback_of
from tests.unit.clusters_kit import counted, scaled_rows
from tests.unit.mma_chains_kit import CASES, STAYING, chain, execute, reference
from tests.unit.mma_chains_kit import inputs as inputs_of_chains
from tests.unit.pointer_tma_kit import arguments, compiled, wrapped
from tests.unit.tensor_maps_kit import built, expected, flat, inputs, ops, persistent, product


def simulated(kernel: CompiledKernel, args: list[Any], grid: int = 1, clusters: int = 0) -> Report:
    meta: Any = kernel.metadata
    given = [v if isinstance(v, np.ndarray) else ("i64", v) for v in args]
    return run_kernel(
        kernel.asm["llir"], kernel.name, given, 32 * meta.warps, max(16, meta.shared), (grid, 1, 1),
        getattr(meta, "tensor_maps", ()), getattr(meta, "host_code", ()), meta.cluster_dims[0], clusters,
    )  # fmt: skip


def interpreted(kernel: CompiledKernel, args: list[Any], grid: int = 1) -> None:
    run(parse_module(kernel.asm["gir"]), (grid,), args)


def remarks(kernel: CompiledKernel) -> str:
    return " ".join(getattr(kernel.metadata, "remarks", ()))


# --- products -----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("trans", [False, True])
@pytest.mark.parametrize(("bm", "bn", "ctas"), [(128, 64, 2), (64, 128, 2), (256, 64, 4)])
def test_a_product_is_cut_along_rows_or_columns(bm: int, bn: int, ctas: int, trans: bool) -> None:
    kernel = product(persistent, bm, bn, 64, trans, num_warps=4, num_stages=2, num_ctas=ctas)
    assert list(kernel.metadata.cluster_dims) == [ctas, 1, 1] and kernel.metadata.num_ctas == ctas
    (multiplied,) = ops(kernel, "wgmma")
    assert multiplied.result.type.shape == (64, 64)
    assert sorted(op.ctas for op in ops(kernel, "tensor_copy")) == [1, ctas]
    a, b, c = inputs(150, 136, 200, trans)
    interpreted(kernel, [*flat(a, b, c), 150, 136, 200], 2)
    want = expected(persistent, a, b.T if trans else b, 64)
    assert np.abs(c - want).max() <= 2e-3 * np.abs(want).max()


@pytest.mark.parametrize(("trans", "ctas", "bn"), [(False, 2, 128), (True, 2, 64), (True, 4, 64)])
def test_blocks_copy_tiles_to_each_other(trans: bool, ctas: int, bn: int) -> None:
    """Each buffer is filled several times; whole boxes for each block, or some rows of one."""
    kernel = product(persistent, 128, bn, 64, trans, num_warps=4, num_stages=2, num_ctas=ctas)
    a, b, c = inputs(150, 72, 264, trans)
    sim = simulated(kernel, [*flat(a, b, c), 150, 72, 264], 2)
    want = expected(persistent, a, b.T if trans else b, 64)
    assert np.abs(c - want).max() <= 2e-3 * np.abs(want).max()
    assert any("multicast" in name for name in sim.counts)


@pytest.mark.parametrize(("kernel", "causal"), CASES)
def test_rows_of_chained_products(kernel: Any, causal: bool) -> None:
    """Tiles of keys and values are the same in both CTAs, also in rings that several loops turn."""
    m, step, d, n = 128, 64, 64, 256
    compiled_chain = chain(kernel, m, step, d, causal, num_warps=4, num_stages=2, num_ctas=2)
    assert compiled_chain.metadata.cluster_dims[0] == 2
    assert [op.ctas for op in ops(compiled_chain, "tensor_copy")].count(2) >= 2
    for lanes in (False, True):
        arrays = inputs_of_chains(n, n, d)
        found = execute(compiled_chain, arrays, n, 1 if kernel in STAYING else 2, lanes)
        want = reference(kernel, arrays, n, m, step, causal)
        assert np.abs(found - want).max() <= 4e-3 * np.abs(want).max()


@pytest.mark.parametrize("how", ["rem", "mask"])
def test_products_through_pointers(how: str) -> None:
    constants = {"HOW": how, "MASK": True, "BM": 128, "BN": 64, "BK": 64, "sak": 1, "sbk": 1}
    odd = ("M", "N", "K", "sam", "sbk", "sbn", "scm")
    kernel = compiled(wrapped, constants, odd=odd, num_ctas=2)
    assert kernel.metadata.cluster_dims[0] == 2
    values, c, want = arguments(200, 60, 136, "column")
    for grid_run in (interpreted, simulated):
        c[:] = np.nan
        grid_run(kernel, values, 2)
        assert np.abs(c - want).max() <= 2e-3 * np.abs(want).max()


def test_the_twin_of_a_spread_kernel() -> None:
    """It is made of the kernel's text, which is in parts already, and computes all elements."""
    constants = {"HOW": "mask", "MASK": True, "BM": 128, "BN": 64, "BK": 64, "sak": 1, "sbk": 1}
    odd = ("M", "N", "K", "sam", "sbk", "sbn", "scm")
    kernel = compiled(wrapped, constants, odd=odd, num_ctas=2)
    other = fallback_of(kernel)
    assert not hasattr(other.metadata, "precondition") and other.metadata.cluster_dims[0] == 2
    values, c, want = arguments(200, 60, 136, "column")
    for fallback in (other, fallback_of(other)):
        c[:] = np.nan
        simulated(fallback, values, 2)
        assert np.abs(c - want).max() <= 2e-3 * np.abs(want).max()


def test_programs_that_take_turns_in_a_cluster() -> None:
    """One cluster runs all six programs."""
    constants = {"HOW": "rem", "MASK": True, "BM": 256, "BN": 256, "BK": 64, "sak": 1, "sbk": 1}
    odd = ("M", "N", "K", "sam", "sbk", "sbn", "scm")
    kernel = compiled(wrapped, constants, odd=odd, num_warps=8, num_ctas=2)
    assert kernel.metadata.cluster_dims[0] == 2 and kernel.metadata.resident_ctas
    values, c, want = arguments(400, 520, 72, "column")
    simulated(kernel, values, 6, clusters=1)
    assert np.abs(c - want).max() <= 2e-3 * np.abs(want).max()


# --- other kernels --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ctas", [2, 8])
def test_a_kernel_without_products(ctas: int) -> None:
    signature = {"x": "*fp32", "scale": "*fp32", "out": "*fp32", "n": "i32"}
    kernel = built(scaled_rows, signature, {"M": 32, "N": 32}, num_warps=2, num_ctas=ctas)
    assert kernel.metadata.cluster_dims[0] == ctas
    rng = np.random.default_rng(0)
    x, scale = rng.standard_normal((32, 32)).astype(np.float32), np.arange(32, dtype=np.float32)
    want = x * scale
    want = want - want.max(1, keepdims=True)
    want[27:] = 0
    for way in (interpreted, simulated):
        out = np.zeros_like(x)
        way(kernel, [x, scale, out, 27])
        # numbers below 128, whose product a GPU does not round before it subtracts
        assert np.abs(out - want).max() < 2**-16


@tessera.jit
def shapes(x, index, out, M: tl.constexpr, N: tl.constexpr, WHAT: tl.constexpr):
    i, j = tl.arange(0, M), tl.arange(0, N)
    at = i[:, None] * N + j[None, :]
    v = tl.load(x + at)
    if WHAT == "pairs":
        a, b = tl.split(tl.reshape(v, (M, N // 2, 2)))
        v = tl.reshape(tl.join(b, a), (M, N))
    if WHAT == "gather":
        v = tl.gather(v, tl.load(index + at), 1)
    if WHAT == "loop":
        k = 0
        while k < 3:
            if k != 1:
                v = tl.cumsum(v, 1)
            k += 1
    if WHAT == "inner":
        v = tl.reshape(
            tl.sum(tl.reshape(v, (M, 2, N // 2)), 1)[:, None, :] + v.reshape(M, 2, N // 2), (M, N)
        )
    if WHAT == "outer":
        v = tl.reshape(
            tl.sum(tl.reshape(v, (M // 2, 2, N)), 1)[:, None, :] + v.reshape(M // 2, 2, N), (M, N)
        )
    tl.store(out + at, v)


def shaped(x: np.ndarray, index: np.ndarray, what: str) -> np.ndarray:
    m, n = x.shape
    if what == "pairs":
        return x.reshape(m, -1, 2)[:, :, ::-1].reshape(m, n)
    if what == "gather":
        return np.take_along_axis(x, index, 1)
    if what == "loop":
        return np.cumsum(np.cumsum(x, 1), 1)
    if what == "inner":
        parts = x.reshape(m, 2, -1)
        return (parts.sum(1, keepdims=True) + parts).reshape(m, n)
    parts = x.reshape(-1, 2, n)
    return (parts.sum(1, keepdims=True) + parts).reshape(m, n)


@pytest.mark.parametrize("ctas", [2, 8])
@pytest.mark.parametrize("what", ["pairs", "gather", "loop", "inner", "outer"])
def test_tiles_of_many_shapes(what: str, ctas: int) -> None:
    """What happens inside of rows; four pairs of rows that are added up are cut by columns for eight CTAs."""
    signature = {"x": "*fp32", "index": "*i32", "out": "*fp32"}
    kernel = built(shapes, signature, {"M": 8, "N": 8, "WHAT": what}, num_warps=1, num_ctas=ctas)
    assert kernel.metadata.cluster_dims[0] == ctas
    rng = np.random.default_rng(2)
    x = rng.integers(-9, 9, (8, 8)).astype(np.float32)
    index = rng.integers(0, 8, (8, 8)).astype(np.int32)
    for way in (interpreted, simulated):
        out = np.zeros_like(x)
        way(kernel, [x, index, out])
        assert (out == shaped(x, index, what)).all()


@pytest.mark.parametrize(
    ("what", "why"),
    [
        ("reduce", "elements meet in reduce"), ("scan", "elements meet in scan"), ("barrier", "barrier is for"),
        ("print", "print is for"), ("atomic", "same atomic_rmw"), ("old", "same atomic_rmw"),
        ("own", "reads an array that it writes"), ("swapped", "reads an array that it writes"),
        ("elements", ""), ("assert", ""), ("", ""),
    ],
)  # fmt: skip
def test_what_one_block_must_do(what: str, why: str) -> None:
    signature = {"x": "*fp32", "out": "*fp32", "total": "*fp32"}
    kernel = built(
        counted, signature, {"N": 64, "WHAT": what}, num_warps=1, num_ctas=2, debug=what == "assert"
    )
    assert kernel.metadata.cluster_dims[0] == (1 if why else 2)
    assert (why in remarks(kernel)) if why else not remarks(kernel)
    x = np.arange(64, dtype=np.float32)
    want = {"reduce": x - 63, "scan": np.cumsum(x)}.get(what, x.copy())
    for way in (interpreted, simulated):
        given, out, total = x.copy(), np.zeros_like(x), np.zeros_like(x)
        way(kernel, [given, out, total])
        assert (out == want).all()
        assert total[0] == (1 if what in ("atomic", "old") else 0)
        assert total[5] == (5 if what == "elements" else 0)


def test_extents_that_have_no_equal_parts() -> None:
    signature = {"x": "*fp32", "out": "*fp32", "total": "*fp32"}
    kernel = built(counted, signature, {"N": 8, "WHAT": ""}, num_warps=1, num_ctas=16)
    assert "no multiple of 16" in remarks(kernel) and kernel.metadata.cluster_dims[0] == 1


def test_too_small_products_stay_whole() -> None:
    kernel = product(persistent, 16, 16, 64, True, num_warps=4, num_stages=2, num_ctas=2)
    assert "too little would be left of dot" in remarks(kernel)


# --- options, machine code --------------------------------------------------------------------------------------
def test_numbers_of_blocks() -> None:
    signature = {"x": "*fp32", "out": "*fp32", "total": "*fp32"}
    with pytest.raises(InvalidOption, match="num_ctas must be 1, 2, 4, 8 or 16"):
        built(counted, signature, {"N": 64, "WHAT": ""}, num_ctas=3)
    with pytest.raises(LaunchError, match="requires NVIDIA SM90"):
        tessera.compile(
            ASTSource(counted, signature, {(3,): 64, (4,): ""}, {}),
            target=GPUTarget("cuda", 80, 32),
            options={"num_ctas": 2},
        )


def test_hosts_take_no_notice(device: Any) -> None:
    x, out, total = (device.array(np.arange(64, dtype=np.float32)) for _ in range(3))
    counted[(1,)](x, out, total, N=64, WHAT="reduce", num_ctas=2)
    assert (device.numpy(out) == np.arange(64) - 63).all()


def test_machine_code() -> None:
    try:
        kernel = product(
            persistent, 256, 256, 64, True, "fp16", "cuda", num_warps=8, num_stages=4, num_ctas=2
        )
        done = ptxas.assemble(kernel.asm["ptx"], "sm_90a", ["-v"])
    except ToolNotFound:
        pytest.skip("needs ptxas")
    assert done.spill_stores == done.spill_loads == done.stack == 0
    text = kernel.asm["ptx"]
    assert ".reqnctapercluster 2, 1, 1" in text and text.count(".multicast::cluster") == 1
    assert "setmaxnreg.inc" in text and "%clusterid.x" in text and "%ctaid.x" not in text


@pytest.mark.parametrize(
    ("shape", "count", "box"),
    [((64, 256), 2, (64, 64)), ((256, 64), 2, (128, 64)), ((256, 64), 16, (16, 64)), ((64, 128), 4, (32, 64))],
)  # fmt: skip
def test_shares_of_boxes(shape: tuple[int, int], count: int, box: tuple[int, int]) -> None:
    layout = box_layout(shape, 16)
    assert layout is not None
    whole = boxes_of(layout, 16)
    assert whole is not None
    shares = whole.shares(count, 16)
    assert shares is not None and shares.box == box and len(shares.starts) % count == 0
    assert len(set(shares.starts)) * shares.elements == shape[0] * shape[1]
    # in the order in which they lie in memory
    inverse = {layout.apply({"offset": i}): i for i in range(shape[0] * shape[1])}
    assert [inverse[at] for at in shares.starts] == [
        i * shares.elements for i in range(len(shares.starts))
    ]
    assert whole.shares(64, 16) is None
