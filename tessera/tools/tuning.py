"""Implements the command `tune`: runs a program, and shows what its autotuned kernels measured."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from html import escape
from importlib import import_module
from math import inf, isfinite
from pathlib import Path
from typing import TypedDict, cast

from tessera.config import knobs
from tessera.runtime.autotuner import store
from tessera.runtime.autotuner.config import Config, shown
from tessera.runtime.launching.interface import KernelInterface
from tessera.tools import cli
from tessera.tools.programs import add_program, output_file, program_of, status_of

ON_DISK = ("--show", "--export", "--import")
BAR = 20  # characters
PIXELS = 420  # of the longest bar, beside names and times
STYLE = Path(__file__).parents[1] / "explain" / "page.css"


@dataclass(frozen=True, slots=True)
class Result:
    """What one tuning of a kernel measured: (config, ms) from the fastest on; an infinite time did not run. `seconds`:
    how long that took, None if the times were on disk."""

    kernel: str
    key: tuple[object, ...]
    times: list[tuple[str, float]]
    seconds: float | None

    def head(self) -> str:
        took = "times from disk" if self.seconds is None else f"tuned in {self.seconds:.2f} s"
        return f"{self.kernel} for {', '.join(map(str, self.key)) or 'all arguments'}: {took}"

    def rows(self) -> list[tuple[str, str, float]]:
        """Return time, ratio to the best one, and its share of a bar, for each config."""
        best = self.times[0][1]
        return [
            (f"{ms:.4f}", f"{ms / best:.2f}", best / ms) if isfinite(ms) else ("not run", "", 0.0)
            for _, ms in self.times
        ]


def command(args: list[str], program: Callable[[list[str]], int]) -> int:
    """`tune [--plot FILE] [--again] SCRIPT [ARGS...] | --show | --export FILE | --import FILE`; `program` runs it."""
    if args and args[0].partition("=")[0] in ON_DISK:
        return cli.tune(args)
    parser = argparse.ArgumentParser("tessera tune", description="tune the kernels of a program")
    parser.add_argument(
        "--plot", type=output_file, metavar="FILE", help="write the times as a page (HTML)"
    )
    parser.add_argument("--again", action="store_true", help="measure what is on disk again")
    add_program(parser)
    given = parser.parse_args(args)
    words = program_of(given)
    if not words:
        return 2
    results: list[Result] = []
    anew = store.measured_anew() if given.again else nullcontext()
    with knobs.autotuning.scope(), anew:
        before = knobs.autotuning.listener

        def listener(**about: object) -> None:
            results.append(_result(cast("About", about)))
            if before is not None:
                before(**about)

        knobs.autotuning.listener = listener
        status = status_of(program, words)
    for result in results:
        show(result)
    if not results:
        print("no kernel of the program was tuned: `tessera.autotune` needs two configs or more")
    if given.plot is not None:
        given.plot.write_text(page(results), encoding="utf-8")
    return status


class About(TypedDict):
    """What a listener of the autotuner is told."""

    fn: KernelInterface
    key: tuple[object, ...]
    configs_timings: Mapping[Config, Sequence[float]]
    duration: float | None


def _result(about: About) -> Result:
    times = [(shown(c), t[0] if t else inf) for c, t in about["configs_timings"].items()]
    ordered = sorted(times, key=lambda x: x[1])
    return Result(about["fn"].__name__, about["key"], ordered, about["duration"])


# --- the table --------------------------------------------------------------------------------------------------------
def show(result: Result) -> None:
    """Print the table of a result, by rich if it is installed and stdout is a terminal."""
    if sys.stdout.isatty() and _show_rich(result):
        return
    print(text(result))


def text(result: Result) -> str:
    lines = [result.head(), f"{'ms':>10} {'ratio':>6}  {'':{BAR}}  config"]
    for (config, _), (ms, ratio, share) in zip(result.times, result.rows(), strict=True):
        bar = "#" * round(BAR * share)
        lines.append(f"{ms:>10} {ratio:>6}  {bar:{BAR}}  {config}")
    return "\n".join(lines)


def _show_rich(result: Result) -> bool:
    try:
        tables, console = import_module("rich.table"), import_module("rich.console")
    except ImportError:
        return False
    table = tables.Table(title=result.head(), title_justify="left")
    for name in ("ms", "ratio", "speed", "config"):
        table.add_column(name, justify="right" if name in ("ms", "ratio") else "left")
    for i, ((config, _), (ms, ratio, share)) in enumerate(
        zip(result.times, result.rows(), strict=True)
    ):
        table.add_row(
            ms, ratio, "█" * round(BAR * share), config, style="bold green" if i == 0 else None
        )
    console.Console().print(table)
    return True


# --- the plot ---------------------------------------------------------------------------------------------------------
def page(results: Sequence[Result]) -> str:
    """Return the times as a page that needs nothing else: a bar for each config, its length the time."""
    body = "".join(_chart(r) for r in results) or "<p>No kernel was tuned.</p>"
    style = STYLE.read_text(encoding="utf-8")
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>tessera tune</title>'
        f'<meta name="viewport" content="width=device-width"><style>{style}</style></head>\n'
        f"<body><main><h1>Times of configs</h1>{body}</main></body></html>\n"
    )


def _chart(result: Result) -> str:
    slowest = max((ms for _, ms in result.times if isfinite(ms)), default=1.0)
    rows: list[str] = []
    for i, ((config, ms), (time, ratio, _)) in enumerate(
        zip(result.times, result.rows(), strict=True)
    ):
        width = PIXELS * ms / slowest if isfinite(ms) else 0.0
        colour = "var(--good)" if i == 0 else "var(--bar)"
        bar = f'<i style="display:block;height:12px;width:{width:.0f}px;background:{colour}"></i>'
        rows.append(
            f'<tr><td>{time}</td><td>{ratio}</td><td class="text" style="width:{PIXELS + 20}px">{bar}</td>'
            f'<td class="text">{escape(config)}</td></tr>'
        )
    heads = '<th>ms</th><th>ratio</th><th class="text"></th><th class="text">config</th>'
    return f"<h2>{escape(result.head())}</h2><table><tr>{heads}</tr>{''.join(rows)}</table>"
