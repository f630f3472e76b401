"""The documentation site is built, warnings as errors, and has what it should, on light and on dark ground."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tessera.tools import language_reference
from tests.browser_kit import browse, needs_browser
from tools.site.code import ROOT

pytestmark = [
    pytest.mark.skipif(
        importlib.util.find_spec("material") is None,
        reason="the site is built with mkdocs-material: pip install tessera[docs]",
    ),
    pytest.mark.xdist_group("site"),
]
LIMIT = 60  # seconds of processor time that a build may take


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    env = {**os.environ, "PYTHONPATH": str(ROOT), "NO_MKDOCS_2_WARNING": "1"}
    start = os.times()
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=ROOT, env=env, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "WARNING" not in done.stderr
    used = os.times()
    assert used.children_user - start.children_user < LIMIT
    return folder


def text_of(page: Path) -> str:
    return page.read_text("utf-8")


def test_nothing_is_fetched(site: Path) -> None:
    loaded = re.compile(r"""<(?:script|link|img|iframe)[^>]*(?:src|href)=["']?(?:https?:)?//""")
    pages = list(site.rglob("*.html"))
    assert len(pages) > 40
    assert [p for p in pages if loaded.search(text_of(p))] == []
    assert [p for p in site.rglob("*.css") if "url(http" in text_of(p)] == []


def test_every_operation_has_a_place_an_example_and_a_picture(site: Path) -> None:
    pictures = 0
    for title, names in language_reference.SECTIONS.items():
        text = text_of(site / f"language/{language_reference.page_of(title)}.html")
        sections = re.split(r'<h2 id="([^"]*)"', text)
        found = dict(zip(sections[1::2], sections[2::2]))
        for name in names:
            section = found[language_reference.anchor(name)]
            assert 'class="highlight"' in section or name in language_reference.WITHOUT_EXAMPLE
            pictures += 'class="drawn"' in section
        assert text.count('class="md-nav__link"') >= len(names)  # the table of contents
    assert pictures >= 100


def test_links_lead_to_files_and_anchors(site: Path) -> None:
    """MkDocs has checked those of Markdown: this checks those that the hooks have made."""
    anchors: dict[Path, set[str]] = {}
    for page in site.rglob("*.html"):
        if page.name == "404.html":  # its links start at the root of a server
            continue
        for link in re.findall(r'<a[^>]* href="([^":]+)"', text_of(page)):
            path, _, anchor = link.partition("#")
            target = (page.parent / path).resolve() if path else page
            assert target.exists(), f"{page}: {link}"
            if anchor and target.suffix == ".html":
                if target not in anchors:
                    anchors[target] = set(re.findall(r' (?:id|name)="([^"]+)"', text_of(target)))
                assert anchor in anchors[target] or anchor.startswith("__"), f"{page}: {link}"


def visit(page: Path, *options: str, query: str = "") -> str:
    """What the browser says when the page's scripts have run: the search takes some seconds."""
    return browse(
        page, "--window-size=1400,1400", "--virtual-time-budget=8000", *options, behind=query
    )


@needs_browser
def test_search_works_from_disk(site: Path) -> None:
    document = visit(site / "index.html", "--dump-dom", query="?q=expand_dims")
    assert re.search(r"md-search-result__meta[^>]*>\s*\d+ matching documents", document)
    assert "language/shapes.html?h=expand_dims#expand_dims" in document


@needs_browser
@pytest.mark.parametrize("name", ["index", "start", "language/shapes"])
def test_light_and_dark(site: Path, name: str, tmp_path: Path) -> None:
    """The ground is light or dark as the reader's machine wants it, and what stands on it can be told from it."""
    image = pytest.importorskip("PIL.Image")
    for scheme, light in ((1, True), (0, False)):
        shot = tmp_path / f"{scheme}.png"
        page = site / f"{name}.html"
        visit(page, f"--screenshot={shot}", f"--blink-settings=preferredColorScheme={scheme}")
        grey = image.open(shot).convert("L").crop((260, 130, 1140, 1400))
        shares = grey.histogram()
        dark, bright = sum(shares[:96]) / sum(shares), sum(shares[160:]) / sum(shares)
        ground, ink = (bright, dark) if light else (dark, bright)
        assert ground > 0.7 and ink > 0.003, (name, light, ground, ink)
