"""The error page is the catalogue, and codes are unique."""

from __future__ import annotations

from pathlib import Path

from tessera.tools.error_catalogue import catalogue, render

PAGE = Path(__file__).resolve().parents[2] / "docs" / "errors.md"


def test_the_page_is_up_to_date():
    assert PAGE.read_text() == render(), (
        "run: python -m tessera.tools.error_catalogue > docs/errors.md"
    )


def test_codes_are_unique():
    codes = [kind.code for kind in catalogue()]
    assert len(set(codes)) == len(codes)
