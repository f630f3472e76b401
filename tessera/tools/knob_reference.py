# ruff: noqa: E501  rows of tables
"""Writes docs/knobs.md from `tessera.config` (`pages.py`)."""

from __future__ import annotations

from tessera.config import ABSENT_GROUPS, Group, Knobs

INTRODUCTION = """\
# Knobs

Generated from `tessera/config/` by `python -m tessera.tools.pages knobs`.

`tessera.knobs.GROUP.NAME` reads the value assigned from Python, else the environment's, at each read, else the default;
where several variables are named the first one that is set counts. Assigning also writes the first variable, for child
processes (`knobs.propagate_env = False`: not), `del` or assigning `knobs.env` lets the environment count again.
`GROUP.scope()` is a context manager that restores all. Knobs marked "kernel" are part of the key of compiled kernels,
those marked "once" are read from the environment once (`knobs.refresh_knobs()`: again).
"""

ABSENT = """\
## Knobs of Triton's that are not here

Their use is an AttributeError with the reason.

| knob | why, and what to take |
|---|---|"""

VARIABLES = """\
## Variables of Triton's C++ parts

They have no effect.

| variable | what to take |
|---|---|
| `MLIR_ENABLE_DUMP`, `MLIR_DUMP_PATH`, `LLVM_IR_ENABLE_DUMP` | `TESSERA_PRINT_AFTER=all`; `kernel.asm["tir"]`, `["gir"]`, `["llir"]`; `TESSERA_KERNEL_DUMP=1` |
| `MLIR_ENABLE_TIMING`, `LLVM_ENABLE_TIMING` | `TESSERA_TIME=1` |
| `TRITON_REPRODUCER_PATH` | an internal error names a folder with a reproducer |
| `MLIR_ENABLE_DIAGNOSTICS`, `TRITON_ENABLE_LLVM_DEBUG`, `TRITON_LLVM_DEBUG_ONLY`, `DISABLE_LLVM_OPT` | nothing: LLVM only selects instructions |
| `DISABLE_MMA_V3`, `DISABLE_MMA_V5` | `arch="sm80"` compiles without the newer instructions |
"""


def rows(group: Group) -> list[str]:
    """Return the table of a group."""
    lines = [f"## {group.title}", "", "| knob | environment | what it does |", "|---|---|---|"]
    for name, knob in group.descriptors().items():
        variables = ", ".join(f"`{n}`" for n in knob.names) or "-"
        marks = [word for word, there in (("kernel", knob.key), ("once", knob.once)) if there]
        suffix = f" ({', '.join(marks)})" if marks else ""
        lines.append(f"| `{name}` | {variables} | {knob.doc}{suffix} |")
    return [*lines, ""]


def render() -> str:
    groups = Knobs().groups()
    lines = [INTRODUCTION]
    for group in groups:
        lines += rows(group)
    lines.append(ABSENT)
    lines += [f"| `{title}.*` | {why} |" for title, why in ABSENT_GROUPS.items()]
    lines += [f"| `{g.title}.{name}` | {why} |" for g in groups for name, why in g.absent().items()]
    return "\n".join([*lines, "", VARIABLES])
