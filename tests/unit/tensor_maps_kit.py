"""Kernels that load and store through tensor maps, compiled for Hopper without a device."""

from __future__ import annotations

from typing import Any

import numpy as np

import tessera
import tessera.language as tl
from tessera.backends.compiler import GPUTarget
from tessera.compiler import ASTSource, CompiledKernel
from tessera.ir import parse_module


@tessera.jit
def grouped(t, tiles_m, tiles_n, GROUP: tl.constexpr):
    first = t // (GROUP * tiles_n) * GROUP
    height = tl.minimum(tiles_m - first, GROUP)
    return first + t % (GROUP * tiles_n) % height, t % (GROUP * tiles_n) // height


@tessera.jit
def persistent(
    a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, TRANS: tl.constexpr
):  # fmt: skip
    tiles_m, tiles_n = tl.cdiv(M, BM), tl.cdiv(N, BN)
    for t in tl.range(tl.program_id(0), tiles_m * tiles_n, tl.num_programs(0)):
        i, j = grouped(t, tiles_m, tiles_n, 2)
        acc = tl.zeros((BM, BN), tl.float32)
        for k in range(0, tl.cdiv(K, BK)):
            x = a.load([i * BM, k * BK])
            y = b.load([j * BN, k * BK]).T if TRANS else b.load([k * BK, j * BN])
            acc = tl.dot(x, y, acc)
        c.store([i * BM, j * BN], acc.to(tl.float16))


@tessera.jit
def branching(
    a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, TRANS: tl.constexpr
):
    """Products inside a branch; a second loop in each tile; the sum is used between products."""
    for t in range(tl.program_id(0), tl.cdiv(M, BM) * tl.cdiv(N, BN), tl.num_programs(0)):
        i, j = t // tl.cdiv(N, BN), t % tl.cdiv(N, BN)
        acc = tl.zeros((BM, BN), tl.float32)
        if K > 0:
            for k in range(0, K, BK):
                y = b.load([j * BN, k]).T if TRANS else b.load([k, j * BN])
                acc += tl.dot(a.load([i * BM, k]), y)
            for k in range(0, K, 2 * BK):
                y = b.load([j * BN, k]).T if TRANS else b.load([k, j * BN])
                acc = tl.dot(a.load([i * BM, k]), y, acc * 0.5)
        c.store([i * BM, j * BN], acc.to(tl.float16))


def built(
    kernel: Any,
    signature: dict[str, str],
    constants: dict[str, Any],
    backend: str = "simt",
    **options: Any,
) -> CompiledKernel:
    names = [p.name for p in kernel.params]
    types = {n: signature.get(n, "constexpr") for n in names}
    values = {(names.index(k),): v for k, v in constants.items()}
    return tessera.compile(
        ASTSource(kernel, types, values, {}), target=GPUTarget(backend, 90, 32), options=options
    )


def product(
    kernel: Any,
    bm: int,
    bn: int,
    bk: int,
    trans: bool,
    dtype: str = "fp16",
    backend: str = "simt",
    **options: Any,
) -> CompiledKernel:
    b = f"{bn}, {bk}" if trans else f"{bk}, {bn}"
    signature = {
        "a": f"tensordesc<{dtype}[{bm}, {bk}]>", "b": f"tensordesc<{dtype}[{b}]>",
        "c": f"tensordesc<fp16[{bm}, {bn}]>", **dict.fromkeys("MNK", "i32"),
    }  # fmt: skip
    constants = {"BM": bm, "BN": bn, "BK": bk, "TRANS": trans}
    return built(kernel, signature, constants, backend, **options)


def flat(*arrays: np.ndarray) -> list[Any]:
    return [x for a in arrays for x in (a, *a.shape, a.shape[1], 1)]


def inputs(m: int, n: int, k: int, trans: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    a = rng.standard_normal((m, k)).astype(np.float16)
    b = rng.standard_normal((n, k) if trans else (k, n)).astype(np.float16)
    return a, b, np.zeros((m, n), np.float16)


def expected(kernel: Any, a: np.ndarray, b: np.ndarray, bk: int) -> np.ndarray:
    x, y = a.astype(np.float64), b.astype(np.float64)
    total = x @ y
    if kernel is branching:
        for k in range(0, x.shape[1], 2 * bk):
            total = total * 0.5 + x[:, k : k + bk] @ y[k : k + bk]
    return total


def ops(kernel: CompiledKernel, opcode: str) -> list[Any]:
    return [op for op in parse_module(kernel.asm["gir"]).walk() if op.opcode == opcode]


class FakeDriver:
    """Keeps what would be encoded."""

    def __init__(self, result: int = 0) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.result = result

    def tensor_map_encode(self) -> Any:
        def encode(*args: Any) -> int:
            self.calls.append(tuple(list(a) if hasattr(a, "_length_") else a for a in args))
            return self.result

        return encode

    def describe(self, result: int) -> tuple[str, str]:
        return "INVALID_VALUE", ""
