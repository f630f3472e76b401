"""Removes the compiler's frames from errors of kernels, whose text has the location in the kernel."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import wraps
from types import TracebackType
from typing import ParamSpec, TypeVar

from tessera.config import knobs
from tessera.errors import CompilationError, InternalError, TesseraError
from tessera.utilities import is_own

P = ParamSpec("P")
R = TypeVar("R")
_STDLIB = (os.path.join(os.path.dirname(os.__file__), "contextlib.py"), "<frozen ")


def trim_traceback(fn: Callable[P, R]) -> Callable[P, R]:
    """Leave only the user's frames in the tracebacks of errors that leave `fn`: errors of tessera, except failures of
    its own, and exceptions that were explained. The knob compilation.front_end_debugging keeps all frames."""

    @wraps(fn)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return fn(*args, **kwargs)
        except Exception as error:
            if not knobs.compilation.front_end_debugging and _is_users(error):
                error.__traceback__ = _users_frames(error.__traceback__)
                if isinstance(error, TesseraError):
                    _cut_cause(error)
            raise

    return call


def _is_users(error: Exception) -> bool:
    """Whether an error is the user's: one of tessera whose text tells all, or one of Python that got a help line."""
    if isinstance(error, TesseraError):
        return not isinstance(error, InternalError)
    return hasattr(error, "__notes__")  # explained by runtime.launching.mistakes


def _users_frames(tb: TracebackType | None) -> TracebackType | None:
    """Return a traceback without the frames of tessera and of Python's library."""
    frames: list[TracebackType] = []
    while tb is not None:
        file = tb.tb_frame.f_code.co_filename
        if not is_own(tb.tb_frame) and not file.startswith(_STDLIB):
            frames.append(tb)
        tb = tb.tb_next
    result: TracebackType | None = None
    for x in reversed(frames):
        result = TracebackType(result, x.tb_frame, x.tb_lasti, x.tb_lineno)
    return result


def _cut_cause(error: TesseraError) -> None:
    """Keep only the kernel's frames of an exception that its own Python code raised during compilation, and show no
    other causes: the error's text has the calls, and the message of an exception without such a frame."""
    cause = error.__cause__
    while isinstance(cause, TesseraError) and cause.__cause__ is not None:
        cause = cause.__cause__
    if cause is None:
        return
    tb = cause.__traceback__
    while tb is not None and is_own(tb.tb_frame):
        tb = tb.tb_next
    cause.__traceback__ = tb
    if isinstance(error, CompilationError):
        error.tell_cause(cause if tb is not None else None)
