"""Loops whose products share operands, with their ops in every order: they compile, checked after each pass, and mean
what the interpreter says."""

# pyright: reportInvalidTypeForm=false, reportUndefinedVariable=false, reportOperatorIssue=false
from __future__ import annotations

import importlib.util
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tessera
import tessera.language as tl
from tessera.interp import run
from tessera.ir import parse_module
from tessera.ops import WgmmaOp
from tests.unit.pointer_tma_kit import compiled

HEAD = """import tessera
import tessera.language as tl


@tessera.jit
def kernel(X, W, V, O, n, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    m, c, k = tl.arange(0, M), tl.arange(0, N), tl.arange(0, K)
    g = tl.zeros((M, N), tl.float32)
    u = tl.zeros((M, N), tl.float32)
    r = tl.zeros((M,), tl.float32)
    for i in range(n):
"""
TAIL = "    tl.store(O + m[:, None] * N + c[None, :], g * 2 + u + r[:, None])\n"
ROWS = "{0} + {1}[:, None] * (n * K) + i * K + k[None, :]"
INSIDE = "mask=i * K + k[None, :] < n * K, other=0.0"
# Statements, and which others each one needs before it.
STATEMENTS: dict[str, tuple[str, tuple[str, ...]]] = {
    "x": (f"x = tl.load({ROWS.format('X', 'm')})", ()),
    "w": (f"w = tl.load({ROWS.format('W', 'c')})", ()),
    "v": (f"v = tl.load({ROWS.format('V', 'c')}, {INSIDE})", ()),
    "g": ("g = tl.dot(x, w.T, g)", ("x", "w")),
    "u": ("u = tl.dot(x, v.T, u)", ("x", "v")),
    "r": ("r += tl.sum(x.to(tl.float32), 1)", ("x",)),
    "h": ("u = tl.dot(x, w.T, u)", ("x", "w")),
}  # fmt: skip


def orders(names: str) -> Iterator[str]:
    for chosen in itertools.permutations(names):
        if all(set(STATEMENTS[s][1]) <= set(chosen[:i]) for i, s in enumerate(chosen)):
            yield "".join(chosen)


