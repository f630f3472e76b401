"""Shows a kernel that the interpreter runs to Python's debuggers: each function of it that runs is a frame of Python.

A frame's code has the file, the name and the lines of the function, and nothing but waits at them: the program itself
runs in a second thread, which no debugger follows, up to the next mark of a line. So a debugger's breakpoints, `n`, `s`
and `r`, the stack and the variables work as for any function, whether it follows frames by `sys.settrace` (bdb, pdb) or
`sys.monitoring` (pydevd and with it debugpy).
"""

from __future__ import annotations

import bdb
import contextvars
import os
import pdb
import sys
from collections import defaultdict, deque
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from operator import call
from queue import SimpleQueue
from threading import Thread
from types import CodeType, FrameType, TracebackType
from typing import Any, NamedTuple, NoReturn

from tessera.errors import Loc
from tessera.ir import Module
from tessera.ops.memory import BreakpointOp

LEAVE = 0  # instead of a line: the function returns


# --- code that waits ------------------------------------------------------------------------------------------
class Hub:
    """What the code of a function calls. All of these are functions of C, into which no debugger steps."""

    def __init__(self, events: SimpleQueue[Any], turns: SimpleQueue[bool]):
        self.line = LEAVE  # at which the function is
        self.go, self.get = turns.put, events.get
        self.all, self.map, self.call, self.iter = deque, map, call, iter


_HUB = "hub"  # the constant for which a Hub is put in
# `go` lets the program run. It sends functions to call (those that are inlined in this line), then None, then the line
# that is next.
_WAIT = (
    f'{_HUB!r}.go(1); {_HUB!r}.all({_HUB!r}.map({_HUB!r}.call, {_HUB!r}.iter({_HUB!r}.get, None)), 0); '
    f'{_HUB!r}.line = {_HUB!r}.get()'
)  # fmt: skip


def _line_table(code: CodeType, first: int, line_of: dict[int, int]) -> bytes:
    """Return a table of lines (CPython's Objects/locations.md) in which rows of the text are lines of the kernel; what
    stands in other rows has no line, so that no debugger stops there."""
    entries: list[tuple[int | None, int]] = []  # a line, and how many units of code it has
    for row, *_ in code.co_positions():
        line = line_of.get(row) if row is not None else None
        units = entries[-1][1] if entries and entries[-1][0] == line else 0
        if 0 < units < 8:  # an entry has three bits for them
            entries[-1] = line, units + 1
        else:
            entries.append((line, 1))
    table, before = bytearray(), first
    for line, units in entries:
        if line is None:
            table.append(0x80 | 15 << 3 | units - 1)
            continue
        delta, before = line - before, line
        table.append(0x80 | 13 << 3 | units - 1)
        number = -delta << 1 | 1 if delta < 0 else delta << 1
        while number > 63:
            table.append(number & 63 | 64)
            number >>= 6
        table.append(number)
    return bytes(table)


def waiting_code(file: str, name: str, first: int, lines: Iterable[int], hub: Hub) -> CodeType:
    """Return code of a function that visits these lines of a file in the order in which `hub` names them."""
    text = [f"{_HUB!r}.line = {_HUB!r}.get()", f"while {_HUB!r}.line:"]
    line_of = {0: first}  # row 0 is where the frame begins
    for line in sorted(lines):
        text.append(f" if {_HUB!r}.line == {line}:")
        # The return and the jump are in the line, too: pydevd follows no jump between places without one.
        for row in (_WAIT, f"if not {_HUB!r}.line: break", "continue"):
            text.append(f"  {row}")
            line_of[len(text)] = line
    code = compile("\n".join(text), file, "exec", dont_inherit=True)
    constants = tuple(hub if c == _HUB else c for c in code.co_consts)
    table = _line_table(code, first, line_of)
    return code.replace(
        co_name=name,
        co_qualname=name,
        co_firstlineno=first,
        co_consts=constants,
        co_linetable=table,
    )


# --- frames -----------------------------------------------------------------------------------------------------
class Place(NamedTuple):
    """A function of the kernel, and the line in which it begins."""

    file: str
    function: str
    first: int


def _place(loc: Loc) -> Place:
    return Place(loc.file, loc.function or "<kernel>", loc.first_line)


def _globals_of(file: str) -> dict[str, Any]:
    """Return the names of the module that a file is, for expressions in the debugger."""
    for module in list(sys.modules.values()):
        if getattr(module, "__file__", None) == file:
            return vars(module)
    return {"__name__": "<kernel>", "__file__": file}


@dataclass(slots=True)
class Frame:
    """A function that runs. `call`: where its caller calls it; `variables`: what a debugger shows."""

    place: Place
    call: Loc | None
    variables: dict[str, Any]


class Abandoned(BaseException):
    """Ends a program whose frames have ended: the user has left the debugger, or pressed Control-C."""


def _raise(error: BaseException) -> NoReturn:
    raise error


