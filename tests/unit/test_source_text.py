"""Parsing sources in several threads, under the garbage collections that let threads into one another's parsing."""

from __future__ import annotations

import ast
import gc
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress

import pytest

from tessera.language import source_text

TEXT = "def f(a, b):\n" + "    x = (a + b) * [1, 2, 3][b] if a > b else f(a, c=(b,))\n" * 60


class Loop:
    """Garbage whose end runs Python code, so that a collection may switch threads."""

    def __init__(self) -> None:
        self.me = self

    def __del__(self) -> None:
        sum(range(50))


def run_threads(work: Callable[[], object], seconds: float, foreign: bool) -> list[BaseException]:
    """What goes wrong where four threads do `work` again and again; `foreign`: another one parses on its own."""
    stop = time.monotonic() + seconds
    errors: list[BaseException] = []

    def repeat() -> None:
        while time.monotonic() < stop and not errors:
            for _ in range(50):
                Loop()
            try:
                work()
            except BaseException as error:
                errors.append(error)

    def disturb() -> None:
        while time.monotonic() < stop:
            with suppress(SystemError):
                ast.parse(TEXT)

    threads = [threading.Thread(target=repeat) for _ in range(4)]
    threads += [threading.Thread(target=disturb)] if foreign else []
    saved, interval = gc.get_threshold(), sys.getswitchinterval()
    gc.set_threshold(20, 2, 2)
    sys.setswitchinterval(1e-6)
    try:
        for t in threads:
            t.start()
        for t in threads:
            t.join()
    finally:
        gc.set_threshold(*saved)
        sys.setswitchinterval(interval)
    return errors


@pytest.mark.parametrize("foreign", [False, True])
def test_threads_that_parse(foreign: bool) -> None:
    assert run_threads(lambda: source_text.parse(TEXT), 1.5, foreign) == []


def test_a_lasting_error_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []

    def broken(text: str) -> ast.Module:
        calls.append(text)
        raise SystemError("broken")

    monkeypatch.setattr(source_text.ast, "parse", broken)
    with pytest.raises(SystemError, match="broken"):
        source_text.parse("1")
    assert len(calls) == source_text.PARSE_TRIES
    with pytest.raises(SystemError):
        source_text.parse("2")
