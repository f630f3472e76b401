"""Writes docs/errors.md from `tessera.errors` (`pages.py`)."""

from __future__ import annotations

from tessera import errors

INTRODUCTION = """\
# Error catalogue

Generated from `tessera/errors/` by `python -m tessera.tools.pages errors`.

Everything tessera raises on purpose derives from `TesseraError`. Its text starts with `error[CODE]`, shows the source
line with carets for the whole chain of inlined calls, and ends with what to do. An error of a kernel derives from
`CompilationError`; an error that also has a Python meaning is a `ValueError`, `TypeError` or `RuntimeError` too.
"""


def catalogue() -> list[type[errors.TesseraError]]:
    """Return every error class, in source order."""
    found: list[type[errors.TesseraError]] = []
    for value in vars(errors).values():
        if (
            isinstance(value, type)
            and issubclass(value, errors.TesseraError)
            and value not in found
        ):
            found.append(value)
    return found


def entry(kind: type[errors.TesseraError]) -> list[str]:
    bases = ", ".join(f"`{base.__name__}`" for base in kind.__bases__ if base is not Exception)
    lines = [f"## `{kind.code}`: {kind.__name__}", ""]
    if bases:
        lines += [f"A {bases}.", ""]
    own_doc = vars(kind).get("__doc__")
    if own_doc:
        lines += [" ".join(own_doc.split()), ""]
    if kind.template != errors.TesseraError.template:
        lines += ["```", kind.template, "```", ""]
    if kind.help:
        lines += [f"What to do: {kind.help}", ""]
    return lines


def render() -> str:
    lines = [INTRODUCTION]
    for kind in catalogue():
        lines += entry(kind)
    return "\n".join(lines).rstrip() + "\n"