class Stepper:
    """Runs programs beside the frames that show them."""

    def __init__(self, module: Module):
        lines: defaultdict[Place, set[int]] = defaultdict(set)
        for op in module.walk():
            if isinstance(op, BreakpointOp) and op.loc is not None:
                for loc in op.loc.chain():
                    lines[_place(loc)].add(loc.line)
        self.events: SimpleQueue[Any] = SimpleQueue()  # for the frames
        self.turns: SimpleQueue[bool] = SimpleQueue()  # for the program: True to run, False to end
        self.codes = {
            place: waiting_code(*place, numbers, Hub(self.events, self.turns))
            for place, numbers in lines.items()
        }
        self.shown = set(self.codes.values())
        self.stack: list[Frame] = []
        self.outer: list[Loc] = []  # calls of functions that are not inlined
        self.hook = self._hook()

    # --- in the thread that launches ----------------------------------------------------------------------------
    def run(self, program: Callable[[], None]) -> None:
        """Run a program; its lines are this thread's."""
        failed: list[BaseException] = []
        context = contextvars.copy_context()
        runner = Thread(target=context.run, args=(self._program, program, failed), daemon=True)
        # pydevd's names for threads that it leaves alone
        vars(runner).update(pydev_do_not_trace=True, is_pydev_daemon_thread=True)
        runner.start()
        try:
            while (enter := self.events.get()) is not None:
                enter()
        finally:
            self.turns.put(False)
            runner.join()
            self.stack.clear()
            self.outer.clear()
            for queue in (self.events, self.turns):
                while not queue.empty():
                    queue.get()
        if failed:
            raise failed[0]

    def _is_own(self, frame: FrameType) -> bool:
        """Whether a frame is tessera's, and none that shows a kernel."""
        module = frame.f_globals.get("__name__", "").partition(".")[0]
        return module == "tessera" and frame.f_code not in self.shown

    def _pass_by_own_frames(self, debugger: bdb.Bdb) -> None:
        """Keep a debugger that steps out of what is not the user's: tessera, and what it calls."""
        stops, stack_of = debugger.stop_here, debugger.get_stack

        def stop_here(frame: FrameType) -> bool:
            at: FrameType | None = frame
            while at is not None and at.f_code not in self.shown:
                if self._is_own(at):
                    return False
                at = at.f_back
            return stops(frame)

        def get_stack(
            f: FrameType | None, t: TracebackType | None
        ) -> tuple[list[tuple[FrameType, int]], int]:
            stack, i = stack_of(f, t)
            users = [(frame, line) for frame, line in stack if not self._is_own(frame)]
            return users, i - sum(self._is_own(frame) for frame, _ in stack[:i])

        debugger.stop_here, debugger.get_stack = stop_here, get_stack

    def _hook(self) -> Callable[[], object]:
        """Return what `breakpoint()` calls, from the frame that stops."""
        debugger = _debugger() or pdb.Pdb(nosigint=True)
        self._pass_by_own_frames(debugger)
        if sys.breakpointhook is not sys.__breakpointhook__ or os.environ.get("PYTHONBREAKPOINT"):
            return sys.breakpointhook  # of another debugger
        return debugger.set_trace

    # --- in the thread of the program -----------------------------------------------------------------------------
    def _program(self, program: Callable[[], None], failed: list[BaseException]) -> None:
        try:
            program()
        except Abandoned:
            return
        except BaseException as error:
            if self.stack:  # a debugger that stops at exceptions shows the line
                self.events.put(partial(_raise, error))
                return
            failed.append(error)
        while self.stack:
            self._leave()
        self.events.put(None)

    def at(self, op: BreakpointOp, variables: dict[str, Any]) -> None:
        """Let a debugger see a line with these variables, or stop it there."""
        if op.loc is None:
            return
        if op.stops:
            if isinstance(getattr(self.hook, "__self__", None), bdb.Bdb):
                # A debugger that follows this thread starts anew, and would stop in its own code.
                self.events.put(partial(sys.settrace, None))
            self.events.put(self.hook)
            return
        chain = [*self.outer, *op.loc.chain()]
        kept = self._kept(chain)
        while len(self.stack) > kept:
            self._leave()
        if kept == len(chain):
            self.stack[-1].variables.clear()
            self.stack[-1].variables.update(variables)
            self.events.put(None)
            self._wait_at(chain[-1].line)
        for i in range(kept, len(chain)):
            place = _place(chain[i])
            frame = Frame(place, chain[i - 1] if i else None, dict(variables))
            self.stack.append(frame)
            names = _globals_of(place.file)
            self.events.put(partial(exec, self.codes[place], names, frame.variables))
            self._wait_at(chain[i].line)

    @contextmanager
    def called(self, site: Loc) -> Generator[None]:
        """Note that what runs is a function that is not inlined, so that its places do not name its caller."""
        before = list(self.outer)
        self.outer += site.chain()
        try:
            yield
        finally:
            self.outer = before

    def _kept(self, chain: list[Loc]) -> int:
        """Return how many of the frames that run go on."""
        for i, (frame, loc) in enumerate(zip(self.stack, chain)):
            if frame.place != _place(loc) or frame.call != (chain[i - 1] if i else None):
                return i
        return min(len(self.stack), len(chain))

    def _wait_at(self, line: int) -> None:
        """Send the innermost frame to a line, and wait until the debugger goes on from there."""
        self.events.put(line)
        if not self.turns.get():
            raise Abandoned

    def _leave(self) -> None:
        """Let the innermost frame return."""
        self.stack.pop()
        self.events.put(None)
        self.events.put(LEAVE)


def _debugger() -> bdb.Bdb | None:
    """The debugger made of bdb that follows this thread."""
    owner = getattr(sys.gettrace(), "__self__", None)
    return owner if isinstance(owner, bdb.Bdb) else None
