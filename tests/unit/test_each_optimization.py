"""Each optimisation by itself: without it results are the same; if it fails the kernel is compiled without it."""

# pyright: basic
from __future__ import annotations

import importlib
import re
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tessera.config import knobs
from tessera.config.optimizations import OPTIMIZATIONS, OptimizationWarning
from tessera.dtypes import float32, int32
from tessera.errors import InternalError
from tessera.ir import Builder, Module, Pass
from tessera.ir.applications import Session, current
from tessera.ops import AddOp, ConstOp
from tessera.runtime.driver import driver
from tessera.runtime.drivers.variants import fallback_of
from tests.unit.optimization_samples import CASES, Sample

stages: Any = importlib.import_module("tessera.compiler.compile")
# What needs instructions that not every machine has, or ptxas (tests/unit/test_ptxas.py); the others need a
# machine that has no quick stores under masks, and none of some lanes (tests/unit/test_cpu_codegen.py).
ELSEWHERE = {
    "amx-tiles",
    "bf16-pairs",
    "branchless-lanes",
    "int8-pairs",
    "int8-quads",
    "raise-occupancy",
    "spill-little",
    "whole-stores",
}
# Those of graphs: tests/fuzz/test_graphs_keep_meaning.py.
ELSEWHERE |= {name for name in OPTIMIZATIONS if name.startswith("graph-")}
NAMES = sorted(set(OPTIMIZATIONS) - ELSEWHERE)
# Asked for before any stage runs: they are facts of the target that later stages look at.
FEATURES = {"ldmatrix", "stmatrix", "warp-exchanges"}


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    with knobs.scope():
        knobs.compilation.always_compile = True
        yield
    driver.reset_active()


def on(device: str) -> None:
    driver.set_active(device)


class Applied:
    """Where each optimisation happens: name → the first sample and device."""

    def __init__(self) -> None:
        self.first: dict[str, tuple[Sample, str]] = {}
        self.results: dict[str, list[np.ndarray]] = {}
        commit = Session.commit

        def noting(session: Session) -> None:
            for a in session.applied:
                self.first.setdefault(a.name, self.now)
            commit(session)

        with pytest.MonkeyPatch.context() as patch, knobs.scope():
            knobs.compilation.always_compile = True
            patch.setattr(Session, "commit", noting)
            for self.now in sorted(CASES, key=lambda case: case[0].name != "doubled"):
                on(self.now[1])
                self.now[0].compile()
        driver.reset_active()

    def wanted(self, sample: Sample) -> list[np.ndarray]:
        if sample.name not in self.results:
            on("interpreter")
            self.results[sample.name] = sample.launch()[1]
        return self.results[sample.name]


@pytest.fixture(scope="module")
def applied() -> Applied:
    return Applied()


def same(have: list[np.ndarray], want: list[np.ndarray]) -> None:
    for x, y in zip(have, want, strict=True):
        np.testing.assert_array_equal(x, y)


def test_samples_need_every_optimization(applied: Applied):
    assert set(NAMES) <= applied.first.keys()
    assert applied.first.keys() <= set(OPTIMIZATIONS)


# --- off ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("sample", "where"), CASES, ids=lambda x: getattr(x, "name", x))
@pytest.mark.parametrize("disabled", ["", "all"])
def test_all_or_nothing(sample: Sample, where: str, disabled: str, applied: Applied):
    want = applied.wanted(sample)
    if disabled == "all" and sample.name in ("persistent", "cluster", "turning", "chain", "causal"):
        pytest.skip("as others, but large")  # without matrix instructions the simulator takes long
    on(where)
    same(sample.launch(disable_optimizations=disabled)[1], want)


@pytest.mark.parametrize("name", NAMES)
def test_results_without_one(name: str, applied: Applied, capsys: pytest.CaptureFixture[str]):
    sample, device = applied.first[name]
    want = applied.wanted(sample)
    on(device)
    knobs.compilation.opt_limit = -1  # print what is applied
    same(sample.launch(disable_optimizations=name)[1], want)
    assert f") {name} on " not in capsys.readouterr().err


QUICK = [
    c for c in CASES if c[1] == "cpu" or c[0].name in ("copies", "fragments", "counted", "streamed")
]


@pytest.mark.slow
@pytest.mark.parametrize(("sample", "where"), QUICK, ids=lambda x: getattr(x, "name", x))
def test_any_number_of_first_applications_is_right(
    sample: Sample, where: str, applied: Applied, monkeypatch: pytest.MonkeyPatch
):
    """A bisection stops anywhere: here, where another optimisation begins."""
    want = applied.wanted(sample)
    made: list[list[str]] = []
    commit = Session.commit

    def noting(session: Session) -> None:
        made.append([a.name for a in session.applied])
        commit(session)

    monkeypatch.setattr(Session, "commit", noting)
    on(where)
    sample.compile()
    names = made[-1]
    for limit in [i for i in range(len(names)) if i == 0 or names[i] != names[i - 1]]:
        knobs.compilation.opt_limit = Session("").before + limit
        same(sample.launch()[1], want)
        assert made[-1] == names[:limit]


