"""The pictures of the tutorials are what is drawn today, and each is shown."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

from tools.site import figures
from tools.site.code import ROOT

TUTORIALS = ROOT / "docs/tutorials"
SHOWN = {
    name
    for page in TUTORIALS.glob("*.md")
    for name in re.findall(r"\]\(images/([^)]+)\.svg\)", page.read_text("utf-8"))
}


def test_every_picture_is_shown_and_there() -> None:
    assert figures.FIGURES.keys() == SHOWN
    assert {path.stem for path in figures.IMAGES.iterdir()} == SHOWN


@pytest.mark.parametrize("name", figures.FIGURES)
def test_a_picture_is_up_to_date(name: str) -> None:
    text = figures.FIGURES[name]().rendered()
    assert (figures.IMAGES / f"{name}.svg").read_text("utf-8") == text, (
        "run: python -m tools.site.figures"
    )
    assert ElementTree.fromstring(text).tag.endswith("svg")
