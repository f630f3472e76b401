"""Typical mistakes are answered with their place, the cause and a remedy, and docs/mistakes.md says so."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import traceback
from pathlib import Path

import pytest

from tessera import errors
from tessera.config import knobs
from tests.errors.mistakes import page
from tests.errors.mistakes.kit import HEAD, Mistake, answer

LIBRARY_FRAMES = 3  # of tessera in the traceback of an error of host code: the function that was called, and wrappers


@pytest.fixture(autouse=True)
def usual_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """A test of the alias may have run before in this process."""
    monkeypatch.setattr(errors.Spelling, "package", "tessera")


@pytest.mark.parametrize("mistake", page.CASES, ids=[m.title for m in page.CASES])
def test_answer(mistake: Mistake):
    found = page.answered(mistake)
    line, start, end = mistake.place
    assert found.code == mistake.code
    assert mistake.remedy in f"{found.message} {found.remedy}"
    if found.raised is None:
        assert found.host_line() == line
        return
    assert found.remedy  # none without one
    printed = "".join(traceback.format_exception(found.raised))
    causes = re.split(r"\n(?:The above|During handling of the above) exception.*\n", printed)[:-1]
    assert all(str(found.path) in cause for cause in causes)  # they have frames of the user's
    if found.loc is None:
        assert found.host_line() == line
        assert found.library_frames() <= LIBRARY_FRAMES
        return
    assert found.loc.file == str(found.path)  # not a file of tessera's
    assert (found.loc.line, found.loc.col) == (line, start)
    assert found.loc.end_line > line or found.loc.end_col == end


def test_every_mistake_has_its_own_title():
    titles = [m.title for m in page.CASES]
    assert len(set(titles)) == len(titles) >= 200


def test_the_page_is_up_to_date():
    assert page.PAGE.read_text("utf-8") == page.render(), (
        "run: python -m tests.errors.mistakes.page"
    )


# --- the form for programs ------------------------------------------------------------------------------------------
NESTED = f"""{HEAD}
@tessera.jit
def inner(p):
    return tl.load(p + offs)


@tessera.jit
def k(x):
    tl.store(x, inner(x))


k[(1,)](x)
"""
SPAN = {"file", "line", "column", "end_line", "end_column", "function", "source"}


def test_errors_as_json(tmp_path: Path):
    file = tmp_path / "nested.py"
    file.write_text(NESTED)
    ran = subprocess.run(
        [sys.executable, str(file)], capture_output=True, text=True, check=False,
        env={**os.environ, "TESSERA_ERRORS": "json", "PYTHONPATH": str(page.PAGE.parents[1])},
    )  # fmt: skip
    kind, _, text = ran.stderr.splitlines()[-1].partition(": ")
    assert ran.returncode == 1 and kind == "tessera.errors.UnknownName"
    told = json.loads(text)
    assert told.keys() == {"version", "code", "type", "message", "help", "notes", "place", "calls"}
    assert (told["version"], told["code"], told["type"]) == (1, "unknown-name", "UnknownName")
    assert told["message"] == "offs is not defined" and "parameter" in told["help"]
    assert told["place"].keys() == SPAN and [call.keys() for call in told["calls"]] == [SPAN]
    at = NESTED.splitlines()[told["place"]["line"] - 1]
    assert at[told["place"]["column"] - 1 : told["place"]["end_column"] - 1] == "offs"
    assert told["place"]["function"] == "inner" and told["place"]["source"] == at
    assert told["calls"][0]["function"] == "k" and told["calls"][0]["file"] == str(file)


def test_the_form_is_a_knob(tmp_path: Path):
    mistake = next(m for m in page.CASES if m.title == "a misspelt option")
    raised = answer(tmp_path, mistake).raised
    assert isinstance(raised, errors.UnknownOption)
    assert str(raised).startswith("error[unknown-option]: ")
    with knobs.runtime.scope():
        knobs.runtime.errors = "json"
        assert json.loads(str(raised)) == raised.to_dict()
        assert raised.text().startswith("error[unknown-option]: ")
    assert raised.to_dict()["place"] is None
    with (
        pytest.raises(ValueError, match=r"runtime\.errors must be one of text, json"),
        knobs.scope(),
    ):
        knobs.runtime.errors = "xml"
