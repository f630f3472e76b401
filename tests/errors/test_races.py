"""Checked launches of the interpreter report programs that access what another one changes, and nothing else."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tessera
import tessera.language as tl
from tessera import errors
from tessera.runtime.driver import driver
from tests.errors.kernel_source import load_kernel
from tests.errors.races import CASES

HEAD = "import tessera\nimport tessera.language as tl\n\n\n@tessera.jit\n"


@pytest.fixture(autouse=True)
def interpreter():
    driver.set_active("interpreter")
    yield
    driver.reset_active()


@pytest.mark.parametrize(("kind", "body", "text"), CASES)
def test_text(tmp_path: Path, kind: type, body: str, text: str) -> None:
    kernel = load_kernel(tmp_path, body, HEAD)
    with pytest.raises(kind) as caught:
        kernel[(2,)](np.zeros(1, np.float32), np.ones(2, np.float32), debug="check")
    assert str(caught.value).replace(f"{tmp_path}/", "") == textwrap.dedent(text).strip("\n")


@tessera.jit
def shifted(x, n, step, N: tl.constexpr):
    """Each program reads its elements `step` further on, and writes them where they belong."""
    at = tl.program_id(0) * N + tl.arange(0, N)
    v = tl.load(x + at + step, mask=at + step < n, other=0)
    tl.store(x + at, v, mask=at < n)


@tessera.jit
def filled(x, value, N: tl.constexpr):
    """All programs write all elements: `value`, and the number of the program where that is negative."""
    v = tl.where(value < 0, tl.program_id(0) + 1, value)
    tl.store(x + tl.arange(0, N), tl.zeros([N], tl.int32) + v)


@tessera.jit
def counted(x, total, N: tl.constexpr):
    at = tl.program_id(0) * N + tl.arange(0, N)
    tl.atomic_add(total, tl.sum(tl.load(x + at)))
    tl.store(x, tl.load(total))


def numbers(n: int) -> np.ndarray:
    return np.arange(1, n + 1, dtype=np.int32)


RACES: dict[str, tuple[Callable[[], Any], str]] = {
    "a program reads what the next one changes": (
        lambda: shifted[(4,)](numbers(32), 32, 4, 8, debug="check"),
        r"program \(1, 0, 0\) stores element 8 of `x`, which program \(0, 0, 0\) has read",
    ),
    "a program reads what the one before has changed": (
        lambda: shifted[(4,)](numbers(32)[4:], 28, -4, 8, debug="check"),
        r"program \(1, 0, 0\) reads element 8 of `x`, which program \(0, 0, 0\) has stored",
    ),
    "programs store different values": (
        lambda: filled[(2,)](numbers(8), -1, 8, debug="check"),
        r"program \(1, 0, 0\) stores element 0 of `x`, which program \(0, 0, 0\) has stored",
    ),
}


@pytest.mark.parametrize("name", RACES)
def test_race(name: str) -> None:
    launch, text = RACES[name]
    with pytest.raises(errors.ProgramRace, match=text):
        launch()


def test_one_program_may_do_what_it_likes() -> None:
    x = numbers(8)
    shifted[(1,)](x, 8, 4, 8, debug="check")
    assert x.tolist() == [5, 6, 7, 8, 0, 0, 0, 0]


def test_programs_keep_to_their_elements() -> None:
    x = numbers(32)
    shifted[(4,)](x, 32, 0, 8, debug="check")
    assert x.tolist() == list(range(1, 33))


def test_masked_elements_are_not_accessed() -> None:
    x = numbers(32)
    shifted[(4,)](x, 8, 4, 8, debug="check")
    assert x.tolist() == [5, 6, 7, 8, 0, 0, 0, 0, *range(9, 33)]


def test_all_store_the_same() -> None:
    x = numbers(8)
    filled[(4,)](x, 7, 8, debug="check")
    assert x.tolist() == [7] * 8


@tessera.jit
def filled_and_read(x, out, N: tl.constexpr):
    at = tl.arange(0, N)
    tl.store(x + at, at * 2)
    tl.store(out + tl.program_id(0) * N + at, tl.load(x + at) + 1)


def test_what_all_store_may_be_read() -> None:
    x, out = numbers(8), np.zeros(24, np.int32)
    filled_and_read[(3,)](x, out, 8, debug="check")
    assert out.tolist() == [*range(1, 16, 2)] * 3


def test_kernels_with_atomics_are_left_alone() -> None:
    x, total = numbers(16), np.zeros(1, np.int32)
    counted[(2,)](x, total, 8, debug="check")
    assert total[0] > 100


def test_unchecked_launches_are_left_alone() -> None:
    x = numbers(8)
    filled[(2,)](x, -1, 8)
    assert x.tolist() == [2] * 8


def test_views_of_one_storage_are_one_array() -> None:
    base = numbers(16)
    base[8:] = 0

    with pytest.raises(errors.ProgramRace, match="which program"):
        copied[(2,)](base[1:9], base[:8], 4, debug="check")


@tessera.jit
def copied(x, out, N: tl.constexpr):
    at = tl.program_id(0) * N + tl.arange(0, N)
    tl.store(out + at, tl.load(x + at))
