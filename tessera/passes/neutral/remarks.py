"""Tells a kernel's author what passes did not do, and why (`metadata.remarks`, which `explain` shows with remedies)."""

from __future__ import annotations

from posixpath import basename

from tessera.ir import Module, Op


def remark(module: Module, text: str) -> None:
    """Add a sentence: what was not done where, a colon, the reason."""
    module.attrs["remarks"] = tuple(dict.fromkeys((*module.attrs.get("remarks", ()), text)))


def place_of(op: Op) -> str:
    """Return ` at kernel.py:12`, or nothing of an op without a location."""
    return f" at {basename(op.loc.file)}:{op.loc.line}" if op.loc is not None else ""
