"""Removes the compiler's frames from errors of kernels, whose text has the location in the kernel."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

from tessera.config import knobs
from tessera.errors import InternalError, TesseraError
from tessera.utilities import is_own

P = ParamSpec("P")
R = TypeVar("R")


def trim_traceback(fn: Callable[P, R]) -> Callable[P, R]:
    """Trim tracebacks of errors that leave `fn`, except failures of tessera itself; the knob
    compilation.front_end_debugging keeps all frames."""

    @wraps(fn)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return fn(*args, **kwargs)
        except TesseraError as error:
            if not (isinstance(error, InternalError) or knobs.compilation.front_end_debugging):
                error.__traceback__ = None
                _cut_cause(error)
            raise

    return call


def _cut_cause(error: TesseraError) -> None:
    """Keep only the kernel's frames of an exception that its own Python code raised during compilation; errors of
    tessera in the chain are only texts."""
    outer: BaseException = error
    cause = error.__cause__
    while isinstance(cause, TesseraError) and cause.__cause__ is not None:
        outer, cause = cause, cause.__cause__
    if cause is None or cause.__traceback__ is None:
        return
    tb = cause.__traceback__
    while tb is not None and is_own(tb.tb_frame):
        tb = tb.tb_next
    outer.__cause__ = cause.with_traceback(tb)
