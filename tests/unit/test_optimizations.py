"""Optimisations by name: the table, what switches them off, how they are numbered."""

# annotations of kernels name dtypes
# pyright: reportInvalidTypeForm=false, reportUndefinedVariable=false, reportOperatorIssue=false
from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import tessera
import tessera.language as tl
from tessera.backends.compiler import FORMER_OPTIONS, GPUTarget, make_options
from tessera.backends.cpu.target import AMX, LEVELS
from tessera.compiler import ASTSource, compile, get_cache_key, make_backend
from tessera.config import knobs
from tessera.config.optimizations import FORMER_NAMES, OPTIMIZATIONS, names_in
from tessera.errors import InvalidOption, UnknownOptimization
from tessera.ir.applications import Session
from tessera.tools.optimization_reference import render

PACKAGE = Path(tessera.__file__).parent
ROOT = PACKAGE.parent
SIMT = GPUTarget("simt", 90, 32)


@pytest.fixture(autouse=True)
def restore() -> Iterator[None]:
    with knobs.scope():
        yield


@tessera.jit
def product(a, b, c, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    rows, cols, ks = tl.arange(0, BM), tl.arange(0, BN), tl.arange(0, BK)
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, BK):
        x = tl.load(a + rows[:, None] * K + (k + ks)[None, :])
        y = tl.load(b + (k + ks)[:, None] * BN + cols[None, :])
        acc = tl.dot(x, y, acc)
    tl.store(c + rows[:, None] * BN + cols[None, :], acc)


def compiled(target: GPUTarget = SIMT, **options: Any) -> Any:
    kinds = {"a": "*fp16", "b": "*fp16", "c": "*fp32", "K": "i32"}
    sizes = {"BM": 64, "BN": 64, "BK": 64}
    aligned = {(i,): [["tt.divisibility", 16]] for i in range(4)}
    kinds |= dict.fromkeys(sizes, "constexpr")
    return compile(ASTSource(product, kinds, sizes, aligned), target, options)


# --- the table -------------------------------------------------------------------------------------------------
def used_names() -> set[str]:
    """The names that the package asks for."""
    found: set[str] = set()
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call):
                continue
            name = getattr(node.func, "id", getattr(node.func, "attr", ""))
            texts = [node.args[0]] if node.args else []
            if name in ("pass_", "Rewriter", "Path"):
                texts = [k.value for k in node.keywords if k.arg == "optimization"]
            elif name not in ("apply", "is_enabled", "may_apply", "note_application"):
                continue
            found |= {
                x.value
                for t in texts
                for x in ast.walk(t)
                if isinstance(x, ast.Constant) and isinstance(x.value, str)
            }
    return found


def test_the_table_has_what_the_package_asks_for():
    assert used_names() == set(OPTIMIZATIONS)


@pytest.mark.parametrize("row", OPTIMIZATIONS.values(), ids=lambda row: row.name)
def test_rows_are_complete_and_name_files_that_exist(row: Any):
    assert re.fullmatch(r"[a-z]+\d*(-[a-z]+)*", row.name)
    assert set(row.targets.split()) <= {"cpu", "gpu"}
    assert all((row.does, row.assumes, row.proven_by, row.tests, row.unit))
    for path in re.findall(r"tests/[\w/*.]+\.\w+", row.tests):
        assert list(ROOT.glob(path)), path
    for path in re.findall(
        r"\b((?:analysis|graph|passes|layout|backends)/[\w/]+\.py)", row.proven_by
    ):
        assert (PACKAGE / path).exists(), path


