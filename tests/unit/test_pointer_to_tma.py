"""Loads through pointers as copies through tensor maps: what is found, the precondition, results by the interpreter and
the lane simulator."""

# annotations of kernels name dtypes
# pyright: reportInvalidTypeForm=false, reportUndefinedVariable=false, reportOperatorIssue=false
from __future__ import annotations

import importlib
import itertools
import threading
from typing import Any

import numpy as np
import pytest

import tessera
import tessera.language as tl
from tessera.analysis.intervals import evaluate, holds
from tessera.analysis.polynomials import Poly
from tessera.backends.nvidia import ptxas
from tessera.backends.nvidia.simulator import run_kernel
from tessera.backends.nvidia.target import facts_for
from tessera.compiler import CompiledKernel
from tessera.dtypes import int32
from tessera.errors import ToolNotFound
from tessera.interp import run
from tessera.ir import Builder, parse_module
from tessera.ops import FuncOp
from tessera.passes.gpu_scheduling.pointer_to_tma import PointerToTma
from tessera.runtime.drivers import variants
from tessera.runtime.drivers.variants import fallback_of
from tests.unit.pointer_tma_kit import arguments, batched, compiled, copies, passes, wrapped

nvidia: Any = importlib.import_module("tessera.backends.nvidia.backend")


def matmul(
    how: str = "rem", b_order: str = "row", mask: bool = True, **more: Any
) -> CompiledKernel:
    ones = {"sak": 1, "sbn" if b_order == "row" else "sbk": 1}
    more = {"odd": ("M", "N", "K", "sam", "sbk", "sbn", "scm"), **more}
    return compiled(
        wrapped, {"HOW": how, "MASK": mask, "BM": 64, "BN": 64, "BK": 64, **ones}, **more
    )


