"""Dispatches `tessera COMMAND ...`, which is `python -m tessera COMMAND ...`: the commands and what they do.

A command's module is imported when it runs. Exit codes: 0 done, 1 failed, 2 malformed command line; `run` exits as the
program does.
"""

from __future__ import annotations

import difflib
import os
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import TracebackType

from tessera.tools.commands import COMMANDS
from tessera.tools.programs import reason_of

RUN = str(Path(__file__).parent / "compat/run.py")
HELP = ("-h", "--help", "help")
VERSION = ("-V", "--version")


def usage() -> str:
    """The text of `--help`."""
    lines = ["usage: tessera COMMAND ...        (or: python -m tessera COMMAND ...)", ""]
    width = max(map(len, COMMANDS))
    lines += [f"  {name:{width}}  {command.what}" for name, command in COMMANDS.items()]
    lines += ["", *(f"tessera {name} {command.form}" for name, command in COMMANDS.items())]
    return "\n".join(
        [*lines, "", "tessera --version    docs/commands.md has examples and exit codes", ""]
    )


def version() -> str:
    return f"tessera {import_module('tessera').__version__}"


def load(name: str) -> Callable[..., int]:
    """Return the function of a command; its module is imported now."""
    module, _, function = COMMANDS[name].where.partition(":")
    return getattr(import_module(module), function)


def main(args: list[str]) -> int:
    """Run a command; return 2 for a malformed command line, 0 if it asks for help."""
    if args and args[0] in HELP and len(args) == 1:
        sys.stdout.write(usage())
        return 0
    if len(args) == 1 and args[0] in VERSION:
        print(version())
        return 0
    if args and args[0] == "help":
        args = [args[1], "--help"]
    if not args or args[0] not in COMMANDS:
        words = [*COMMANDS, *HELP, *VERSION]
        near = difflib.get_close_matches(args[0], words, n=1) if args else []
        said = f"tessera: there is no command {args[0]!r}" if args else "tessera: which command?"
        sys.stderr.write(f"{usage()}\n{said}{f'; did you mean {near[0]!r}?' if near else ''}\n")
        return 2
    name, rest = args[0], args[1:]
    command = COMMANDS[name]
    if rest and rest[0] in HELP[:2] and (command.runs or name == "run"):
        print(f"usage: tessera {name} {command.form}\n\n{command.what}")
        return 0
    status = load(name)(rest, load("run")) if command.runs else load(name)(rest)
    if status == 2 and (not rest or rest[0].startswith("-")):  # before a program is named
        sys.stderr.write(f"usage: tessera {name} {command.form}\n")
    return status


def entry() -> int:
    """The console script."""
    sys.excepthook = _of_program
    status = main(sys.argv[1:])
    if sys.stdout is not None and not sys.stdout.closed:
        sys.stdout.flush()  # here a pipe that nobody reads any more is an exception, which the hook gets
    return status


def _of_program(kind: type[BaseException], error: BaseException, tb: TracebackType | None) -> None:
    """Show an error of a program that a command runs as Python would: without the frames that started it."""
    inner, began = tb, False
    while inner is not None and inner.tb_frame.f_code.co_filename != RUN:
        inner = inner.tb_next
    while inner is not None and inner.tb_frame.f_code.co_filename in (RUN, "<frozen runpy>"):
        inner, began = inner.tb_next, True
    if inner is None and isinstance(error, BrokenPipeError):  # `| head` has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for the flush at the end
        return
    if inner is None and began and not isinstance(error, SyntaxError):  # there is no such program
        sys.stderr.write(f"tessera: {reason_of(error)}\n")
        return
    if inner is not None or began:
        tb = error.__traceback__ = inner
    sys.__excepthook__(kind, error, tb)


if __name__ == "__main__":
    sys.exit(entry())
