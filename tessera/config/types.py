"""Implements knobs: descriptors that check types, groups of knobs with scopes, hook chains.

Reading a knob gives the value assigned from Python, else the environment's (consulted on each read), else the default.
Assigning a knob also writes the environment variable, so that child processes see it (`settings.propagate_env`).
"""

from __future__ import annotations

import ctypes
import importlib
import os
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any, ClassVar, Generic, Self, TypeVar, cast, overload

T = TypeVar("T")
KeyValue = str | int | bool | None
Hook = Callable[..., Any]

TRUE_TEXTS = frozenset({"1", "y", "on", "yes", "true"})


class Env:
    """The type of `env`: assigning it to a knob drops the Python value, so that the environment applies again."""

    def __repr__(self) -> str:
        return "env"


class Settings:
    """Settings of the knobs themselves."""

    propagate_env: bool = True


env = Env()
settings = Settings()
# How often a knob or hook was changed from Python. Native launch code reads it directly: code prepared for another
# count is stale.
epoch = ctypes.c_int64(1)
_MISSING = object()


class HookChain:
    """Functions called one after the other with the same arguments; `reverse` runs the last added first."""

    __slots__ = ("calls", "reverse")

    def __init__(self, reverse: bool = False, calls: tuple[Hook, ...] = ()) -> None:
        self.calls: list[Hook] = list(calls)
        self.reverse = reverse

    def add(self, hook: Hook) -> None:
        """Append `hook` unless it is already in the chain."""
        if hook not in self.calls:
            self.calls.append(hook)
            epoch.value += 1

    def remove(self, hook: Hook) -> None:
        """Remove `hook`, if it is in the chain."""
        if hook in self.calls:
            self.calls.remove(hook)
            epoch.value += 1

    def __call__(self, *args: object, **kwargs: object) -> None:
        for hook in reversed(self.calls) if self.reverse else tuple(self.calls):
            hook(*args, **kwargs)

    def __bool__(self) -> bool:
        return bool(self.calls)


class Knob(Generic[T]):
    """One switch of a group (a descriptor).

    `names` are the environment variables that may set it: the first one set wins, the first one is
    written on assignment.
    `key`: the value affects compiled code, so it is part of the cache key. `once` knobs keep
    the environment's value from their first read (hot paths read them); `refresh()` discards it.
    """

    kind: ClassVar[str] = "value"

    def __init__(
        self,
        default: T | Callable[[Any], T],
        *names: str,
        doc: str,
        key: bool = False,
        once: bool = False,
    ) -> None:
        self.default = default
        self.names = names
        self.__doc__ = self.doc = doc
        self.key = key
        self.once = once
        self.name = ""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    @overload
    def __get__(self, group: None, owner: type) -> Knob[T]: ...
    @overload
    def __get__(self, group: Group, owner: type) -> T: ...
    def __get__(self, group: Group | None, owner: type) -> T | Knob[T]:
        if group is None:
            return self
        value = group.overrides.get(self.name, _MISSING)
        if value is not _MISSING:
            return cast(T, value)
        if self.once:
            value = group.remembered.get(self.name, _MISSING)
            if value is _MISSING:
                value = group.remembered[self.name] = self.read(group)
            return cast(T, value)
        return self.read(group)

    def __set__(self, group: Group, value: T | Env) -> None:
        if isinstance(value, Env):
            self.__delete__(group)
            return
        checked = self.check(group, value)
        group.overrides[self.name] = checked
        epoch.value += 1
        if settings.propagate_env and self.names:
            text = self.unparse(checked)
            if text is None:
                os.environ.pop(self.names[0], None)
            else:
                os.environ[self.names[0]] = text

    def __delete__(self, group: Group) -> None:
        group.overrides.pop(self.name, None)
        group.remembered.pop(self.name, None)
        epoch.value += 1

    def read(self, group: Group) -> T:
        """Return the environment's value, else the default."""
        for name in self.names:
            text = os.environ.get(name)
            if text is not None:
                return self.parse(name, text)
        return self.default_of(group)

    def default_of(self, group: Group) -> T:
        """Return the default, computed if it depends on the group's other knobs."""
        return (
            cast(Callable[[Any], T], self.default)(group)
            if callable(self.default)
            else self.default
        )

    def parse(self, name: str, text: str) -> T:
        """Return the value that the text of environment variable `name` stands for."""
        return cast(T, text)

    def unparse(self, value: T) -> str | None:
        """Return the environment text for `value`; None unsets the variable."""
        return None if value is None else str(value)

    def check(self, group: Group, value: T) -> T:
        """Return `value` if its type is right; raise TypeError otherwise."""
        return value

    def wrong_type(self, group: Group, value: object) -> TypeError:
        return TypeError(
            f"knob {group.title}.{self.name} takes {self.kind}, not {value!r} ({type(value).__name__})"
        )


