"""`FrontEnd` holds the state of lowering one kernel, and walks its syntax tree: `visit` lowers a node, `run`
statements.

The function's tree is visited once. Expressions become language values: Python computes what is known at compile time,
the rest becomes IR ops at the builder's insertion point. Calls of jitted functions are inlined: each
gets a `Frame`, whose `call_site` links the source locations of its nodes to the caller's.

Node handlers live in the modules beside this one and register themselves with `@handles`.
"""

from __future__ import annotations

import ast
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from tessera.config import knobs
from tessera.errors import (
    CompilationError,
    InternalError,
    Loc,
    NotConstexpr,
    TesseraError,
    UnsupportedLanguageConstruct,
)
from tessera.frontend.flatten import flatten, is_number, type_text
from tessera.frontend.markers import mark_line
from tessera.frontend.semantics.values import to_tensor
from tessera.frontend.semantics.values import wrap as tensor_of
from tessera.frontend.source import BlockFacts, source_of
from tessera.ir import Block, Builder, Module, Type, Value
from tessera.language.callable import JITCallable
from tessera.language.values import is_runtime, tensor, unwrap, wrap
from tessera.language.values import tuple as tl_tuple
from tessera.ops import YieldOp

MAX_DEPTH = 200  # of inlined calls: deeper means that a recursion does not end at compile time

Handler = Callable[["FrontEnd", Any], Any]
Register = TypeVar("Register", bound=Callable[..., Any])
HANDLERS: dict[type[Any], Handler] = {}


def handles(*kinds: type[Any]) -> Callable[[Register], Register]:
    """Register a function `(fe, node)` as the handler of these node types (or of a form defined below)."""

    def register(fn: Register) -> Register:
        for kind in kinds:
            HANDLERS[kind] = fn
        return fn

    return register


class Returned(NamedTuple):
    """The outcome of statements that returned (inside a loop: that jumped); of others the outcome is None."""

    value: Any


class Application(NamedTuple):
    """A call whose function and arguments have already been evaluated."""

    callee: Any
    args: list[Any]
    kwargs: dict[str, Any]


class Jumping(NamedTuple):
    """An `if` or a loop that a jump leaves, with the statements that follow it."""

    node: ast.If | ast.For | ast.While
    rest: Sequence[ast.stmt]


class SeparateCall(NamedTuple):
    """A call of a `noinline` function with its parameters bound."""

    fn: JITCallable
    names: dict[str, Any]


class Frame:
    """One function being lowered: its variables and its call site."""

    __slots__ = (
        "call_site", "caller", "closure", "constant", "depth", "function", "globals", "in_loop", "is_kernel",
        "kept", "lost", "names", "source",
    )  # fmt: skip

    def __init__(
        self,
        function: JITCallable,
        names: dict[str, Any],
        caller: Frame | None,
        call_site: Loc | None,
    ):
        self.function = function
        self.source = source_of(function)
        self.names = names
        # names declared constexpr → the declaring parameter or statement
        self.constant: dict[str, Any] = {p.name: p for p in function.params if p.is_constexpr}
        self.lost: dict[str, str] = {}  # names that control flow left undefined → why
        self.globals: Mapping[str, Any] = function.__globals__
        self.closure = function.closure()
        self.call_site = call_site
        self.caller = caller
        self.depth: int = caller.depth + 1 if caller is not None else 0
        self.is_kernel = caller is None
        self.in_loop = False
        # Names from before the loop, which keep their types.
        self.kept: frozenset[str] = frozenset()


def _blame_call(error: CompilationError, fn: JITCallable) -> None:
    """Move the place of an error from the library's source to the call in the kernel; a note tells the former."""
    if error.loc is not None and not knobs.compilation.front_end_debugging:
        error.note(f"raised in tl.{fn.__name__}, {error.loc.short()}")
        error.loc = None


def _refuse_run_time(fn: JITCallable, given: Mapping[str, object]) -> None:
    """Raise NotConstexpr if a parameter that an operation computes with at compile time gets a run-time value."""
    for p in fn.params:
        value = given.get(p.name)
        if p.is_constexpr and is_runtime(value):
            raise NotConstexpr(
                what=f"the argument {p.name!r} of {fn.__name__}()",
                got=type_text(value),
                argument=p.name,
            )


