"""Decides about every application of an optimisation: passes ask for each here; it is numbered and recorded.

    if apply("prefetch", loop):         # False: switched off, or behind the limit
        ...rewrite the loop...

The names are those of `tessera/config/optimizations.py`. A pass that is an optimisation says so where it is registered
(`pass_("cse", optimization="cse")`). A `Session` is one attempt to compile a kernel: it knows what is switched off and
how many applications it may make, and records those it made. Applications are numbered across all kernels of a process,
in the order in which kernels are compiled; an abandoned attempt leaves no gap.
"""

from __future__ import annotations

import sys
from contextvars import ContextVar, Token
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Self

from tessera.config import knobs
from tessera.config.optimizations import names_in
from tessera.errors import Loc
from tessera.ir.core import Module, Op


class Declined(Exception):
    """The reason why a transformation is not done: its preconditions do not hold, or cannot be proven."""


@dataclass(frozen=True, slots=True)
class Application:
    """One application: its number in the process, from 1, and the op (or "kernel") that it was applied to (`what`)."""

    number: int
    name: str
    kernel: str
    what: str
    loc: Loc | None

    def __str__(self) -> str:
        place = f" at {self.loc.short()}" if self.loc is not None else ""
        return f"({self.number}) {self.name} on {self.kernel}: {self.what}{place}"


class _Numbers:
    """The number of applications made in finished sessions."""

    made: int = 0


_numbers = _Numbers()
_session: ContextVar[Session | None] = ContextVar("session", default=None)
_names = lru_cache(64)(names_in)


class Session:
    """One attempt to compile `kernel`, as a context manager. `disabled`: names that are off besides those of
    TESSERA_DISABLE; `limit`: how many applications it may make, besides TESSERA_OPT_LIMIT."""

    def __init__(
        self,
        kernel: str,
        disabled: frozenset[str] = frozenset(),
        limit: int | None = None,
        notes: bool = False,
    ) -> None:
        self.kernel, self.limit = kernel, limit
        self.disabled = disabled | _names(knobs.compilation.disable or "")
        self.applied: list[Application] = []
        self.notes, self.plans = (
            notes,
            list[object](),
        )  # of loops (analysis/loop_times.py), if asked for
        self.suspects: list[Application] = []  # made in the pass that failed
        self.before = _numbers.made
        allowed = knobs.compilation.opt_limit
        self.prints = allowed is not None
        if allowed is not None and allowed >= 0:
            left = max(0, allowed - self.before)
            self.limit = left if limit is None else min(left, limit)

    def __enter__(self) -> Self:
        self._token: Token[Session | None] = _session.set(self)
        return self

    def __exit__(self, *exc: object) -> None:
        _session.reset(self._token)

    def commit(self) -> None:
        """Keep this attempt: the numbers of the next session follow its own."""
        _numbers.made = self.before + len(self.applied)

    def is_open(self, name: str) -> bool:
        """Whether the next application of `name` would be made."""
        return name not in self.disabled and (self.limit is None or len(self.applied) < self.limit)

    def note(self, name: str, what: str, loc: Loc | None) -> None:
        """Record an application."""
        made = Application(self.before + len(self.applied) + 1, name, self.kernel, what, loc)
        self.applied.append(made)
        if self.prints:
            print(f"BISECT: running {made}", file=sys.stderr)

    def refuse(self, name: str, what: str, loc: Loc | None) -> None:
        if self.prints and name not in self.disabled:
            number = self.before + len(self.applied) + 1
            made = Application(number, name, self.kernel, what, loc)
            print(f"BISECT: NOT running {made}", file=sys.stderr)


def current() -> Session | None:
    """Return the attempt that this thread is in; None if a pass is called directly."""
    return _session.get()


def is_enabled(name: str) -> bool:
    """Whether an optimisation is enabled. This is for estimates; code changes ask `apply`."""
    session = _session.get()
    if session is None:
        return name not in _names(knobs.compilation.disable or "")
    return name not in session.disabled


def may_apply(name: str) -> bool:
    """Whether the next application would be made. This is for rewriters that know only afterwards whether they made
    one, and then call `note_application`."""
    session = _session.get()
    return is_enabled(name) if session is None else session.is_open(name)


def refuse(name: str) -> bool:
    """Record that a pass is not run, if applications are recorded; return False."""
    session = _session.get()
    if session is not None:
        session.refuse(name, "pass", None)
    return False


def note_application(name: str, at: Op | Module, what: str = "") -> None:
    """Count an application that was made."""
    session = _session.get()
    if session is not None:
        session.note(name, *_place(at, what))


def is_noting() -> bool:
    """Whether somebody asks what planners knew of loops."""
    session = _session.get()
    return session is not None and session.notes


def note_plan(choice: object) -> None:
    """Keep what a planner knew of a loop, for `explain`."""
    session = _session.get()
    if session is not None:
        session.plans.append(choice)


def apply(name: str, at: Op | Module | None = None, what: str = "") -> bool:
    """Whether to apply an optimisation to an op, or to the whole kernel; counts it if so."""
    session = _session.get()
    if session is None:
        return is_enabled(name)
    if not session.is_open(name):
        session.refuse(name, *_place(at, what))
        return False
    session.note(name, *_place(at, what))
    return True


def _place(at: Any, what: str) -> tuple[str, Loc | None]:
    if at is None or isinstance(at, Module):
        return what or "kernel", None
    return what or at.opcode, at.loc