class BoolKnob(Knob[bool]):
    kind = "a bool"

    def parse(self, name: str, text: str) -> bool:
        return text.strip().lower() in TRUE_TEXTS

    def unparse(self, value: bool) -> str:
        return "1" if value else "0"

    def check(self, group: Group, value: bool) -> bool:
        if not isinstance(cast(object, value), (bool, int)):
            raise self.wrong_type(group, value)
        return bool(value)


class IntKnob(Knob["int | None"]):
    kind = "an int or None"

    def parse(self, name: str, text: str) -> int:
        try:
            return int(text)
        except ValueError:
            raise ValueError(
                f"environment variable {name} must be an integer, not {text!r}"
            ) from None

    def check(self, group: Group, value: int | None) -> int | None:
        if value is not None and (
            isinstance(value, bool) or not isinstance(cast(object, value), int)
        ):
            raise self.wrong_type(group, value)
        return value


class StrKnob(Knob["str | None"]):
    """A string; `choices` limits its values."""

    kind = "a str or None"

    def __init__(
        self,
        default: str | None,
        *names: str,
        doc: str,
        key: bool = False,
        once: bool = False,
        choices: tuple[str, ...] = (),
    ) -> None:
        super().__init__(default, *names, doc=doc, key=key, once=once)
        self.choices = choices

    def parse(self, name: str, text: str) -> str:
        if self.choices and text not in self.choices:
            raise ValueError(
                f"environment variable {name} must be one of {', '.join(self.choices)}, not {text!r}"
            )
        return text

    def check(self, group: Group, value: str | None) -> str | None:
        if value is not None and not isinstance(cast(object, value), str):
            raise self.wrong_type(group, value)
        if value is not None and self.choices and value not in self.choices:
            raise ValueError(
                f"knob {group.title}.{self.name} must be one of {', '.join(self.choices)}, not {value!r}"
            )
        return value


class PathKnob(Knob["str | None"]):
    """A file system path; `~` is expanded."""

    kind = "a path (str, os.PathLike) or None"

    def parse(self, name: str, text: str) -> str | None:
        return os.path.expanduser(text) if text else None

    def check(self, group: Group, value: str | os.PathLike[str] | None) -> str | None:
        if value is None:
            return None
        if not isinstance(cast(object, value), (str, os.PathLike)):
            raise self.wrong_type(group, value)
        return os.path.expanduser(os.fspath(value))


class CallableKnob(Knob["Hook | None"]):
    """A Python function or None; no environment variable can set it."""

    kind = "a callable or None"

    def default_of(self, group: Group) -> None:
        return None

    def check(self, group: Group, value: Hook | None) -> Hook | None:
        if value is not None and not callable(value):
            raise self.wrong_type(group, value)
        return value


class ClassKnob(Knob["type | None"]):
    """A class, or None. The environment or a string names one as module:class; reading the knob imports it."""

    kind = "a class, a text module:class or None"

    def parse(self, name: str, text: str) -> type | None:
        return _class_named(f"environment variable {name}", text) if text else None

    def unparse(self, value: type | None) -> str | None:
        return None if value is None else f"{value.__module__}:{value.__qualname__}"

    def check(self, group: Group, value: type | str | None) -> type | None:
        if isinstance(value, str):
            return _class_named(f"knob {group.title}.{self.name}", value)
        if value is not None and not isinstance(cast(object, value), type):
            raise self.wrong_type(group, value)
        return value


