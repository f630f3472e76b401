"""The pages of docs/ that are made from code are what the code makes today, and the command that makes them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tessera.tools import pages, pipeline_page


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", pages.PAGES)
def test_the_page_is_up_to_date(name: str) -> None:
    assert not pages.stale(name), f"run: python -m tessera.tools.pages {name}"
    first = next(iter(pages.render(name).values()))
    assert f"python -m tessera.tools.pages {name}`" in first  # it says where it comes from


def test_stale_pages_are_named_and_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(pages, "DOCS", tmp_path)
    monkeypatch.setattr(pages, "PAGES", {n: pages.PAGES[n] for n in ("errors", "knobs")})
    assert pages.main(["errors"]) == 0
    assert [p.name for p in tmp_path.iterdir()] == ["errors.md"]
    assert pages.main([]) == 0 == pages.main(["--check"])
    assert (tmp_path / "knobs.md").read_text("utf-8") == pages.render("knobs")["knobs.md"]
    (tmp_path / "knobs.md").write_text("old")
    assert pages.main(["--check", "errors"]) == 0 and capsys.readouterr().out == ""
    assert pages.main(["--check"]) == 1 and (tmp_path / "knobs.md").read_text() == "old"
    assert capsys.readouterr().out == "docs/knobs.md is stale: run python -m tessera.tools.pages knobs\n"  # fmt: skip
    with pytest.raises(SystemExit):
        pages.main(["knob"])
    assert "no page knob; there are: errors, knobs" in capsys.readouterr().err


def test_a_page_of_a_folder_that_nothing_makes_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(pages, "DOCS", tmp_path)
    assert pages.main(["language"]) == 0 == pages.main(["--check", "language"])
    assert {"README.md", "shapes.md"} <= {p.name for p in (tmp_path / "language").iterdir()}
    (tmp_path / "language/forms.md").write_text("what was there before")
    assert pages.main(["--check", "language"]) == 1
    assert "docs/language/forms.md is stale" in capsys.readouterr().out


def test_a_pass_without_a_note_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    notes = {**pipeline_page.NOTES, "licm": pipeline_page.NOTES["licm"][:1]}
    monkeypatch.setattr(pipeline_page, "NOTES", notes)
    with pytest.raises(LookupError, match=r"no note for run 2 of pass 'licm': say there what"):
        pipeline_page.render()
    del notes["coalesce"]
    with pytest.raises(LookupError, match=r"NOTES in tessera/tools/pipeline_page.py"):
        pipeline_page.note("coalesce", 0)
