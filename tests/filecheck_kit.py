"""Text tests of passes: `.tir` and `.gir` files, the command lines in them, and what their CHECK lines hold of."""

from __future__ import annotations

import io
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path

from filecheck.finput import FInput
from filecheck.matcher import Matcher
from filecheck.options import Options
from filecheck.parser import Parser, pattern_for_opts

from tessera.errors import IRError, TesseraError
from tessera.ir import Module, parse_module, print_module
from tessera.ir.passes import PASSES, Pass, parse_pipeline
from tessera.tools.opt import SEPARATOR, arguments, run_passes

FOLDER = Path(__file__).parent / "filecheck"
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
    """One file of text tests."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.text = path.read_text(encoding="utf-8")

    @cached_property
    def subject(self) -> str:
        """The pass that the file, or the folder that it is in, is named after."""
        for name in (self.path.stem, self.path.parent.name):
            if name in PASSES:
                return name
        raise ValueError(f"{self.path} is named after no pass")

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


def printed(result: Module | str) -> str:
    return result if isinstance(result, str) else print_module(result)


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
