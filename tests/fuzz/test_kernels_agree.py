"""Random kernels, written out as source, compute the same on the interpreter, the CPU and (`--device cuda`) the GPU.

A kernel is a list of statements on int32, fp32 and int1 tiles and int32 scalars: operators, casts, selections,
reductions, scans, permutations, loads at computed places, branches and loops with break and continue. Only operations
with one right answer occur (no fused products, sums of floats in one order; minimum and maximum, which leave the sign
of a zero open, are followed by + 0.0, lest a division make infinities of it), so results must agree bit for bit.
A failure prints the source: it can be pasted into a file and run.
"""

# pyright: basic
from __future__ import annotations

import importlib.util
import itertools
import tempfile
from pathlib import Path
from random import Random

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tessera.errors import DeviceAssertionError, InterpreterError
from tessera.runtime.driver import driver

N = 64
_FILES = tempfile.TemporaryDirectory(prefix="tessera-fuzz-")
_COUNT = itertools.count()
INT_OPS = ("+", "-", "*", "&", "|", "^")
FLOAT_OPS = ("+", "-", "*")
COMPARE = ("<", "<=", ">", ">=", "==", "!=")


class Generator:
    """Writes the body of one kernel; `names` lists the variables of each kind: i, f, b tiles and s scalars."""

    def __init__(self, seed: int, statements: int):
        self.random = Random(seed)
        self.lines: list[str] = []
        self.depth = 1
        self.count = 0
        self.names = {"i": ["x0", "x1"], "f": ["y0", "y1"], "b": ["m0"], "s": ["n", "k"]}
        for _ in range(statements):
            self.statement()

    def pick(self, options):
        return self.random.choice(list(options))

    def line(self, text: str) -> None:
        self.lines.append("    " * self.depth + text)

    # --- expressions ----------------------------------------------------------------------------------------------
    def value(self, kind: str, depth: int = 2) -> str:
        if depth == 0 or self.random.random() < 0.2:
            return self.pick(self.names[kind])
        return getattr(self, f"_{kind}")(depth - 1)

    def _i(self, d: int) -> str:
        v = self.value
        a, b = v("i", d), v("i", d)
        return self.pick([
            lambda: f"({a} {self.pick(INT_OPS)} {b})",
            lambda: f"({a} {self.pick(INT_OPS)} {self.random.randint(-99, 99)})",
            lambda: f"({a} {self.pick(INT_OPS)} {v('s', d)})",
            lambda: f"({a} // (tl.abs({b}) | 1))",
            lambda: f"({a} % (tl.abs({b}) % 1000 + 1))",
            lambda: f"({a} << ({b} & 31))",
            lambda: f"({a} >> ({b} & 31))",
            lambda: f"tl.where({v('b', d)}, {a}, {b})",
            lambda: f"tl.maximum({a}, {b})",
            lambda: f"tl.minimum({a}, {b})",
            lambda: f"tl.abs({a})",
            lambda: f"(-{a})",
            lambda: f"(~{a})",
            lambda: f"{v('f', d)}.to(tl.int32)",
            lambda: f"{v('b', d)}.to(tl.int32)",
            lambda: f"{a}.to(tl.int8).to(tl.int32)",
            lambda: f"{a}.to(tl.uint16).to(tl.int32)",
            lambda: f"tl.umulhi({a}, {b})",
            lambda: f"tl.flip({a}, 0)",
            lambda: f"tl.cumsum({a}, 0)",
            lambda: f"tl.gather({a}, {b} & {N - 1}, 0)",
            lambda: f"tl.load(source + ({a} & {N - 1}))",
            lambda: f"tl.load(source + i, mask={v('b', d)}, other={self.random.randint(-9, 9)})",
            lambda: f"tl.trans(tl.reshape({a}, 8, 8)).reshape({N})",
            lambda: f"tl.sum(tl.reshape({a}, 8, 8), 1)[:, None].broadcast_to(8, 8).reshape({N})",
            lambda: f"tl.sort({a})",
        ])()  # fmt: skip

    def _f(self, d: int) -> str:
        v = self.value
        a, b = v("f", d), v("f", d)
        return self.pick([
            lambda: f"({a} {self.pick(FLOAT_OPS)} {b})",
            lambda: f"({a} {self.pick(FLOAT_OPS)} {self.random.choice([0.5, -1.25, 3.0, 1e10, -0.0])})",
            lambda: f"tl.where({v('b', d)}, {a}, {b})",
            lambda: f"(tl.maximum({a}, {b}) + 0.0)",
            lambda: f"(tl.minimum({a}, {b}) + 0.0)",
            lambda: f"tl.abs({a})",
            lambda: f"(-{a})",
            lambda: f"tl.floor({a})",
            lambda: f"tl.fma({a}, {b}, {v('f', d)})",
            lambda: f"tl.div_rn({a}, {b})",
            lambda: f"tl.sqrt_rn(tl.abs({a}))",
            lambda: f"{v('i', d)}.to(tl.float32)",
            lambda: f"{a}.to(tl.float16).to(tl.float32)",
            lambda: f"{a}.to(tl.float64).to(tl.float32)",
            lambda: f"tl.flip({a}, 0)",
            lambda: f"(tl.max(tl.reshape({a}, 8, 8), 0)[None, :].broadcast_to(8, 8).reshape({N}) + 0.0)",
        ])()  # fmt: skip

    def _b(self, d: int) -> str:
        v = self.value
        return self.pick([
            lambda: f"({v('i', d)} {self.pick(COMPARE)} {v('i', d)})",
            lambda: f"({v('i', d)} {self.pick(COMPARE)} {v('s', d)})",
            lambda: f"({v('f', d)} {self.pick(COMPARE)} {v('f', d)})",
            lambda: f"({v('b', d)} & {v('b', d)})",
            lambda: f"({v('b', d)} | {v('b', d)})",
            lambda: f"({v('b', d)} ^ {v('b', d)})",
            lambda: f"(~{v('b', d)})",
        ])()  # fmt: skip

    def _s(self, d: int) -> str:
        v = self.value
        return self.pick([
            lambda: f"({v('s', d)} {self.pick(INT_OPS)} {v('s', d)})",
            lambda: f"({v('s', d)} {self.pick(INT_OPS)} {self.random.randint(-9, 9)})",
            lambda: f"tl.sum({v('i', d)})",
            lambda: f"tl.max({v('i', d)})",
            lambda: f"tl.xor_sum({v('i', d)})",
            lambda: f"tl.argmin({v('i', d)}, 0)",
            lambda: f"tl.sum({v('b', d)}.to(tl.int32))",
        ])()  # fmt: skip

    # --- statements -------------------------------------------------------------------------------------------------
    def statement(self) -> None:
        draw = self.random.random()
        if self.depth < 4 and draw < 0.12:
            self.branch()
        elif self.depth < 3 and draw < 0.24:
            self.loop()
        elif self.depth < 3 and draw < 0.28:
            self.while_loop()
        else:
            self.assign()

    def assign(self) -> None:
        kind = self.pick("iiiffbs")
        text = self.value(kind, 3)
        if self.depth > 1 or self.random.random() < 0.5:
            name = self.pick(self.names[kind][-2:])
            if name not in ("n", "k"):
                self.line(f"{name} = {text}")
                return
        self.count += 1
        name = f"{kind}{self.count}"
        self.line(f"{name} = {text}" if kind != "s" else f"{name} = {text} + 0 * n")
        if self.depth == 1:
            self.names[kind].append(name)

    def block(self, ending: str = "") -> None:
        self.depth += 1
        for _ in range(self.random.randint(1, 3)):
            self.assign() if self.depth > 3 else self.statement()
        if ending:
            self.line(ending)
        self.depth -= 1

    def branch(self) -> None:
        self.line(f"if {self.value('s', 1)} {self.pick(COMPARE)} {self.random.randint(-5, 5)}:")
        self.block()
        if self.random.random() < 0.6:
            self.line("else:")
            self.block()

    def loop(self) -> None:
        self.count += 1
        bound = self.pick(["3", "n", "(k & 3) + 1"])
        self.line(f"for j{self.count} in range({bound}):")
        if self.random.random() < 0.3:
            self.depth += 1
            self.line(f"if {self.value('s', 1)} > {self.random.randint(-5, 50)}:")
            self.depth += 1
            self.line(self.pick(["break", "continue"]))
            self.depth -= 2
        self.block()

    def while_loop(self) -> None:
        self.count += 1
        name = f"w{self.count}"
        self.line(f"{name} = n * 0")
        self.line(f"while {name} < {self.pick(['2', 'n', '(k & 3)'])}:")
        self.block(ending=f"{name} += 1")

    def source(self) -> str:
        head = [
            "import tessera",
            "import tessera.language as tl",
            "",
            "",
            "@tessera.jit",
            "def kernel(source, floats, ints_out, floats_out, n: tl.int32, k: tl.int32):",
            f"    i = tl.arange(0, {N})",
            "    x0 = tl.load(source + i)",
            f"    x1 = tl.load(source + {N} + i)",
            "    y0 = tl.load(floats + i)",
            f"    y1 = tl.load(floats + {N} + i)",
            "    m0 = x0 > x1",
        ]
        last = {kind: names[-1] for kind, names in self.names.items()}
        tail = [
            f"    tl.store(ints_out + i, {last['i']} + {last['b']}.to(tl.int32))",
            f"    tl.store(ints_out + {N} + i, x0 ^ x1)",
            f"    tl.store(ints_out + {2 * N}, {last['s']})",
            f"    tl.store(floats_out + i, {last['f']})",
            f"    tl.store(floats_out + {N} + i, y0)",
        ]
        return "\n".join([*head, *self.lines, *tail, ""])