def grid_of(m: int, n: int) -> tuple[int, int, int]:
    return -(-m // 64) * -(-n // 64), 1, 1


@pytest.mark.parametrize("shape", [(200, 130, 136), (64, 64, 64), (65, 72, 1), (330, 64, 200)])
@pytest.mark.parametrize("b_order", ["row", "column"])
@pytest.mark.parametrize("how", ["rem", "where", "mask"])
def test_products_of_any_size(how: str, b_order: str, shape: tuple[int, int, int]) -> None:
    kernel = matmul(how, b_order)
    assert copies(kernel) == 2
    m, n, k = shape
    values, c, want = arguments(m, n, k, b_order)
    assert passes(kernel, values, grid_of(m, n))
    run(parse_module(kernel.asm["gir"]), grid_of(m, n), values)
    assert np.abs(c - want).max() <= 2e-3 * np.abs(want).max()


@pytest.mark.parametrize(("how", "b_order"), [("rem", "row"), ("mask", "column")])
def test_lowered_code(how: str, b_order: str) -> None:
    kernel = matmul(how, b_order)
    values, c, want = arguments(72, 65, 100, b_order)
    meta: Any = kernel.metadata
    given = [v if isinstance(v, np.ndarray) else ("i64", v) for v in values]
    run_kernel(
        kernel.asm["llir"], kernel.name, given, 32 * meta.warps, meta.shared, grid_of(72, 65), meta.tensor_maps,
        meta.host_code,
    )  # fmt: skip
    assert np.abs(c - want).max() <= 2e-3 * np.abs(want).max()


def test_a_mask_of_the_result_is_what_makes_wrapped_rows_unread() -> None:
    kernel = matmul(mask=False)
    assert copies(kernel) == 2
    values, c, want = arguments(128, 192, 136, "row")
    assert passes(kernel, values, grid_of(128, 192))
    run(parse_module(kernel.asm["gir"]), grid_of(128, 192), values)
    assert np.abs(c - want).max() <= 2e-3 * np.abs(want).max()
    values = arguments(100, 192, 136, "row")[0]
    assert not passes(kernel, values, grid_of(100, 192)), "a tile would wrap around"
    assert copies(matmul("where", mask=False)) == 0


@pytest.mark.parametrize(
    ("change", "grid"),
    [({6: 148}, 4), ({6: 0}, 4), ({6: -144}, 4), ({3: 0}, 4), ({5: 0}, 4), ({}, 6), ({3: -5}, 4)],
)
def test_launches_that_the_precondition_refuses(change: dict[int, int], grid: int) -> None:
    """Strides that are no multiples of 16 bytes or not positive; empty arrays; programs without a tile."""
    kernel = matmul()
    values = arguments(100, 100, 136, "row")[0]
    assert passes(kernel, values, (4, 1, 1))
    for i, x in change.items():
        values[i] = x
    assert not passes(kernel, values, (grid, 1, 1))


def test_a_refused_launch_runs_the_kernel_without_maps() -> None:
    kernel = matmul()
    other = fallback_of(kernel)
    assert copies(other) == 0
    assert not hasattr(other.metadata, "precondition")
    values, c, want = arguments(70, 72, 80, "row")
    values[0] = np.ascontiguousarray(np.pad(values[0], ((0, 0), (0, 3))))
    values[6] += 3
    assert not passes(kernel, values, grid_of(70, 72))
    kernel[grid_of(70, 72)](*values[:7], 1, values[7], 1, values[8])
    assert np.abs(c - want).max() <= 2e-3 * np.abs(want).max()


def test_the_twin_of_a_kernel_kept_without_texts() -> None:
    """A cache that keeps binaries only gives back kernels without the text that a fallback is made of."""
    kernel = matmul()
    for level in set(kernel.asm) - {kernel.backend.binary_ext}:
        del kernel.asm[level]
    other = fallback_of(kernel)
    assert not hasattr(other.metadata, "precondition")
    assert other.name == kernel.name


def test_further_dimensions() -> None:
    heads, m, n, k = 3, 64, 64, 96
    kernel = compiled(batched, {"H": heads, "BM": m, "BN": n, "BK": 64})
    maps = kernel.metadata.tensor_maps
    assert sorted(len(m[2]) for m in maps) == [3, 4]
    rng = np.random.default_rng(0)
    a = rng.standard_normal((2, m, heads, k)).astype(np.float16)
    b = rng.standard_normal((heads, k, n)).astype(np.float16)
    c = np.zeros((2, heads, m, n), np.float16)
    values = [a, b, c, k, m * heads * k, k, heads * k, k * n, n]
    assert passes(kernel, values, (2 * heads, 1, 1))
    run(parse_module(kernel.asm["gir"]), (2 * heads, 1, 1), values)
    want = np.einsum("zmhk,hkn->zhmn", a.astype(np.float64), b.astype(np.float64))
    assert np.abs(c - want).max() <= 2e-3 * np.abs(want).max()
    c[:] = 0
    meta: Any = kernel.metadata
    given = [v if isinstance(v, np.ndarray) else ("i64", v) for v in values]
    run_kernel(
        kernel.asm["llir"], kernel.name, given, 32 * meta.warps, meta.shared, (6, 1, 1), meta.tensor_maps,
        meta.host_code,
    )  # fmt: skip
    assert np.abs(c - want).max() <= 2e-3 * np.abs(want).max()


@tessera.jit
def odd_ones(a, b, c, n, K, s, WHAT: tl.constexpr, B: tl.constexpr):
    """Loads that look like strided views and are none, or must not be copied."""
    i, j = tl.arange(0, B), tl.arange(0, B)
    if WHAT == "written":
        tl.store(a + i, tl.zeros((B,), tl.float16))
    if WHAT == "written before":
        tl.store(c + i, tl.zeros((B,), tl.float16))
    x = a + i[:, None] * s + j[None, :]
    y = b + i[:, None] * s + j[None, :]
    if WHAT == "no line":
        x = a + (i[:, None] * s) * (1 + (j[None, :] // 8)) + j[None, :]
    elif WHAT == "from data":
        x += tl.load(c + n).to(tl.int32)
    elif WHAT == "diagonal":
        x = a + (i[:, None] + j[None, :]) * s + j[None, :]
    elif WHAT == "odd column":
        x += n
    acc = tl.zeros((B, B), tl.float32)
    for k in range(0, K):
        if WHAT == "ones":
            p = tl.load(x, mask=j[None, :] < n, other=1.0)
        elif WHAT == "volatile":
            p = tl.load(x, volatile=True)
        elif WHAT == "unequal":
            p = tl.load(x, mask=j[None, :] + k * B < n)
        elif WHAT == "holes":
            p = tl.load(x, mask=(j[None, :] & 1) < n, other=0.0)
        else:
            p = tl.load(x)
        acc += tl.dot(p, tl.load(y))
        if WHAT == "square":
            x += k * B
        else:
            x += B
        if WHAT == "unequal":
            x += B
        if WHAT == "written inside":
            tl.store(c + i, acc.to(tl.float16).sum(0))
        y += B * s
    tl.store(c + i[:, None] * s + j[None, :], acc.to(tl.float16))


WHATS = [
    "written inside", "no line", "from data", "diagonal", "odd column", "ones", "volatile", "holes",
    "square",
]  # fmt: skip


@pytest.mark.parametrize("what", ["", *WHATS])
def test_what_is_left_to_pointers(what: str) -> None:
    kernel = compiled(odd_ones, {"WHAT": what, "B": 64}, odd=("n",))
    assert copies(kernel) == (0 if what else 2)
    assert hasattr(kernel.metadata, "precondition") is not bool(what)
    if what:
        assert "pointers for the tiles of the loop" in kernel.metadata.remarks[0]


@pytest.mark.parametrize("what", ["written", "written before"])
def test_writes_before_the_loop(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of which the producer must know that they are done: arrays may overlap."""
    whole = compiled(odd_ones, {"WHAT": what, "B": 64}, odd=("n",), num_stages=2)
    assert copies(whole) == 0, "blocks that share an SM"
    monkeypatch.setattr(
        "tessera.passes.gpu_scheduling.pointer_to_tma.ctas_after_split", lambda *_: 1
    )  # pyright: ignore[reportUnknownArgumentType,reportUnknownLambdaType]
    kernel = compiled(odd_ones, {"WHAT": what, "B": 64}, odd=("n",), no_alias=what == "written")
    assert copies(kernel) == 2
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(s).astype(np.float16) for s in ((64, 128), (128, 128)))
    c = a if what == "written before" else np.zeros_like(a)
    values = [a, b, c, 0, 2, 128]
    assert passes(kernel, values, (1, 1, 1))
    inputs = a.astype(np.float64)
    inputs[0, :64] = 0
    want = inputs @ b[:, :64]
    run(parse_module(kernel.asm["gir"]), (1,), values)
    assert np.abs(c[:, :64] - want).max() <= 2e-3 * np.abs(want).max()


def test_a_mask_of_another_coordinate_than_the_address() -> None:
    """The columns that are read go two blocks ahead where the mask goes one."""
    kernel = compiled(odd_ones, {"WHAT": "unequal", "B": 64}, odd=("n",))
    assert copies(kernel) == 2
    rng = np.random.default_rng(0)
    a, b = (
        rng.standard_normal((64, 512)).astype(np.float16),
        rng.standard_normal((192, 512)).astype(np.float16),
    )
    c = np.zeros((64, 512), np.float16)
    values = [a, b, c, 100, 3, 512]
    assert passes(kernel, values, (1, 1, 1))
    run(parse_module(kernel.asm["gir"]), (1,), values)
    want = np.zeros((64, 64))
    for k in range(3):
        inside = np.arange(64) + 64 * k < 100
        want += (
            np.where(inside, a[:, 128 * k : 128 * k + 64], 0).astype(np.float64)
            @ b[64 * k : 64 * k + 64, :64]
        )
    assert np.abs(c[:, :64] - want).max() <= 2e-3 * np.abs(want).max()


@pytest.mark.parametrize("options", [{"num_warps": 2}, {"num_stages": 1}, {"pointer_maps": False}])
def test_programs_that_stay_whole(options: dict[str, Any]) -> None:
    assert copies(matmul(**options)) == 0


def test_code_with_fewer_programs_than_hoped_for_is_not_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for occupancy_met in (True, False):
        made = ptxas.Assembled(b"", "", 168, 0, 0, 0, 0, 0, ())
        monkeypatch.setattr(
            nvidia,
            "assemble_with_room",
            lambda *_, made=made, occupancy_met=occupancy_met: (made, occupancy_met),
        )
        try:
            # A kernel that the cache does not have.
            kernel = matmul("rem" if occupancy_met else "mask", target="cuda")
        except ToolNotFound:
            pytest.skip("needs ptxas")
        assert copies(kernel) == 2
        assert passes(kernel, arguments(64, 64, 64, "row")[0], (1, 1, 1)) is occupancy_met


def test_unaligned_arrays_are_known_when_a_kernel_is_compiled() -> None:
    assert copies(matmul(odd=("a",))) == 0


def everything(code: list[Any], pids: int, arg: int) -> list[set[int]]:
    """All values of the instructions, program by program, loops by all their iterations."""
    found: list[set[int]] = [set() for _ in code]
    loops = [i for i, x in enumerate(code) if x[0] == "loop"]

    def value(i: int, pid: int, turns: dict[int, int]) -> int | None:
        kind, *rest = code[i]
        if kind in ("arg", "const", "id", "count"):
            return {"arg": arg, "const": rest[0], "id": pid, "count": pids}[kind]
        if kind == "loop":
            lb, ub, step = (value(x, pid, turns) for x in rest)
            if lb is None or ub is None or step is None or step <= 0 or lb + turns[i] * step >= ub:
                return None
            return lb + turns[i] * step
        a, b = (value(x, pid, turns) for x in rest[:2])
        if a is None or b is None or (kind in ("div", "rem") and b == 0):
            return None
        quotient = abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1) if b else 0
        return {
            "add": a + b, "sub": a - b, "mul": a * b, "min": min(a, b), "max": max(a, b), "hull": b,
            "div": quotient, "rem": a - b * quotient,
        }[kind]  # fmt: skip

    for pid, *turns in itertools.product(range(pids), *[range(4)] * len(loops)):
        for i in range(len(code)):
            x = value(i, pid, dict(zip(loops, turns, strict=True)))
            if x is not None:
                found[i].add(x)
    return found


@pytest.mark.parametrize("seed", range(60))
def test_intervals_hold_all_values(seed: int) -> None:
    rng = np.random.default_rng(seed)
    code: list[Any] = [
        ("arg", 0),
        ("id", 0),
        ("count", 0),
        ("const", int(rng.integers(-3, 9))),
        ("const", 1),
    ]
    code.append(("loop", 4, int(rng.integers(4)), 4))
    for _ in range(12):
        kind = str(rng.choice(["add", "sub", "mul", "div", "rem", "min", "max", "hull"]))
        a, b = (int(rng.integers(len(code))) for _ in range(2))
        code.append((kind, a, b) if kind == "hull" else (kind, a, b, 64))
    arg = int(rng.integers(-4, 20))
    intervals = evaluate(code, {0: arg}, (5, 1, 1))
    for interval, values in zip(intervals, everything(code, 5, arg), strict=True):
        if interval is not None:
            assert all(interval[0] <= x <= interval[1] for x in values)


def test_numbers_that_do_not_fit_are_unknown() -> None:
    code = [("arg", 0), ("mul", 0, 0, 32), ("mul", 0, 0, 64), ("arg", 1)]
    assert evaluate(code, {0: 1 << 20}) == [(1 << 20, 1 << 20), None, (1 << 40, 1 << 40), None]
    found = evaluate(code, {0: 48})
    assert holds([(1, 0, 2304, 16), (2, 2304, 1 << 40, 1)], found)
    assert not holds([(1, 0, 2303, 1)], found)
    assert not holds([(1, 0, 1 << 20, 5)], found)
    assert not holds([(3, 0, 1, 1)], found)


def test_a_twin_is_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Launches of several threads at a time, of which each would compile."""
    kernel, started = matmul(), threading.Barrier(4)
    made: list[CompiledKernel] = []
    loaded: list[CompiledKernel] = []

    def slowly(k: CompiledKernel) -> CompiledKernel:
        made.append(fallback_of(k))
        return made[-1]

    class Loader:
        def load_kernel(self, k: CompiledKernel) -> None:
            loaded.append(k)
            k.module = k.function = "loaded"

    monkeypatch.setattr(variants, "fallback_of", slowly)
    fallback, found = variants.FallbackVariant(kernel, Loader()), []

    def work() -> None:
        started.wait()
        found.append(fallback.get())

    threads = [threading.Thread(target=work) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(made) == len(loaded) == 1
    assert all(x is made[0] for x in found)


@tessera.jit
def wide_result(a, b, c, K, B: tl.constexpr):
    """Elements that are twice as wide as those of the tiles that it is made of."""
    i, j = tl.arange(0, B)[:, None], tl.arange(0, B)[None, :]
    acc = tl.zeros((B, B), tl.float32)
    for k in range(0, K, B):
        acc = tl.dot(tl.load(a + i * K + k + j), tl.load(b + (k + i) * B + j), acc)
    tl.store(c + i * B + j, acc)


def test_tiles_that_are_copied_do_not_make_stores_wider() -> None:
    """A thread stores 16 bytes at a time beside its neighbours', not two times 16 bytes of its own."""
    kernel = compiled(wide_result, {"B": 64}, result="fp32")
    assert copies(kernel) == 2
    (store,) = [op for op in parse_module(kernel.asm["gir"]).walk() if op.opcode == "store"]
    assert store.operands[1].type.layout.contiguity((1, 0)) == 4


def test_factors_are_multiplied_in_the_order_of_the_kernel() -> None:
    """Not in that of a set, which depends on where the compiler's objects lie."""
    for _ in range(20):
        module = parse_module(
            "module {num_warps=4, num_stages=3} { func {name='k'} (%x: i32, %y: i32) { return [] } }"
        )
        (func,) = [op for op in module.body if isinstance(op, FuncOp)]
        x, y = func.body.args
        rewrite = PointerToTma(module, func, facts_for(90))
        product = rewrite._scalar(
            Builder.before_op(func.body.terminator), Poly.atom(y) * Poly.atom(x), int32
        )
        assert product.op is not None
        assert product.op.operands == [x, y]
