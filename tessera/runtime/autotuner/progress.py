"""Shows a progress bar on stderr for work that takes seconds; nothing if stderr is not a terminal. The bar is drawn by
rich where that is installed."""

from __future__ import annotations

import sys
import time
from importlib import import_module
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from rich.progress import Progress as Bar

WIDTH = 24  # characters of the bar
DELAY = 0.5  # seconds before anything is shown


class Progress:
    """A context manager around `total` steps."""

    def __init__(self, title: str, total: int) -> None:
        self.title, self.total, self.done = title, total, 0
        self.shown = False
        self.start = time.perf_counter()
        self.bar: Bar | None = None

    def __enter__(self) -> Self:
        return self

    def step(self, best: float, what: str = "") -> None:
        """Count one more step; `best`: the best time so far, in ms, `what` had it."""
        self.done += 1
        if not sys.stderr.isatty() or time.perf_counter() - self.start < DELAY:
            return
        said = f"best {best:.4f} ms{f' by {what}' if what else ''}"
        if not self.shown:
            self.bar = self._rich()
        self.shown = True
        if self.bar is not None:
            self.bar.update(self.bar.task_ids[0], completed=self.done, said=said)
            return
        full = WIDTH * self.done // max(1, self.total)
        bar = "#" * full + "." * (WIDTH - full)
        line = f"{self.title} [{bar}] {self.done}/{self.total}, {said} "
        import shutil  # loads the modules of all archives, for which no program that only launches should wait

        # Cut to the terminal's width: `\r` leads back to the begin of one line alone.
        sys.stderr.write(f"\r\x1b[K{line[: shutil.get_terminal_size().columns - 1]}")
        sys.stderr.flush()

    def _rich(self) -> Bar | None:
        """Return a bar of rich that is shown, None without rich."""
        try:
            bars, console, table = (
                import_module(f"rich.{name}") for name in ("progress", "console", "table")
            )
        except ImportError:
            return None
        left = bars.TimeRemainingColumn()
        rest = table.Column(
            ratio=1, no_wrap=True, overflow="ellipsis"
        )  # never at the bar's expense
        columns = (
            "{task.description}",
            bars.BarColumn(WIDTH),
            bars.MofNCompleteColumn(),
            left,
            bars.TextColumn("{task.fields[said]}", table_column=rest),
        )
        bar = bars.Progress(
            *columns, console=console.Console(file=sys.stderr), transient=True, expand=True
        )
        bar.add_task(self.title, total=self.total, said="")
        bar.start()
        return bar

    def __exit__(self, *error: object) -> None:
        if self.bar is not None:
            self.bar.stop()
        elif self.shown:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
