"""Defines source locations, and the base of all errors: where a mistake is, what it is, and what to do.

The location is filled in by the innermost `with loc:` that an error passes, so helpers deep in the compiler need not
carry it. The text shows the source line with carets for the whole chain of inlined calls, outermost first.
"""

from __future__ import annotations

import difflib
import json
import linecache
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from importlib import import_module
from itertools import groupby
from pathlib import Path
from posixpath import basename
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, Self


@dataclass(frozen=True, slots=True)
class Loc:
    """A span of kernel source. `line` counts from 1, `col` from 0; `call_site` is where this function was inlined."""

    file: str
    line: int
    col: int = 0
    end_line: int = 0
    end_col: int = 0
    function: str = ""
    first_line: int = 1  # line of the function's `def`: shown as the relative "at LINE:COL"
    call_site: Loc | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        if isinstance(error, TesseraError) and error.loc is None:
            error.loc = self

    def chain(self) -> list[Loc]:
        """This location and its call sites, outermost first."""
        here: Loc | None = self
        found: list[Loc] = []
        while here is not None:
            found.append(here)
            here = here.call_site
        return found[::-1]

    def line_chain(self) -> str:
        """The line, behind those of the calls that lead to it: `kernel.py:12 > library.py:40`."""
        return " > ".join(dict.fromkeys(f"{basename(x.file)}:{x.line}" for x in self.chain()))

    def to_dict(self) -> dict[str, object]:
        """The span for programs: lines and columns count from 1, and `end_column` is the one behind the span."""
        return {
            "file": self.file, "line": self.line, "column": self.col + 1,
            "end_line": self.end_line or self.line, "end_column": self.end_col + 1, "function": self.function,
            "source": linecache.getline(self.file, self.line).rstrip("\n"),
        }  # fmt: skip

    def short(self) -> str:
        return f"{self.file}:{self.line}:{self.col + 1}"

    def render(self) -> str:
        """The source line with carets under the span; empty carets line if the source is gone."""
        source = linecache.getline(self.file, self.line).rstrip("\n")
        relative = f"at {self.line - self.first_line + 1}:{self.col}:"
        head = f"  --> {self.short()} in {self.function or '<kernel>'} ({relative})"
        if not source:
            return head
        end = (
            self.end_col
            if self.end_line in (0, self.line) and self.end_col > self.col
            else len(source)
        )
        number = str(self.line)
        gutter = " " * len(number)
        # Tabs stay tabs under themselves, so that the carets stand where the terminal puts the text.
        pad = "".join(c if c == "\t" else " " for c in source[: self.col])
        carets = "^" * max(1, end - self.col)
        return f"{head}\n {gutter} |\n {number} | {source}\n {gutter} | {pad}{carets}"


def suggestion(name: str, known: Iterable[str], prefix: str = "") -> str | None:
    """The help line for a misspelt name, `prefix` before the known one; None if nothing known is close."""
    close = difflib.get_close_matches(name, list(known), n=1)
    return f"did you mean `{prefix}{close[0]}`?" if close else None


SHOWN_CALLS = 8  # outermost and innermost places shown of a chain of inlined calls


class Spelling:
    """Under which name the user imports tessera: `tessera.compat` sets it to "triton"."""

    package = "tessera"


class Form:
    """In which form errors are printed, "text" or "json": `tessera.config` lets a knob decide."""

    def __init__(self) -> None:
        self.chosen: Callable[[], str] = lambda: "text"


form = Form()


@dataclass(slots=True)
class FailedTile:
    """Which elements of a tile fail a check: `bad` has a byte for each, row by row (of the first 65,536, empty if that
    is not known). `program` found it, `index` is the first one. `kernel`: the CompiledKernel, once it is known."""

    shape: tuple[int, ...]
    bad: bytes
    program: tuple[int, ...]
    index: int
    kernel: object = None


PRINTERS = frozenset({"traceback", "IPython", "rich", "_pytest"})  # who prints chains of exceptions


