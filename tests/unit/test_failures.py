"""The page of a failed check: which elements of the tile fail, on compiled and interpreted launches."""

from __future__ import annotations

import pickle
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tessera
import tessera.language as tl
from tessera.config import knobs
from tessera.errors import NotFinite, OutOfBounds, ProgramRace, TesseraError
from tessera.explain.failures import page
from tests.browser_kit import brightness, browse, needs_browser


@tessera.jit
def tiles(x, y, N, BM: tl.constexpr, BN: tl.constexpr):
    r = tl.program_id(0) * BM + tl.arange(0, BM)
    c = tl.program_id(1) * BN + tl.arange(0, BN)
    at = r[:, None] * N + c[None, :]
    tl.store(y + at, tl.load(x + at, mask=c[None, :] < N), mask=c[None, :] < N)


@tessera.jit
def roots(x, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(x + at, tl.sqrt(tl.load(x + at)))


@tessera.jit
def overlapping(x, BLOCK: tl.constexpr):
    at = tl.program_id(0) * (BLOCK // 2) + tl.arange(0, BLOCK)
    tl.store(x + at, tl.program_id(0) + 1)


@tessera.jit
def scalar(x, n):
    tl.store(x + n, 1.0)


def interpreted(kernel: Any) -> Any:
    with knobs.runtime.scope():
        knobs.runtime.interpret = True
        return tessera.jit(kernel.fn)


def failure(kernel: Any, grid: tuple[int, ...], *args: Any, **options: Any) -> TesseraError:
    with pytest.raises(TesseraError) as found:
        kernel[grid](*args, **options, debug="check")
    return found.value


@pytest.mark.parametrize("change", [lambda k: k, interpreted], ids=["compiled", "interpreted"])
def test_elements_outside_of_an_array(change: Any, tmp_path: Path):
    x, y = np.zeros((50, 100), np.float32), np.zeros((50, 100), np.float32)
    error = failure(change(tiles), (2, 2), x, y, 100, BM=32, BN=64)
    assert isinstance(error, OutOfBounds)
    tile = error.failed
    assert tile is not None
    expected = np.zeros((32, 64), np.uint8)
    expected[18:] = 1  # rows 50 to 63
    assert tile.bad == expected.tobytes()
    assert (tile.shape, tile.program, tile.index) == ((32, 64), (1, 0, 0), 18 * 64)
    shown = error.save(tmp_path / "failure.html").read_text()
    assert "896 of the elements of a tile of 32x64 fail, in program (1, 0, 0)" in shown
    assert (
        len(re.findall(r'<rect class="bad', shown)) == 15
    )  # a run a row; the first element stands alone
    assert 'class="here"' in shown
    assert "tl.load(x + at" in shown
    assert "(18, 0)" in shown
    assert re.search(r"On cuda:90 .* has the layout ll&lt;\[32,64\]|has the layout ll", shown)
    assert re.search(r"<td>\(18, 0\)</td><td class=\"text\">T\d+:\d+</td>", shown)
    assert "http" not in shown.replace("http://www.w3.org/2000/svg", "")


def test_elements_that_are_not_finite():
    x = np.array([1, 4, -1, 9, -2, 0, 1, 1], np.float32)
    error = failure(roots, (1,), x, BLOCK=8)
    assert isinstance(error, NotFinite)
    assert error.failed is not None
    assert error.failed.bad == bytes([0, 0, 1, 0, 1, 0, 0, 0])


def test_elements_of_a_race():
    error = failure(interpreted(overlapping), (2,), np.zeros(12, np.int32), BLOCK=8)
    assert isinstance(error, ProgramRace)
    assert error.failed is not None
    assert error.failed.bad == bytes([1] * 4 + [0] * 4)
    assert "4 of the elements of a tile of 8 fail" in page(error)


def test_a_tile_larger_than_what_a_report_tells():
    x, y = np.zeros(60000, np.float32), np.zeros(60000, np.float32)
    error = failure(tiles, (1, 1), x, y, 512, BM=256, BN=512)
    tile = error.failed
    assert tile is not None
    assert tile.shape == (256, 512)
    assert len(tile.bad) == 1 << 16
    assert tile.bad == bytes(60000) + bytes([1]) * (65536 - 60000)
    assert "of the first 65,536 elements" in page(error)


def test_a_scalar_and_the_text_of_other_errors(tmp_path: Path):
    error = failure(scalar, (1,), np.zeros(4, np.float32), 9)
    assert error.failed is None
    assert "out of bounds" in error.save(tmp_path / "scalar.html").read_text()


def test_errors_travel_between_processes():
    x, y = np.zeros((50, 100), np.float32), np.zeros((50, 100), np.float32)
    error = failure(tiles, (2, 2), x, y, 100, BM=32, BN=64)
    again = pickle.loads(pickle.dumps(error))
    assert again.failed.bad == error.failed.bad  # type: ignore[union-attr]
    assert again.failed.kernel is None
    assert "896 of the elements" in page(again)


def test_a_knob_writes_the_page(tmp_path: Path):
    x, y = np.zeros((50, 100), np.float32), np.zeros((50, 100), np.float32)
    with knobs.runtime.scope():
        knobs.runtime.check_page = str(tmp_path / "page.html")
        error = failure(tiles, (2, 2), x, y, 100, BM=32, BN=64)
        assert "896 of the elements" in (tmp_path / "page.html").read_text()
        knobs.runtime.check_page = str(tmp_path / "none" / "page.html")
        unwritten = failure(tiles, (2, 2), x, y, 100, BM=32, BN=64)
    assert any("page.html" in note for note in error.notes)
    assert unwritten.message == error.message
    assert unwritten.notes[-1].endswith("No such file or directory")


@pytest.mark.slow
@needs_browser
def test_the_page_in_a_browser(tmp_path: Path):
    error = failure(roots, (1,), np.array([1, -1, 4, -4] * 4, np.float32), BLOCK=16)
    path = error.save(tmp_path / "failure.html")
    document = browse(path, "--dump-dom")
    assert "8 of the elements of a tile of 16 fail" in document
    assert document.count('<rect class="bad') == 8
    found: list[float] = []
    for theme in ("light", "dark"):
        shown, picture = tmp_path / f"{theme}.html", tmp_path / f"{theme}.png"
        shown.write_text(path.read_text().replace("<html ", f'<html data-theme="{theme}" '))
        browse(shown, f"--screenshot={picture}")
        found.append(brightness(picture.read_bytes()))
    assert found[0] > 200 > 60 > found[1]
