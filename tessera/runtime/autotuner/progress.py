"""Shows a progress bar on stderr for work that takes seconds; nothing if stderr is not a terminal."""

from __future__ import annotations

import sys
import time
from typing import Self

WIDTH = 24  # characters of the bar
DELAY = 0.5  # seconds before anything is shown


class Progress:
    """A context manager around `total` steps."""

    def __init__(self, title: str, total: int) -> None:
        self.title, self.total, self.done = title, total, 0
        self.shown = False
        self.start = time.perf_counter()

    def __enter__(self) -> Self:
        return self

    def step(self, best: float) -> None:
        """Count one more step; `best`: the best time so far, in ms."""
        self.done += 1
        if not sys.stderr.isatty() or time.perf_counter() - self.start < DELAY:
            return
        full = WIDTH * self.done // max(1, self.total)
        bar = "#" * full + "." * (WIDTH - full)
        sys.stderr.write(f"\r{self.title} [{bar}] {self.done}/{self.total}, best {best:.4f} ms ")
        sys.stderr.flush()
        self.shown = True

    def __exit__(self, *error: object) -> None:
        if self.shown:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
