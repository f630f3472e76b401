"""Descriptors through the TMA unit: which ones, their maps, the split into teams; results by the interpreter."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import tessera
import tessera.language as tl
from tessera.backends.compiler import GPUTarget
from tessera.backends.nvidia import ptxas
from tessera.backends.nvidia.simulator import run_kernel
from tessera.compiler import ASTSource
from tessera.errors import LaunchError, ToolNotFound
from tessera.interp import run
from tessera.ir import parse_module
from tessera.layout import box_layout, boxes_of
from tessera.runtime.drivers.variants import fallback_of
from tessera.runtime.native.tensor_maps import TensorMaps
from tests.unit.tensor_maps_kit import (
    FakeDriver,
    branching,
    built,
    expected,
    flat,
    inputs,
    ops,
    persistent,
    product,
)


@tessera.jit
def chosen_by_data(index, a, c, N: tl.constexpr, M: tl.constexpr):
    acc = tl.zeros((M, M), tl.float32)
    for k in tl.range(0, N, warp_specialize=True):
        row = tl.max(tl.load(index + tl.arange(0, 16)))
        x = a.load([row, k * M])
        acc = tl.dot(x, x.T, acc)
    c.store([0, 0], acc.to(tl.float16))


@pytest.mark.parametrize("trans", [False, True])
@pytest.mark.parametrize("warps", [4, 8])
@pytest.mark.parametrize("kernel", [persistent, branching], ids=["persistent", "branching"])
def test_teams_compute_the_product(kernel: Any, warps: int, trans: bool) -> None:
    bm, bn, bk, m, n, k = 64 * (warps // 4), 64, 64, 150, 136, 200
    compiled = product(kernel, bm, bn, bk, trans, num_warps=warps, num_stages=3)
    a, b, c = inputs(m, n, k, trans)
    run(parse_module(compiled.asm["gir"]), (2,), [*flat(a, b, c), m, n, k])
    want = expected(kernel, a, b.T if trans else b, bk)
    assert np.abs(c - want).max() <= 2e-3 * np.abs(want).max()
    assert len(ops(compiled, "warp_specialize")) == 1
    assert not ops(compiled, "descriptor_load")


@pytest.mark.parametrize(("warps", "trans"), [(4, True), (8, False)])
def test_lowered_code_computes_the_product(warps: int, trans: bool) -> None:
    bm, bn, bk, m, n, k = 64 * (warps // 4), 64, 64, 70, 72, 136
    compiled = product(persistent, bm, bn, bk, trans, num_warps=warps, num_stages=2)
    a, b, c = inputs(m, n, k, trans)
    meta = compiled.metadata
    values = [x if isinstance(x, np.ndarray) else ("i64", x) for x in [*flat(a, b, c), m, n, k]]
    run_kernel(
        compiled.asm["llir"], compiled.name, values, 32 * meta.warps, meta.shared, (1, 1, 1), meta.tensor_maps
    )  # fmt: skip
    want = expected(persistent, a, b.T if trans else b, bk)
    assert np.abs(c - want).max() <= 2e-3 * np.abs(want).max()


def test_maps_say_what_the_host_encodes() -> None:
    compiled = product(persistent, 128, 128, 64, False, num_warps=8, num_stages=3)
    maps = {tuple(m[4][0]): m for m in compiled.metadata.tensor_maps}
    a, b, c = maps["arg", 0], maps["arg", 5], maps["arg", 10]
    assert (a[0], a[1], list(a[2]), a[3]) == ("fp16", "zero", [128, 64], 128)
    assert list(b[2]) == [64, 64]  # two boxes side by side
    assert list(c[2]) == [64, 64]  # each warpgroup stores its own rows
    assert compiled.metadata.args[-3:] == ["memory"] * 3
    assert compiled.metadata.warps == 9
    assert compiled.metadata.global_scratch_size > 0  # so that other launchers leave it to ours


WORDS = [("arg", 0), ("arg", 1), ("arg", 2), ("arg", 3), ("const", 1)]


def test_maps_are_encoded_once_for_equal_arguments() -> None:
    api: Any = FakeDriver()
    maps = TensorMaps(api, [("fp16", "nan", [64, 32], 64, WORDS)])
    first = maps([4096, 100, 200, 208, 7]).addresses
    assert maps([4096, 100, 200, 208, 8]).addresses == first
    assert first[0] % 64 == 0
    assert len(api.calls) == 1
    place, kind, rank, base, extents, strides, box, steps, interleave, swizzle, _, fill = api.calls[
        0
    ]
    assert (place, kind, rank, base) == (first[0], 6, 2, 4096)
    assert (extents, strides[:1], box, steps) == ([200, 100], [416], [32, 64], [1, 1])
    assert (interleave, swizzle, fill) == (0, 2, 1)
    assert maps([8192, 100, 200, 208, 7]).addresses != first
    maps([4096, 1, 200, 3, 7])
    assert api.calls[-1][5][0] % 16 == 0  # the stride of a single row means nothing


def test_empty_arrays_have_no_map() -> None:
    """A loop over no tiles is no error: nothing reads the map."""
    api: Any = FakeDriver(result=1)
    maps = TensorMaps(api, [("fp16", "zero", [64, 32], 64, WORDS)])
    maps([4096, 0, 200, 208])
    maps([4096, 100, 0, 208])
    maps([0, 100, 200, 208])
    assert not api.calls


def test_what_no_map_describes() -> None:
    api: Any = FakeDriver(result=1)
    with pytest.raises(LaunchError, match="no tensor map"):
        TensorMaps(api, [("fp32", "zero", [64, 32], 128, WORDS)])([4100, 100, 200, 203])


@pytest.mark.parametrize("dtype", ["fp16", "bf16", "fp8e4nv"])
def test_machine_code_needs_no_stack(dtype: str) -> None:
    depth = 128 if dtype == "fp8e4nv" else 64
    try:
        compiled = product(
            persistent, 128, 256, depth, True, dtype, "cuda", num_warps=8, num_stages=3
        )
        done = ptxas.assemble(compiled.asm["ptx"], "sm_90a", ["-v"])
    except ToolNotFound:
        pytest.skip("needs ptxas")
    assert done.spill_stores == done.spill_loads == done.stack == 0
    assert not [line for line in done.log.splitlines() if "C75" in line]
    text = compiled.asm["ptx"]
    assert "setmaxnreg.inc" in text and "cp.async.bulk.tensor.2d.shared::cluster" in text
    assert "wgmma.mma_async" in text and "cp.async.bulk.tensor.2d.global" in text


def test_why_a_loop_stays_whole_is_said() -> None:
    signature = {"index": "*i32", "a": "tensordesc<fp16[64, 64]>", "c": "tensordesc<fp16[64, 64]>"}
    compiled = built(chosen_by_data, signature, {"N": 2, "M": 64}, num_warps=4, num_stages=2)
    said = [re.sub(r" at \S+:\d+", "", text) for text in compiled.metadata.remarks]
    assert "the load stays in its loop: it reads memory" in said
    assert any("not warp-specialised" in text for text in said)
    assert not ops(compiled, "warp_specialize")
    rng = np.random.default_rng(0)
    index = np.arange(16, dtype=np.int32)
    a, c = rng.standard_normal((100, 128)).astype(np.float16), np.zeros((64, 64), np.float16)
    run(parse_module(compiled.asm["gir"]), (1,), [index, *flat(a), *flat(c)])
    rows = a[15:79].astype(np.float64)
    want = rows @ rows.T
    assert np.abs(c - want).max() <= 2e-3 * np.abs(want).max()


@pytest.mark.parametrize(
    ("shape", "bits", "box", "swizzle", "count"),
    [
        ((64, 256), 16, (64, 64), 128, 4), ((16, 32), 32, (16, 32), 128, 1), ((8, 16), 16, (8, 16), 32, 1),
        ((4, 8), 16, (4, 8), 0, 1), ((256,), 32, (256,), 0, 1), ((2, 8, 128), 16, (1, 8, 64), 128, 4),
        ((2, 16, 64), 16, (2, 16, 64), 128, 1),
    ],
)  # fmt: skip
def test_boxes(
    shape: tuple[int, ...], bits: int, box: tuple[int, ...], swizzle: int, count: int
) -> None:
    layout = box_layout(shape, bits)
    assert layout is not None
    found = boxes_of(layout, bits)
    assert found is not None
    assert (found.box, found.swizzle, len(found.starts)) == (box, swizzle, count)


@pytest.mark.parametrize(("shape", "bits"), [((8, 4), 16), ((512, 8), 16), ((1024,), 8)])
def test_no_boxes(shape: tuple[int, ...], bits: int) -> None:
    assert box_layout(shape, bits) is None


@tessera.jit
def half_by_pointers(
    a, stride, b, c, K, M: tl.constexpr, N: tl.constexpr, BK: tl.constexpr
):  # fmt: skip
    ks = tl.arange(0, BK)
    acc = tl.zeros((M, N), tl.float32)
    for k in range(0, K, BK):
        x = tl.load(a + tl.arange(0, M)[:, None] * stride + k + ks[None, :], mask=k + ks < K)
        acc = tl.dot(x, b.load([k, 0]), acc)
    c.store([0, 0], acc.to(tl.float16))


@pytest.mark.parametrize("warps", [4, 8])
def test_pointers_beside_descriptors(warps: int) -> None:
    m, n, k, bk = 128, 64, 144, 64
    signature = {
        "a": "*fp16", "stride": "i32", "b": f"tensordesc<fp16[{bk}, {n}]>", "c": f"tensordesc<fp16[{m}, {n}]>",
        "K": "i32",
    }  # fmt: skip
    names = [p.name for p in half_by_pointers.params]
    aligned = {(names.index(x),): [["tt.divisibility", 16]] for x in ("a", "stride", "K")}
    constants = {(names.index(x),): v for x, v in (("M", m), ("N", n), ("BK", bk))}
    types = {x: signature.get(x, "constexpr") for x in names}
    compiled = tessera.compile(
        ASTSource(half_by_pointers, types, constants, aligned),
        target=GPUTarget("simt", 90, 32),
        options={"num_warps": warps, "num_stages": 3, "pointer_maps": False},
    )
    rng = np.random.default_rng(0)
    a = rng.standard_normal((m, 144)).astype(np.float16)
    b, c = rng.standard_normal((k, n)).astype(np.float16), np.zeros((m, n), np.float16)
    run(parse_module(compiled.asm["gir"]), (1,), [a, 144, *flat(b, c), k])
    want = a[:, :k].astype(np.float64) @ b.astype(np.float64)
    assert np.abs(c - want).max() <= 2e-3 * np.abs(want).max()
    assert len(ops(compiled, "warp_specialize")) == 1
    assert len(ops(compiled, "async_copy")) > 0


@tessera.jit
def shifted(x, y, i, j, M: tl.constexpr, N: tl.constexpr):
    y.store([0, 0], x.load([i, j]))


@pytest.mark.parametrize(("known", "copies"), [(True, 2), (False, 1)])
def test_columns_must_be_known_to_be_aligned(known: bool, copies: int) -> None:
    kind = "tensordesc<fp16[16, 32]>"
    names = ["x", "y", "i", "j", "M", "N"]
    types = {"x": kind, "y": kind, "i": "i32", "j": "i32", "M": "constexpr", "N": "constexpr"}
    facts = {(3,): [["tt.divisibility", 16]]} if known else {}
    compiled = tessera.compile(
        ASTSource(shifted, types, {(4,): 16, (5,): 32}, facts), target=GPUTarget("simt", 90, 32)
    )
    assert list(types) == names
    assert len(compiled.metadata.tensor_maps) == copies
    assert bool(compiled.metadata.remarks) is not known


@tessera.jit
def scaled(x, y, n, M: tl.constexpr, N: tl.constexpr):
    for i in range(0, n):
        y.store([i * M, 0], x.load([i * M, 0]) * 2)


@tessera.jit
def in_place(x, n, M: tl.constexpr, N: tl.constexpr):
    for i in range(0, n):
        x.store([i * M + M, 0], x.load([i * M, 0]) * 2)


def test_tiles_for_registers_come_ahead_too() -> None:
    kind = "tensordesc<fp32[16, 32]>"
    compiled = built(scaled, {"x": kind, "y": kind, "n": "i32"}, {"M": 16, "N": 32}, num_warps=4)
    x = np.random.default_rng(0).standard_normal((100, 32)).astype(np.float32)
    y = np.zeros_like(x)
    run(parse_module(compiled.asm["gir"]), (1,), [*flat(x, y), 7])
    np.testing.assert_array_equal(y, 2 * x)
    assert len(ops(compiled, "warp_specialize")) == 1
    meta, z = compiled.metadata, np.zeros_like(x)
    values = [v if isinstance(v, np.ndarray) else ("i64", v) for v in [*flat(x, z), 7]]
    run_kernel(
        compiled.asm["llir"], compiled.name, values, 32 * meta.warps, meta.shared, (1, 1, 1), meta.tensor_maps
    )  # fmt: skip
    np.testing.assert_array_equal(z, 2 * x)


@pytest.mark.parametrize(("kernel", "warps"), [(in_place, 4), (scaled, 2), (scaled, 1)])
def test_loops_that_stay_whole_load_through_pointers(kernel: Any, warps: int) -> None:
    kind = "tensordesc<fp32[16, 32]>"
    signature = {"x": kind, "y": kind, "n": "i32"}
    if kernel is in_place:
        del signature["y"]
    compiled = built(kernel, signature, {"M": 16, "N": 32}, num_warps=warps)
    x = np.random.default_rng(0).standard_normal((80, 32)).astype(np.float32)
    arrays = [x.copy()] if kernel is in_place else [x, np.zeros_like(x)]
    run(parse_module(compiled.asm["gir"]), (1,), [*flat(*arrays), 4])
    want = x * 2
    if kernel is in_place:
        want = np.concatenate([x[:16] * 2**i for i in range(5)])
    np.testing.assert_array_equal(arrays[-1][:64], want[:64])
    assert "not warp-specialised" in compiled.metadata.remarks[0]
    assert not ops(compiled, "warp_specialize")
    assert not ops(compiled, "descriptor_load")


@pytest.mark.parametrize("limit", [None, 168])
def test_registers_change_hands_only_where_all_are_there(limit: int | None) -> None:
    """A request for more registers than the block has at its start would never end."""
    try:
        options: dict[str, Any] = {"num_warps": 8, "num_stages": 3, "maxnreg": limit}
        text = product(persistent, 128, 256, 64, True, "fp16", "cuda", **options).asm["ptx"]
        kind = "tensordesc<fp32[16, 64]>"
        signature, constants = {"x": kind, "y": kind, "n": "i32"}, {"M": 16, "N": 64}
        plain = built(scaled, signature, constants, "cuda", num_warps=8)
    except ToolNotFound:
        pytest.skip("needs ptxas")
    assert ("setmaxnreg" in text) is (limit is None)
    assert "setmaxnreg" not in plain.asm["ptx"]
    assert plain.metadata.warps == 9


@tessera.jit
def batched_product(a, b, c, K, M: tl.constexpr, N: tl.constexpr, BK: tl.constexpr):
    batch = tl.program_id(1)
    acc = tl.zeros((M, N), tl.float32)
    for k in range(0, K, BK):
        x = a.load([batch, tl.program_id(0) * M, k]).reshape(M, BK)
        y = b.load([batch, 0, k]).reshape(N, BK)
        acc = tl.dot(x, y.T, acc)
    tile = acc.to(tl.float16).reshape(1, M, N)
    c.store([batch, tl.program_id(0) * M, 0], tile)


@pytest.mark.parametrize("lanes", [False, True])
def test_blocks_without_their_first_dimension(lanes: bool) -> None:
    """Arrays of matrices: rows past the end of one are not those of the next."""
    m, n, bk, k, rows, count = 64, 64, 64, 136, 100, 2
    kind = "tensordesc<fp16[1, {}, {}]>".format
    signature = {"a": kind(m, bk), "b": kind(n, bk), "c": kind(m, n), "K": "i32"}
    constants = {"M": m, "N": n, "BK": bk}
    compiled = built(batched_product, signature, constants, num_warps=4, num_stages=2)
    assert len(ops(compiled, "reshape")) == 1  # that of the result
    rng = np.random.default_rng(0)
    a = rng.standard_normal((count, rows, k)).astype(np.float16)
    b = rng.standard_normal((count, n, k)).astype(np.float16)
    c = np.full((count, rows, n), np.nan, np.float16)
    args = [x for t in (a, b, c) for x in (t, *t.shape, t[0].size, t.shape[2], 1)]
    grid = (2, count, 1)
    if lanes:
        meta = compiled.metadata
        values = [x if isinstance(x, np.ndarray) else ("i64", x) for x in [*args, k]]
        run_kernel(
            compiled.asm["llir"], compiled.name, values, 32 * meta.warps, meta.shared, grid, meta.tensor_maps
        )  # fmt: skip
    else:
        run(parse_module(compiled.asm["gir"]), grid, [*args, k])
    want = a.astype(np.float64) @ b.astype(np.float64).swapaxes(1, 2)
    assert np.abs(c - want).max() <= 2e-3 * np.abs(want).max()
    assert all(len(m[2]) == 3 for m in compiled.metadata.tensor_maps)


@tessera.jit
def stored(out, N, BN: tl.constexpr):
    desc = tl.make_tensor_descriptor(out, shape=[16, N], strides=[64, 1], block_shape=[16, BN])
    desc.store([0, 0], tl.full([16, BN], 1, tl.float32))


def test_a_launch_checks_where_rows_end() -> None:
    """Rows end at 16 bytes, or the fallback stores through pointers. What is known beforehand is not checked."""
    kernel = built(stored, {"out": "*fp32", "N": "i32"}, {"BN": 32}, num_warps=4)
    meta: Any = kernel.metadata
    assert [check[3] for check in meta.precondition] == [4] and len(meta.tensor_maps) == 1
    fallback: Any = fallback_of(kernel).metadata
    assert not hasattr(fallback, "precondition") and not hasattr(fallback, "tensor_maps")
    assert not hasattr(
        built(stored, {"out": "*fp32"}, {"N": 40, "BN": 32}).metadata, "precondition"
    )
    assert not ops(built(stored, {"out": "*fp32"}, {"N": 30, "BN": 32}), "descriptor_store")