def kernel_of(order: str, folder: Path) -> Any:
    path = folder / f"{order}.py"
    lines = [f"        {STATEMENTS[s][0]}\n" for s in order]
    path.write_text(HEAD + "".join(lines) + TAIL)
    spec = importlib.util.spec_from_file_location(f"order_{order}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.kernel


def build(order: str, folder: Path, n: int = 32, **options: Any) -> Any:
    constants = {"M": 64, "N": n, "K": 64}
    return compiled(
        kernel_of(order, folder), constants, pointers="XWVO", elements={"O": "fp32"}, **options
    )


@pytest.mark.parametrize("options", [
    {"num_stages": 2, "pointer_maps": False}, {"num_stages": 3, "pointer_maps": False},
    {"num_stages": 5, "pointer_maps": False}, {"num_stages": 3}, {"num_stages": 1, "pointer_maps": False},
])  # fmt: skip
@pytest.mark.parametrize("names", ["xwvgu", "xwvgur", "xwgh"])
def test_every_order(names: str, options: dict[str, Any], tmp_path: Path) -> None:
    chosen = list(orders(names))
    if len(chosen) > 20:  # those that differ most come from all over the list
        chosen = chosen[:: len(chosen) // 20 + 1]
    for order in chosen:
        module = parse_module(build(order, tmp_path, **options).asm["gir"])
        assert sum(isinstance(op, WgmmaOp) for op in module.walk()) >= 2


@pytest.mark.parametrize("order", ["xwgvu", "wxgvu", "vxuwg", "xwvug", "xwgvur", "xrwgvu"])
@pytest.mark.parametrize("maps", [False, True])
@pytest.mark.parametrize("steps", [0, 1, 3])
def test_results(order: str, maps: bool, steps: int, tmp_path: Path) -> None:
    kernel = build(order, tmp_path, num_stages=2, pointer_maps=maps)
    rng = np.random.default_rng(steps)
    depth = 64 * max(steps, 1)
    x, w, v = (rng.integers(-3, 4, (r, depth)).astype(np.float16) for r in (64, 32, 32))
    out = np.zeros((64, 32), np.float32)
    run(parse_module(kernel.asm["gir"]), (1,), [x, w, v, out, steps])
    a, b, c = (z.astype(np.float64) for z in (x, w, v))
    want = a @ b.T * 2 + a @ c.T + (a.sum(1, keepdims=True) if "r" in order else 0)
    np.testing.assert_array_equal(out, want if steps else 0 * want)


# --- shapes of known kernels -----------------------------------------------------------------------------------------
@tessera.jit
def attention_gradients(
    Q, K, V, DO, DQ, DK, DV, LSE, DELTA, S, BM: tl.constexpr, BN: tl.constexpr, D: tl.constexpr
):  # fmt: skip
    """Gradients of attention, of a block of keys and then of a block of queries: recomputed weights, and products that
    share what is loaded, as it is and turned."""
    d = tl.arange(0, D)
    keys = tl.program_id(0) * BN + tl.arange(0, BN)
    k = tl.load(K + keys[:, None] * D + d[None, :])
    v = tl.load(V + keys[:, None] * D + d[None, :])
    dk = tl.zeros((BN, D), tl.float32)
    dv = tl.zeros((BN, D), tl.float32)
    rows = tl.arange(0, BM)
    turned = Q + rows[None, :] * D + d[:, None]
    gradients = DO + rows[:, None] * D + d[None, :]
    for start in range(0, S, BM):
        q = tl.load(turned)
        at = start + rows
        weights = tl.math.exp2(tl.dot(k, q) - tl.load(LSE + at)[None, :])
        weights = tl.where(at[None, :] >= keys[:, None], weights, 0.0)
        g = tl.load(gradients)
        dv += tl.dot(weights.to(tl.float16), g)
        change = tl.dot(v, tl.trans(g)).to(tl.float32)
        ds = (weights * (change - tl.load(DELTA + at)[None, :])).to(tl.float16)
        dk += tl.dot(ds, tl.trans(q))
        turned += BM * D
        gradients += BM * D
    tl.store(DK + keys[:, None] * D + d[None, :], dk.to(tl.float16))
    tl.store(DV + keys[:, None] * D + d[None, :], dv.to(tl.float16))
    at = tl.program_id(0) * BN + tl.arange(0, BN)
    query = tl.load(Q + at[:, None] * D + d[None, :])
    gradient = tl.load(DO + at[:, None] * D + d[None, :])
    lse, delta = tl.load(LSE + at)[:, None], tl.load(DELTA + at)[:, None]
    dq = tl.zeros((BN, D), tl.float32)
    kt, vt = K + rows[None, :] * D + d[:, None], V + rows[None, :] * D + d[:, None]
    for start in range(0, S, BM):
        kb = tl.load(kt)
        vb = tl.load(vt)
        weights = tl.math.exp2(tl.dot(query, kb) - lse)
        weights = tl.where(at[:, None] >= (start + rows)[None, :], weights, 0.0)
        ds = (weights * (tl.dot(gradient, vb).to(tl.float32) - delta)).to(tl.float16)
        dq += tl.dot(ds, tl.trans(kb))
        kt += BM * D
        vt += BM * D
    tl.store(DQ + at[:, None] * D + d[None, :], dq.to(tl.float16))


@pytest.mark.parametrize("stages", [2, 3, 5])
@pytest.mark.parametrize(("bm", "bn"), [(32, 128), (64, 64), (64, 128), (16, 64)])
@pytest.mark.parametrize("maps", [False, True])
def test_gradients_of_attention(bm: int, bn: int, stages: int, maps: bool) -> None:
    constants = {"BM": bm, "BN": bn, "D": 64}
    pointers = ("Q", "K", "V", "DO", "DQ", "DK", "DV", "LSE", "DELTA")
    compiled(
        attention_gradients, constants, pointers=pointers, elements={"LSE": "fp32", "DELTA": "fp32"},
        num_stages=stages, pointer_maps=maps,
    )  # fmt: skip


@tessera.jit
def gate_and_up(
    X, G, U, O, TOKENS, EXPERTS, count, width, depth, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr
):  # fmt: skip
    """Both up-projections of an expert for the tokens that are sent to it."""
    slots = tl.program_id(0) * BM + tl.arange(0, BM)
    tokens = tl.load(TOKENS + slots, mask=slots < count, other=0)
    expert = tl.load(EXPERTS + tl.program_id(0))
    cols, ks = tl.program_id(1) * BN + tl.arange(0, BN), tl.arange(0, BK)
    x = X + tokens[:, None] * depth + ks[None, :]
    gate = G + expert * width * depth + cols[None, :] * depth + ks[:, None]
    up = U + expert * width * depth + cols[None, :] * depth + ks[:, None]
    a = tl.zeros((BM, BN), tl.float32)
    b = tl.zeros((BM, BN), tl.float32)
    for k in range(0, tl.cdiv(depth, BK)):
        inside = ks < depth - k * BK
        y = tl.load(x, mask=(slots < count)[:, None] & inside[None, :], other=0.0)
        a += tl.dot(y, tl.load(gate, mask=inside[:, None], other=0.0))
        b += tl.dot(y, tl.load(up, mask=inside[:, None], other=0.0))
        x += BK
        gate += BK
        up += BK
    out = a * tl.sigmoid(a) * b
    tl.store(
        O + slots[:, None] * width + cols[None, :],
        out.to(tl.float16),
        mask=(slots < count)[:, None],
    )


@pytest.mark.parametrize(
    ("bm", "bn", "bk"), [(64, 32, 64), (64, 64, 32), (64, 128, 64), (128, 64, 64), (16, 64, 128)]
)
@pytest.mark.parametrize(("warps", "stages"), [(4, 2), (4, 3), (4, 4), (8, 3)])
def test_up_projections_of_experts(bm: int, bn: int, bk: int, warps: int, stages: int) -> None:
    constants = {"BM": bm, "BN": bn, "BK": bk}
    kernel = compiled(
        gate_and_up, constants, pointers=("X", "G", "U", "O", "TOKENS", "EXPERTS"),
        elements={"TOKENS": "i32", "EXPERTS": "i32"}, num_warps=warps, num_stages=stages,
    )  # fmt: skip
    assert kernel.asm["llir"]