# --- faults ------------------------------------------------------------------------------------------------------
Plant = Callable[[pytest.MonkeyPatch, str], None]


def raises(patch: pytest.MonkeyPatch, name: str) -> None:
    """The optimisation runs into an error."""
    note = Session.note

    def noting(session: Session, what: str, *place: Any) -> None:
        note(session, what, *place)
        if what == name:
            raise RuntimeError("planted")

    patch.setattr(Session, "note", noting)


def breaks_the_module(patch: pytest.MonkeyPatch, name: str) -> None:
    """The optimisation leaves IR that the verifier refuses: a sum of integers that is a float."""
    call = Pass.__call__

    def calling(p: Pass, module: Module) -> None:
        session = current()
        before = len(session.applied) if session is not None else 0
        call(p, module)
        if session is not None and name in {a.name for a in session.applied[before:]}:
            func = next(iter(module.body))
            b = Builder.before_op(func.regions[0].terminator)
            one = b.emit(ConstOp(value=1, results=[int32]))
            b.insert(AddOp(one, one, results=[float32]))

    patch.setattr(Pass, "__call__", calling)


def fails_later(patch: pytest.MonkeyPatch, name: str) -> None:
    """What the optimisation makes of a kernel is refused by a stage behind."""
    run = stages._run_stage

    def running(stage: str, *rest: Any) -> Any:
        product = run(stage, *rest)
        session = current()
        assert session is not None
        if stage in ("llir", "object") and any(a.name == name for a in session.applied):
            return run(stage, lambda *_: 1 // 0, *rest[1:])
        return product

    patch.setattr(stages, "_run_stage", running)


def planted(name: str) -> list[Plant]:
    if name in FEATURES:
        return [fails_later]
    of_pass = name in PASSES_APPLY
    return [raises, *([breaks_the_module] if of_pass else []), fails_later]


# Applied to IR by passes, not by a lowering.
PASSES_APPLY = {o.name for o in OPTIMIZATIONS.values() if o.targets != "cpu"} - FEATURES
PASSES_APPLY |= {"exchange-partners", "narrow-accumulators", "narrow-tiles", "scalar-inductions"}
PASSES_APPLY |= {"scan-positions"}
PASSES_APPLY -= {
    "share-parts",
    "byte-casts",
    "small-casts",
    "compare-differences",
    "known-registers",
    "wide-products",
    "joint-divisions",
    "warp-reductions",
}
FAULTS = [pytest.param(n, p, id=f"{n}-{p.__name__}") for n in NAMES for p in planted(n)]


@pytest.mark.parametrize(("name", "plant"), FAULTS)
def test_a_fault_leaves_the_kernel_without_it(
    name: str, plant: Plant, applied: Applied, monkeypatch: pytest.MonkeyPatch
):
    """What is compiled is what switching the optimisation off gives, and is right therefore."""
    sample, device = applied.first[name]
    on(device)
    knobs.compilation.strict = False
    want = sample.compile(disable_optimizations=name)
    plant(monkeypatch, name)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        kernel = sample.compile()
    (warning,) = [w for w in caught if issubclass(w.category, OptimizationWarning)]
    text = str(warning.message)
    assert warning.filename.endswith("optimization_samples.py")
    assert f"the optimisation {name} failed and was left out of kernel {kernel.name}" in text
    (folder,) = re.findall(r"reproducer: (\S+)", text)
    assert {path.name for path in Path(folder).iterdir()} == {"input.tir", "command.txt"}
    assert "TESSERA_STRICT=1" in (Path(folder) / "command.txt").read_text()
    assert text in kernel.metadata.remarks
    assert kernel.metadata.disable_optimizations == name
    binary = kernel.backend.binary_ext
    assert kernel.asm["llir"] == want.asm["llir"]
    assert kernel.asm[binary] == want.asm[binary]


@pytest.mark.parametrize(("name", "plant"), FAULTS)
def test_a_fault_is_an_error_where_it_is_asked_for(
    name: str, plant: Plant, applied: Applied, monkeypatch: pytest.MonkeyPatch
):
    sample, device = applied.first[name]
    on(device)
    plant(monkeypatch, name)
    with pytest.raises(InternalError, match=r"planted|ZeroDivisionError|result types"):
        sample.compile()


def test_twins_of_such_a_kernel_are_compiled_without_it(monkeypatch: pytest.MonkeyPatch):
    """What a launch runs whose arrays no tensor map describes: nothing is tried, or told, again."""
    sample = next(s for s, device in CASES if s.name == "tma")
    on("simt")
    knobs.compilation.strict = False
    raises(monkeypatch, "wgmma")
    with pytest.warns(OptimizationWarning, match="wgmma failed"):
        kernel = sample.compile()
    assert kernel.metadata.precondition
    fallback = fallback_of(kernel)  # warnings are errors here
    assert "wgmma" not in fallback.asm["gir"]
    assert "tensor_copy" not in fallback.asm["gir"]
    assert " mma " in fallback.asm["gir"]
