"""`JITCallable`: a Python function as the compiler sees it — parameters, source, what it captures, its cache key."""

from __future__ import annotations

import ast
import copy
import functools
import hashlib
import inspect
from collections.abc import Callable, Iterable, Iterator
from types import CellType, FunctionType, ModuleType
from typing import Any

from tessera.dtypes import ALL_DTYPES, by_array_name, dtype, pointer_type
from tessera.errors import ConflictingGlobal, HostOnly, LaunchError, NotAFunction
from tessera.language.builtin import ArgumentBinder
from tessera.language.by_name import ByName
from tessera.language.captures import fingerprint, is_constant, told
from tessera.language.source_text import Sourced
from tessera.language.values import const, constexpr

_PLAIN_TYPES = {"int": "i32", "float": "fp32", "bool": "u1"}


class KernelParam:
    """One parameter; `annotation_type` is the signature type it forces, or ""."""

    __slots__ = (
        "_param", "annotation", "annotation_type", "do_not_specialize", "do_not_specialize_on_alignment",
        "is_const", "is_constexpr", "name", "num",
    )  # fmt: skip

    def __init__(self, num: int, param: inspect.Parameter, fixed: bool, unaligned: bool):
        self.num = num
        self.name = param.name
        self._param = param
        self.annotation: str = _annotation_text(param.annotation)
        self.is_constexpr = "constexpr" in self.annotation
        self.is_const = "const" in self.annotation and not self.is_constexpr
        self.annotation_type = "" if self.is_constexpr else _forced_type(self.annotation)
        self.do_not_specialize = fixed
        self.do_not_specialize_on_alignment = unaligned

    @property
    def default(self) -> Any:
        return self._param.default

    @property
    def has_default(self) -> bool:
        return self._param.default is not inspect.Parameter.empty

    @property
    def kind(self) -> Any:
        return self._param.kind

    def __repr__(self) -> str:
        return f"<parameter {self._param}>"


def _annotation_text(annotation: Any) -> str:
    """Annotations may be objects or strings: `tl.int64`, "tl.uint8", "*fp32", tl.constexpr."""
    if annotation is inspect.Parameter.empty:
        return ""
    if isinstance(annotation, (dtype, pointer_type)):
        return annotation.short
    if annotation is const:
        return "const"
    if isinstance(annotation, type):
        return annotation.__name__
    text = str(annotation).strip().strip("'\"")
    return (
        text.removeprefix("tessera.language.").removeprefix("triton.language.").removeprefix("tl.")
    )


def _forced_type(text: str) -> str:
    """The signature type a parameter annotation forces, or "" when it says nothing about the type."""
    text = text.removesuffix("_t")
    if text.startswith(("*", "const *")):
        is_const = text.startswith(("const ", "*k"))
        inner = _forced_type(text.removeprefix("const ").removeprefix("*").removeprefix("k"))
        return f"*{'k' if is_const else ''}{inner}" if inner else ""
    if text in _PLAIN_TYPES:
        return _PLAIN_TYPES[text]
    found = by_array_name(text) if "." not in text else None
    if found is None:
        short = _SHORT.get(text)
        return short if short is not None else ""
    return "u1" if found.short == "i1" else found.short


_SHORT = {d.short: d.short for d in ALL_DTYPES} | {"i1": "u1", "u1": "u1"}


