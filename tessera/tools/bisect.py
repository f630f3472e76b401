"""Implements the command `bisect`, which finds the application of an optimisation that breaks a program.

The program runs once with all applications, once with none, then with half of the suspects, and so on. A run is
bad if a launch gives other results than the interpreter, or if the program fails. The first application with which
that happens is printed with its op and source line; a folder holds the code without and with it."""

from __future__ import annotations

import argparse
import linecache
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tessera.tools.compared import run_compared

APPLICATION = re.compile(r"BISECT: running \((\d+)\) (.*)")
PLACE = re.compile(r" at (.*):(\d+):\d+$")
REPORT = "TESSERA_BISECT_REPORT"  # set for a run: the file for what went wrong
SHOWN_LINES = 12  # of a failing program's output


@dataclass(frozen=True)
class Run:
    """One run of the program: what went wrong, "" if nothing did, and the applications that were made."""

    wrong: str
    applications: dict[int, str]


def bisect(args: list[str], program: Callable[[list[str]], int]) -> int:
    """`bisect [--repeat N] [--timeout S] SCRIPT [ARGS...]`, `bisect -m MODULE`; `program` runs it in this process."""
    if REPORT in os.environ:
        return run_compared(lambda: program(args), os.environ.pop(REPORT))
    parser = argparse.ArgumentParser(
        "tessera bisect",
        usage="tessera bisect [--repeat N] [--timeout S] SCRIPT [ARGS...] | -m MODULE [ARGS...]",
        description="Finds the first application of an optimisation with which a launch of the program gives other "
        "results than the interpreter, or with which the program fails.",
    )
    parser.add_argument(
        "--repeat", type=int, default=1, help="runs that must be right for one to count as right"
    )
    parser.add_argument("--timeout", type=float, help="seconds after which a run counts as failed")
    own = next((i for i in range(len(args)) if _is_program(args, i)), len(args))
    given = parser.parse_args(args[:own])
    if own == len(args):
        return 2
    if args[own] != "-m" and not os.path.exists(args[own]):
        print(f"tessera: {args[own]}: No such file or directory", file=sys.stderr)
        return 1
    return Bisection(args[own:], given.repeat, given.timeout).search()


def _is_program(args: list[str], i: int) -> bool:
    """Whether the program begins here: after the options and their values."""
    value = i > 0 and args[i - 1] in ("--repeat", "--timeout")
    return args[i] == "-m" or not (value or args[i].startswith("-"))


class Bisection:
    def __init__(self, program: list[str], repeat: int = 1, timeout: float | None = None) -> None:
        self.program, self.repeat, self.timeout = program, repeat, timeout
        self.folder = Path(tempfile.mkdtemp(prefix="tessera-bisect-"))

    def search(self) -> int:
        """Return 0 if an application is to blame or nothing is wrong, 1 if the program is wrong without any."""
        bad = self.run(-1)
        if not bad.wrong:
            print(f"right with all {len(bad.applications)} applications of optimisations")
            return 0
        print(f"wrong with all {len(bad.applications)} applications: {_first_line(bad.wrong)}")
        good = self.run(0)
        if good.wrong:
            print(
                f"wrong without optimisations, too, so none is to blame:\n{_shortened(good.wrong)}"
            )
            return 1
        low, high = 0, max(bad.applications, default=1)
        while high - low > 1:
            middle = (low + high) // 2
            now = self.run(middle)
            print(f"{'wrong' if now.wrong else 'right'} with {middle}")
            if now.wrong:
                high, bad = middle, now
            else:
                low = middle
        self.tell(high, bad)
        return 0

    def run(self, limit: int, dump: str = "") -> Run:
        """Run the program, `repeat` times or until it is wrong."""
        found = Run("", {})
        for _ in range(self.repeat):
            found = self._run(limit, dump)
            if found.wrong:
                break
        return found

    def _run(self, limit: int, dump: str) -> Run:
        report = self.folder / "report"
        report.unlink(missing_ok=True)
        variables = {"TESSERA_OPT_LIMIT": str(limit), "TESSERA_STRICT": "1", REPORT: str(report)}
        if dump:
            variables |= {"TESSERA_KERNEL_DUMP": "1", "TESSERA_DUMP_DIR": str(self.folder / dump)}
        command = [sys.executable, "-m", "tessera", "bisect", *self.program]
        try:
            done = subprocess.run(
                command, env={**os.environ, **variables}, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL,
                text=True, errors="replace", timeout=self.timeout, check=False,
            )  # fmt: skip
            status, said = done.returncode, done.stderr
        except subprocess.TimeoutExpired as error:
            status, said = 1, _text(error.stderr) + f"\nno end after {self.timeout:g} s"
        made = {int(n): what for n, what in APPLICATION.findall(said)}
        wrong = ""
        if status:
            rest = "\n".join(x for x in said.splitlines() if not x.startswith("BISECT: "))
            wrong = report.read_text() if report.exists() else rest
            wrong = wrong or f"ended with status {status}"
        return Run(wrong, made)

    def tell(self, number: int, bad: Run) -> None:
        """Print the application, what is wrong with it, and where the code of kernels without and with it is."""
        what = bad.applications.get(number, "")
        print(f"\nthe first application that makes the program wrong: ({number}) {what}")
        place = PLACE.search(what)
        if place is not None:
            line = linecache.getline(place[1], int(place[2])).rstrip()
            print(f"  --> {place[1]}:{place[2]}\n   | {line}")
        print(f"with it: {_shortened(bad.wrong)}")
        self.run(number - 1, "without")
        self.run(number, "with")
        variables = f"TESSERA_OPT_LIMIT={number} TESSERA_STRICT=1"
        program = f"{sys.executable} -m tessera run {shlex.join(self.program)}"
        command = f"cd {shlex.quote(os.getcwd())} && {variables} {program}"
        (self.folder / "command.txt").write_text(command + "\n", encoding="utf-8")
        (self.folder / "report").write_text(f"({number}) {what}\n{bad.wrong}\n", encoding="utf-8")
        name = what.split(" ", 1)[0]
        print(f"reproducer: {self.folder} (command.txt; stages of kernels in without/ and with/)")
        print(f"meanwhile: TESSERA_DISABLE={name}")


def _text(x: str | bytes | None) -> str:
    return x.decode(errors="replace") if isinstance(x, bytes) else x or ""


def _first_line(text: str) -> str:
    return next(
        (line for line in reversed(text.splitlines()) if line and not line.startswith(" ")), text
    )


def _shortened(text: str) -> str:
    return "\n".join(text.strip().splitlines()[-SHOWN_LINES:])
