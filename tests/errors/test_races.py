"""Checked launches report programs that access what another one changes and reads of what nothing has stored, and
nothing else: the same on the interpreter and compiled for the CPU."""

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
from tessera.interp import Shadows
from tessera.runtime.driver import driver
from tessera.testing import uninitialised
from tests.errors.kernel_source import load_kernel
from tests.errors.races import CASES

HEAD = "import tessera\nimport tessera.language as tl\n\n\n@tessera.jit\n"


@pytest.fixture(autouse=True, params=["interpreter", "cpu"])
def target(request: pytest.FixtureRequest):
    driver.set_active(request.param)
    yield request.param
    driver.reset_active()


@pytest.mark.parametrize(("kind", "body", "text"), CASES)
def test_text(tmp_path: Path, kind: type, body: str, text: str) -> None:
    kernel = load_kernel(tmp_path, body, HEAD)
    x = np.ones(2, np.float32)
    if kind is errors.UninitialisedRead:
        uninitialised(x)
    with pytest.raises(kind) as caught:
        kernel[(2,)](np.zeros(1, np.float32), x, debug="check")
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
def strided(x, out, stride, N: tl.constexpr):
    """Each program moves a column; `stride`: elements between two columns."""
    i, j = tl.arange(0, N), tl.program_id(1)
    tl.store(out + i * 8 + j * stride, tl.load(x + i * 8 + j))


@tessera.jit
def looped(x, n, N: tl.constexpr):
    """Each program adds up what is in front of its elements, in `n` steps back."""
    at = tl.program_id(0) * N + tl.arange(0, N)
    total = tl.load(x + at)
    for k in range(1, n + 1):
        total += tl.load(x + at - k * N, mask=at >= k * N, other=0)
    if tl.sum(total) != 0:
        tl.store(x + at, total)


@tessera.jit(noinline=True)
def put(p, v):
    tl.store(p, v)


@tessera.jit
def through_a_function(out, n):
    put(out + tl.program_id(0) % n, tl.program_id(0) + 1)


@tessera.jit
def one_of_each(x, out, values, N: tl.constexpr):
    """All programs store the same elements, as what `values` has for each."""
    i = tl.arange(0, N)
    tl.store(
        out + i,
        tl.load(values + tl.program_id(0)).to(out.dtype.element_ty)
        + tl.zeros([N], out.dtype.element_ty),
    )


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
        r"program \(1, 0, 0\) reads element 4 of `x`, which program \(0, 0, 0\) has stored",
    ),
    "programs store different values": (
        lambda: filled[(2,)](numbers(8), -1, 8, debug="check"),
        r"program \(1, 0, 0\) stores element 0 of `x`, which program \(0, 0, 0\) has stored",
    ),
    "columns overlap": (
        lambda: strided[(1, 3)](numbers(64), np.zeros(64, np.int32), 0, 8, debug="check"),
        r"program \(0, 1, 0\) stores element 0 of `out`, which program \(0, 0, 0\) has stored",
    ),
    "a loop reaches back": (
        lambda: looped[(4,)](numbers(32), 3, 8, debug="check"),
        r"program \(2, 0, 0\) reads element 8 of `x`, which program \(1, 0, 0\) has stored",
    ),
    "a function stores": (
        lambda: through_a_function[(5,)](np.zeros(8, np.int64), 3, debug="check"),
        r"program \(3, 0, 0\) stores element 0 of `p`, which program \(0, 0, 0\) has stored",
    ),
    **{
        f"{t.__name__} values differ": (
            lambda t=t: one_of_each[(2,)](
                t(0), np.zeros(8, t), np.array([1, 2], t), 8, debug="check"
            ),
            r"program \(1, 0, 0\) stores element 0 of `out`, which program \(0, 0, 0\) has stored",
        )
        for t in (np.int8, np.uint16, np.float16, np.float64)
    },
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


@pytest.mark.parametrize("value", [0.5, float("nan"), float("inf")])
@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64])
def test_all_store_the_same_float(kind: type, value: float) -> None:
    out = np.zeros(8, kind)
    one_of_each[(3,)](0, out, np.full(3, value, kind), 8, debug="check")
    assert np.array_equal(out, np.full(8, value, kind), equal_nan=True)


def test_columns_and_rows_that_keep_apart() -> None:
    x, out = numbers(64), np.zeros(64, np.int32)
    strided[(1, 8)](x, out, 1, 8, debug="check")
    assert (out == x).all()
    looped[(4,)](x, 0, 8, debug="check")
    through_a_function[(5,)](np.zeros(8, np.int64), 8, debug="check")


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


@tessera.jit
def scaled(x, out, n, N: tl.constexpr):
    at = tl.program_id(0) * N + tl.arange(0, N)
    tl.store(out + at, tl.load(x + at, mask=at < n) * 2, mask=at < n)


@tessera.jit
def summed(x, out, N: tl.constexpr):
    tl.store(out, tl.sum(tl.load(x + tl.arange(0, N))))


@tessera.jit
def added(x, total):
    tl.atomic_add(total, tl.load(x))


