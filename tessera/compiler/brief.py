"""Errors of kernels without the compiler's frames: their text has the place in the kernel, which is what counts."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import ParamSpec, TypeVar

from tessera.config import knobs
from tessera.errors import InternalError, TesseraError

PACKAGE = str(Path(__file__).parents[1])
P = ParamSpec("P")
R = TypeVar("R")


def brief(fn: Callable[P, R]) -> Callable[P, R]:
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
    """Of an exception that the kernel's own Python raised while compiling only its frames are left; the others are
    nothing but texts."""
    outer: BaseException = error
    cause = error.__cause__
    while isinstance(cause, TesseraError) and cause.__cause__ is not None:
        outer, cause = cause, cause.__cause__
    if cause is None or cause.__traceback__ is None:
        return
    tb = cause.__traceback__
    while tb is not None and tb.tb_frame.f_code.co_filename.startswith(PACKAGE):
        tb = tb.tb_next
    outer.__cause__ = cause.with_traceback(tb)
