"""Runs the `.tir`, `.gir` and `.gph` files of this folder: passes on IR as text, CHECK lines on what they print.

A file belongs to the pass that it, or its folder, is named after. Each `// RUN:` line is a command line of
`python -m tessera opt`, with `--check-prefix` as one more option; lines `// -----` separate modules. A function is a
case. Where the pass changes a function, the CHECK lines must fail if the pass is left out; where a line switches an
optimisation off, they must fail if it is on. A function that stays as it is shows when the pass declines.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections import Counter

import pytest

pytest.importorskip("filecheck")  # a GPU machine that can download nothing may lack it

import tessera.backends.cpu
import tessera.graph.passes
import tessera.passes
from tessera.config.optimizations import OPTIMIZATIONS
from tessera.ir import Rewriter, parse_module
from tessera.ir.passes import PASSES
from tessera.passes.neutral.canonicalize import RULES
from tests.filecheck_kit import FOLDER, CheckFile, cases_of, printed

for package in (
    tessera.passes,
    tessera.backends.cpu,
    tessera.graph.passes,
):  # whatever registers a pass, so that none is forgotten
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        importlib.import_module(module.name)

FILES = sorted(f for f in FOLDER.rglob("*") if f.suffix in (".tir", ".gir", ".gph"))


CHECK_FILES = [CheckFile(path) for path in FILES]
every_file = pytest.mark.parametrize(
    "file", CHECK_FILES, ids=lambda f: str(f.path.relative_to(FOLDER))
)


@every_file
def test_results(file: CheckFile, capsys: pytest.CaptureFixture[str]) -> None:
    assert file.runs
    for run, section in file.cases():
        result = printed(run.output(section.text))
        if not section.holds(run.prefix, result):
            pytest.fail(f"{capsys.readouterr().err}\n{result}", pytrace=False)
        if not result.startswith("error: "):
            assert printed(parse_module(result)) == result


@every_file
def test_checks_fail_without_the_effect(
    file: CheckFile, capsys: pytest.CaptureFixture[str]
) -> None:
    for case in cases_of(file):
        if case.fires:
            assert not case.section.holds(case.run.prefix, case.without), (
                f"{case.name}: the {case.run.prefix} lines hold without {case.run.subject}, too"
            )
    capsys.readouterr()


# Tests register passes of their own.
OURS = sorted(name for name, p in PASSES.items() if p.fn.__module__.startswith("tessera."))


@pytest.mark.parametrize("name", OURS)
def test_every_pass_has_a_file(name: str) -> None:
    """It shows where the pass does something; of an optimisation also where it does not."""
    files = [file for file in CHECK_FILES if file.subject == name]
    cases = [case for file in files for case in cases_of(file) if not case.run.disable]
    assert any(case.fires for case in cases)
    assert not PASSES[name].optimization or any(not case.fires for case in cases)


# The other ones are applied while IR is lowered to LLVM IR, by the assembler, or by the planner of graphs.
IN_PASSES = {o.name for o in OPTIMIZATIONS.values() if o.targets != "cpu"} | {
    p.optimization for p in PASSES.values() if p.optimization
}
IN_PASSES -= {
    "ldmatrix",
    "stmatrix",
    "warp-exchanges",
    "raise-occupancy",
    "spill-little",
    "share-parts",
    "byte-casts",
    "small-casts",
}
IN_PASSES -= {
    "compare-differences",
    "known-registers",
    "wide-products",
    "joint-divisions",
    "warp-reductions",
}
IN_PASSES -= {"graph-split-reductions", "graph-split-scans", "graph-walk-rows", "graph-sum-moments"}
IN_PASSES -= {"graph-align-rows", "graph-order-extrema", "graph-stream-scans"}
IN_PASSES -= {
    "graph-reuse-memory",
    "graph-cut-arena",
    "graph-break-launches",
    "graph-order-steps",
    "graph-own-products",
    "graph-fuse-products",
    "graph-split-addmm",
    "graph-share-heads",
    "graph-point-convolutions",
    "graph-select-largest",
    "graph-drop-copies",  # as the next one of torch's graphs
    "graph-narrow-places",
    "graph-drop-masks",
    "graph-share-pages",
    "graph-sum-windows",
    "graph-recompute-biases",
    "graph-recompute-rows",
}


@pytest.mark.parametrize("name", sorted(IN_PASSES))
def test_every_optimization_of_a_pass_is_switched_off_somewhere(name: str) -> None:
    files = [f for f in CHECK_FILES if any(name in run.disable.split(",") for run in f.runs)]
    cases = [case for file in files for case in cases_of(file)]
    assert any(case.fires for case in cases if name in case.run.disable.split(","))


def test_every_rule_matches_somewhere() -> None:
    hits: Counter[str] = Counter()
    for file in CHECK_FILES:
        if file.subject == "canonicalize":
            driver = Rewriter(RULES)
            driver.run(parse_module(file.text))
            hits.update(driver.hits)
    rules = {fn.__name__ for table in RULES.table.values() for fn in table}
    assert rules - set(hits) == set()
