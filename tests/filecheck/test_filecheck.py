"""Runs the `.tir` files here: the pipeline of the `// RUN:` line, then the CHECK lines on the result.

One function is one case. Every rule of the canonicaliser must match somewhere in these files.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

pytest.importorskip("filecheck")  # a GPU machine that can download nothing may lack it

from filecheck.finput import FInput
from filecheck.matcher import Matcher
from filecheck.options import Options
from filecheck.parser import Parser

import tessera.layout  # registers how layouts are read
from tessera.ir import PassManager, Rewriter, parse_module, print_module
from tessera.ir.passes import parse_pipeline
from tessera.passes.neutral.canonicalize import RULES
from tessera.passes.neutral.pipeline import neutral_pipeline

assert tessera.layout and neutral_pipeline

FILES = sorted(Path(__file__).parent.glob("*.tir"))
RUN = "// RUN:"


def pipeline(text: str) -> str:
    (line,) = [line for line in text.splitlines() if line.startswith(RUN)]
    return line[len(RUN) :]


@pytest.mark.parametrize("file", FILES, ids=lambda f: f.stem)
def test_file(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = file.read_text(encoding="utf-8")
    module = PassManager(parse_pipeline(pipeline(text)), verify=True).run(parse_module(text))
    printed = print_module(module)
    options = Options(str(file))
    matcher = Matcher(options, FInput("the result", printed), Parser.from_opts(options))
    if matcher.run() != 0:
        pytest.fail(f"{capsys.readouterr().err}\n{printed}", pytrace=False)
    assert print_module(parse_module(printed)) == printed


def test_every_rule_matches_somewhere() -> None:
    hits: Counter[str] = Counter()
    for file in FILES:
        driver = Rewriter(RULES)
        driver.run(parse_module(file.read_text(encoding="utf-8")))
        hits.update(driver.hits)
    rules = {fn.__name__ for table in RULES.table.values() for fn in table}
    assert rules - set(hits) == set()
