"""Holds a kernel function's state for its launches: its binder, its compiled kernels by device, and how arguments are
picked."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from functools import partial
from operator import itemgetter
from types import FunctionType
from typing import Any, TypeVar, cast

from tessera.backends.compiler import Options
from tessera.compiler import make_backend
from tessera.config import epoch, knobs
from tessera.dtypes import dtype
from tessera.errors import ArgumentOverflow, LaunchError, SpecializationError
from tessera.language.callable import JITCallable
from tessera.language.captures import fingerprint
from tessera.language.values import constexpr
from tessera.runtime.arguments.specialize import flatten_runtime, specializer
from tessera.runtime.cuda import driver_api as cuda
from tessera.runtime.driver import driver, driver_named
from tessera.runtime.launching.mistakes import mismatch

R = TypeVar("R")
OPTIONS = frozenset(f.name for f in dataclasses.fields(Options)) - {
    "debug",
    "target",
    "backend_name",
}


# For these types equality means the same compile-time value; 1, 1.0 and True are equal, and so are 0.0 and -0.0.
_EXACT = (bool, int, str, type(None), dtype, JITCallable, FunctionType, type)


def _exact(kind: object, value: Any) -> Any:
    """Return the part of a key for a tuple, whose class determines its fields' meaning, or for a compile-time value."""
    if isinstance(kind, tuple):
        kinds = cast("tuple[object, ...]", kind)
        return (kinds.__class__, *(_exact(k, x) for k, x in zip(kinds, value, strict=True)))
    if kind != "constexpr":
        return (kind, value)
    exact = isinstance(cast("object", value), _EXACT)
    return (value.__class__, value if exact else fingerprint(value))


def launch_key(pairs: tuple[Any, ...], options: dict[str, Any]) -> Any:
    """Return the key of a compiled kernel of a kernel function: specialised arguments and options."""
    exact = tuple(
        [p if p[0].__class__ is str and p[0] != "constexpr" else _exact(*p) for p in pairs]
    )
    key = (exact, tuple(options.items()))
    try:
        hash(key)
    except TypeError:  # an unhashable option
        key = (exact, fingerprint(options))
    return key


class Prepared:
    """How the launches of a compiled kernel pick their run-time arguments."""

    __slots__ = ("kinds", "pick", "plain")

    def __init__(self, kinds: tuple[object, ...]):
        self.kinds = kinds
        # Without tuples and descriptors the run-time arguments are picked by position.
        self.plain = all(isinstance(k, str) and not k.startswith("tensordesc") for k in kinds)
        indices = [i for i, k in enumerate(kinds) if k != "constexpr"]
        self.pick: Callable[[Any], Iterable[Any]]
        if len(indices) == 1:
            only = indices[0]
            self.pick = lambda values: (values[only],)
        else:
            self.pick = itemgetter(*indices) if indices else lambda values: ()

    def arguments(self, values: tuple[object, ...]) -> Iterable[Any]:
        return self.pick(values) if self.plain else flatten_runtime(self.kinds, values)


class KernelCache(dict[Any, Any]):
    """Specialisation key → CompiledKernel. Clearing it makes the next launches look up and compile again."""

    def __init__(self, owner: Any) -> None:
        super().__init__()
        self.owner = owner

    def clear(self) -> None:
        super().clear()
        self.owner.forget_fast_path()

    def __delitem__(self, key: object) -> None:
        super().__delitem__(key)
        self.owner.forget_fast_path()


