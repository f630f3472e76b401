"""Where programs written for Triton look: `__cause__` and `error_message` of errors, the places of warnings."""

from __future__ import annotations

import inspect
import warnings
from typing import Any

import numpy as np
import pytest

import tessera
import tessera.language as tl
from tessera.config import knobs
from tessera.errors import CompilationError


@tessera.jit
def adds_shapes(x):
    return x + tl.arange(0, 3 * 16)  # no power of two


@tessera.jit
def calls_it(x):
    return adds_shapes(x)


@tessera.jit
def nested(out):
    tl.store(out, calls_it(tl.arange(0, 16)))


@tessera.jit
def refused(out):
    tl.store(out + tl.arange(0, 8), tl.reshape(tl.arange(0, 8), (4, 4)))


@tessera.jit
def unknown(out):
    tl.store(out, missing)  # noqa: F821  # pyright: ignore


@tessera.jit
def repeats(n: tl.constexpr):
    if n == 0:
        tl.static_assert(False, "the end")
    repeats(n - 1)


@tessera.jit
def deep(out):
    repeats(40)


def failure(kernel: Any) -> CompilationError:
    with pytest.raises(CompilationError) as caught:
        kernel[(1,)](np.zeros(16, np.int32))
    return caught.value


def causes(error: BaseException) -> list[BaseException]:
    found = [error]
    while found[-1].__cause__ is not None:
        found.append(found[-1].__cause__)
    return found


def test_errors_of_operations_have_pythons_error_as_cause():
    error = failure(refused)
    (cause,) = causes(error)[1:]
    for kind in (ValueError, TypeError, AssertionError):
        assert isinstance(cause, kind)
    assert str(cause) == error.error_message
    assert "cannot change total number of elements" in str(cause)


def test_errors_in_called_functions_are_causes_of_those_at_the_calls():
    found = causes(failure(nested))
    functions = ["nested", "calls_it", "adds_shapes"]
    assert all(isinstance(e, CompilationError) for e in found[:3])
    for i, e in enumerate(found[1:3], 1):
        assert f"in {functions[i]} (" in str(e)
        assert all(f"in {other} (" not in str(e) for other in functions if other != functions[i])
    assert isinstance(found[3], ValueError)
    assert all(name in str(found[0]) for name in functions)


def test_names_that_are_not_defined():
    (cause,) = causes(failure(unknown))[1:]
    assert isinstance(cause, NameError)
    assert str(cause) == "missing is not defined"


def test_long_chains_of_calls_are_cut():
    found = causes(failure(deep))
    assert 10 < len(found) < 20
    assert str(found[-1]) == "the end"


# --- warnings ------------------------------------------------------------------------------------------------------
@tessera.jit
def both(i, n):
    return (i < n) and (i > 2)  # warned: logical


@tessera.jit
def warned(x, out, n):
    i = tl.arange(0, 16)
    a = tl.load(x + i)
    tl.store(out + i, a, mask=both(i, n))
    tl.store(out + i, tl.where(i, a, 0), mask=i < n and i > 2)  # warned: logical, non-boolean
    tl.store(out + i, a << 40)  # warned: shift
    tl.store(out + i, tl.view(a, 16))  # warned: view
    tl.store(out + i, max(a, i))  # warned: max
    if i.reshape((16, 1)).sum(0) > 3:  # warned: scalar
        p = tl.make_block_ptr(x, (16,), (1,), (0,), (16,), (0,))  # warned: make_block_ptr
        tl.store(p, a)


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Compile `warned`, which may be on disk already."""
    monkeypatch.setattr(knobs.compilation, "always_compile", True)
    arrays = np.zeros(16, np.int32), np.zeros(16, np.int32)
    return lambda: tessera.jit(warned.fn).warmup(*arrays, 9, grid=(1,))


def test_warnings_point_at_the_kernels_lines(compiled: Any):
    want: list[tuple[int, str]] = []
    for kernel in (both, warned):
        lines, first = inspect.getsourcelines(kernel.fn)
        for number, line in enumerate(lines, first):
            for word in filter(None, line.partition("# warned: ")[2].strip().split(", ")):
                want.append((number, word))
    for _ in range(2):  # a place warns each time that it is compiled, if the filters say so
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            compiled()
        assert {w.filename for w in caught} == {__file__}
        found = [(w.lineno, str(w.message)) for w in caught]
        assert sorted(n for n, _ in found) == sorted(n for n, _ in want)
        for number, word in want:
            assert any(n == number and word in text for n, text in found), word


def test_warnings_are_told_apart_by_the_kernels_module(compiled: Any):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("ignore")
        warnings.filterwarnings("always", module=__name__)
        compiled()
    assert len(caught) == 8


def test_warnings_as_errors_stop_the_compilation(compiled: Any):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UserWarning, match="logical `and`"):
            compiled()