class JITCallable(Sourced, ByName):
    """A function that only kernels can call: its body is read, not run.

    Raises SourceNotFound when the function's source cannot be found.
    """

    is_library = False  # of tessera itself: its source belongs to the compiler's version
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
        self.used_global_vals: dict[tuple[str, int], tuple[Any, dict[str, Any]]] = {}
        # The called function that brought it.
        self._used_by: dict[tuple[str, int], JITCallable] = {}
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
        """Compile `text` instead of the function's own source; callers reset `hash` of whoever uses it."""
        self.source.replace(text)
        self.hash = None

    @property
    def raw_src(self) -> list[str]:
        return self.source.lines

    @property
    def starting_line_number(self) -> int:
        return self.source.first_line

    @property
    def file_name(self) -> str:
        return self.source.file

    @property
    def def_file_line_number(self) -> int:
        return self.source.def_line

    @property
    def def_file_col_number(self) -> int:
        return len(self.source.indent)

    def parse(self) -> ast.Module:
        """A module that holds exactly the function's definition."""
        return ast.Module([self.source.tree()], [])

    # --- what it captures -------------------------------------------------------------------------------------
    def closure(self) -> dict[str, Any]:
        """The variables of enclosing functions that the function uses, by name; unset ones are left out."""
        if not callable(self.fn):  # not after unpickling
            raise LaunchError(
                f"kernel {self.__name__} was pickled without what it captures and cannot be compiled here",
                help="define it at the top level of a module: then it is pickled by name, as functions are",
            )
        cells: tuple[CellType, ...] | None = self.fn.__closure__  # type: ignore[attr-defined]
        if not cells:
            return {}
        found: dict[str, Any] = {}
        for name, cell in zip(self.fn.__code__.co_freevars, cells, strict=True):
            try:
                found[name] = cell.cell_contents
            except ValueError:  # assigned later in the enclosing function
                continue
        return found

    # --- identity ---------------------------------------------------------------------------------------------
    @property
    def cache_key(self) -> str:
        """Hash of the source, of its first line number, of all functions it calls and constants it captures."""
        if self.hash is None:
            self.hash = f"recursion:{self.__qualname__}"  # what a recursive call contributes
            self.used_global_vals, self._used_by = {}, {}
            digest = hashlib.sha256(f"{self.src}\n{self.starting_line_number}".encode())
            try:
                parts = sorted({*self._dependencies(), *self._defaults()})
            except BaseException:
                self.hash = None
                raise
            for part in parts:
                digest.update(part.encode())
            self.hash = digest.hexdigest()
        return self.hash

    def _dependencies(self) -> Iterator[str]:
        for name, value, scope in self._captured():
            value = jitted_under(value)
            if isinstance(value, JITCallable) and not value.is_library:
                yield f"{name}={value.cache_key}{value.noinline}"
                for key, (seen, found_in) in value.used_global_vals.items():
                    self._use(key, seen, found_in, value)
            elif isinstance(value, JITCallable):
                yield f"{name}={value.module}.{value.__qualname__}"
            elif isinstance(value, constexpr):
                if name in scope:  # attributes of modules may change without notice
                    self._use((name, id(scope)), _snapshot(value), scope)
                yield f"{name}={fingerprint(value.value)}"
            elif text := told(value):
                yield f"{name}={text}"

    def _defaults(self) -> Iterator[str]:
        """What the values of parameters contribute that a call may leave out."""
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
        """Remember the value of a captured constant, which `inner` was compiled with. ConflictingGlobal if another
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

    def _captured(self) -> Iterator[tuple[str, Any, dict[str, Any]]]:
        """(name, value, the dictionary it was found in) of every global or attribute chain in the body."""
        closure, scope = self.closure(), self.__globals__
        local = {a.arg for a in ast.walk(self.source.tree().args) if isinstance(a, ast.arg)}
        nodes = list(ast.walk(self.source.tree()))
        assigned = {n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
        for node in nodes:
            if isinstance(node, ast.Attribute):
                value = _resolve(node, closure, scope)
                if value is not None:
                    yield ast.unparse(node), value, scope
            elif isinstance(node, ast.Name) and node.id not in local:
                where = closure if node.id in closure else scope
                if node.id in where and not (node.id in assigned and is_constant(where[node.id])):
                    yield node.id, where[node.id], where

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise HostOnly(name=self.__name__)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.module}:{self.__qualname__})"


def jitted_under(value: Any) -> Any:
    """The jitted function inside an autotuner or another wrapper; what is none, as it is."""
    inner = value
    for _ in range(8):
        if isinstance(inner, JITCallable):
            return inner
        if isinstance(inner, (ModuleType, type)):
            break
        inner = getattr(inner, "fn", None)
    return value


def _snapshot(value: constexpr) -> constexpr:
    """The value as it is now: a copy, where copies are equal, so that changes inside of it are noticed."""
    made = copy.deepcopy(value)
    return made if made == value else value


def _shown(x: Any) -> str:
    name = getattr(x, "__name__", None)
    return type(x).__name__ if name is None else f"{type(x).__name__} {name}"


def _resolve(node: ast.expr, closure: dict[str, Any], scope: dict[str, Any]) -> Any:
    """What `module.name…` stands for when it starts at a module; None otherwise."""
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


def library(fn: Callable[..., Any]) -> Any:
    """Decorator: define an operation of the language by a kernel function instead of an implementation."""
    return LibraryFunction(fn)