def load(source: str):
    """The kernel of a source text."""
    path = Path(_FILES.name) / f"fuzz_{next(_COUNT)}.py"
    path.write_text(source)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    assert spec.loader is not None
    spec.loader.exec_module(module)
    return module.kernel


def inputs(seed: int):
    rng = np.random.default_rng(seed)
    wide = rng.integers(-(2**31), 2**31, 2 * N, dtype=np.int64).astype(np.int32)
    small = rng.integers(-20, 20, 2 * N).astype(np.int32)
    ints = np.where(rng.random(2 * N) < 0.3, wide, small)
    floats = (rng.standard_normal(2 * N) * 10.0 ** rng.integers(-3, 9, 2 * N)).astype(np.float32)
    floats[:4] = [0.0, -0.0, np.inf, 1e-40]
    return ints, floats, int(rng.integers(0, 5)), int(rng.integers(-9, 9))


def launch(kernel, target: str, seed: int):
    ints, floats, n, k = inputs(seed)
    ints_out, floats_out = np.zeros(3 * N, np.int32), np.zeros(2 * N, np.float32)
    driver.set_active(target)
    try:
        if target == "cuda":
            torch = importlib.import_module("torch")

            given_ = [torch.from_numpy(a).cuda() for a in (ints, floats, ints_out, floats_out)]
            kernel[(1,)](*given_, n, k, enable_fp_fusion=False)
            return given_[2].cpu().numpy(), given_[3].cpu().numpy()
        kernel[(1,)](ints, floats, ints_out, floats_out, n, k, enable_fp_fusion=False)
    finally:
        driver.reset_active()
    return ints_out, floats_out