# --- switching off ---------------------------------------------------------------------------------------------
def test_unknown_names_are_errors_that_list_near_ones(monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(UnknownOptimization, match="'pipline'; near names: software-pipeline"):
        names_in("cse,pipline")
    with pytest.raises(UnknownOptimization):
        knobs.compilation.disable = "prefecth"
    monkeypatch.setenv("TESSERA_DISABLE", "prefecth")
    with pytest.raises(UnknownOptimization, match="prefetch"):
        compiled()
    monkeypatch.delenv("TESSERA_DISABLE")
    with pytest.raises(UnknownOptimization):
        compiled(disable_optimizations="prefecth")
    with pytest.raises(InvalidOption):
        compiled(disable_optimizations=["prefetch"])
    assert names_in("") == frozenset()
    assert names_in("all") == set(OPTIMIZATIONS)


def test_former_names_work_and_say_so() -> None:
    for former, now in FORMER_NAMES.items():
        assert former not in OPTIMIZATIONS
        with pytest.warns(DeprecationWarning, match=f"{former} is called {now} now"):
            assert names_in(f"licm,{former}") == {"licm", now} <= OPTIMIZATIONS.keys()


def test_former_options_work_and_say_so() -> None:
    for former, now in FORMER_OPTIONS.items():
        with pytest.warns(DeprecationWarning, match=f"the option {former} is called {now} now"):
            options = make_options(GPUTarget("cuda", 90, 32), {former: False}, {})
        assert not hasattr(options, former)
        assert getattr(options, now) is False


@pytest.mark.parametrize("how", ["knob", "environment", "option"])
def test_a_name_is_switched_off(how: str, monkeypatch: pytest.MonkeyPatch):
    assert "tensor_copy" in compiled().asm["gir"]
    if how == "environment":
        monkeypatch.setenv("TESSERA_DISABLE", "pointer-to-tma,cse")
    elif how == "knob":
        knobs.compilation.disable = "pointer-to-tma"
    options: Any = {"disable_optimizations": "pointer-to-tma"} if how == "option" else {}
    kernel = compiled(**options)
    assert "tensor_copy" not in kernel.asm["gir"]
    assert "async_copy" in kernel.asm["gir"]


def test_names_are_part_of_the_key():
    backend = make_backend(SIMT)
    src = ASTSource(product, dict.fromkeys("abcK", "*fp32"), {"BM": 16, "BN": 16, "BK": 16})

    def key(**options: Any) -> str:
        return get_cache_key(src, backend, backend.parse_options(options))

    plain = key()
    assert key(disable_optimizations="cse") != plain
    knobs.compilation.disable = "cse"
    assert key() != plain


def test_everything_off_leaves_what_correctness_needs():
    """Neither copies ahead nor instructions for matrices, nor a rewritten loop."""
    kernel = compiled(disable_optimizations="all")
    for absent in ("tensor_copy", "async_copy", "wgmma", "mma ", "warp_specialize"):
        assert absent not in kernel.asm["gir"]


# --- numbers ---------------------------------------------------------------------------------------------------
def numbers(capsys: pytest.CaptureFixture[str]) -> list[tuple[int, str]]:
    text = capsys.readouterr().err
    return [(int(n), what) for n, what in re.findall(r"BISECT: running \((\d+)\) (.*)", text)]


def test_applications_are_numbered_through_kernels(capsys: pytest.CaptureFixture[str]):
    compiled()
    knobs.compilation.opt_limit = -1
    compiled()
    first = numbers(capsys)
    compiled()
    second = numbers(capsys)
    start = first[0][0]
    assert [n for n, _ in first] == list(range(start, start + len(first)))
    assert [n for n, _ in second] == [n + len(first) for n, _ in first]
    assert [what for _, what in second] == [what for _, what in first]
    assert any("pointer-to-tma on product: for at" in what for _, what in first)


def test_the_limit_ends_applications(capsys: pytest.CaptureFixture[str]):
    knobs.compilation.opt_limit = -1
    compiled()
    all_of_them = numbers(capsys)
    last = all_of_them[-1][0]
    tma = next(n for n, what in all_of_them if what.startswith("pointer-to-tma"))
    knobs.compilation.opt_limit = last + tma - all_of_them[0][0]
    kernel = compiled()
    text = capsys.readouterr().err
    assert f"BISECT: NOT running ({last + tma - all_of_them[0][0] + 1}) pointer-to-tma" in text
    assert "tensor_copy" not in kernel.asm["gir"]


def test_a_session_that_is_given_up_leaves_no_gap():
    with Session("k") as first:
        first.note("cse", "add", None)
    with Session("k") as second:
        second.note("cse", "add", None)
    assert [a.number for a in first.applied] == [a.number for a in second.applied]


def test_the_page_has_all():
    assert all(f"`{name}`" in render() for name in OPTIMIZATIONS)


# --- instructions that not every machine has -----------------------------------------------------------------------
MATRIX = [  # type of the operands, what is switched off, instructions that are there, and that are not
    ("bf16", "", "tdpbf16ps", "avx512bf16.dpbf16ps"),
    ("bf16", "amx-tiles", "avx512bf16.dpbf16ps", "tdpbf16ps"),
    ("bf16", "amx-tiles,bf16-pairs", "<16 x float> @llvm.fma", "dpbf16ps"),
    ("i8", "", "tdpbssd", "vpdpbusd"),
    ("i8", "amx-tiles", "vpdpbusd", "tdpbssd"),
    ("i8", "amx-tiles,int8-quads,int8-pairs", "mul <16 x i32>", "dpb"),
]


@tessera.jit
def squares(a, b, c, K, ACC: tl.constexpr):
    at = tl.arange(0, 64)
    acc = tl.zeros((64, 64), ACC)
    for k in range(0, K, 64):
        x = tl.load(a + at[:, None] * K + (k + at)[None, :])
        acc = tl.dot(x, tl.load(b + (k + at)[:, None] * 64 + at[None, :]), acc)
    tl.store(c + at[:, None] * 64 + at[None, :], acc)


@pytest.mark.parametrize(("kind", "disabled", "used", "unused"), MATRIX)
def test_matrix_instructions_of_cpus(
    kind: str, disabled: str, used: str, unused: str, monkeypatch: pytest.MonkeyPatch
):
    """Code for a processor that this machine need not be, with all of the instructions."""
    monkeypatch.setitem(LEVELS, "amx", replace(AMX, bf16_dot=True, bytes_dot=True))
    acc = "i32" if kind == "i8" else "fp32"
    kinds = {"a": f"*{kind}", "b": f"*{kind}", "c": f"*{acc}", "K": "i32", "ACC": "constexpr"}
    src = ASTSource(squares, kinds, {"ACC": tl.int32 if kind == "i8" else tl.float32})
    options = {"disable_optimizations": disabled}
    text = compile(src, GPUTarget("cpu", "amx", 1), options).asm["llir"]
    assert used in text
    assert unused not in text
