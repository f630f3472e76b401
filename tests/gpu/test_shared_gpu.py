"""Layout conversions, shared memory, asynchronous copies and products on a real GPU, against NumPy."""

from __future__ import annotations

import ctypes
import itertools
from functools import cache

import numpy as np
import pytest

from tessera.backends.gpu.module import lower_module
from tessera.backends.llvm import binding
from tessera.backends.nvidia import ptxas
from tessera.backends.nvidia.backend import architecture
from tessera.backends.nvidia.emit import NvidiaTarget
from tessera.backends.nvidia.target import facts_for
from tessera.layout import (
    LinearLayout,
    blocked,
    default_blocked,
    mma_acc,
    mma_operand,
    shared_linear,
    shared_swizzled,
    wgmma_acc,
)  # fmt: skip
from tessera.passes.gpu_facts import MmaRow
from tessera.passes.gpu_layout.rules import fma_acc
from tessera.runtime.cuda import driver_api as cuda
from tests.conftest import decode, encode
from tests.gpu import shared_kernels as kernels

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not cuda.available(), reason="needs a CUDA device"),
]

BYTES = {"i1": 1, "i8": 1, "i16": 2, "fp16": 2, "bf16": 2, "i32": 4, "fp32": 4, "i64": 8, "fp64": 8}


@cache
def capability() -> int:
    """Of the first device; code for newer GPUs than we know is that of the newest known."""
    major, minor = cuda.driver().properties(0).capability
    return min(major * 10 + minor, 90)


def run(kernel: kernels.Kernel, *arrays: np.ndarray | int) -> list[np.ndarray]:
    """Launch one program; every array is copied to the device and back."""
    driver, cc = cuda.driver(), capability()
    driver.bind()
    facts = facts_for(cc)
    module = kernel.module(facts)
    text = lower_module(module, NvidiaTarget(cc, facts))
    ptx = binding.optimise(
        text, binding.nvptx(architecture(cc), min(86, ptxas.newest_ptx(ptxas.version()))), ""
    ).to_assembly()
    loaded = driver.load(ptxas.assemble(ptx, architecture(cc)).cubin, "k", module.attrs["shared"])
    args: list[ctypes.c_uint64 | ctypes.c_int32] = []
    for x in arrays:
        if isinstance(x, int):
            args.append(ctypes.c_int32(x))
            continue
        args.append(ctypes.c_uint64(driver.allocate(x.nbytes)))
        driver.copy_to_device(args[-1].value, x.ctypes.data, x.nbytes)
    config = cuda.launch_config(32 * kernel.warps, module.attrs["shared"])
    driver.launch(loaded.function, (1, 1, 1), config, args)
    driver.synchronize()
    out: list[np.ndarray] = []
    for x, a in zip(arrays, args, strict=True):
        if isinstance(x, np.ndarray):
            out.append(np.empty_like(x))
            driver.copy_to_host(out[-1].ctypes.data, a.value, x.nbytes)
            driver.free(a.value)
    driver.unload(loaded.module)
    return out


def numbers(count: int, elem: str) -> np.ndarray:
    """Distinct values of an element's width, as bits; those of int1 are a pattern of 0 and 1."""
    if elem == "i1":
        return (np.arange(count) * 7 % 11 % 3 == 0).astype(np.uint8)
    kind = np.dtype(f"u{BYTES[elem]}")
    factor = np.array(0x9E3779B97F4A7C15, np.uint64)
    with np.errstate(over="ignore"):
        x = (np.arange(1, count + 1, dtype=np.uint64) * factor) >> np.uint64(64 - 8 * BYTES[elem])
    return x.astype(kind)


# --- conversions ---------------------------------------------------------------------------------------------
SHAPE = (64, 64)
LAYOUTS: dict[str, LinearLayout] = {
    "rows": default_blocked(SHAPE, 4, 8),
    "columns": default_blocked(SHAPE, 4, 4, (0, 1)),
    "square": blocked(SHAPE, (2, 2), (4, 8), (2, 2), (1, 0)),
    "acc": mma_acc(SHAPE, 2, 2),
    "acc_tall": mma_acc(SHAPE, 4, 1),
    "a": mma_operand(SHAPE, 0, 16, 2, 2),
    "a8": mma_operand(SHAPE, 0, 8, 4, 1),
    "b": mma_operand(SHAPE, 1, 16, 1, 4),
    "wgmma": wgmma_acc(SHAPE, 1, 64),
}


