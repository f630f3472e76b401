"""Runs the `.tir` and `.gir` files of this folder: passes on IR as text, CHECK lines on what they print.

A file belongs to the pass that it, or its folder, is named after. Each `// RUN:` line is a command line of
`python -m tessera opt`, with `--check-prefix` as one more option; lines `// -----` separate modules. A function is a
case. Where the pass changes a function, the CHECK lines must fail if the pass is left out; where a line switches an
optimisation off, they must fail if it is on. A function that stays as it is shows when the pass declines.
"""

from __future__ import annotations

import importlib
import io
import pkgutil
import re
import shlex
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path

import pytest

pytest.importorskip("filecheck")  # a GPU machine that can download nothing may lack it

from filecheck.finput import FInput
from filecheck.matcher import Matcher
from filecheck.options import Options
from filecheck.parser import Parser, pattern_for_opts

import tessera.backends.cpu
import tessera.passes
from tessera.config.optimizations import OPTIMIZATIONS
from tessera.errors import IRError, TesseraError
from tessera.ir import Module, Rewriter, parse_module, print_module
from tessera.ir.passes import PASSES, Pass, parse_pipeline
from tessera.passes.neutral.canonicalize import RULES
from tessera.tools.opt import SEPARATOR, arguments, run_passes

for package in (
    tessera.passes,
    tessera.backends.cpu,
):  # whatever registers a pass, so that none is forgotten
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        importlib.import_module(module.name)

FOLDER = Path(__file__).parent
FILES = sorted(f for f in FOLDER.rglob("*") if f.suffix in (".tir", ".gir"))
RUN = "// RUN: opt "


@dataclass(frozen=True)
class Section:
    """One module of a file; `line` is its first."""

    file: Path
    line: int
    text: str

    def holds(self, prefix: str, printed: str) -> bool:
        """Whether the CHECK lines hold for `printed`; what does not goes to stderr."""
        options = Options(str(self.file), check_prefixes=[prefix])
        source = io.StringIO("\n" * (self.line - 1) + self.text)
        parser = Parser(options, source, *pattern_for_opts(options))
        return Matcher(options, FInput("the result", printed), parser).run() == 0


@dataclass(frozen=True)
class Run:
    """One command line of a file. `subject`: the pass that the file is about."""

    subject: str
    passes: tuple[Pass, ...]
    target: str
    disable: str
    prefix: str

    def output(self, text: str) -> Module | str:
        """The module after the passes, or the error that they report."""
        try:
            return run_passes(text, list(self.passes), self.target, self.disable)
        except IRError:  # the input, or what a pass made of it, is no IR
            raise
        except TesseraError as error:
            return f"error: {type(error).__name__}: {error}\n"

    def without_effect(self) -> Run:
        """What this run is compared with: one without the subject; for one that switches optimisations off, the same
        with all of them."""
        return replace(self, disable="") if self.disable else self.without_subject()

    def without_subject(self) -> Run:
        kept = tuple(p for p in self.passes if p.name != self.subject)
        return replace(self, passes=kept)


class CheckFile:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.text = path.read_text(encoding="utf-8")

    @cached_property
    def subject(self) -> str:
        """The pass that the file, or the folder that it is in, is named after."""
        spelt = {name.replace("_", "-"): name for name in PASSES}
        at = self.path.parent.name if self.path.parent != FOLDER else self.path.stem
        assert at in spelt, f"{self.path}: no pass is called {at}"
        return spelt[at]

    @cached_property
    def runs(self) -> list[Run]:
        parser = arguments()
        parser.add_argument("--check-prefix", default="CHECK")
        lines = [x[len(RUN) :] for x in self.text.splitlines() if x.startswith(RUN)]
        given = [parser.parse_args([*shlex.split(line), str(self.path)]) for line in lines]
        return [
            Run(self.subject, tuple(parse_pipeline(g.passes)), g.target, g.disable, g.check_prefix)
            for g in given
        ]

    @cached_property
    def sections(self) -> list[Section]:
        found, line = list[Section](), 1
        for text in self.text.split(SEPARATOR):
            found.append(Section(self.path, line, text))
            line += text.count("\n") + 1
        return found

    def cases(self) -> Iterator[tuple[Run, Section]]:
        for run in self.runs:
            lines = re.compile(rf"^ *// {run.prefix}[-:]", re.MULTILINE)
            of_run = [s for s in self.sections if lines.search(s.text)]
            assert of_run, f"{self.path}: no section has a line {run.prefix}:"
            for section in of_run:
                yield run, section


CHECK_FILES = [CheckFile(path) for path in FILES]
every_file = pytest.mark.parametrize(
    "file", CHECK_FILES, ids=lambda f: str(f.path.relative_to(FOLDER))
)


def printed(result: Module | str) -> str:
    return result if isinstance(result, str) else print_module(result)


@every_file
def test_results(file: CheckFile, capsys: pytest.CaptureFixture[str]) -> None:
    assert file.runs
    for run, section in file.cases():
        result = printed(run.output(section.text))
        if not section.holds(run.prefix, result):
            pytest.fail(f"{capsys.readouterr().err}\n{result}", pytrace=False)
        if not result.startswith("error: "):
            assert printed(parse_module(result)) == result


@dataclass(frozen=True)
class Case:
    """One function of one run: the result, and the result without the run's effect on this function."""

    run: Run
    section: Section
    name: str
    result: str
    without: str

    @property
    def fires(self) -> bool:
        return self.result != self.without


@cache
def cases_of(file: CheckFile) -> list[Case]:
    return [case for run, section in file.cases() for case in _cases(run, section)]


def _cases(run: Run, section: Section) -> Iterator[Case]:
    done, plain = run.output(section.text), run.without_effect().output(section.text)
    names = [str(f.attrs["name"]) for f in parse_module(section.text).functions]
    if len(names) == 1 or isinstance(done, str) or isinstance(plain, str):
        yield Case(run, section, names[0], printed(done), printed(plain))
        return
    labelled = [n for n in names if f"{run.prefix}-LABEL: '{n}'" in section.text]
    for name in names if run.prefix == "CHECK" else labelled:
        mixed = done.clone()
        old, new = mixed.function(name), plain.function(name).clone({})
        mixed.body.insert_before(old, new)
        old.detach()
        yield Case(run, section, name, printed(done), printed(mixed))


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


@pytest.mark.parametrize("name", sorted(PASSES))
def test_every_pass_has_a_file(name: str) -> None:
    """It shows where the pass does something; of an optimisation also where it does not."""
    files = [file for file in CHECK_FILES if file.subject == name]
    cases = [case for file in files for case in cases_of(file) if not case.run.disable]
    assert any(case.fires for case in cases)
    assert not PASSES[name].optimization or any(not case.fires for case in cases)


# The other ones are applied while IR is lowered to LLVM IR, or by the assembler.
IN_PASSES = {o.name for o in OPTIMIZATIONS.values() if o.targets != "cpu"} | {
    p.optimization for p in PASSES.values() if p.optimization
}
IN_PASSES -= {"ldmatrix", "stmatrix", "raise-occupancy"}


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
