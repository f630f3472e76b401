"""Docstrings of passes say what a pass takes, gives, needs and raises, and show an example, which is run here."""

from __future__ import annotations

import ast
import inspect
import re
import sys
from pathlib import Path

import pytest

from tessera import errors
from tessera.backends.cpu.backend import cpu_pipeline
from tessera.ir import Pass, parse_module, print_module
from tessera.ir.core import OPCODES
from tessera.ir.passes import PASSES
from tests.filecheck_kit import FOLDER, CheckFile, printed

SECTIONS = ["Takes", "Gives", "Needs", "Raises", "Example", "Compare"]
SECTION = re.compile(rf"^({'|'.join(SECTIONS)}): +", re.MULTILINE)
EXAMPLE = re.compile(r"`(\w+)` of tests/filecheck/(\S+)\n(.*?)\s+→ (.*)", re.DOTALL)
WORD = re.compile(r"(?<![%\w.'/#@-])([a-zA-Z_]\w*)(=?)")
assert cpu_pipeline()  # its passes are registered
KERNEL_PASSES = ("tessera.passes.", "tessera.backends.")
NAMES = sorted(n for n, p in PASSES.items() if p.fn.__module__.startswith(KERNEL_PASSES))


def sections(p: Pass) -> dict[str, str]:
    first, *found = SECTION.split(inspect.getdoc(p.fn) or "")
    keys = ["", *found[::2]]
    return dict(zip(keys, [x.strip() for x in (first, *found[1::2])], strict=True))


def steps(text: str) -> list[tuple[str, set[str]]]:
    """The ops of a text in order, each with the attributes that stand behind it."""
    found: list[tuple[str, set[str]]] = []
    for name, equals in WORD.findall(text):
        if equals and found:
            found[-1][1].add(name)
        elif not equals and name in OPCODES:
            found.append((name, set()))
    return found


def occurs(wanted: str, text: str) -> bool:
    """Whether the ops of `wanted` follow each other in `text`, perhaps with others in between."""
    there = iter(steps(text))
    return all(any(op == name and attrs <= of for name, of in there) for op, attrs in steps(wanted))


def function(name: str, text: str) -> str:
    """The printed function of that name."""
    found = [f for f in re.split(r"\n(?=  func )", text) if f"name='{name}'" in f]
    assert len(found) == 1, name
    return found[0]


def test_all_passes_are_seen():
    assert len(NAMES) >= 32 and {"licm", "barriers", "unroll", "narrow-accumulators"} <= {*NAMES}


@pytest.mark.parametrize("name", NAMES)
def test_form(name: str):
    found = sections(PASSES[name])
    assert list(found) == ["", *SECTIONS]
    assert all(found.values()), "an empty section"
    assert found[""].endswith(".") and found[""][0].isupper()


@pytest.mark.parametrize("name", NAMES)
def test_errors_exist_and_those_of_the_module_are_named(name: str):
    said = sections(PASSES[name])["Raises"]
    named = re.findall(r"\b[A-Z]\w+(?=:)", said)
    assert all(issubclass(getattr(errors, kind), errors.TesseraError) for kind in named)
    assert bool(named) != (said == "nothing.")
    source = Path(str(sys.modules[PASSES[name].fn.__module__].__file__)).read_text()
    calls = [x for x in ast.walk(ast.parse(source)) if isinstance(x, ast.Call)]
    made = {x.func.id for x in calls if isinstance(x.func, ast.Name) and hasattr(errors, x.func.id)}
    here = [p for p in PASSES.values() if p.fn.__module__ == PASSES[name].fn.__module__]
    said_here = " ".join(sections(p)["Raises"] for p in here)
    assert all(kind in said_here for kind in made - {"InternalError"}), made


@pytest.mark.parametrize("name", NAMES)
def test_the_example_is_what_the_pass_does(name: str):
    found = EXAMPLE.fullmatch(sections(PASSES[name])["Example"])
    assert found is not None, (
        "write: Example: `function` of tests/filecheck/FILE, then before → after"
    )
    of, file, before, after = found.groups()
    check = CheckFile(FOLDER / file)
    assert check.subject == name
    section = next(s for s in check.sections if f"name='{of}'" in s.text)
    given = function(of, print_module(parse_module(section.text)))
    assert steps(before) and occurs(before, given)
    result = printed(check.runs[0].output(section.text))
    if kind := re.match(r"[A-Z]\w+", after):
        assert result.startswith(f"error: {kind[0]}")
        return
    assert steps(after) and occurs(after, made := function(of, result))
    assert not (occurs(before, made) and occurs(after, given)), "the example shows no change"


def test_an_example_that_is_wrong_is_seen():
    text = "for %n { %a = mul %x, %x {exact=True}; print %a }"
    assert occurs("for { mul {exact=True} }", text) and not occurs("mul; for", text)
    assert not occurs("print {exact=True}", text) and not occurs("mul; mul", text)