@pytest.mark.parametrize("elem", ["fp16", "fp32", "i8", "i1", "i64"])
@pytest.mark.parametrize("src", LAYOUTS)
def test_conversions(src: str, elem: str):
    x = numbers(64 * 64, elem)
    for dst, layout in LAYOUTS.items():
        _, y = run(kernels.conversion(LAYOUTS[src], layout, elem), x, np.zeros_like(x))
        np.testing.assert_array_equal(y, x, err_msg=f"{src} to {dst}")


SMALL = {
    "lanes": blocked((8, 16), (1, 1), (2, 16), (1, 1), (1, 0)),
    "rows": blocked((8, 16), (1, 4), (8, 4), (1, 1), (1, 0)),
    "columns": blocked((8, 16), (4, 1), (2, 16), (1, 1), (0, 1)),
    "scattered": LinearLayout.packed(
        (8, 16), {"register": [64 ^ 1, 8], "lane": [16, 2 ^ 32, 1, 32, 4]}
    ),
    "repeated": LinearLayout.packed(
        (8, 16), {"register": [1, 2, 64, 4], "lane": [8, 16, 32, 0, 0]}
    ),
}


@pytest.mark.parametrize("elem", ["fp16", "fp32", "i8", "i1", "fp64"])
def test_conversions_within_a_warp(elem: str):
    x = numbers(128, elem)
    for src, dst in itertools.permutations(SMALL, 2):
        _, y = run(kernels.conversion(SMALL[src], SMALL[dst], elem), x, np.zeros_like(x))
        np.testing.assert_array_equal(y, x, err_msg=f"{src} to {dst}")


def test_conversion_in_rounds():
    """More than one round's limit of shared memory."""
    shape = (256, 128)
    x = numbers(256 * 128, "i32")
    kernel = kernels.conversion(default_blocked(shape, 8, 4), mma_acc(shape, 4, 2), "i32")
    _, y = run(kernel, x, np.zeros_like(x))
    np.testing.assert_array_equal(y, x)


def test_pointers():
    x = numbers(64 * 64, "i32")
    for dst in ("columns", "acc", "b"):
        kernel = kernels.pointer_conversion(LAYOUTS["rows"], LAYOUTS[dst], "i32")
        _, y = run(kernel, x, np.zeros_like(x))
        np.testing.assert_array_equal(y, x, err_msg=dst)