def _class_named(where: str, text: str) -> type:
    module, _, name = text.partition(":")
    found: object = None
    try:
        found = getattr(importlib.import_module(module), name, None) if name else None
    except ImportError as error:
        raise ValueError(f"{where}: {module!r} cannot be imported: {error}") from error
    if not isinstance(found, type):
        raise ValueError(f"{where} must be module:class, not {text!r}")
    return found


class Absent:
    """Replaces a knob that Triton has and tessera lacks: its use says why, and what to use instead."""

    def __init__(self, why: str) -> None:
        self.why = why
        self.name = ""

    def __set_name__(self, owner: type[Group], name: str) -> None:
        self.name = f"{owner.title}.{name}"

    def __get__(self, group: Group | None, owner: type) -> Self:
        if group is None:
            return self
        raise self.error()

    def __set__(self, group: Group, value: object) -> None:
        raise self.error()

    def error(self) -> AttributeError:
        return AttributeError(f"tessera has no knob {self.name}: {self.why}", name=self.name)


class HookKnob(Knob[HookChain]):
    """A HookChain; assigning a function makes a chain of it, assigning None an empty one."""

    kind = "a HookChain, a callable or None"

    def __init__(self, doc: str, reverse: bool = False) -> None:
        super().__init__(HookChain(reverse), doc=doc)
        self.reverse = reverse

    def __set__(self, group: Group, value: HookChain | Hook | Env | None) -> None:
        super().__set__(group, cast("HookChain", value))

    def read(self, group: Group) -> HookChain:
        chain = group.overrides[self.name] = HookChain(self.reverse)
        return chain

    def default_of(self, group: Group) -> HookChain:
        return HookChain(self.reverse)

    def check(self, group: Group, value: HookChain | Hook | None) -> HookChain:
        if isinstance(value, HookChain):
            return value
        if value is not None and not callable(value):
            raise self.wrong_type(group, value)
        return HookChain(self.reverse, () if value is None else (value,))


class Group:
    """A named set of knobs; `overrides` holds the values assigned from Python."""

    __slots__ = ("overrides", "remembered")
    title: ClassVar[str] = ""

    def __init__(self) -> None:
        self.overrides: dict[str, object] = {}
        self.remembered: dict[str, object] = {}

    @classmethod
    def descriptors(cls) -> dict[str, Knob[Any]]:
        """Return name -> descriptor, in order of declaration."""
        return {n: k for n, k in vars(cls).items() if isinstance(k, Knob)}

    @classmethod
    def absent(cls) -> dict[str, str]:
        """Return name -> reason of the knobs that Triton has and tessera lacks."""
        return {n: k.why for n, k in vars(cls).items() if isinstance(k, Absent)}

    @property
    def knob_descriptors(self) -> dict[str, Knob[Any]]:
        return self.descriptors()

    @property
    def knobs(self) -> dict[str, Any]:
        """Return name -> current value."""
        return {n: getattr(self, n) for n in self.descriptors()}

    def copy(self) -> Self:
        """Return a group with the same Python values that can be changed separately (hook chains are copied)."""
        new = type(self)()
        new.overrides = _copied(self.overrides)
        return new

    def reset(self) -> Self:
        """Drop all Python values: environment and defaults apply again."""
        self.overrides.clear()
        self.remembered.clear()
        epoch.value += 1
        return self

    def refresh(self) -> None:
        """Read the `once` knobs from the environment again at their next use."""
        self.remembered.clear()
        epoch.value += 1

    @contextmanager
    def scope(self) -> Generator[Self]:
        """Restore all values of the group, and its environment variables, on leaving."""
        saved, remembered = _copied(self.overrides), dict(self.remembered)
        names = [n for k in self.descriptors().values() for n in k.names]
        environment = {n: os.environ.get(n) for n in names}
        try:
            yield self
        finally:
            self.overrides, self.remembered = saved, remembered
            epoch.value += 1
            for name, text in environment.items():
                if text is None:
                    os.environ.pop(name, None)
                else:
                    os.environ[name] = text


def _copied(overrides: dict[str, object]) -> dict[str, object]:
    """Copy the values, hook chains included, since `add` changes a chain in place."""
    return {
        n: HookChain(v.reverse, tuple(v.calls)) if isinstance(v, HookChain) else v
        for n, v in overrides.items()
    }
