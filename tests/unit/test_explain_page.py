"""The page of `explain` in a headless browser: it shows, in light and dark, and links lines of all levels."""

# pyright: basic
from __future__ import annotations

import html
import re
from pathlib import Path

import numpy as np
import pytest

import tessera
import tessera.language as tl
from tessera.backends.compiler import GPUTarget
from tessera.explain.drawings import pipeline_spans
from tessera.explain.page import page
from tests.browser_kit import brightness, browse, needs_browser


@tessera.jit
def product(a, b, c, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    m, n, k = tl.arange(0, BM), tl.arange(0, BN), tl.arange(0, BK)
    acc = tl.zeros((BM, BN), tl.float32)
    for i in range(0, K, BK):
        x = tl.load(a + m[:, None] * K + (i + k)[None, :])
        y = tl.load(b + (i + k)[:, None] * BN + n[None, :])
        acc = tl.dot(x, y, acc)
    tl.store(c + m[:, None] * BN + n[None, :], acc)


@pytest.fixture(scope="module")
def shown() -> str:
    a, c = np.zeros((64, 256), np.float16), np.zeros((64, 64), np.float32)
    args = (a, a, c, 256, 64, 64, 64)
    report = product.explain(*args, grid=(1,), target=GPUTarget("cuda", 80, 32))
    return page([report, product.explain(*args, grid=(1,))])


def test_a_page_needs_nothing_else(shown: str):
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", shown)
    assert not re.search(r"<(?:link|img|iframe)\b|\bsrc=", shown)
    for part in (
        "Time by limit",
        "Source and code",
        "Shared memory",
        "Layouts",
        "<svg",
        "prefers-color-scheme",
    ):
        assert part in shown


def test_copies_run_ahead_by_the_stages():
    spans = list(pipeline_spans(1.0, 3.0, 3))
    starts = {(row, i): start for row, i, start, _ in spans}
    ends = {(row, i): end for row, i, _, end in spans}
    assert starts["copies", 1] == 1.0  # the second buffer is free
    assert starts["copies", 2] == ends["computation", 0]
    assert all(starts["computation", i] >= ends["copies", i] for i in range(4))
    alone = {(row, i): start for row, i, start, _ in pipeline_spans(1.0, 1.0, 1)}
    assert alone["copies", 1] == 2.0


@pytest.mark.slow
@needs_browser
def test_the_page_in_a_browser(shown: str, tmp_path: Path):
    path = tmp_path / "page.html"
    path.write_text(shown, encoding="utf-8")
    number = next(
        n
        for n, text in re.findall(
            r'<tr data-line="(\d+)".*?<td class="text">(.*?)</td></tr>', shown
        )
        if "tl.dot" in text
    )
    document = browse(path, "--dump-dom", behind=f"#line-{number}")
    lit = [
        html.unescape(x)
        for x in re.findall(r'<div data-line="\d+" class="lit">(.*?)</div>', document)
    ]
    assert any(" mma " in x for x in lit)  # GPU IR
    assert any("mma.sync" in x for x in lit)  # PTX
    assert re.search(rf'<tr data-line="{number}" [^>]*class="lit"', document)


@pytest.mark.slow
@needs_browser
def test_both_themes(shown: str, tmp_path: Path):
    found: list[float] = []
    for theme in ("light", "dark"):
        path, picture = tmp_path / f"{theme}.html", tmp_path / f"{theme}.png"
        path.write_text(shown.replace("<html ", f'<html data-theme="{theme}" '), encoding="utf-8")
        browse(path, f"--screenshot={picture}")
        assert picture.stat().st_size > 20_000  # not an empty page
        found.append(brightness(picture.read_bytes()))
    light, dark = found
    assert light > 200 > 60 > dark