class FrontEnd:
    """Lowers one kernel into `module`. `options` are the launch options; see `lower_kernel`."""

    def __init__(self, module: Module, options: Any, marks_lines: bool = False):
        self.module = module
        self.options = options
        self.marks_lines = marks_lines
        self.stops = False  # whether it has called `breakpoint()`
        self.builder = Builder()
        # True inside a region that back ends evaluate lane by lane: it must have no checks.
        self.combining = False
        # Specialisations of `noinline` functions, see noinline.py.
        self.functions: dict[Any, Any] = {}
        self.frame: Frame = None  # type: ignore[assignment]  # set before anything is visited

    # --- places -------------------------------------------------------------------------------------------
    def loc(self, node: ast.AST) -> Loc:
        frame = self.frame
        return frame.source.loc(node, frame.call_site)

    def facts(self, node: ast.AST) -> BlockFacts:
        return self.frame.source.facts[node]

    def warn(self, text: str, category: type[Warning] = UserWarning) -> None:
        """Warn about the current line of the kernel's source; in library code, about the call of the library."""
        frame, loc = self.frame, self.builder.loc
        while frame.function.is_library and frame.caller is not None:
            frame, loc = frame.caller, frame.call_site
        if loc is None:
            loc = frame.source.loc(frame.source.node, None)
        scope = frame.function.__globals__
        registry = scope.setdefault("__warningregistry__", {})
        warnings.warn_explicit(
            text, category, loc.file, loc.line, frame.function.module, registry, scope
        )

    # --- walks --------------------------------------------------------------------------------------------
    def visit(self, node: ast.AST) -> Any:
        """Return the value of an expression, or the outcome of a statement. Errors point to the innermost node."""
        try:
            handler = HANDLERS.get(type(node))
            if handler is None:
                raise UnsupportedLanguageConstruct(what=f"`{type(node).__name__}`")
            return handler(self, node)
        except TesseraError as error:
            if error.loc is None:
                error.loc = self.loc(node)
                self._name_argument(error, node)
            raise
        except Warning:  # under `-W error`
            raise
        except Exception as error:
            if knobs.compilation.front_end_debugging:
                raise
            raise self._internal(error, node) from error

    def _name_argument(self, error: TesseraError, node: ast.AST) -> None:
        """Note which parameter was given a value that is no operand."""
        if "operand" not in error.facts or self.frame.function.is_library:
            return
        x, params = error.facts["operand"], self.frame.function.arg_names
        names = [n.id for n in ast.walk(node) if isinstance(n, ast.Name)]
        for name in names:
            if name in params and name in self.frame.names and self.frame.names[name] is x:
                error.note(
                    f"the parameter `{name}` of {self.frame.function.__name__} was given {unwrap(x)!r}"
                )
                return

    def _internal(self, error: Exception, node: ast.AST) -> TesseraError:
        if isinstance(error, RecursionError):
            return CompilationError(
                "the kernel nests too deeply", loc=self.loc(node),
                help="write a loop; a recursion must end at compile time, by a constexpr condition",
            )  # fmt: skip
        return InternalError(f"{type(error).__name__}: {error}", loc=self.loc(node))

    def run(self, body: Sequence[ast.stmt]) -> Returned | None:
        """Visit statements in order up to a jump."""
        for i, s in enumerate(body):
            mark_line(self, s)
            if isinstance(s, ast.If | ast.For | ast.While) and self.facts(s).jumps:
                # what follows only runs on the paths that did not jump
                with self.loc(s):
                    return HANDLERS[Jumping](self, Jumping(s, body[i + 1 :]))
            outcome = self.visit(s)
            if outcome is not None:
                return outcome
        return None

    def run_in(self, block: Block, body: Sequence[ast.stmt]) -> Returned | None:
        """Visit statements, emitting their ops into `block`."""
        builder = self.builder
        saved = builder.block, builder.before
        builder.block, builder.before = block, None
        try:
            return self.run(body)
        finally:
            builder.block, builder.before = saved

    # --- values -------------------------------------------------------------------------------------------
    def tensor(self, value: Value) -> tensor:
        """Return the language value of an IR value."""
        return tensor_of(value)

    def to_tensor(self, x: object) -> tensor:
        """Return a tensor or a number as a tensor: numbers get their default dtype."""
        return to_tensor(self, x)

    def decay(self, x: object) -> Any:
        """Return what a plain assignment binds: numbers become run-time scalars, also inside tuples."""
        if is_number(x):
            return to_tensor(self, x)
        if isinstance(x, tl_tuple):
            return x.rebuild([self.decay(v) for v in x.values])
        return x

    # --- calls --------------------------------------------------------------------------------------------
    def call(
        self, callee: object, args: Sequence[object] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Call anything that a kernel can call: jitted functions are inlined at the insertion point."""
        return HANDLERS[Application](self, Application(callee, list(args), kwargs or {}))

    def inline(self, fn: JITCallable, args: Sequence[object], kwargs: dict[str, Any]) -> Any:
        """Visit the body of a jitted function with its parameters bound, and return its value."""
        binder = fn.binder
        bound, extra, only = binder.bind(list(args), kwargs)
        names = {name: wrap(value) for name, value in zip(binder.names, bound, strict=True)}
        if binder.variadic is not None:
            names[binder.variadic] = tl_tuple(extra)
        names.update((name, wrap(value)) for name, value in only.items())
        if fn.is_library and not self.frame.function.is_library:
            _refuse_run_time(fn, names)
        if fn.noinline:
            return HANDLERS[SeparateCall](self, SeparateCall(fn, names))
        caller, loc = self.frame, self.builder.loc
        if caller.depth >= MAX_DEPTH:
            raise CompilationError(
                f"calls nest more than {MAX_DEPTH} deep in {fn.__name__}()",
                help="write a loop; a recursion must end at compile time, by a constexpr condition",
            )
        self.frame = Frame(fn, names, caller, loc)
        try:
            outcome = self.run(self.frame.source.node.body)
        except CompilationError as error:
            if fn.is_library and not caller.function.is_library:
                _blame_call(error, fn)
            raise
        finally:
            self.frame, self.builder.loc = caller, loc
        return outcome.value if outcome is not None else None

    def call_block(self, callee: object, arg_types: Sequence[Type]) -> Block:
        """Return a combine region: a block with arguments of these IR types that yields what `callee` returns for
        them."""
        block = Block(list(arg_types))
        outer, self.combining = self.combining, True
        with self.builder.at(block):
            result = self.call(callee, [tensor_of(a) for a in block.args])
            self.builder.insert(YieldOp(flatten(self.decay(result))))
        self.combining = outer
        return block