def test_what_a_tail_leaves_out(tmp_path: Path) -> None:
    """The first kernel's grid is a program short of the array; the second one reads the rest."""
    x, half = np.ones(32, np.float32), uninitialised(np.empty(32, np.float32))
    scaled[(3,)](x, half, 30, 8, debug="check")
    with pytest.raises(errors.UninitialisedRead) as caught:
        summed[(1,)](half, np.zeros(1, np.float32), 32, debug="check")
    text = "program (0, 0, 0) reads element 24 of `x`, which nothing has stored"
    assert caught.value.message == text
    assert caught.value.failed is not None
    assert list(caught.value.failed.bad) == [0] * 24 + [1] * 8
    assert "tl.sum(tl.load(x + tl.arange(0, N)))" in str(caught.value)


def test_stored_elements_are_initialised() -> None:
    x, half = np.ones(32, np.float32), uninitialised(np.empty(32, np.float32))
    total = uninitialised(np.empty(1, np.float32))
    scaled[(4,)](x, half, 32, 8, debug="check")
    summed[(1,)](half, total, 32, debug="check")
    assert total[0] == 64
    scaled[(1,)](half, np.zeros(32, np.float32), 8, 8, debug="check")


def test_elements_of_two_widths() -> None:
    """Shadows count in the narrowest elements of a kernel, declarations in bytes."""
    x = np.ones(32, np.float16)
    wide = uninitialised(np.empty(32, np.float32))
    scaled[(4,)](x, wide, 31, 8, debug="check")
    summed[(1,)](wide, np.zeros(1, np.float32), 16, debug="check")
    with pytest.raises(errors.UninitialisedRead, match="element 31 of `x`"):
        summed[(1,)](wide, np.zeros(1, np.float32), 32, debug="check")
    with pytest.raises(errors.UninitialisedRead, match="element 62 of `x`"):
        summed[(1,)](wide.view(np.int16), np.zeros(1, np.int32), 64, debug="check")


@tessera.jit
def half_and_whole(words, halves, out, FIRST: tl.constexpr):
    """One program reads a word, the other one stores a part of it; `FIRST` of them has the smaller number."""
    if tl.program_id(0) == (0 if FIRST == "read" else 1):
        tl.store(out, tl.load(words))
    else:
        tl.store(halves + 1, 7)


@pytest.mark.parametrize(
    ("first", "message"),
    [
        ("read", r"program \(1, 0, 0\) stores element 1 of `halves`, .* \(0, 0, 0\) has read"),
        ("store", r"program \(1, 0, 0\) reads element 0 of `words`, .* \(0, 0, 0\) has stored"),
    ],
)
def test_a_part_of_an_element(first: str, message: str) -> None:
    """Each unit of a wide access counts, not only its first."""
    words, out = np.zeros(2, np.int32), np.zeros(1, np.int32)
    with pytest.raises(errors.ProgramRace, match=message):
        half_and_whole[(2,)](words, words.view(np.int16), out, FIRST=first, debug="check")
    half_and_whole[(2,)](words[1:], words.view(np.int16), out, FIRST=first, debug="check")


def test_launches_with_too_many_events_are_not_followed() -> None:
    x = np.zeros(4, np.float32)
    kinds = ["*fp32"]
    assert Shadows(4, 2**31 - 1).arguments(kinds, [x], [0])[2] is not None
    assert Shadows(4, 2**31).arguments(kinds, [x], [0])[2] is None


def test_others_may_store() -> None:
    """What NumPy, an unchecked launch or an atomic stores ends the declaration."""
    out = np.zeros(1, np.float32)
    half = uninitialised(np.empty(32, np.float32))
    half[:] = 1
    summed[(1,)](half, out, 32, debug="check")
    half = uninitialised(half)
    scaled[(4,)](np.ones(32, np.float32), half, 32, 8)
    summed[(1,)](half, out, 32, debug="check")
    assert out[0] == 64
    half = uninitialised(np.empty(1, np.float32))
    added[(1,)](out, half, debug="check")
    summed[(1,)](half, out, 1, debug="check")


def test_a_declaration_ends_with_its_array() -> None:
    from tessera.interp import shadows

    before = len(shadows._declared)  # pyright: ignore[reportPrivateUsage]
    half = uninitialised(np.empty(32, np.float32))
    assert len(shadows._declared) == before + 1  # pyright: ignore[reportPrivateUsage]
    del half
    assert len(shadows._declared) == before  # pyright: ignore[reportPrivateUsage]


def test_only_memory_of_the_host_is_declared() -> None:
    with pytest.raises(errors.LaunchError, match="not known, or not on the host"):
        uninitialised(3)


@tessera.jit
def doubled(x, out, n, N: tl.constexpr):
    at = tl.program_id(0) * N + tl.arange(0, N)
    tl.store(out + at, tl.load(x + at, mask=at < n) * 2, mask=at < n)


def test_vectors_of_shadows_are_accessed_as_vectors(target: str) -> None:
    """Where an element's entry is in the shadow is known as well as where the element is."""
    x = np.ones(1000, np.float32)
    compiled = doubled[(2,)](x, x, 1000, N=512, debug="check")
    assert (x == 2).all()
    if target == "cpu":
        assert "masked.gather" not in compiled.asm["llir"]
        assert "masked.scatter" not in compiled.asm["llir"]
