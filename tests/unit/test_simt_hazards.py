"""What the simulated GPU makes of broken code: kernels that are right lose a wait, a fence or a barrier, and fail."""

# pyright: basic
from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import tessera
import tessera.language as tl
from tessera.backends.compiler import GPUTarget
from tessera.backends.nvidia.simulator import run_kernel
from tessera.compiler import ASTSource
from tessera.config import knobs
from tessera.errors import SimulatedHazard
from tessera.runtime.driver import driver

SEEDS = range(3)


@tessera.jit
def product(a, b, out, m, n, k, sa, sb, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    i, j, kk = tl.arange(0, M), tl.arange(0, N), tl.arange(0, K)
    pa, pb = a + (i % m)[:, None] * sa + kk[None, :], b + kk[:, None] * sb + (j % n)[None, :]
    acc = tl.zeros((M, N), tl.float32)
    for _ in range(0, k, K):
        acc = tl.dot(tl.load(pa), tl.load(pb), acc)
        pa += K
        pb += K * sb
    tl.store(out + i[:, None] * N + j[None, :], acc.to(out.dtype.element_ty))


@tessera.jit
def product_and_more(a, b, c, out, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    i, j, k = tl.arange(0, M), tl.arange(0, N), tl.arange(0, K)
    x, y = tl.load(a + i[:, None] * K + k[None, :]), tl.load(b + k[:, None] * N + j[None, :])
    at = i[:, None] * N + j[None, :]
    tl.store(out + at, tl.dot(x, y, tl.load(c + at)))


class Product:
    """`product` compiled for a GPU, and what it is given."""

    def __init__(self, shape: tuple[int, int, int], cc: int = 90, **options: Any) -> None:
        m, n, step = shape
        k = 5 * step
        rng = np.random.default_rng(0)
        self.a = rng.integers(-4, 5, (m, k)).astype(np.float16)
        self.b = rng.integers(-4, 5, (k, n)).astype(np.float16)
        self.want = (self.a.astype(np.float32) @ self.b.astype(np.float32)).astype(np.float16)
        self.k = k
        names = {"a": "*fp16", "b": "*fp16", "out": "*fp16"}
        names |= dict.fromkeys(("m", "n", "k", "sa", "sb"), "i32")
        facts = {(i,): [["tt.divisibility", 16]] for i in range(len(names))}
        names |= dict.fromkeys("MNK", "constexpr")
        source = ASTSource(product, names, {"M": m, "N": n, "K": step}, facts)
        self.kernel = tessera.compile(source, target=GPUTarget("simt", cc, 32), options=options)
        self.ir: str = self.kernel.asm["llir"]

    def run(self, ir: str, seed: int = 0, latency: str = "random") -> np.ndarray:
        out, meta = np.full_like(self.want, np.nan), self.kernel.metadata
        m, n = self.want.shape
        numbers = [("i64", x) for x in (m, n, self.k, self.k, n)]
        run_kernel(
            ir, self.kernel.name, [self.a, self.b, out, *numbers], 32 * meta.warps, meta.shared,
            tensor_maps=getattr(meta, "tensor_maps", ()), host_code=getattr(meta, "host_code", ()),
            seed=seed, latency=latency,
        )  # fmt: skip
        return out

    def fails(self, ir: str, seed: int = 0, latency: str = "random") -> bool:
        """Whether there is a report, or a wrong number."""
        try:
            return not np.array_equal(self.run(ir, seed, latency), self.want)
        except SimulatedHazard:
            return True


def without(ir: str, text: str, which: int) -> str:
    """The module without the order that one of the lines that contain `text` makes. Registers go through a wait for
    products: that one waits for none of the latest 7 groups."""
    lines = ir.splitlines()
    at = [i for i, line in enumerate(lines) if text in line and " asm " in line][which]
    if text == "wgmma.wait_group":
        lines[at] = re.sub(r"(wait_group.sync.aligned) \d+", r"\1 7", lines[at])
        rows = [x for x in lines if x.startswith("; primitive wgmma_wait")]
        lines += [re.sub(r"wait\(-?\d+", "wait(7", x) for x in rows]
    else:
        del lines[at]
    return "\n".join(lines) + "\n"


def needed(ir: str, text: str) -> list[int]:
    """Numbers of the lines that contain `text`, but those behind which nobody uses shared memory any more."""
    lines = [x for x in ir.splitlines() if " asm " in x]
    last = max(i for i, x in enumerate(lines) if re.search("shared|wgmma.mma|matrix", x))
    found = [i for i, x in enumerate(lines) if text in x]
    return [which for which, i in enumerate(found) if i < last]


KINDS = {
    "mma.sync, cp.async": {"shape": (32, 32, 32), "cc": 80, "num_warps": 4, "num_stages": 3},
    "mma.sync, TMA": {"shape": (16, 32, 32), "num_warps": 8, "num_stages": 2},
    "wgmma, cp.async": {
        "shape": (64, 64, 32),
        "num_warps": 4,
        "num_stages": 3,
        "pointer_maps": False,
    },
    "wgmma, TMA": {"shape": (128, 64, 32), "num_warps": 8, "num_stages": 3},
}
BREAKS = (
    "cp.async.wait_group",
    "wgmma.wait_group",
    "fence.proxy.async",
    "bar.sync",
    "mbarrier.arrive.shared",
    "ld.volatile.shared",  # that waits for reads
)


@pytest.fixture(scope="module")
def products() -> dict[str, Product]:
    return {name: Product(**how) for name, how in KINDS.items()}


@pytest.mark.parametrize("latency", ["eager", "late", "random"])
@pytest.mark.parametrize("kind", KINDS)
def test_right_code_runs(products: dict[str, Product], kind: str, latency: str) -> None:
    p = products[kind]
    for seed in SEEDS if latency == "random" else [0]:
        assert not p.fails(p.ir, seed, latency)
    assert p.run(p.ir).tobytes() == p.want.tobytes()


@pytest.mark.parametrize("text", BREAKS)
@pytest.mark.parametrize("kind", KINDS)
def test_each_order_that_is_left_out(products: dict[str, Product], kind: str, text: str) -> None:
    p = products[kind]
    survivors = []
    for which in needed(p.ir, text):
        broken = without(p.ir, text, which)
        if not any(p.fails(broken, seed, how) for how in ("random", "late") for seed in range(8)):
            survivors.append(which)
    assert not survivors, f"numbers {survivors} of {needed(p.ir, text)} {text}"


@tessera.jit
def chain(q, k, v, out, n, M: tl.constexpr, N: tl.constexpr, D: tl.constexpr):
    i, j, d = tl.arange(0, M), tl.arange(0, N), tl.arange(0, D)
    x = tl.load(q + i[:, None] * D + d[None, :])
    acc = tl.zeros((M, D), tl.float32)
    for start in range(0, n, N):
        rows = (start + j)[:, None] * D + d[None, :]
        s = tl.maximum(tl.dot(x, tl.load(k + rows).T), 0.0)
        acc = tl.dot(s.to(tl.float16), tl.load(v + rows), acc)
    tl.store(out + i[:, None] * D + d[None, :], acc)


def test_a_fence_by_a_warp_that_knows_of_the_copy_is_enough() -> None:
    """Warpgroups read what the other one has copied; who waits for the mbarrier of the copies fences, not the writer
    (PTX: a proxy fence anywhere along the causality order). Without these fences the MMAs are refused."""
    m, n, d = 128, 320, 64
    names = {**dict.fromkeys(("q", "k", "v"), "*fp16"), "out": "*fp32", "n": "i32"}
    facts = {(i,): [["tt.divisibility", 16]] for i in range(len(names))}
    names |= dict.fromkeys("MND", "constexpr")
    source = ASTSource(chain, names, {"M": m, "N": 64, "D": d}, facts)
    options = {"num_warps": 8, "num_stages": 4, "pointer_maps": False}
    kernel = tessera.compile(source, target=GPUTarget("simt", 90, 32), options=options)
    assert "async_copy_mbarrier_arrive" in kernel.asm["gir"]
    rng = np.random.default_rng(0)
    q, k, v = (rng.integers(-1, 2, (x, d)).astype(np.float16) for x in (m, n, n))
    want = np.maximum(q.astype(np.float32) @ k.T.astype(np.float32), 0) @ v.astype(np.float32)

    def run(ir: str, seed: int) -> np.ndarray:
        out = np.full((m, d), np.nan, np.float32)
        args = [q, k, v, out, ("i64", n)]
        run_kernel(ir, kernel.name, args, 256, kernel.metadata.shared, seed=seed, latency="random")
        return out

    ir = kernel.asm["llir"]
    for seed in range(6):
        assert np.array_equal(run(ir, seed), want)
    broken = "\n".join(x for x in ir.splitlines() if "fence.proxy.async" not in x) + "\n"
    with pytest.raises(SimulatedHazard, match=r"without fence\.proxy\.async"):
        run(broken, 0)


def test_kinds_are_what_they_say(products: dict[str, Product]) -> None:
    for name, p in products.items():
        product, copy = name.split(", ")
        assert {"TMA": "cp.async.bulk.tensor", "cp.async": "cp.async.c"}[copy] in p.ir, name
        assert {"wgmma": "wgmma.mma_async", "mma.sync": "mma.sync"}[product] in p.ir, name
    # Threads read what the TMA unit writes: something must stand between.
    read = products["mma.sync, TMA"].ir
    assert needed(read, "ld.volatile.shared") + needed(read, "fence.proxy.async")


def test_banks_of_a_swizzled_and_of_a_plain_tile(monkeypatch: pytest.MonkeyPatch) -> None:
    """The operands' tiles lie such that no access needs a bank twice; the report is by source line."""
    p = Product(**KINDS["mma.sync, cp.async"])
    monkeypatch.setattr(knobs.simulator, "banks", True)
    out, meta = np.zeros_like(p.want), p.kernel.metadata
    m, n = p.want.shape
    numbers = [("i64", x) for x in (m, n, p.k, p.k, n)]
    report = run_kernel(
        p.ir, p.kernel.name, [p.a, p.b, out, *numbers], 32 * meta.warps, meta.shared
    )
    rows = {name: t for (at, name), t in report.banks.items() if "test_simt_hazards.py" in at}
    assert rows["load_matrix"].accesses > 0
    assert rows["load_matrix"].conflicts == 0
    assert "load_matrix" in report.render()


def test_stores_before_a_conversion_are_seen_by_the_product_behind_it() -> None:
    """The conversion of the accumulator lets threads meet, but not the product see what they wrote."""
    rng = np.random.default_rng(1)
    a, b = (rng.integers(-4, 5, s).astype(np.float16) for s in ((128, 32), (32, 128)))
    c = rng.integers(-4, 5, (128, 128)).astype(np.float32)
    out = np.zeros_like(c)
    driver.set_active("simt")
    try:
        kernel = product_and_more[(1,)](a, b, c, out, M=128, N=128, K=32)
    finally:
        driver.reset_active()
    assert "wgmma" in kernel.asm["llir"]
    assert np.array_equal(out, a.astype(np.float32) @ b.astype(np.float32) + c)
