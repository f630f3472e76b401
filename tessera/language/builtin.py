"""Declares operations of the language by `@builtin`, a signature and a docstring; the front end implements them."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypeVar

from tessera.errors import CompilationError, KernelOnly, suggestion
from tessera.language.by_name import ByName
from tessera.language.values import METHODS

_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_REQUIRED: Any = object()
Function = TypeVar("Function", bound=Callable[..., Any])


# What parameters are called elsewhere, and what here.
_ELSEWHERE = {
    "dim": "axis", "axis": "dim", "keepdim": "keep_dims", "keepdims": "keep_dims", "precision": "input_precision",
    "ptr": "pointer", "val": "value", "fill_value": "value", "type": "dtype", "memory_order": "sem",
}  # fmt: skip
_INSTEAD = {  # what other libraries do by an argument, and the language by an operation
    "trans_a": "transpose the tile with `tl.trans(a)`;", "trans_b": "transpose the tile with `tl.trans(b)`;",
}  # fmt: skip


class ArgumentBinder:
    """Matches call arguments with parameters as Python does; errors name the function and the parameter."""

    __slots__ = ("keyword_only", "name", "names", "defaults", "variadic")

    def __init__(self, name: str, signature: inspect.Signature):
        self.name = name
        self.names: list[str] = []
        self.defaults: list[Any] = []
        self.keyword_only: dict[str, Any] = {}
        self.variadic: str | None = None
        for p in signature.parameters.values():
            default = _REQUIRED if p.default is p.empty else p.default
            if p.kind in _POSITIONAL:
                self.names.append(p.name)
                self.defaults.append(default)
            elif p.kind is p.KEYWORD_ONLY:
                self.keyword_only[p.name] = default
            elif p.kind is p.VAR_POSITIONAL:
                self.variadic = p.name

    def bind(
        self, args: list[Any], kwargs: dict[str, Any]
    ) -> tuple[list[Any], list[Any], dict[str, Any]]:
        """Return (one value per positional parameter, surplus positional values, keyword-only values)."""
        n = len(self.names)
        bound, extra = args[:n], args[n:]
        if extra and self.variadic is None:
            raise CompilationError(
                f"{self.name}() takes {n} positional argument{'s' if n != 1 else ''}"
                f" but {len(args)} were given"
            )
        unused = dict(kwargs) if kwargs else {}
        if unused and not unused.keys() <= {*self.names, *self.keyword_only}:
            self._refuse(
                next(x for x in unused if x not in self.names and x not in self.keyword_only)
            )
        for i in range(len(bound), n):
            value = unused.pop(self.names[i], self.defaults[i]) if unused else self.defaults[i]
            if value is _REQUIRED:
                raise CompilationError(f"{self.name}() misses the argument {self.names[i]!r}")
            bound.append(value)
        only: dict[str, Any] = {}
        for name, default in self.keyword_only.items():
            only[name] = unused.pop(name, default)
            if only[name] is _REQUIRED:
                raise CompilationError(f"{self.name}() misses the keyword argument {name!r}")
        if unused:
            self._refuse(next(iter(unused)))
        return bound, extra, only

    def _refuse(self, name: str) -> None:
        if name in self.names:
            raise CompilationError(f"{self.name}() got two values for the argument {name!r}")
        known = [*self.names, *self.keyword_only]
        elsewhere = _ELSEWHERE.get(name)
        near = f"did you mean `{elsewhere}`?" if elsewhere in known else suggestion(name, known)
        near = _INSTEAD.get(name) or near
        if name == "mask" and "desc" in known:
            near = "a descriptor knows the extents of its array, and pads what lies outside:"
        listed = f"its arguments are: {', '.join(known)}"
        raise CompilationError(
            f"{self.name}() has no argument {name!r}", help=f"{near} {listed}" if near else listed
        )


def bare(signature: inspect.Signature) -> str:
    """Return a signature without its types, for `help` and other places where names and defaults suffice."""
    parameters = [p.replace(annotation=p.empty) for p in signature.parameters.values()]
    return str(inspect.Signature(parameters))


class Builtin(ByName):
    """An operation of kernels. `impl` is set by the front end's registry; `host` is what a call on the host does, for
    the few that mean something there."""

    def __init__(self, stub: Callable[..., Any]):
        self.__name__: str = stub.__name__
        self.__qualname__: str = stub.__qualname__
        self.__module__ = stub.__module__
        self.__doc__ = stub.__doc__
        self.__wrapped__ = stub
        self.impl: Callable[..., Any] | None = None
        self.host: Callable[..., object] | None = None
        self.must_use: str | None = None  # why its result must not be dropped
        self._signature: inspect.Signature | None = None
        self._binder: ArgumentBinder | None = None

    @property
    def signature(self) -> inspect.Signature:
        if self._signature is None:
            self._signature = inspect.signature(self.__wrapped__)
        return self._signature

    @property
    def __signature__(self) -> inspect.Signature:
        return self.signature

    @property
    def binder(self) -> ArgumentBinder:
        if self._binder is None:
            self._binder = ArgumentBinder(self.__name__, self.signature)
        return self._binder

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.host is None:
            raise KernelOnly(name=self.__name__)
        return self.host(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<builtin {self.__name__}{bare(self.signature)}>"


def builtin(stub: Function, /) -> Function:
    """Make a stub (signature and docstring) an operation. For type checkers it is still the function."""
    made: Any = Builtin(stub)
    return made


def on_host(meaning: Callable[..., object]) -> Callable[[Function], Function]:
    """Decorator: let the host call a builtin, too, which then calls `meaning`."""

    def mark(made: Function) -> Function:
        made.host = meaning  # type: ignore[attr-defined]
        return made

    return mark


def tensor_method(function: Function) -> Function:
    """Make a builtin or a function of the language also a method of tensors under its name."""
    METHODS[function.__name__] = function  # type: ignore[attr-defined]
    return function


def must_use_result(message: Any) -> Any:
    """Decorator: a kernel that calls the function and drops its result does not compile; `message` says why.

    Example:
        >>> @tessera.must_use_result("it returns a new tile")
        ... @tessera.jit
        ... def doubled(x):
        ...     return x * 2
        >>> @tessera.jit
        ... def wrong(x):
        ...     doubled(tl.load(x))
        >>> wrong[(1,)](np.zeros(1, np.float32))
        Traceback (most recent call last):
        tessera.errors.CompilationError: error[compilation]: The result of doubled is not being used...
    """
    if isinstance(message, str):

        def mark(fn: Any) -> Any:
            fn.must_use = message
            return fn

        return mark
    message.must_use = ""
    return message
