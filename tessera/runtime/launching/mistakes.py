"""Explains what went wrong in the host code around a launch: arguments that do not fit the kernel's parameters, and
functions of the user's that a launch calls, for grids and heuristics."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import wraps
from typing import ParamSpec, TypeVar

from tessera.errors import (
    CompilationError,
    InvalidArguments,
    InvalidOption,
    UnknownKeyword,
    UnsupportedLanguageConstruct,
    suggestion,
)
from tessera.language.parameters import KernelParam

FORBIDDEN_OPTIONS = {
    name: f"{name} option is deprecated; current {what} will be used"
    for name, what in (("device_type", "target"), ("device", "device"), ("stream", "stream"))
}
P = ParamSpec("P")
R = TypeVar("R")


def check_parameters(params: Iterable[KernelParam]) -> None:
    """Raise an error for parameters that no kernel can have."""
    for p in params:
        if p.kind in (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL):
            stars = "**" if p.kind is inspect.Parameter.VAR_KEYWORD else "*"
            raise UnsupportedLanguageConstruct(
                what=f"the parameter `{stars}{p.name}`",
                help="name the parameters that the kernel takes; one of them may be given a tuple",
            )
        if p.is_constexpr and (p.do_not_specialize or p.do_not_specialize_on_alignment):
            which = "do_not_specialize" if p.do_not_specialize else "do_not_specialize_on_alignment"
            text = f"{p.name} marked as constexpr and listed in {which}"
            raise CompilationError(text, help=f"leave it out of {which}")


def check_options(options: Iterable[str]) -> None:
    """Raise InvalidOption for an option that launches of old had."""
    for name, message in FORBIDDEN_OPTIONS.items():
        if name in options:
            raise InvalidOption(message, help=f"leave `{name}` out")


def mismatch(
    function: str,
    names: Sequence[str],
    required: Iterable[str],
    args: Sequence[object],
    kwargs: Mapping[str, object],
    options: Iterable[str],
    text: str,
) -> InvalidArguments | None:
    """Return the error for arguments that a kernel cannot be called with, which Python reports by `text`; None if they
    fit its parameters."""
    options = set(options)
    given = set(names[: len(args)]) | kwargs.keys()
    missing = [name for name in required if name not in given]
    unknown = [name for name in kwargs if name not in names and name not in options]
    listed = f"the parameters of {function} are {', '.join(names) or 'none'}"
    if "self" in names[:1]:
        listed += "; a kernel is no method: define it outside of the class"
    if missing and unknown:
        near = suggestion(unknown[0], missing) or suggestion(unknown[0], [*names, *options])
        text = f"{function}() got an unexpected keyword argument {unknown[0]!r}, and misses {missing[0]!r}"
        return InvalidArguments(text, help=near or listed)
    if missing or len(args) > len(names) or any(name in kwargs for name in names[: len(args)]):
        return InvalidArguments(text, help=listed)
    return None


def call_with_names(
    function: str, what: str, rule: Callable[[dict[str, object]], R], named: dict[str, object],
    parameters: Sequence[str],
) -> R:  # fmt: skip
    """Return `rule(named)`. What it raises gets a note if it looks like a mistake about the names."""
    try:
        return rule(named)
    except KeyError as error:
        wanted = error.args[0] if error.args else None
        if isinstance(wanted, str) and wanted not in named:
            known = [name for name in parameters if name in named]
            near = suggestion(wanted, known) or f"there are {', '.join(known)}"
            error.add_note(f"  = help: {what} of {function} reads {wanted!r}: {near}")
        raise
    except TypeError as error:
        inner = error.__traceback__.tb_next if error.__traceback__ is not None else None
        if inner is None:  # the call itself failed
            error.add_note(
                f"  = help: {what} of {function} is a function of one dict, as `lambda args: ...`"
            )
        raise


def named_arguments(fn: Callable[P, R]) -> Callable[P, R]:
    """Decorator: an unknown keyword argument of `fn` is answered with the name that was meant, another call that does
    not fit with the parameters."""
    parameters = [p for p in inspect.signature(fn).parameters if p != "self"]
    name = fn.__qualname__.removesuffix(".__init__")
    noted = with_note(f"its arguments are {', '.join(parameters)}")(fn)

    @wraps(fn)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        refuse_unknown(name, kwargs, parameters)
        return noted(*args, **kwargs)

    return call


def with_note(remedy: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorator: a call that does not fit the function's parameters is answered with a remedy."""

    def decorate(fn: Callable[P, R]) -> Callable[P, R]:
        @wraps(fn)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            try:
                return fn(*args, **kwargs)
            except TypeError as error:
                trace = error.__traceback__
                if trace is not None and trace.tb_next is None:  # the call itself failed
                    error.add_note(f"  = help: {remedy}")
                    error.__traceback__ = None  # of this frame
                raise

        return call

    return decorate


def refuse_unknown(function: str, kwargs: Iterable[str], known: Iterable[str]) -> None:
    """Raise UnknownKeyword for the first name that is not known."""
    known = list(known)
    for name in kwargs:
        if name not in known:
            near = suggestion(name, known) or f"its arguments are {', '.join(known)}"
            raise UnknownKeyword(function=function, name=name, help=near)
