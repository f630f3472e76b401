"""Attaches causes to errors in kernels, in the form that Triton's users know.

The error that reaches the user describes the whole chain of calls. Its `__cause__` is the error of the called
function, and so on down to a Python exception, whose text is the message alone.
"""

from __future__ import annotations

from dataclasses import replace

from tessera.errors import CompilationError, ForbiddenGlobal, Loc, UnknownName

DEEPEST = 16  # calls that get an error of their own


class Mistake(ValueError, TypeError, AssertionError):
    """The cause for wrong operands of an operation, for which Triton raises one of these three exceptions."""


def add_causes(error: CompilationError) -> None:
    """Set `__cause__`, down to the exception that the kernel's own Python raised, if it did."""
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
