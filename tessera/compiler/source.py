"""Defines what can be compiled: a kernel function with a signature, or the text of any IR level."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tessera.backends.compiler import Options
from tessera.errors import CompilationError, LaunchError
from tessera.ir import Module, parse_module, unpack_locations
from tessera.ir.locations import Packed
from tessera.language.callable import JITCallable
from tessera.language.captures import fingerprint

# Imported when a kernel is first lowered: a program whose kernels are all in the cache never needs them.
FRONT_END, WIDE_INDEX = "tessera.frontend", "tessera.passes.neutral.wide_index"
WIDE_ATTR = "wide"  # attribute of an array argument whose storage needs 64-bit offsets
ALIASES = {"ttir": "tir", "ttgir": "gir"}  # Triton's names of the same levels


class ASTSource:
    """A kernel with its argument types.

    `signature`: parameter name → type string ("*fp16", "i32", "constexpr", or a tuple of them). `constexprs`: by name,
    or by index path for elements of tuples. `attrs`: index path → [["tt.divisibility", 16]].
    """

    ext = "tir"

    def __init__(
        self,
        fn: JITCallable,
        signature: Mapping[str, Any],
        constexprs: Mapping[Any, Any] | None = None,
        attrs: Mapping[tuple[int, ...], Any] | None = None,
    ):
        names: Mapping[Any, Any] = signature
        for name in names:
            if not isinstance(name, str):
                raise TypeError("Signature keys must be string")
            if name not in fn.arg_names:
                shown = ", ".join(fn.arg_names)
                raise CompilationError(
                    f"the signature's {name} is no parameter of {fn.__name__}",
                    help=f"the parameters are {shown}",
                )
        self.fn = fn
        self.constants = {_path(fn, k): v for k, v in (constexprs or {}).items()}
        self.signature: dict[str, Any] = {}
        for p in fn.params:  # parameters missing in the signature are compile-time ones
            kind = signature.get(p.name, "constexpr")
            self.signature[p.name] = kind
            if kind == "constexpr" and p.has_default:
                self.constants.setdefault((p.num,), p.default)
        self.attrs = dict(attrs or {})
        self.name = self._symbol()

    def _symbol(self) -> str:
        """Return the kernel's symbol: the function's name, or what its `repr` option returns for the specialisation."""
        make = getattr(self.fn, "repr", None)
        if make is None:
            return self.fn.__name__
        names = self.fn.arg_names
        constants = {names[k[0]]: v for k, v in self.constants.items() if len(k) == 1}
        name = make(SimpleNamespace(constants=constants, signature=self.signature))
        if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z_]\w*", name):
            raise CompilationError(
                f"{name!r} is not a valid name of a kernel", help="it must match [A-Za-z_]\\w*"
            )
        return name

    def hash(self) -> str:
        self.fn.renew(launched=False)
        constants = sorted((k, fingerprint(v)) for k, v in self.constants.items())
        key = (
            self.name,
            self.fn.cache_key,
            sorted(self.signature.items(), key=str),
            constants,
            sorted(self.attrs.items()),
        )
        return hashlib.sha256(repr(key).encode()).hexdigest()

    def make_ir(self, options: Options) -> Module:
        module = import_module(FRONT_END).lower_kernel(
            self.fn, self.signature, self.constants, self.attrs, options, self.name
        )
        if options.index_bits == 64 or any(
            [WIDE_ATTR, 1] in facts for facts in self.attrs.values()
        ):
            import_module(WIDE_INDEX).wide_index(module)
        return module


def _path(fn: JITCallable, key: Any) -> tuple[int, ...]:
    if isinstance(key, str):
        if key not in fn.arg_names:
            shown = ", ".join(fn.arg_names)
            raise CompilationError(
                f"the constant {key} is no parameter of {fn.__name__}",
                help=f"the parameters are {shown}",
            )
        return (fn.arg_names.index(key),)
    return (key,) if isinstance(key, int) else tuple(key)


class IRSource:
    """IR text in a file; the extension names the level (tir, gir, llir, ptx; ttir and ttgir are accepted)."""

    def __init__(self, path: str):
        self.path = Path(path)
        suffix = self.path.suffix.removeprefix(".")
        self.ext = ALIASES.get(suffix, suffix)
        self.text = self.path.read_text(encoding="utf-8")
        self.module = parse_module(self.text) if self.ext in ("tir", "gir") else None
        self.name = self._name()

    def _name(self) -> str:
        if self.module is not None:
            return next(f.attrs["name"] for f in self.module.body if f.attrs.get("kernel", True))
        for line in self.text.splitlines():
            for opening, closing in (
                (".entry ", "("),
                ("define ptx_kernel void @", "("),
                ("define void @", "("),
            ):
                if opening in line:
                    return line.split(opening, 1)[1].split(closing, 1)[0].strip()
        raise LaunchError(f"{self.path} holds no kernel")

    def hash(self) -> str:
        return hashlib.sha256(self.text.encode()).hexdigest()

    def make_ir(self, options: Options) -> Module | str:
        return self.module if self.module is not None else self.text


class TextSource:
    """The front end's output as text, for another process, and the locations that the text lacks (`pack_locations`)."""

    ext = "tir"

    def __init__(self, ir: str, name: str, text: str, locations: Packed | None = None):
        self.ir, self.name, self.text, self.locations = ir, name, text, locations

    def hash(self) -> str:
        return hashlib.sha256(self.ir.encode()).hexdigest()

    def make_ir(self, options: Options) -> Module:
        module = parse_module(self.ir)
        if self.locations is not None:
            unpack_locations(module, self.locations)
        return module