# --- buffers -------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("elem", ["fp16", "fp32", "i8", "fp64"])
@pytest.mark.parametrize("order", [(1, 0), (0, 1)])
@pytest.mark.parametrize("swizzle", [128, 32, 0])
def test_buffers(swizzle: int, order: tuple[int, int], elem: str):
    bits = 8 * BYTES[elem]
    memory = shared_swizzled(SHAPE, order, bits, min(swizzle, 64 * bits // 8))
    x = numbers(64 * 64, elem)
    targets = {"rows": LAYOUTS["rows"], "a": mma_operand(SHAPE, 0, bits, 2, 2)}
    targets["b"] = mma_operand(SHAPE, 1, bits, 2, 2)
    for name, dst in targets.items():
        for how in ("init", "store", "trans"):
            kernel = kernels.through_shared(LAYOUTS["square"], memory, dst, elem, how)
            _, y = run(kernel, x, np.zeros_like(x))
            want = x.reshape(SHAPE).T.ravel() if how == "trans" else x
            np.testing.assert_array_equal(y, want, err_msg=f"{how} {name}")


@pytest.mark.parametrize("elem", ["fp16", "fp32", "i8"])
def test_asynchronous_copies(elem: str):
    bits = 8 * BYTES[elem]
    memory = shared_swizzled(SHAPE, (1, 0), bits, min(128, 64 * bits // 8))
    x = numbers(3 * 64 * 64, elem)
    full = 3 * 64 * 64
    for vec, n in ((16, full), (8, full), (4, full - 4096 - 1024), (1, full - 777)):
        src = default_blocked(SHAPE, 4, max(1, vec * 8 // bits))
        dst = mma_operand(SHAPE, 0, bits, 2, 2)
        kernel = kernels.ring_copy(src, memory, dst, elem, aligned=n % 16 == 0)
        _, y = run(kernel, x, np.zeros_like(x), n)
        np.testing.assert_array_equal(y, np.where(np.arange(full) < n, x, 0), err_msg=f"{vec} {n}")


def test_a_buffer_smaller_than_the_threads():
    shape = (8, 8)
    src = default_blocked(shape, 4, 4)
    x = numbers(3 * 64, "fp16")
    kernel = kernels.ring_copy(src, shared_linear(shape, (1, 0)), src, "fp16")
    _, y = run(kernel, x, np.zeros_like(x), 3 * 64)
    np.testing.assert_array_equal(y, x)


# --- products ------------------------------------------------------------------------------------------------
def values(shape: tuple[int, ...], elem: str, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """(bits for the device, exact float64 or int64 values) of small numbers."""
    rng = np.random.default_rng(seed)
    if elem in ("i8", "u8", "i32"):
        x = rng.integers(0 if elem == "u8" else -9, 10, shape)
        return x.astype({"i8": np.int8, "u8": np.uint8, "i32": np.int32}[elem]), x
    x = rng.integers(-8, 9, shape) / 4.0
    if elem in ("fp8e4nv", "fp8e5", "bf16"):
        from tessera.dtypes import by_short_name

        kind = by_short_name(elem)
        bits = encode(x, kind)
        return bits, decode(bits, kind).astype(np.float64)
    return x.astype({"fp16": np.float16, "fp32": np.float32, "fp64": np.float64}[elem]), x


def check_product(kernel: kernels.Kernel, shapes: list[tuple[int, ...]], elems: list[str]) -> None:
    (x, xv), (y, yv), (z, zv) = (values(s, e, i) for i, (s, e) in enumerate(zip(shapes, elems)))
    out = run(kernel, x, y, z)[2]
    # Small multiples of 1/16: every type holds the sums exactly.
    np.testing.assert_array_equal(out.astype(np.float64), xv @ yv + zv)


MMA = {row.name: row for row in facts_for(90).mma}


@pytest.mark.parametrize("warps", [(2, 2), (4, 1), (1, 8)])
@pytest.mark.parametrize("name", MMA)
def test_matrix_instructions(name: str, warps: tuple[int, int]):
    row: MmaRow = MMA[name]
    if row not in facts_for(capability()).mma:
        pytest.skip("this GPU does not have the instruction")
    for m, n, k in ((64, 64, 64), (16, 32, 32), (8, 8, 32)):
        a = mma_operand((m, k), 0, row.operand_bits, *warps)
        b = mma_operand((k, n), 1, row.operand_bits, *warps)
        acc = mma_acc((m, n), *warps, instr_m=row.m)
        elems = [row.a.short, row.b.short, row.acc.short]
        kernel = kernels.product("mma", a, b, acc, elems, f"instruction={name!r}")
        check_product(kernel, [(m, k), (k, n), (m, n)], elems)


def test_batched_matrix_instruction():
    a = mma_operand((4, 32, 32), 0, 16, 2, 1, warps_b=2)
    b = mma_operand((4, 32, 16), 1, 16, 2, 1, warps_b=2)
    acc = mma_acc((4, 32, 16), 2, 1, warps_b=2)
    name = next(n for n, row in MMA.items() if (row.a.short, row.acc.short) == ("fp16", "fp32"))
    elems = ["fp16", "fp16", "fp32"]
    kernel = kernels.product("mma", a, b, acc, elems, f"instruction={name!r}")
    check_product(kernel, [(4, 32, 32), (4, 32, 16), (4, 32, 16)], elems)


@pytest.mark.parametrize("elem", ["fp32", "fp16", "fp64", "i32"])
def test_fma_products(elem: str):
    for shape in ((64, 64, 32), (16, 16, 16), (4, 8, 2), (2, 16, 32, 16)):
        *batch, m, n, k = shape
        sa, sb, sc = (*batch, m, k), (*batch, k, n), (*batch, m, n)
        acc = fma_acc(sc, 4, 32)
        kernel = kernels.product(
            "dot", default_blocked(sa, 4, 4), default_blocked(sb, 4, 4), acc, [elem] * 3, ""
        )
        check_product(kernel, [sa, sb, sc], [elem] * 3)
