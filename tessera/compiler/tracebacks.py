"""Trims the compiler's frames off errors of kernels: the text of such an error has the place in the kernel."""

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
    """Cut tracebacks of errors that leave `fn`, but for failures of tessera itself, and where the knob
    compilation.front_end_debugging asks for all frames."""

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
    """Leave only the kernel's frames of an exception that its own Python code raised while it was compiled; errors of
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
