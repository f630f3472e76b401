"""Steps through a kernel's lines with Python's debugger: pdb's commands, on the variables of the program that runs.

`breakpoint()` in a kernel stops in front of the next line. `n` goes to the next line of the same function or of a
caller, `s` also into functions that are inlined, `r` to the caller, `unt` on to a later line, `c` to the next
breakpoint; `b`, `l`, `p`, `pp`, `w` and expressions work as ever. Tiles are NumPy arrays.
"""

from __future__ import annotations

import ast
import bdb
import inspect
import os
import pdb
import sys
from collections.abc import Sequence
from types import FrameType, TracebackType
from typing import Any

import numpy as np

from tessera.errors import Loc
from tessera.ir import Op, Value

RUN, STEP, NEXT, RETURN, UNTIL = range(5)


def wanted() -> bool:
    """Whether `breakpoint()` means Python's own debugger; other ones are called by their hook and stop there only."""
    return sys.breakpointhook is sys.__breakpointhook__ and not os.environ.get("PYTHONBREAKPOINT")


class Stepper(pdb.Pdb):
    """A debugger that an interpreter asks in front of each line, rather than one that Python calls."""

    def __init__(self) -> None:
        super().__init__(nosigint=True)
        self.prompt = "(kernel) "
        self.quitting = False
        self.variables: dict[str, Any] = {}
        self.mode, self.depth, self.until = RUN, 0, 0
        self.here: Loc | None = None  # of the last stop
        self.last: tuple[str, int, int] | None = None  # file, line and depth of the last op

    # --- what the interpreter tells -------------------------------------------------------------------------
    def enter(self, args: Sequence[Value], values: Sequence[Any]) -> None:
        """Note that a block begins: its first line is a new one in each iteration."""
        self.last = None
        self.define(args, values)

    def define(self, values: Sequence[Value], results: Sequence[Any]) -> None:
        """Note the values of variables."""
        for v, x in zip(values, results, strict=True):
            if v.name:
                self.variables[v.name] = x

    def breakpoint(self, op: Op, variables: dict[str, Any]) -> None:
        """Stop at a `breakpoint()` of the kernel."""
        self.variables |= variables
        self.mode, self.last = STEP, None
        self.line(op)

    def line(self, op: Op) -> None:
        """Stop in front of an op if its line is another one than before, and one to stop at. Unless steps go into
        functions, the line of their call stands for what is inlined."""
        chain = op.loc.chain() if op.loc is not None else []
        inside = self.mode in (STEP, RUN)
        level = len(chain) if inside else min(len(chain), self.depth)
        if not level or self.last == (chain[level - 1].file, chain[level - 1].line, level):
            return
        at = chain[level - 1]
        self.last = (at.file, at.line, level)
        stops = {
            RUN: False, STEP: True, NEXT: True, RETURN: level < self.depth,
            UNTIL: level < self.depth or at.line >= self.until,
        }[self.mode]  # fmt: skip
        if stops or self.get_break(self.canonic(at.file), at.line):
            self.depth, self.here = level, at
            self._in_frame(at, stops)
            if self.mode == STEP and level < len(chain):
                self.line(op)  # into the function whose call that was

    def _in_frame(self, loc: Loc, stops: bool) -> None:
        """Run the debugger in a frame whose file, line and variables are the kernel's."""
        stop = "__tessera_stop__"
        tree = ast.parse(f"{stop}()")
        ast.increment_lineno(tree, loc.line - 1)
        code = compile(tree, loc.file, "exec").replace(co_name=loc.function or "<kernel>")
        namespace = dict(self.variables)

        def called() -> None:
            own = inspect.currentframe()
            frame = own.f_back if own is not None else None
            assert frame is not None
            namespace.pop(stop)
            self.botframe = frame
            if stops or self.break_here(frame):
                self.mode = RUN
                with np.errstate(all="warn"):
                    self.interaction(frame, None)
                if self.quitting:
                    raise bdb.BdbQuit

        namespace[stop] = called
        exec(code, namespace)

    def get_stack(
        self, f: FrameType | None, t: TracebackType | None
    ) -> tuple[list[tuple[FrameType, int]], int]:
        """Return the kernel's frame alone: those below are the interpreter's."""
        return ([(f, f.f_lineno)] if f is not None else []), 0

    # --- commands -------------------------------------------------------------------------------------------
    def _go(self, mode: int) -> bool:
        self.mode = mode
        return True

    def do_step(self, arg: str) -> bool:
        return self._go(STEP)

    def do_next(self, arg: str) -> bool:
        return self._go(NEXT)

    def do_return(self, arg: str) -> bool:
        return self._go(RETURN)

    def do_until(self, arg: str) -> bool:
        self.until = (
            int(arg)
            if arg.strip().isdigit()
            else (self.here.line + 1 if self.here is not None else 0)
        )
        return self._go(UNTIL)

    def do_continue(self, arg: str) -> bool:
        return self._go(RUN)

    do_s, do_n, do_r, do_unt = do_step, do_next, do_return, do_until
    do_c = do_cont = do_continue
