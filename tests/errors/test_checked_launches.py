"""Checked launches (`debug="check"`): the full text of each report, and what is not reported."""

from __future__ import annotations

import pdb
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tessera
import tessera.language as tl
from tessera import errors
from tessera.config import knobs
from tessera.runtime.driver import driver
from tests.errors.checked_launches import CASES
from tests.errors.kernel_source import load_kernel

HEAD = "import tessera\nimport tessera.language as tl\n\n@tessera.jit\n"


@pytest.fixture(params=["interpreter", "cpu"])
def target(request: pytest.FixtureRequest):
    """Both builds make the same reports."""
    driver.set_active(request.param)
    yield request.param
    driver.reset_active()


@pytest.mark.parametrize(("kind", "body", "args", "text"), CASES)
def test_report(target: str, tmp_path: Path, kind: type, body: str, args: Any, text: str):
    kernel = load_kernel(tmp_path, body, HEAD)
    with pytest.raises(kind) as caught:
        kernel[(2,)](*args(), debug="check")
    shown = str(caught.value).replace(f"{tmp_path}/", "")
    assert shown == textwrap.dedent(text).strip("\n")


@tessera.jit
def softmax(p, q, n, B: tl.constexpr):
    i = tl.arange(0, B)
    x = tl.load(p + i, mask=i < n, other=float("-inf"))
    e = tl.exp(x - tl.max(x, 0))
    tl.store(q + i, e / tl.sum(e, 0), mask=i < n)


@tessera.jit
def noise(q, seed, B: tl.constexpr):
    i = tl.arange(0, B)
    tl.store(q + i, tl.rand(seed, i))


def test_sound_kernels_pass():
    x, q = np.linspace(-2, 2, 13, dtype=np.float32), np.zeros(13, np.float32)
    softmax[(1,)](x, q, 13, 16, debug="check")
    want = np.exp(x - x.max())
    np.testing.assert_allclose(q, want / want.sum(), rtol=1e-6)
    r = np.zeros(16, np.float32)
    noise[(1,)](r, 42, 16, debug="check")  # wraps on purpose
    assert (r >= 0).all()
    assert (r < 1).all()


def test_environment_turns_it_on(monkeypatch: pytest.MonkeyPatch):
    x, q = np.zeros(13, np.float32), np.zeros(12, np.float32)
    kernel = softmax[(1,)](x, np.zeros(13, np.float32), 13, 16)
    assert kernel.target.backend == "cpu"
    with knobs.runtime.scope():
        knobs.runtime.check = True
        with pytest.raises(errors.OutOfBounds, match="writes element 12 of argument `q`"):
            softmax[(1,)](x, q, 13, 16)
    with pytest.raises(errors.LaunchError, match='debug must be a bool or "check"'):
        softmax[(1,)](x, q, 12, 16, debug="checked")


# --- breakpoints ------------------------------------------------------------------------------------------------
@tessera.jit
def stops(p, q, n, B: tl.constexpr):
    i = tl.arange(0, B)
    x = tl.load(p + i) * n
    pair = (x, i)
    if n > 1:
        breakpoint()
    tl.store(q + i, pair[0])


@tessera.jit
def stops_by_pdb(p, q, n, B: tl.constexpr):
    i = tl.arange(0, B)
    x = tl.load(p + i) * n
    pair = (x, i)
    if n > 1:
        pdb.set_trace()
    tl.store(q + i, pair[0])


@pytest.mark.parametrize("stops", [stops, stops_by_pdb])
def test_breakpoint_sees_the_variables(stops: Any, monkeypatch: pytest.MonkeyPatch):
    seen: list[tuple[dict[str, Any], str, int]] = []

    def hook(*args: Any, **kwargs: Any) -> None:
        frame = sys._getframe(1)
        seen.append((dict(frame.f_locals), frame.f_code.co_filename, frame.f_lineno))

    monkeypatch.setattr("sys.breakpointhook", hook)
    p, q = np.arange(4, dtype=np.float32), np.zeros(4, np.float32)
    driver.set_active("interpreter")
    try:
        stops[(2,)](p, q, 3, 4, debug="check")
    finally:
        driver.reset_active()
    assert len(seen) == 2  # once a program
    names, file, line = seen[1]
    np.testing.assert_array_equal(names["x"], p * 3)
    np.testing.assert_array_equal(names["pair_1"], np.arange(4))
    assert (names["n"], names["B"], names["program_id"], names["num_programs"]) == (
        3,
        4,
        (1, 0, 0),
        (2, 1, 1),
    )
    assert file == __file__
    assert line == stops.starting_line_number + 6
    with pytest.raises(errors.UnsupportedLanguageConstruct, match="stops the interpreter only"):
        stops[(2,)](p, q, 3, 4)


def test_interpreter_reports_the_source_line():
    driver.set_active("interpreter")
    try:
        with pytest.raises(errors.OutOfBounds) as caught:
            softmax[(1,)](np.zeros(13, np.float32), np.zeros(12, np.float32), 13, 16)
    finally:
        driver.reset_active()
    assert "tl.store(q + i, e / tl.sum(e, 0), mask=i < n)" in str(caught.value)
