"""Attaches causes to errors in kernels, in the form that Triton's users know.

The error that reaches the user stands for the whole chain of calls; its `__cause__` is the error of the called
function, and so on to an exception of Python's, whose text is the message alone.
"""

from __future__ import annotations

from dataclasses import replace

from tessera.errors import CompilationError, ForbiddenGlobal, Loc, UnknownName

DEEPEST = 16  # calls of which each has an error of its own


class Mistake(ValueError, TypeError, AssertionError):
    """What an operation raises for wrong operands: Triton's raise one or another of these three."""


def add_causes(error: CompilationError) -> None:
    """Set `__cause__`, down to what the kernel's own Python raised, if it did."""
    cause: BaseException | None = error.__cause__
    if cause is None:
        kind = NameError if isinstance(error, (UnknownName, ForbiddenGlobal)) else Mistake
        cause = kind(error.message)
    places: list[Loc] = error.loc.chain() if error.loc is not None else []
    for place in places[: -DEEPEST - 1 : -1][: len(places) - 1]:
        inner = CompilationError(error.message, loc=replace(place, call_site=None))
        inner.__cause__ = cause
        cause = inner
    error.__cause__ = cause
