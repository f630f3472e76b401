"""Implements the command `explain`: runs a program, and explains the kernels that it launches (docs/explain.md)."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tessera.analysis.reports import Report
from tessera.backends.compiler import GPUTarget
from tessera.compiler.kernel import CompiledKernel, LazyDict
from tessera.config import knobs
from tessera.errors import TesseraError
from tessera.explain import explain_compiled
from tessera.explain.page import page
from tessera.explain.targets import compiled_for
from tessera.profiler import profile
from tessera.tools.programs import add_program, output_file, program_of, status_of


@dataclass
class Seen:
    """A kernel that was launched, with the arguments of its first launch and the seconds of all that were timed."""

    kernel: CompiledKernel
    grid: tuple[int, ...]
    args: list[object]
    launches: int = 0
    seconds: list[float] = field(default_factory=list[float])

    @property
    def on_cpu(self) -> bool:
        return self.kernel.target.backend == "cpu"

    @property
    def shortest(self) -> float | None:
        """The shortest time; None if it is not known, as that of a CPU's first launch, which starts threads."""
        return None if self.on_cpu and self.launches < 2 else min(self.seconds, default=None)


Launches = dict[tuple[str, tuple[int, ...]], Seen]


@contextmanager
def watched_launches() -> Generator[Launches]:
    """Within the context, note each kernel that is launched, by its hash and grid; behind it, their times are known."""
    found: Launches = {}

    def enter(metadata: LazyDict) -> None:
        assert metadata.launch is not None
        kernel, grid, values = metadata.launch
        key = (kernel.hash, grid)
        if key not in found:
            found[key] = Seen(kernel, grid, list(kernel.arguments(values)))
        found[key].launches += 1

    with knobs.runtime.scope(), profile() as times:
        knobs.runtime.launch_enter_hook.add(enter)
        yield found
    for launch in times.launches:
        if seen := found.get((launch.hash, launch.grid)):
            seen.seconds.append(launch.seconds)


def command(args: list[str], program: Callable[[list[str]], int]) -> int:
    """`explain [--target sm_90] [--json FILE] [--html FILE] SCRIPT[:KERNEL] [ARGS...]`; `program` runs it here."""
    parser = argparse.ArgumentParser(
        "tessera explain", description="explain the kernels that a program launches"
    )
    parser.add_argument(
        "--target",
        help="explain them for this GPU (sm_90), which need not be there",
        metavar="sm_N",
    )
    parser.add_argument(
        "--json", type=output_file, metavar="FILE", help="write the reports as a JSON list"
    )
    parser.add_argument(
        "--html", type=output_file, metavar="FILE", help="write a page for a browser"
    )
    add_program(parser, "SCRIPT[:KERNEL] ARGS...")
    given = parser.parse_args(args)
    target = None
    if given.target is not None:
        found = re.fullmatch(r"(?:sm_?)?(\d+)a?", given.target)
        if found is None:
            parser.error(f"--target must be like sm_90, got {given.target}")
        target = GPUTarget("cuda", int(found[1]), 32)
    words = program_of(given)
    if not words:
        return 2
    rest, wanted = _kernel_named(words)
    with watched_launches() as seen:
        status = status_of(program, rest)
    reports = list(_reports(seen, wanted, target))
    _shown(reports, given.json, given.html)
    if not reports:
        if not any(wanted in ("", one.kernel.name) for one in seen.values()):
            print(
                f"tessera: the program launched no kernel{f' named {wanted}' if wanted else ''}",
                file=sys.stderr,
            )
        return 1
    return status


def _kernel_named(rest: list[str]) -> tuple[list[str], str]:
    """Split `script.py:kernel`."""
    at = 1 if rest[0] == "-m" and len(rest) > 1 else 0
    name, _, kernel = rest[at].rpartition(":")
    if not name or not re.fullmatch(r"[A-Za-z_]\w*", kernel):
        return rest, ""
    return [*rest[:at], name, *rest[at + 1 :]], kernel


def _reports(seen: Launches, wanted: str, target: GPUTarget | None) -> Iterator[Report]:
    for one in seen.values():
        if wanted and one.kernel.name != wanted:
            continue
        try:
            kernel = compiled_for(one.kernel, target)
            seconds = one.shortest if kernel is one.kernel else None
            report = explain_compiled(kernel, one.args, one.grid, seconds)
        except TesseraError as error:
            print(f"tessera: {one.kernel.name} cannot be explained: {error}", file=sys.stderr)
            continue
        how = "once" if one.launches == 1 else f"{one.launches} times"
        report.notes.append(f"the program launched it {how} like this")
        if one.launches == 1 and one.on_cpu and kernel is one.kernel:
            report.notes.append(
                "a first launch starts threads and finds nothing in caches: launch it again to see a time"
            )
        yield report


def _shown(reports: list[Report], json: Path | None, html: Path | None) -> None:
    if json is not None:
        json.write_text("[" + ",\n".join(r.json() for r in reports) + "]\n", encoding="utf-8")
    if html is not None:
        html.write_text(page(reports), encoding="utf-8")
    if reports and json is None and html is None:
        print("\n\n".join(map(str, reports)))
