"""Compiles kernels of pointers for Hopper, and runs them with what a launch would check."""

# annotations of kernels name dtypes
# pyright: reportInvalidTypeForm=false, reportUndefinedVariable=false, reportOperatorIssue=false
from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

import tessera
import tessera.language as tl
from tessera.backends.compiler import GPUTarget
from tessera.backends.nvidia import simulator
from tessera.compiler import ASTSource, CompiledKernel
from tessera.interp import run
from tessera.ir import parse_module

HOWS = ["interpreter", "simulator"]


@tessera.jit
def wrapped(
    a, b, c, M, N, K, sam, sak, sbk, sbn, scm, HOW: tl.constexpr, MASK: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Groups of rows; rows and columns past the edge are read from somewhere, and their products dropped."""
    tiles_m, tiles_n = tl.cdiv(M, BM), tl.cdiv(N, BN)
    group = tl.program_id(0) // (2 * tiles_n)
    height = tl.minimum(tiles_m - group * 2, 2)
    i = group * 2 + tl.program_id(0) % (2 * tiles_n) % height
    j = tl.program_id(0) % (2 * tiles_n) // height
    rows, cols, ks = i * BM + tl.arange(0, BM), j * BN + tl.arange(0, BN), tl.arange(0, BK)
    ar, bc = rows, cols
    if HOW == "rem":
        ar, bc = rows % M, cols % N
    elif HOW == "where":
        ar, bc = tl.where(rows < M, rows, 0), tl.minimum(cols, N - 1)
    x = a + ar[:, None] * sam + ks[None, :] * sak
    y = b + ks[:, None] * sbk + bc[None, :] * sbn
    tl.assume(i >= 0)
    tl.assume(sam > 0)
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, tl.cdiv(K, BK)):
        inside = ks < K - k * BK
        if HOW == "mask":
            p = tl.load(x, mask=inside[None, :] & (rows < M)[:, None], other=0.0)
            q = tl.load(y, mask=(inside[:, None] & (cols[None, :] < N)) & (cols[None, :] >= 0))
        else:
            p = tl.load(x, mask=inside[None, :], other=0.0)
            q = tl.load(y, mask=inside[:, None], other=0.0)
        acc = tl.dot(p, q, acc)
        x += BK * sak
        y += BK * sbk
    mask = (rows[:, None] < M) & (cols[None, :] < N)
    tl.store(
        c + rows[:, None] * scm + cols[None, :], acc.to(tl.float16), mask=mask if MASK else None
    )


@tessera.jit
def batched(
    a, b, c, K, saz, sah, sam, sbh, sbk, H: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr
):  # fmt: skip
    """Heads of a batch side by side in the columns of `a`, one after the other in `b`."""
    z, h = tl.program_id(0) // H, tl.program_id(0) % H
    rows, ks, cols = tl.arange(0, BM), tl.arange(0, BK), tl.arange(0, BN)
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, BK):
        x = tl.load(
            a + z * saz + h * sah + (rows[:, None] * sam + (k + ks)[None, :]), (k + ks)[None, :] < K
        )
        y = tl.load(
            b + h * sbh + (k + ks)[:, None] * sbk + cols[None, :], (k + ks)[:, None] < K, 0.0
        )
        acc += tl.dot(x, y)
    out = c + tl.program_id(0) * BM * BN + rows[:, None] * BN + cols[None, :]
    tl.store(out, acc.to(tl.float16))


def compiled(
    kernel: Any, constants: dict[str, Any], pointers: Collection[str] = "abc", elem: str = "fp16",
    odd: Collection[str] = (), target: str = "simt", result: str = "", elements: Mapping[str, str] | None = None,
    **options: Any,
) -> CompiledKernel:  # fmt: skip
    """All run-time arguments are divisible by 16, except those in `odd`. `c` points to `result`, if that is given; what
    other pointers point to may be in `elements`."""
    names = [p.name for p in kernel.params]
    types = {n: f"*{elem}" if n in pointers else "i32" for n in names}
    types |= dict.fromkeys(constants, "constexpr")
    for name, other in {**({"c": result} if result else {}), **(elements or {})}.items():
        types[name] = f"*{other}"
    facts = {
        (i,): [["tt.divisibility", 16]]
        for i, n in enumerate(names)
        if types[n] != "constexpr" and n not in odd
    }
    values = {(names.index(k),): v for k, v in constants.items()}
    source = ASTSource(kernel, types, values, facts)
    options = {"num_warps": 4, "num_stages": 3, **options}
    return tessera.compile(source, target=GPUTarget(target, 90, 32), options=options)


def simulate(
    kernel: CompiledKernel,
    values: list[Any],
    grid: tuple[int, ...],
    how: str,
    latency: str | None = None,
) -> None:
    """Run a kernel by the interpreter of its GPU IR, or in the simulator; numbers are `i64` there."""
    if how == "interpreter":
        run(parse_module(kernel.asm["gir"]), grid, values)
        return
    meta: Any = kernel.metadata
    given = [v if isinstance(v, np.ndarray) else ("i64", v) for v in values]
    maps, code = getattr(meta, "tensor_maps", ()), getattr(meta, "host_code", ())
    simulator.run_kernel(
        kernel.asm["llir"],
        kernel.name,
        given,
        32 * meta.warps,
        meta.shared,
        grid,
        maps,
        code,
        latency=latency,
    )


def copies(kernel: CompiledKernel) -> int:
    return [op.opcode for op in parse_module(kernel.asm["gir"]).walk()].count("tensor_copy")


def passes(kernel: CompiledKernel, values: list[Any], grid: tuple[int, int, int]) -> bool:
    return simulator.precondition_holds(
        kernel.metadata, [simulator.argument("", v) for v in values], grid
    )


def arguments(m: int, n: int, k: int, b_order: str) -> tuple[list[Any], np.ndarray, np.ndarray]:
    """What `wrapped` takes; c, and what it should be. Rows have room behind them."""
    rng = np.random.default_rng(m + n + k)
    wide = lambda x: -(-x // 8) * 8 + 8
    a = rng.standard_normal((m, wide(k))).astype(np.float16)
    inner, outer = (n, k) if b_order == "row" else (k, n)
    b = rng.standard_normal((outer, wide(inner))).astype(np.float16)
    c = np.full((m, n), np.nan, np.float16)
    want = a[:, :k].astype(np.float64) @ (b[:, :n] if b_order == "row" else b[:, :k].T).astype(
        np.float64
    )
    return [a, b, c, m, n, k, a.shape[1], b.shape[1], n], c, want
