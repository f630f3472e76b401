"""Defines `JITCallable`, a Python function as the compiler sees it: its parameters, source, captured values and cache
key."""

from __future__ import annotations

import ast
import functools
import hashlib
import inspect
from collections.abc import Callable, Iterable, Iterator
from types import CellType, FunctionType, ModuleType
from typing import Any, Never, TypeVar, cast

from tessera.errors import ChangedGlobal, ConflictingGlobal, HostOnly, LaunchError, NotAFunction
from tessera.language.builtin import ArgumentBinder, Builtin, bare
from tessera.language.by_name import ByName
from tessera.language.captures import Found, fingerprint, is_constant, of_known_package, told
from tessera.language.parameters import KernelParam
from tessera.language.source_text import Sourced, of_source
from tessera.language.values import constexpr
from tessera.language.watching import Place, frozen, place_in, place_of_cell, place_of_name, same


class JITCallable(Sourced, ByName):
    """A function that only kernels can call: its body is compiled, not run.

    Raises SourceNotFound if the function's source cannot be found.
    """

    is_library = False  # of tessera itself: its source is part of the compiler's version
    must_use: str | None = None
    __name__: str  # of the function, as its other dunder names
    __qualname__: str

    def __init__(
        self,
        fn: Callable[..., Any],
        *,
        noinline: bool = False,
        debug: bool | None = None,
        do_not_specialize: Iterable[int | str] | None = None,
        do_not_specialize_on_alignment: Iterable[int | str] | None = None,
        lazy: bool = False,
    ):
        if not isinstance(fn, FunctionType):
            raise NotAFunction(decorator="jit", wanted="a Python function", got=_shown(fn))
        self.fn = fn
        self.noinline = noinline
        self.debug = debug
        self.do_not_specialize = list(do_not_specialize or ())
        self.do_not_specialize_on_alignment = list(do_not_specialize_on_alignment or ())
        self.module: str = fn.__module__
        self.hash: str | None = None
        # Constants that the function or a callee names, and that must not change: (value, where it was found).
        self.used_global_vals: dict[tuple[str, int], tuple[Any, Any]] = {}
        # For constants that a callee names: that callee.
        self._used_by: dict[tuple[str, int], JITCallable] = {}
        # The objects that its other names refer to; if one changes, the function is compiled again.
        self._watched: dict[tuple[str, int], Place] = {}
        self._callees: list[JITCallable] = []
        functools.update_wrapper(self, fn, updated=())
        self.__globals__: dict[str, Any] = fn.__globals__  # type: ignore[attr-defined]
        if not lazy:
            self.source  # noqa: B018  a missing source is reported at the decorator

    # --- parameters ---------------------------------------------------------------------------------------
    @functools.cached_property
    def signature(self) -> inspect.Signature:
        return inspect.signature(self.fn)

    @functools.cached_property
    def params(self) -> list[KernelParam]:
        fixed, unaligned = self.do_not_specialize, self.do_not_specialize_on_alignment
        return [
            KernelParam(i, p, i in fixed or p.name in fixed, i in unaligned or p.name in unaligned)
            for i, p in enumerate(self.signature.parameters.values())
        ]

    @property
    def arg_names(self) -> list[str]:
        return [p.name for p in self.params]

    @property
    def constexprs(self) -> list[int]:
        return [p.num for p in self.params if p.is_constexpr]

    @functools.cached_property
    def binder(self) -> ArgumentBinder:
        return ArgumentBinder(self.__name__, self.signature)

    # --- source -----------------------------------------------------------------------------------------------
    def _unsafe_update_src(self, text: str) -> None:
        """Compile `text` instead of the function's own source; callers reset the `hash` of functions that use it."""
        self.source.replace(text)
        self.hash = None

    # Libraries that write a kernel's text anew say where errors are to place it, in the file of the original.
    raw_src = of_source("lines")
    starting_line_number = of_source("first_line")
    file_name = of_source("file")
    def_file_line_number = of_source("def_line")
    def_file_col_number = of_source("def_column")

    def parse(self) -> ast.Module:
        """Return a module that holds exactly the function's definition."""
        return ast.Module([self.source.tree()], [])

    # --- what it captures -------------------------------------------------------------------------------------
    def closure(self) -> dict[str, Any]:
        """Return the variables of enclosing functions that the function uses, by name; unset ones are omitted."""
        if not callable(self.fn):  # not available after unpickling
            raise LaunchError(
                f"kernel {self.__name__} was pickled without what it captures and cannot be compiled here",
                help="define it at the top level of a module: then it is pickled by name, as functions are",
            )
        found: dict[str, Any] = {}
        for name, cell in self._cells().items():
            try:
                found[name] = cell.cell_contents
            except ValueError:  # assigned later in the enclosing function
                continue
        return found

    def get_capture_scope(self) -> dict[str, object]:
        """Return all that names in the function's body can refer to: its module's globals, and `closure()`."""
        return self.__globals__ | self.closure()

    def _cells(self) -> dict[str, CellType]:
        cells: tuple[CellType, ...] | None = self.fn.__closure__  # type: ignore[attr-defined]
        return dict(zip(self.fn.__code__.co_freevars, cells or (), strict=True))

    # --- identity ---------------------------------------------------------------------------------------------
    @property
    def cache_key(self) -> str:
        """Hash of the source, of its first line number, of all functions it calls and constants it captures."""
        if self.hash is None:
            self._make_key()
            if (
                self._changed_constants() or self._changed()
            ):  # since a function that it calls was checked
                self._forget()
                self._make_key()
        assert self.hash is not None
        return self.hash

    def _make_key(self) -> None:
        self.hash = f"recursion:{self.__qualname__}"  # the contribution of a recursive call
        self.used_global_vals, self._used_by = {}, {}
        self._watched, self._callees = {}, []
        digest = hashlib.sha256(f"{self.src}\n{self.starting_line_number}".encode())
        try:
            parts = sorted({*self._dependencies(), *self._defaults()})
        except BaseException:
            self.hash = None
            raise
        for part in parts:
            digest.update(part.encode())
        self.hash = digest.hexdigest()

    def _dependencies(self) -> Iterator[str]:
        for name, value, place in self._captured():
            value = jitted_under(value)
            if isinstance(value, JITCallable) and not value.is_library:
                self._watch(place)
                self._callees.append(value)
                yield f"{name}={value.cache_key}{value.noinline}"
                for key, (seen, found_in) in value.used_global_vals.items():
                    self._use(key, seen, found_in, value)
                self._watched |= value._watched
            elif isinstance(value, JITCallable):
                self._watch(place)
                yield f"{name}={value.module}.{value.__qualname__}"
            elif isinstance(value, constexpr):
                self._capture(place)
                yield f"{name}=constexpr({fingerprint(value.value)})"  # a bare number is refused
            else:
                found: Found = []
                text = told(value, found)
                if is_constant(value) and value is not None:
                    self._capture(place)
                elif text or isinstance(value, ModuleType):
                    self._watch(place)
                for owner, inner in found:
                    self._watch(place_of_name(owner, inner))
                if text:
                    yield f"{name}={text}"

    def _watch(self, place: Place | None) -> None:
        """Compile again if this place holds another value later."""
        if place is not None and not _of_library(place.seen):
            self._watched[place.key] = place

    def _capture(self, place: Place | None) -> None:
        """Use a constant: those among the function's own globals must not change."""
        if place is not None and place.scope is self.__globals__:
            self._use(place.key, place.seen, place.scope)
        else:
            self._watch(place)

    def places(self) -> list[Place]:
        """Return every value besides its text that the function was compiled from, with its place."""
        used = [Place(scope, key[0], seen) for key, (seen, scope) in self.used_global_vals.items()]
        return [*used, *self._watched.values()]

    def renew(self, launched: bool = True) -> None:
        """Check the values that the function reaches by name again; if one has changed, make a new `cache_key`.

        Raises ChangedGlobal if a constant has changed after a launch, which is not allowed.
        """
        if self.hash is None:
            return
        constants = self._changed_constants()
        if launched and constants:
            name, seen, now = constants[0]
            raise ChangedGlobal(name=name, seen=seen, now=now)
        if self._changed() or constants:
            self._forget()

    def _changed_constants(self) -> list[tuple[str, Any, Any]]:
        """Return (name, old value, new value) of constants that have changed and must not."""
        found: list[tuple[str, Any, Any]] = []
        for (name, where), (seen, scope) in list(self.used_global_vals.items()):
            now = scope.get(name, seen)
            if not same(now, seen):
                found.append((name, seen, now))
            elif now is not seen:  # an equal one, which native code must compare with from now on
                self.used_global_vals[name, where] = frozen(now), scope
        return found

    def _changed(self) -> bool:
        """Whether any other value has changed."""
        changed = False
        for key, place in list(self._watched.items()):
            now = place.now()
            if not same(now, place.seen):
                changed = True
            elif now is not place.seen:
                self._watched[key] = place._replace(seen=frozen(now))
        return changed

    def _forget(self) -> None:
        """Discard `cache_key`, and those of all functions that it calls."""
        self.hash, callees, self._callees = None, self._callees, []
        for fn in callees:
            if fn.hash is not None:
                fn._forget()

    def _defaults(self) -> Iterator[str]:
        """Yield what the defaults of optional parameters contribute to the key."""
        for p in self.params:
            if p.has_default:
                yield f"{p.name}: {fingerprint(p.default)}"

    def _use(
        self,
        key: tuple[str, int],
        value: Any,
        scope: dict[str, Any],
        inner: JITCallable | None = None,
    ) -> None:
        """Record the value of a captured constant with which `inner` was compiled. Raises ConflictingGlobal if another
        function, or this one, sees another value."""
        old, by = self.used_global_vals.get(key), self._used_by.get(key)
        if old is not None and old[0] != value:
            called = inner or by
            mine, its = (old[0], value) if inner is not None else (value, old[0])
            raise ConflictingGlobal(
                name=key[0], mine=mine, its=its, kernel=self.__name__,
                inner=called.__name__ if called is not None else self.__name__,
            )  # fmt: skip
        self.used_global_vals[key] = (value, scope)
        if inner is not None:
            self._used_by[key] = inner

    def _captured(self) -> Iterator[tuple[str, Any, Place | None]]:
        """Yield (name, value, where it was found) of every global or attribute chain in the body."""
        closure, scope = self.closure(), self.__globals__
        cells = self._cells()
        local = {a.arg for a in ast.walk(self.source.tree().args) if isinstance(a, ast.arg)}
        nodes = list(ast.walk(self.source.tree()))
        assigned = {n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
        for node in nodes:
            if isinstance(node, ast.Attribute):
                owner = _resolve(node.value, closure, scope)
                value = _resolve(node, closure, scope)
                if value is not None:
                    yield ast.unparse(node), value, place_of_name(owner, node.attr)
            elif isinstance(node, ast.Name) and node.id not in local:
                where = closure if node.id in closure else scope
                if node.id in where and not (node.id in assigned and is_constant(where[node.id])):
                    cell = cells.get(node.id)
                    place = place_of_cell(cell) if cell is not None else place_in(scope, node.id)
                    yield node.id, where[node.id], place

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise HostOnly(name=self.__name__)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.module}:{self.__qualname__})"


