"""`@impl(tl.load)` registers an operation's implementation, and checks that its parameters are those of the stub."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypeVar

from tessera.language.builtin import Builtin

Impl = TypeVar("Impl", bound=Callable[..., Any])


def impl(*stubs: object) -> Callable[[Impl], Impl]:
    """Register a function `(fe, *parameters of the stub)` as the implementation of one or more builtins.

    Several stubs share one implementation only if their parameters agree. Raises TypeError if names differ.
    """

    def register(fn: Impl) -> Impl:
        for stub in stubs:
            if not isinstance(stub, Builtin):
                raise TypeError(f"{stub!r} is no builtin")
            _check_parameters(stub, fn)
            if stub.impl is not None:
                raise TypeError(f"{stub.__name__} is implemented twice")
            stub.impl = fn
        return fn

    return register


def _check_parameters(stub: Builtin, fn: Callable[..., object]) -> None:
    theirs = _parameters(stub.__wrapped__)
    ours = _parameters(fn)
    if not ours or ours[0][0] != "fe":
        raise TypeError(f"the first parameter of {fn.__qualname__} must be the front end, `fe`")
    if ours[1:] != theirs:
        raise TypeError(f"{fn.__qualname__} has the parameters {ours[1:]}, its stub {theirs}")


def _parameters(fn: Callable[..., object]) -> list[tuple[str, str]]:
    """Return (name, kind) of each parameter from the code object: `inspect.signature` is slow at import."""
    code = fn.__code__
    names, n, only = code.co_varnames, code.co_argcount, code.co_kwonlyargcount
    found = [(name, "plain") for name in names[:n]]
    if code.co_flags & inspect.CO_VARARGS:
        found.append((names[n + only], "variadic"))
    found += [(name, "keyword") for name in names[n : n + only]]
    return found
