"""Reads the parameters of jitted functions and their annotations."""

from __future__ import annotations

import inspect
from typing import Any

from tessera.dtypes import ALL_DTYPES, by_array_name, dtype, pointer_type
from tessera.language.values import const

_PLAIN_TYPES = {"int": "i32", "float": "fp32", "bool": "u1"}


class KernelParam:
    """One parameter; `annotation_type` is the signature type that its annotation forces, or ""."""

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
    """Return the text of an annotation, an object or a string: `tl.int64`, "tl.uint8", "*fp32", tl.constexpr."""
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
    """Return the signature type that an annotation forces, or "" if it says nothing about the type."""
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
