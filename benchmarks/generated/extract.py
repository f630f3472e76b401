"""The text of a kernel by itself: the functions that it calls and the constants that it names, without its library.

Another process compiles it by either compiler, and need not import the library, nor what the library needs.
"""

# pyright: basic
from __future__ import annotations

import ast
import inspect
import textwrap
from types import FunctionType, ModuleType
from typing import Any

import triton
import triton.language as tl
from triton.language.extra import libdevice

HEAD = "import triton\nimport triton.language as tl\nfrom triton.language.extra import libdevice\n"
PLACES = {"tl": tl, "libdevice": libdevice, "tl.math": tl.math, "triton": triton}


class NotByItself(Exception):
    """The kernel names something that has no text."""


class Extract:
    """Collects definitions in the order in which a module can make them; names of one object are defined once."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.known: dict[str, Any] = {}

    def function(self, fn: Any, mark: str = "") -> None:
        """A jitted function, or a plain one that runs while a kernel is compiled, after all that it names."""
        plain = fn if isinstance(fn, FunctionType) else fn.fn
        lines = textwrap.dedent(inspect.getsource(plain))
        node = next(n for n in ast.walk(ast.parse(lines)) if isinstance(n, ast.FunctionDef))
        self._names(node, {**plain.__globals__, **inspect.getclosurevars(plain).nonlocals})
        node.decorator_list = []
        for a in ast.walk(node.args):
            if (
                isinstance(a, ast.arg)
                and a.annotation
                and "constexpr" not in ast.unparse(a.annotation)
            ):
                a.annotation = None
        node.returns = None
        first = node.lineno - 1
        if plain is not fn:
            mark = "@triton.constexpr_function\n"
        if hasattr(fn, "noinline"):
            mark = f"@triton.jit{'(noinline=True)' if fn.noinline else ''}\n"
        body = lines.splitlines()[first : node.end_lineno]
        self.texts.append(mark + "\n".join(body))

    def _names(self, node: ast.FunctionDef, scope: dict[str, Any]) -> None:
        # Without its decorators, whose names only Python knows.
        node = ast.FunctionDef(node.name, node.args, node.body, [], None, lineno=0)
        own = {
            n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)
        }
        own |= {a.arg for a in ast.walk(node.args) if isinstance(a, ast.arg)}
        for n in ast.walk(node):
            if isinstance(n, ast.Attribute) and (chain := _chain(n)) and chain[0] not in own:
                self._attribute(chain, scope)
        for n in ast.walk(node):
            if isinstance(n, ast.Name) and n.id in scope and n.id not in own:
                if not isinstance(scope[n.id], ModuleType):
                    self.define(n.id, scope[n.id])

    def _attribute(self, chain: list[str], scope: dict[str, Any]) -> None:
        """`module.name`: modules of the language are imported, others become namespaces of what is used of them."""
        module = scope.get(chain[0])
        if not isinstance(module, ModuleType):
            return
        if place := _module(module):
            if place != chain[0]:
                self._once(chain[0], module, f"{chain[0]} = {place}")
            return
        value = getattr(module, chain[1], None)
        if isinstance(value, ModuleType):
            place = _module(value)
            if place is None:
                raise NotByItself(f"{'.'.join(chain)} is a module of a module")
            text = place
        else:
            text = f"{chain[0]}__{chain[1]}"
            self.define(text, value)
        # The compilers take names of modules, and of no other namespace.
        self._once(chain[0], module, f"{chain[0]} = type(triton)({chain[0]!r})")
        self._once(".".join(chain[:2]), value, f"{chain[0]}.{chain[1]} = {text}")

    def define(self, name: str, value: Any) -> None:
        if name in self.known:
            if self.known[name] is not value and repr(self.known[name]) != repr(value):
                raise NotByItself(f"{name} has two meanings")
            return
        self.known[name] = value
        text = expression(value)
        if text is not None:
            if text != name:
                self.texts.append(f"{name} = {text}")
            return
        mark = "@tl.constexpr\n" if isinstance(value, tl.constexpr) else ""
        if isinstance(value, tl.constexpr):
            value = value.value
        kept = getattr(value, "fn", value)
        while not isinstance(kept, FunctionType) and hasattr(kept, "fn"):
            kept, value = kept.fn, kept
        if not isinstance(kept, FunctionType):
            raise NotByItself(f"{name} is {type(value).__name__}")
        self.function(value, mark)
        if kept.__name__ != name:
            self.known.setdefault(kept.__name__, value)
            self.texts.append(f"{name} = {kept.__name__}")

    def _once(self, name: str, value: Any, text: str) -> None:
        if name not in self.known:
            self.known[name] = value
            self.texts.append(text)


def _chain(node: ast.Attribute) -> list[str] | None:
    names: list[str] = []
    x: ast.expr = node
    while isinstance(x, ast.Attribute):
        names.append(x.attr)
        x = x.value
    return [x.id, *reversed(names)] if isinstance(x, ast.Name) else None


def _module(module: ModuleType) -> str | None:
    """The expression of a module of the language."""
    for place, known in PLACES.items():
        if module is known:
            return place
    name = module.__name__
    return "libdevice" if name.startswith(("triton.", "tessera.")) and "libdevice" in name else None


def expression(value: Any) -> str | None:
    """Plain constants, types, and what the language itself defines."""
    if isinstance(value, tl.constexpr):
        inner = expression(value.value)
        return None if inner is None else f"tl.constexpr({inner})"
    if value is None or isinstance(value, (bool, int, float, str)):
        return f"float({str(value)!r})" if isinstance(value, float) else repr(value)
    if isinstance(value, (tuple, list)):
        parts = [expression(v) for v in value]
        return None if None in parts else f"({', '.join(parts)},)"  # pyright: ignore
    if isinstance(value, tl.dtype):
        return f"tl.{_dtype(value)}"
    if isinstance(value, type) and value.__module__ == "builtins":
        return value.__name__
    if getattr(value, "__module__", "").startswith(("triton", "tessera")):
        name = getattr(value, "__name__", "")
        for place, module in PLACES.items():
            if getattr(module, name, None) is value:
                return f"{place}.{name}"
    return None


def _dtype(value: Any) -> str:
    return next(n for n in dir(tl) if getattr(tl, n) is value or getattr(tl, n) == value)


def text_of(fn: Any) -> str:
    """The text of a module that defines the jitted function `fn` under its own name. NotByItself if it cannot."""
    extract = Extract()
    extract.known[fn.__name__] = fn
    extract.function(fn)
    return HEAD + "\n\n" + "\n\n\n".join(extract.texts) + "\n"
