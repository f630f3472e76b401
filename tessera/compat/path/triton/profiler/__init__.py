"""`triton.profiler` (proton): sessions are profiles of tessera, which write what proton's viewer reads."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any

from tessera.compat.absent import absent
from tessera.profiler import declared
from tessera.profiler import profile as _profile
from triton.profiler.instrumentation import Traces

__getattr__ = absent(__name__)

_sessions: dict[
    int, tuple[str, _profile | Traces, str]
] = {}  # name, what records, format of its file
FORMATS = {"tree": "hatchet", "trace": "chrome_trace"}
_numbers = itertools.count()
_active: set[int] = set()
_entered: list[AbstractContextManager[None]] = []


def start(
    name: str | None = None,
    *,
    data: str = "tree",
    backend: str | None = None,
    **options: object,
) -> int:
    """Begin a session, which is active; return its number. Its result is written to NAME.hatchet ("proton" by default),
    or for `data="trace"` to NAME.chrome_trace.

    Launches are timed with what they declare (`launch_metadata`); for `backend="instrumentation"` kernels record what
    their warps do instead, and the latest launch of each is kept. `context`, `mode` and `hook` are accepted: contexts
    are scopes."""
    session = next(_numbers)
    recorder = Traces() if backend == "instrumentation" else _profile()
    _sessions[session] = name or "proton", recorder, FORMATS.get(data, "hatchet")
    activate(session)
    return session


def _chosen(session: int | None) -> list[int]:
    return [n for n in (_sessions if session is None else [session]) if n in _sessions]


def activate(session: int | None = None) -> None:
    """Go on recording in a session, or in all."""
    for n in _chosen(session):
        if n not in _active:
            _sessions[n][1].__enter__()
            _active.add(n)


def deactivate(session: int | None = None, flushing: bool = False) -> None:
    """Stop recording in a session, or in all."""
    for n in _chosen(session):
        if n in _active:
            _active.discard(n)
            _sessions[n][1].__exit__(None, None, None)


def finalize(session: int | None = None, output_format: str = "") -> None:
    """End a session, or all, and write NAME.hatchet, or a trace NAME.chrome_trace."""
    for n in _chosen(session):
        deactivate(n)
        name, found, usual = _sessions.pop(n)
        found.save(f"{name}.{output_format or usual}")


class scope:
    """A context manager or decorator that names a part of the program, with metrics."""

    def __init__(self, name: str, metrics: Mapping[str, Any] | None = None) -> None:
        self.name, self.metrics = name, declared(metrics or {})

    def __enter__(self) -> None:
        enter_scope(self.name, metrics=self.metrics)

    def __exit__(self, *error: object) -> None:
        exit_scope()

    def __call__(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(fn)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            with scope(self.name, self.metrics):
                return fn(*args, **kwargs)

        return wrapper


cpu_timed_scope = state = scope


def enter_scope(
    name: str, *, triton_op: bool = False, metrics: Mapping[str, Any] | None = None
) -> None:
    """Begin a scope that `exit_scope` ends."""
    entered = _profile.scope(name, **declared(metrics or {}))
    entered.__enter__()
    _entered.append(entered)


def exit_scope(*_: object, **__: object) -> None:
    """End the scope that was begun last."""
    if _entered:
        _entered.pop().__exit__(None, None, None)


def profile(
    func: Callable[..., Any] | None = None, *, name: str | None = None, **options: Any
) -> Any:
    """Decorate a function: each call is a session."""
    if func is None:
        return functools.partial(profile, name=name, **options)

    @functools.wraps(func)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        session = start(name, **options)
        try:
            return func(*args, **kwargs)
        finally:
            deactivate(session)

    return wrapper
