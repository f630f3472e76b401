"""Writes docs/errors.md from `tessera.errors` (`pages.py`)."""

from __future__ import annotations

from tessera import errors

INTRODUCTION = """\
# Error catalogue

Generated from `tessera/errors/` by `python -m tessera.tools.pages errors`.

Everything tessera raises on purpose derives from `TesseraError`. Its text starts with `error[CODE]`, shows the source
line with carets for the whole chain of inlined calls, and ends with what to do. An error of a kernel derives from
`CompilationError`; an error that also has a Python meaning is a `ValueError`, `TypeError` or `RuntimeError` too.

[mistakes.md](mistakes.md) lists typical mistakes, with the error and the remedy that each is answered with.

## For editors and other programs

With `TESSERA_ERRORS=json` (the knob `runtime.errors`) an error's text is one line of JSON, the last line of the
traceback behind the name of its class; `error.to_dict()` returns the same as a dict. Fields are only added, never
changed, as long as `version` is 1.

| field | contents |
|---|---|
| `version` | 1 |
| `code`, `type` | the code of this page, and the name of the class |
| `message` | what is wrong |
| `help` | what to do; may be empty |
| `notes` | a list of further facts: where a value comes from, which program of a launch failed |
| `place` | where: a span; null for errors of host code, whose place is the traceback's last line |
| `calls` | the spans of the calls that lead to the place, outermost first |

A span has the fields `file`, `line`, `column`, `end_line`, `end_column` (from 1; the end column is behind the span),
`function` and `source`, the text of its first line.
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
