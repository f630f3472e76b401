"""Typical mistakes as data: a program, with marks around the place that its error must name, and what it must say.

`«` and `»` mark the place. In a kernel it is the span under the carets; a mistake of host code has the marked line as
the last line of the user's in the traceback, and a warning has it as its location.
"""

from __future__ import annotations

import importlib.util
import textwrap
import traceback
import warnings
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from tessera.config import knobs
from tessera.errors import Loc
from tessera.utilities import is_own

HEAD = """\
import math
import numpy as np
import tessera
import tessera.language as tl

SIZE = 16
FACTOR = tl.constexpr(2)
x, out = np.ones(16, np.float32), np.zeros(16, np.float32)
idx, flags = np.arange(16, dtype=np.int32), np.zeros(16, np.bool_)


@tessera.jit
def double(a):
    return a * 2


"""
KERNEL = """\
@tessera.jit
def k(x, idx, out, n, f, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    t = tl.load(x + i)
{body}


k[(1,)](x, idx, out, 10, 1.5, BLOCK=16)
"""


@dataclass(frozen=True)
class Mistake:
    """`code` is that of the error, "warning" for a warning; `remedy` are words of its help or of its message."""

    title: str
    source: str  # with marks
    code: str
    remedy: str

    @property
    def text(self) -> str:
        return self.source.replace("«", "").replace("»", "")

    @property
    def place(self) -> tuple[int, int, int]:
        """The line (from 1), the first column and the one behind the last."""
        for number, line in enumerate(self.source.splitlines(), 1):
            if "«" in line:
                end = line.find("»")
                return number, line.index("«"), end - 1 if end >= 0 else len(line) - 1
        raise LookupError(f"no mark in {self.title!r}")

    @property
    def shown(self) -> str:
        """The marked code."""
        line, start, end = self.place
        return self.text.splitlines()[line - 1][start:end]


def in_kernel(title: str, body: str, code: str, remedy: str) -> Mistake:
    """A mistake in the body of a kernel: `i` is a tile of int32, `t` one of fp32, `n` an int and `f` a float."""
    inside = textwrap.indent(textwrap.dedent(body).strip("\n"), "    ")
    return Mistake(title, HEAD + KERNEL.format(body=inside), code, remedy)


def in_program(title: str, text: str, code: str, remedy: str) -> Mistake:
    """A mistake in a whole program, which begins behind `HEAD`."""
    return Mistake(title, HEAD + textwrap.dedent(text).strip("\n") + "\n", code, remedy)


@dataclass(frozen=True)
class Answer:
    """What tessera says to a mistake."""

    raised: BaseException | None
    warned: list[warnings.WarningMessage]
    path: Path

    @property
    def code(self) -> str:
        if self.raised is not None:
            return getattr(self.raised, "code", type(self.raised).__name__)
        return "warning" if self.warned else ""

    @property
    def loc(self) -> Loc | None:
        return getattr(self.raised, "loc", None)

    @property
    def message(self) -> str:
        if self.raised is None:
            return "; ".join(str(w.message) for w in self.warned)
        return getattr(self.raised, "message", str(self.raised))

    @property
    def help(self) -> str:
        """The help line; that of an exception of Python's is a note."""
        added = [note.partition("= help: ")[2] for note in getattr(self.raised, "__notes__", ())]
        return " ".join([*added, getattr(self.raised, "help", "") or ""]).strip()

    @property
    def remedy(self) -> str:
        """The help line, and what stands in notes."""
        return " ".join([*getattr(self.raised, "notes", ()), self.help]).strip()

    @property
    def frames(self) -> list[traceback.FrameSummary]:
        tb: TracebackType | None = self.raised.__traceback__ if self.raised is not None else None
        return [
            f
            for f in traceback.extract_tb(tb)
            if f.filename != __file__ and "importlib" not in f.filename
        ]

    def host_line(self) -> int:
        """The last line of the program in the traceback, or the line of the warning; 0 if there is none."""
        if self.raised is None:
            return next((w.lineno for w in self.warned if w.filename == str(self.path)), 0)
        lines = [f.lineno or 0 for f in self.frames if f.filename == str(self.path)]
        return lines[-1] if lines else 0

    def library_frames(self) -> int:
        """Frames of tessera's own that the traceback shows."""
        count, tb = 0, self.raised.__traceback__ if self.raised is not None else None
        while tb is not None:
            count, tb = count + is_own(tb.tb_frame), tb.tb_next
        return count


def answer(folder: Path, mistake: Mistake) -> Answer:
    """Run the program of a mistake as a file in `folder`."""
    path = folder / "program.py"
    path.write_text(mistake.text, "utf-8")
    spec = importlib.util.spec_from_file_location("program", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with warnings.catch_warnings(record=True) as warned, knobs.compilation.scope():
        knobs.compilation.always_compile = True  # a kernel that comes from the cache warns no more
        warnings.simplefilter("always")
        try:
            spec.loader.exec_module(module)
        except Exception as error:
            return Answer(error, warned, path)
    return Answer(None, warned, path)
