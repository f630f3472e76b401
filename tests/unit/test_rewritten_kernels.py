"""Kernels whose text libraries write anew, and functions that bear another name than their source."""

from __future__ import annotations

import inspect
from types import FunctionType
from typing import Any

import numpy as np
import pytest

import tessera
import tessera.language as tl


def template():
    pass


def written(out, N: tl.constexpr):
    """The signature of what `made` holds."""


def made(text: str, **names: object) -> Any:
    """A kernel from text, as libraries make them that specialise kernels: the code object is another function's."""
    function = FunctionType(template.__code__, {**template.__globals__, **names})
    function.__signature__ = inspect.signature(written)  # type: ignore[attr-defined]
    function.__name__ = "written"
    kernel = tessera.JITFunction(function)
    kernel._unsafe_update_src(text)
    return kernel


def test_a_kernel_made_of_text():
    kernel = made(
        "def written(out, N):\n    at = tl.arange(0, N)\n    tl.store(out + at, FACTOR * at)\n",
        FACTOR=tl.constexpr(3),
    )
    out = np.zeros(4, np.int32)
    kernel[(1,)](out, N=4)
    assert out.tolist() == [0, 3, 6, 9]


@tessera.jit
def plus(x, by: tl.constexpr):
    return x + by


@tessera.jit
def stored(out, n):
    tl.store(out, plus(n, 1))


@pytest.mark.parametrize("changed", [stored, plus], ids=["kernel", "callee"])
def test_a_launched_kernel_is_written_anew(changed: Any):
    """Also one whose launches have become native."""
    out, text = np.zeros(1, np.int32), changed.src
    other = text.replace("x + by", "x - by").replace("plus(n, 1)", "plus(n, -1)")
    for now, want in ((text, 6), (other, 4), (text, 6)):
        changed._unsafe_update_src(now)
        stored.hash = None
        for _ in range(3):
            stored[(1,)](out, 5)
            assert out[0] == want


def test_errors_in_text_are_placed_where_its_maker_says():
    kernel = made("def written(out, N):\n    tl.store(out, nothing)\n")
    kernel.file_name, kernel.def_file_line_number = "original.py", 41
    kernel.starting_line_number, kernel.def_file_col_number = 40, 4
    kernel.raw_src = ["@jit", "def written(out, N):"]
    with pytest.raises(tessera.TesseraError, match=r"original\.py:42"):
        kernel[(1,)](np.zeros(1, np.int32), 4)
    assert kernel.source.first_line == 40
    assert kernel.raw_src[0] == "@jit"


def test_a_renamed_function_is_found():
    def first(out):
        tl.store(out, 5)

    first.__name__ = "second"
    out = np.zeros(1, np.int32)
    tessera.jit(first)[(1,)](out)
    assert out[0] == 5