class TesseraError(Exception):
    """Base of everything tessera raises on purpose."""

    failed: FailedTile | None = None
    told: BaseException | None = None  # the cause, if the text of the error tells it
    code: ClassVar[str] = "error"
    template: ClassVar[str] = "{message}"
    help: str = ""

    def __init__(
        self,
        message: str | None = None,
        /,
        *,
        loc: Loc | None = None,
        help: str | None = None,
        **facts: Any,
    ):
        self.facts = facts
        facts = {"package": Spelling.package, **facts}
        self.message = message if message is not None else self.template.format(**facts)
        self.loc = loc
        self.notes: list[str] = []
        if help is not None:
            self.help = help
        elif self.help:
            self.help = self.help.format(**facts) if len(facts) > 1 else self.help
        super().__init__(self.message)

    @property
    def error_message(self) -> str:
        """The message without place, notes and help: the name by which Triton's users read it."""
        return self.message

    def note(self, text: str) -> Self:
        self.notes.append(text)
        return self

    if not TYPE_CHECKING:

        @property
        def __cause__(self) -> BaseException | None:
            """The cause; of one that the text tells, who prints a traceback learns nothing."""
            printed = sys._getframe(1).f_globals.get("__name__", "").partition(".")[0] in PRINTERS
            shown = BaseException.__cause__.__get__(self)
            return shown if printed or self.told is None else self.told

        @__cause__.setter
        def __cause__(self, cause: BaseException | None) -> None:
            self.told = None
            BaseException.__cause__.__set__(self, cause)

    def tell_cause(self, shown: BaseException | None) -> None:
        """Keep the cause for programs that ask for it, and let tracebacks show `shown` in its place."""
        cause = self.__cause__
        self.__cause__ = shown
        self.told = cause

    def save(self, path: str | Path) -> Path:
        """Write a page (HTML) about an error of a checked launch that concerns a tile: which elements fail, beside the
        source, and which threads of a GPU hold them. Other errors are written as text."""
        pages = import_module("tessera.explain.failures")  # rarely needed
        place = Path(path)
        place.write_text(pages.page(self), encoding="utf-8")
        return place

    def to_dict(self) -> dict[str, object]:
        """What the text of the error says, for editors and other programs; docs/errors.md tells the fields.

        Example:
            >>> tessera.errors.UnknownOption("num_warp", ["num_warps"]).to_dict()["help"]
            'did you mean `num_warps`?'
        """
        chain = self.loc.chain() if self.loc is not None else []
        return {
            "version": 1, "code": self.code, "type": type(self).__name__, "message": self.message,
            "help": self.help, "notes": list(self.notes), "place": chain[-1].to_dict() if chain else None,
            "calls": [place.to_dict() for place in chain[:-1]],
        }  # fmt: skip

    def __str__(self) -> str:
        return json.dumps(self.to_dict()) if form.chosen() == "json" else self.text()

    def text(self) -> str:
        """The error as people read it."""
        lines = [f"error[{self.code}]: {self.message}"]
        if self.loc is not None:
            chain = [
                (text, len(list(same))) for text, same in groupby(self.loc.chain(), Loc.render)
            ]
            hidden = len(chain) - 2 * SHOWN_CALLS
            for i, (text, times) in enumerate(chain):
                if hidden > 1 and i == SHOWN_CALLS:
                    lines.append(f"  ... {hidden} more calls ...")
                if hidden <= 1 or i < SHOWN_CALLS or i >= len(chain) - SHOWN_CALLS:
                    lines += [text] if times == 1 else [text, f"  ... {times} times ..."]
        lines += [f"  = note: {note}" for note in self.notes]
        if self.help:
            lines.append(f"  = help: {self.help}")
        return "\n".join(lines)

    def __reduce__(self) -> tuple[Any, ...]:
        # Errors cross process boundaries when kernels are compiled in parallel.
        state = self.__dict__.copy()
        state.pop("told", None)
        if self.failed is not None:
            state["failed"] = replace(self.failed, kernel=None)
        return (_rebuild, (type(self), state, self.args))


def _rebuild(
    cls: type[TesseraError], state: dict[str, Any], args: tuple[object, ...]
) -> TesseraError:
    error = cls.__new__(cls)
    error.args = args
    error.__dict__.update(state)
    return error
