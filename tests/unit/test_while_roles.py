"""Teams in kernels whose loops are inside of `while` loops, and loads that must not run ahead of what was written."""

# annotations of kernels name dtypes
# pyright: reportInvalidTypeForm=false, reportUndefinedVariable=false, reportOperatorIssue=false
from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from tessera.analysis.intervals import evaluate
from tessera.compiler import CompiledKernel
from tessera.ir import parse_module
from tessera.runtime.drivers.variants import fallback_of
from tests.examples_kit import EXAMPLES, run_all
from tests.unit.pointer_tma_kit import HOWS, compiled, copies, passes, simulate
from tests.unit.while_loops_kit import counting, layers, own_layers, some_layers, strips


@pytest.fixture(autouse=True)
def ctas_that_are_alone(monkeypatch: pytest.MonkeyPatch) -> None:  # pyright: ignore[reportUnusedFunction]
    """As those with large tiles are, which would take long to simulate."""
    monkeypatch.setattr(
        "tessera.passes.gpu_scheduling.pointer_to_tma.ctas_after_split", lambda *_: 1
    )  # pyright: ignore[reportUnknownArgumentType,reportUnknownLambdaType]


def meetings(kernel: CompiledKernel) -> int:
    """How often the consumers arrive where the producer waits for them."""
    ops = [op for op in parse_module(kernel.asm["gir"]).walk() if op.attrs.get("fence")]
    assert 2 * [op.opcode for op in ops].count("mbarrier_wait") == len(ops)
    return len(ops) // 2


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("no_alias", [False, True])
@pytest.mark.parametrize(
    ("programs", "most", "mode"), [(1, 100, ""), (2, 4, ""), (3, 100, "mask"), (1, 100, "down")]
)
def test_loops_in_a_while_loop(
    programs: int, most: int, mode: str, no_alias: bool, how: str
) -> None:
    constants = {"MASK": mode == "mask", "DOWN": mode == "down", "BM": 64, "BN": 64, "BK": 32}
    kernel = compiled(strips, constants, odd=("M", "count", "most"), no_alias=no_alias)
    assert copies(kernel) == 2
    assert meetings(kernel) == (0 if no_alias else 1), "arrays may overlap"
    m, n, k = 330, 64, 72 if mode == "mask" else 96
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(s).astype(np.float16) for s in ((m, k), (k, n)))
    c = np.full((m, n), 7, np.float16)
    want = c.astype(np.float64)
    count = -(-m // 64)
    for program in range(programs):
        tile, done = program, 0
        while tile < count and done < most:
            steps = min(tile * 5 % 4, -(-k // 32))
            rows = slice(64 * tile, 64 * tile + 64)
            want[rows] = a[rows, : 32 * steps].astype(np.float64) @ b[: 32 * steps]
            tile, done = tile + programs, done + steps
    values = [a, b, c, m, n, k, count, most]
    assert passes(kernel, values, (programs, 1, 1))
    simulate(kernel, values, (programs, 1, 1), how)
    assert np.abs(c - want).max() <= 2e-3 * np.abs(want).max()


def test_coordinates_below_zero_are_no_coordinates() -> None:
    """The guard knows what a `while` loop carries."""
    kernel = compiled(
        strips, {"MASK": False, "DOWN": False, "BM": 64, "BN": 64, "BK": 32}, odd=("M", "count")
    )
    arrays = [np.zeros((64, 64), np.float16) for _ in range(3)]
    values: list[Any] = [*arrays, 64, 64, 64, 1, 100]
    assert passes(kernel, values, (1, 1, 1))
    assert not passes(kernel, [*values[:6], 1 << 26, 100], (1, 1, 1)), "rows beyond 2^31"


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("wait", [False, True])
def test_a_loop_that_counts(wait: bool, how: str) -> None:
    constants = {"WAIT": wait, "BM": 64, "BN": 64, "BK": 32}
    names = ("a", "b", "c", "flags")
    kernel = compiled(counting, constants, names, odd=("M",), elements={"flags": "i32"})
    assert copies(kernel) == (0 if wait else 2)
    assert "async_copy" not in kernel.asm["gir"]
    rng = np.random.default_rng(0)
    m, n, k = 100, 64, 72
    a, b = (rng.standard_normal(s).astype(np.float16) for s in ((m, k), (k, n)))
    c = np.full((m, n), np.nan, np.float16)
    values = [a, b, c, m, n, k, np.ones(3, np.int32)]
    assert passes(kernel, values, (2, 1, 1))
    simulate(kernel, values, (2, 1, 1), how)
    want = a.astype(np.float64) @ b
    assert np.abs(c - want).max() <= 2e-3 * np.abs(want).max()


# --- programs that wait for each other ----------------------------------------------------------------------
@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("no_alias", [False, True])
@pytest.mark.parametrize(
    ("m", "n", "k", "programs"),
    [(128, 192, 160, 4), (100, 136, 72, 5), (128, 64, 320, 7), (64, 64, 64, 1)],
)
def test_stream_k(m: int, n: int, k: int, programs: int, no_alias: bool, how: str) -> None:
    module = run_all.load(next(EXAMPLES.glob("10-*.py")))
    constants = {"BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_K": 32, "EVEN_K": k % 32 == 0}
    names = [p.name for p in module.stream_kernel.params]
    elements = {"work_ptr": "fp32", "ready_ptr": "i32"}
    kernel = compiled(
        module.stream_kernel,
        constants,
        names[:5],
        odd=names[5:],
        elements=elements,
        no_alias=no_alias,
    )
    assert copies(kernel) == 2
    assert meetings(kernel) == 1
    steps = -(-m // 64) * -(-n // 64) * -(-k // 32)
    stretch = -(-steps // programs)
    programs = -(-steps // stretch)
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(s).astype(np.float16) for s in ((m, k), (k, n)))
    c, work = np.full((m, n), np.nan, np.float16), np.full((programs, 64, 64), np.nan, np.float32)
    ready = np.zeros(programs, np.int32)
    values = [a, b, c, work, ready, m, n, k, k, n, stretch]
    assert passes(kernel, values, (programs, 1, 1))
    for _ in range(2):
        c[:] = np.nan
        simulate(kernel, values, (programs, 1, 1), how)
        want = a.astype(np.float64) @ b.astype(np.float64)
        assert np.abs(c - want).max() <= 2e-3 * np.abs(want).max()
        assert not ready.any()


# --- what was written before --------------------------------------------------------------------------------


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("mode", ["pointers", "descriptors"])
def test_layers_in_place(mode: str, how: str) -> None:
    constants = {"HOW": mode, "B": 64, "BK": 32}
    kernel = compiled(layers, constants, pointers="xwy", odd=("count",), no_alias=False)
    assert copies(kernel) == 2
    assert meetings(kernel) == (1 if mode == "pointers" else 0), (
        "named arrays are taken at their word"
    )
    rng = np.random.default_rng(0)
    count = 3
    x, w = (rng.standard_normal(s).astype(np.float16) for s in ((64, 64), (count * 64, 64)))
    want = x.astype(np.float64)
    y = x if mode == "pointers" else np.zeros_like(x)
    for layer in range(count):
        inputs = want if mode == "pointers" else x.astype(np.float64)
        want = (
            (inputs @ w[64 * layer : 64 * layer + 64] * 0.125).astype(np.float16).astype(np.float64)
        )
    values = [x, w, y, 64, count * 64, count]
    assert passes(kernel, values, (1, 1, 1))
    simulate(kernel, values, (1, 1, 1), how)
    assert np.abs(y - want).max() <= 4e-3 * np.abs(want).max()


@pytest.mark.parametrize("how", HOWS)
def test_arrays_that_do_not_alias(how: str) -> None:
    kernel = compiled(layers, {"HOW": "", "B": 64, "BK": 32}, pointers="xwy", odd=("count",))
    assert copies(kernel) == 2
    assert meetings(kernel) == 0
    rng = np.random.default_rng(0)
    whole = rng.standard_normal((64 * 5, 64)).astype(np.float16)
    x, w, y = whole[:64], whole[64:256], whole[256:]  # side by side
    want = x.astype(np.float64) @ w[128:] * 0.125
    values = [x, w, y, 64, 192, 3]
    assert passes(kernel, values, (1, 1, 1))
    for other in (x, w, whole[1:65], whole[255:319]):
        assert not passes(kernel, [x, w, other, *values[3:]], (1, 1, 1))
    simulate(kernel, [x.copy(), w.copy(), y, *values[3:]], (1, 1, 1), how)
    assert np.abs(y - want).max() <= 4e-3 * np.abs(want).max()
    fallback = fallback_of(kernel)
    assert copies(fallback) == 2
    assert meetings(fallback) == 1
    assert copies(fallback_of(fallback)) == 0


@pytest.mark.parametrize("how", HOWS)
def test_descriptors_of_an_array_that_is_written(how: str) -> None:
    kernel = compiled(own_layers, {"WHERE": "", "B": 64, "BK": 32}, pointers="xw", odd=("count",))
    assert copies(kernel) == 2
    assert meetings(kernel) == 1
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal(s).astype(np.float16) for s in ((64, 64), (192, 64)))
    want = x.astype(np.float64)
    for layer in range(3):
        want = (
            (want @ w[64 * layer : 64 * layer + 64] * 0.125).astype(np.float16).astype(np.float64)
        )
    simulate(kernel, [x, w, 64, 192, 3], (1, 1, 1), how)
    assert np.abs(x - want).max() <= 4e-3 * np.abs(want).max()


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("mode", ["branch", "loop", "counted", "unknown", "data"])
def test_layers_of_which_some_are_in_place(mode: str, how: str) -> None:
    constants = {"HOW": mode, "B": 64, "BK": 32}
    kernel = compiled(some_layers, constants, pointers="xwy", odd=("count",))
    assert copies(kernel) == 2
    assert meetings(kernel) == 1
    rng = np.random.default_rng(0)
    count = 6
    x, w = (rng.standard_normal(s).astype(np.float16) for s in ((64, 64), (count * 64, 64)))
    y = np.tile(np.array([0, 1, 1, 0, 1, 1, 0, 0], np.float16), (64, 8))
    want = x.astype(np.float64)
    for layer in (1, 2, 4, 5):  # 2 and 5 read what was written just before
        want = (want @ w[64 * layer : 64 * layer + 64] * 0.125).astype(np.float16)
        want = want.astype(np.float64)
    simulate(kernel, [x, w, y, 64, count * 64, count], (1, 1, 1), how)
    assert np.abs(x - want).max() <= 4e-3 * np.abs(want).max()


def test_a_loop_that_writes_what_it_loads_stays_whole() -> None:
    kernel = compiled(
        own_layers, {"WHERE": "inside", "B": 64, "BK": 32}, pointers="xw", odd=("count",)
    )
    assert copies(kernel) == 0
    assert any("may depend on what it does" in text for text in kernel.metadata.remarks)


# --- intervals of what loops carry --------------------------------------------------------------------------
@pytest.mark.parametrize("seed", range(40))
def test_intervals_of_carried_values(seed: int) -> None:
    """Two values that a loop carries, made of each other by random code, while the first one is less than a bound."""
    rng = np.random.default_rng(seed)
    word = (-(1 << 31), (1 << 31) - 1)
    code: list[Any] = [("arg", 0), ("const", 1), ("const", int(rng.integers(-3, 9)))]
    code += [("carried", 0, 32, 3), ("carried", 2, 32, 4), ("most", 3, 2)]
    start = len(code)
    for _ in range(5):
        kind = str(rng.choice(["add", "sub", "div", "rem", "min", "max"]))
        a, b = (int(rng.choice([0, 1, 2, *range(4, len(code))])) for _ in range(2))
        code.append((kind, a, b, 32))
    following = [int(rng.integers(start, len(code))) for _ in range(2)]
    code += [("again", 4, following[1]), ("again", 3, following[0])]
    for arg in range(-3, 12):
        found = evaluate(code, {0: arg})
        values: list[int | None] = [arg, 1, code[2][1], arg, code[2][1]]
        for _, turn in itertools.product(range(1), range(20)):
            x, y = values[3], values[4]
            if x is None or y is None:
                break
            holds = x <= code[2][1]
            values[5:] = [x if holds else None]
            for kind, a, b, _ in code[start : start + 5] if holds else ():
                values.append(_computed(kind, values[a], values[b]))
            for v, interval in zip(values, found, strict=False):
                assert v is None or interval is None or interval[0] <= v <= interval[1], (
                    turn,
                    code,
                )
            if not holds:
                break
            values[3], values[4] = values[following[0]], values[following[1]]
            assert all(v is None or word[0] <= v <= word[1] for v in values)


def _computed(kind: str, a: int | None, b: int | None) -> int | None:
    if a is None or b is None or (kind in ("div", "rem") and b == 0):
        return None
    quotient = abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1) if b else 0
    x = {
        "add": a + b,
        "sub": a - b,
        "min": min(a, b),
        "max": max(a, b),
        "div": quotient,
        "rem": a - b * quotient,
    }[kind]
    return x if -(1 << 31) <= x < 1 << 31 else None