def same(a: np.ndarray, b: np.ndarray) -> bool:
    """Equal numbers; a NaN equals a NaN, and the sign of a zero does not count (minimum and maximum leave it open)."""
    return bool(np.all((a == b) | ((a != a) & (b != b))))


@pytest.fixture
def other(request) -> str:
    """What is compared with the interpreter."""
    return request.config.getoption("--device") or "cpu"


@given(st.integers(0, 2**31), st.integers(1, 12))
@example(0, 12)
@example(1, 8)
@settings(
    max_examples=60, deadline=None, derandomize=True, database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_kernels_agree(other, seed, statements):
    source = Generator(seed, statements).source()
    kernel = load(source)
    try:
        want = launch(kernel, "interpreter", seed)
        got = launch(kernel, other, seed)
    except Exception as error:
        raise AssertionError(f"{type(error).__name__}: {error}\n{source}") from error
    for ours, theirs in zip(got, want):
        assert same(ours, theirs), source


def checked(kernel, target: str, seed: int) -> str:
    """The report of a checked launch, or what it computes."""
    ints, floats, n, k = inputs(seed)
    ints_out, floats_out = np.zeros(3 * N, np.int32), np.zeros(2 * N, np.float32)
    driver.set_active(target)
    try:
        kernel[(1,)](
            ints, floats, ints_out, floats_out, n, k, enable_fp_fusion=False, debug="check"
        )
    except (InterpreterError, DeviceAssertionError) as error:
        return str(error)
    finally:
        driver.reset_active()
    return f"{ints_out.tolist()} {(floats_out + 0.0).tolist()}"


@given(st.integers(0, 2**31), st.integers(1, 10))
@settings(
    max_examples=20, deadline=None, derandomize=True, database=None,
    suppress_health_check=[HealthCheck.too_slow],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_checked_builds_report_alike(seed, statements):
    source = Generator(seed, statements).source()
    kernel = load(source)
    assert checked(kernel, "cpu", seed) == checked(kernel, "interpreter", seed), source