class DeviceCaches(dict[Any, tuple[Any, ...]]):
    """Device → (kernel cache, prepared arguments, target, back end, binder); CUDA devices by index, others "cpu:0"."""

    def __init__(self, owner: Any) -> None:
        super().__init__()
        self.owner = owner
        self.changes, self.knobs = -1, ""  # the count of their changes; those all was compiled with
        self.others: dict[str, dict[Any, tuple[Any, ...]]] = {}  # by the knobs it was compiled with

    def renew(self) -> None:
        """Set everything aside, targets and back ends too, if a knob that compilation depends on has changed."""
        if self.changes != epoch.value:
            before, self.knobs = self.knobs, repr(knobs.cache_key_values())
            self.changes = epoch.value
            if before not in ("", self.knobs):
                self.others[before] = dict(self)
                super().clear()
                self.update(self.others.pop(self.knobs, {}))
                self.owner.forget_fast_path()

    def __missing__(self, key: Any) -> tuple[Any, ...]:
        if isinstance(key, int) and not cuda.available():  # programs look kernels up by it
            return self[f"{driver.active.name}:{key}"]
        name, index = ("cuda", key) if isinstance(key, int) else key.split(":")
        chosen = driver.chosen
        on = chosen if chosen is not None and chosen.name == name else driver_named(name)
        if int(index) != on.get_current_device():
            raise KeyError(f"device {key} is not the current one")
        target = on.get_current_target()
        binder = self.owner.create_binder()
        found = self[key] = (KernelCache(self.owner), {}, target, make_backend(target), binder)
        return found

    def forget_kernels(self) -> None:
        """Drop what was compiled; targets and back ends stay."""
        self.others.clear()
        for caches in self.values():
            for cache in caches[:2]:
                cache.clear()
        self.owner.forget_fast_path()

    def clear(self) -> None:
        super().clear()
        self.others.clear()
        self.owner.forget_fast_path()


def make_binder(
    fn: JITCallable,
) -> Callable[..., tuple[tuple[Any, ...], tuple[Any, ...], dict[str, Any]]]:
    """Return a function with the kernel's own signature that returns (argument values, specialisation pairs,
    options)."""
    own = "__tessera_"  # a prefix of the generated text's own names, which no parameter has
    scope: dict[str, Any] = {}
    parts: list[str] = []
    keys: list[str] = []
    for p in fn.params:
        scope[f"{own}s_{p.name}"] = specializer(p)
        if p.has_default:
            scope[f"{own}d_{p.name}"] = p.default
        parts.append(f"{p.name}={own}d_{p.name}" if p.has_default else p.name)
        keys.append(f"{own}s_{p.name}({p.name})")
    names = [p.name for p in fn.params]
    comma = "," if names else ""
    text = (
        f"def bind({', '.join([*parts, f'**{own}options'])}):\n"
        f"    {own}values = ({', '.join(names)}{comma})\n"
        f"    try:\n"
        f"        return {own}values, ({', '.join(keys)}{comma}), {own}options\n"
        f"    except {own}refused as {own}error:\n"
        f"        raise {own}blamed({own}error, {own}values)\n"
    )
    refused = (SpecializationError, ArgumentOverflow)
    scope |= {f"{own}refused": refused, f"{own}blamed": partial(_blamed, fn)}
    exec(compile(text, f"{__file__}: bind", "exec"), scope)  # a frame of tessera's own
    bind = scope["bind"]
    bind.__qualname__ = fn.__name__  # for Python's errors about missing and surplus arguments
    both = OPTIONS.intersection(names)
    return _explaining(_with_options(bind, tuple(both)) if both else bind, fn)


def _explaining(bind: Callable[..., R], fn: JITCallable) -> Callable[..., R]:
    """Return `bind` with errors that name the parameters, for arguments that do not fit them."""
    names, required = fn.arg_names, [p.name for p in fn.params if not p.has_default]

    def bind_explaining(*args: object, **kwargs: object) -> R:
        try:
            return bind(*args, **kwargs)
        except LaunchError:
            raise
        except TypeError as error:
            known = (*OPTIONS, "debug")
            explained = mismatch(fn.__name__, names, required, args, kwargs, known, str(error))
            if explained is None:
                raise
            raise explained from None

    return bind_explaining


def _with_options(bind: Callable[..., Any], both: tuple[str, ...]) -> Callable[..., Any]:
    """Return `bind` for a kernel with parameters named like options: such a keyword argument sets the option as
    well."""

    def bind_both(*args: Any, **kwargs: Any) -> Any:
        values, pairs, options = bind(*args, **kwargs)
        for name in both:
            x = kwargs.get(name)
            x = x.value if isinstance(x, constexpr) else x
            if x is not None:
                options[name] = x
        return values, pairs, options

    return bind_both


def _blamed(fn: JITCallable, error: LaunchError, values: tuple[object, ...]) -> LaunchError:
    """Return the error with a note that names the argument that cannot be specialised."""
    for p, x in zip(fn.params, values, strict=True):
        try:
            specializer(p)(x)
        except (SpecializationError, ArgumentOverflow):
            return error.note(f"it is the argument `{p.name}` of {fn.__name__}")
    return error
