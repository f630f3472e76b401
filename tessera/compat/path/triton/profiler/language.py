"""`triton.profiler.language`: marks inside of kernels. They do nothing at run time: sessions with the backend
"instrumentation" record the stages of every kernel by themselves, and each belongs to the marks around its source line
(tessera/profiler/marks.py)."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

from tessera import constexpr_function
from tessera.compat.absent import absent

__getattr__ = absent(__name__)


@constexpr_function
def enter_scope(name: str) -> None:
    """Mark the begin of a part of a kernel."""


@constexpr_function
def exit_scope(name: str) -> None:
    """Mark the end of a part of a kernel."""


@constexpr_function
def scope(name: str) -> AbstractContextManager[None]:
    """Mark a part of a kernel: `with scope("name"):`."""
    return nullcontext()


def enable_semantic(semantic_name: str) -> None:
    """Let kernels of a language have marks; all may."""


def disable_semantic(semantic_name: str) -> None:
    """Refuse marks in kernels of a language; they do nothing anyway."""