def jitted_under(value: Any) -> Any:
    """Return the jitted function inside an autotuner or another wrapper; anything else unchanged."""
    inner = value
    for _ in range(8):
        if isinstance(inner, JITCallable):
            return inner
        if isinstance(inner, (ModuleType, type)):
            break
        inner = getattr(inner, "fn", None)
    return value


def _of_library(value: Any) -> bool:
    """Whether something belongs to a library that does not change while a program runs."""
    if isinstance(value, (ModuleType, type)):
        return of_known_package(value)
    return isinstance(value, (Builtin, LibraryFunction))


def _shown(x: Any) -> str:
    name = getattr(x, "__name__", None)
    return type(x).__name__ if name is None else f"{type(x).__name__} {name}"


def _resolve(node: ast.expr, closure: dict[str, Any], scope: dict[str, Any]) -> Any:
    """Return the value of `module.name…` if it starts at a module, else None."""
    if isinstance(node, ast.Name):
        return closure.get(node.id, scope.get(node.id))
    if isinstance(node, ast.Attribute):
        base = _resolve(node.value, closure, scope)
        if isinstance(base, (ModuleType, type)):
            return getattr(base, node.attr, None)
    return None


class LibraryFunction(JITCallable):
    """A function of the language that is written in the language."""

    is_library = True

    def __init__(self, fn: Callable[..., Any], **options: Any):
        super().__init__(fn, lazy=True, **options)

    def __call__(self, *args: object, **kwargs: object) -> Never:
        raise HostOnly(
            help=f"`tl.{self.__name__}` is for kernels: put `@tessera.jit` on the function that calls it, and launch "
            "that with `function[grid](...)`"
        )

    def __repr__(self) -> str:
        return f"<function {self.__name__}{bare(inspect.signature(self.fn))} of the language>"


Function = TypeVar("Function", bound=Callable[..., Any])


def library(fn: Function) -> Function:
    """Decorator: define an operation of the language by a kernel function instead of an implementation. For type
    checkers it is still the function, so that they see its parameters."""
    return cast("Function", LibraryFunction(fn))
