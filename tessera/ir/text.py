"""Prints IR in the one generic grammar that `parse.py` reads.

    module {num_warps=4} {
      func {name="add_kernel"} (%x_ptr: *fp32, %n: i32) {
        %pid: i32 = program_id {axis=0}
        %offs: tile<1024xi32> = arange {start=0, end=1024}
        %x: tile<1024xfp32> = load %p, %mask, _
        ...

Operands are in field order: a missing optional one is `_`, a variadic field is bracketed. Regions follow as
`(args) { ops }`. Names come from the Python variables; equal names get a numeric suffix. Layouts get
names of their own, before the module:

    #0 = ll<[1024] register=[[128],[256],[512]] lane=[[1],[2],[4],[8],[16]] warp=[[32],[64]]>
    ...
        %x: tile<1024xfp32, #0> = load %p, %mask, _
"""

from __future__ import annotations

import re
from typing import Any

from tessera.ir.core import Attributes, Block, Module, Op, Value


def format_attr(value: Any) -> str:
    """Return an attribute as a literal: Python literals, `!type` for types, `@layout` for layouts."""
    if isinstance(value, float):
        return (
            f"float({value.hex()!r})"
            if value == value and abs(value) != float("inf")
            else f"float('{value}')"
        )
    if value is None or isinstance(value, (bool, int, str)):
        return repr(value)
    if isinstance(value, (tuple, list)):
        inner = ", ".join(format_attr(v) for v in value)  # pyright: ignore[reportUnknownVariableType]
        return f"[{inner}]"
    if hasattr(value, "text"):
        return "@" + value.text()
    short = getattr(value, "short", None)
    if short is None:
        raise TypeError(f"an attribute cannot hold {value!r}")
    return f"!{short}"


_LAYOUT = re.compile(r"\bll<[^<>]*>")


class Names:
    """Printed names of values and layouts. If prints of one function share them while passes change the function,
    they differ only in what has changed."""

    def __init__(self) -> None:
        self.values: dict[Value, str] = {}
        self.taken: dict[str, int] = {}
        self.layouts: dict[str, str] = {}  # the text of a layout → its alias


class _Printer:
    def __init__(self, locations: bool = False, names: Names | None = None):
        """Without `names`, layouts are printed in full."""
        self.layouts = None if names is None else names.layouts
        names = names or Names()
        self.names, self.taken = names.values, names.taken
        self.types: dict[object, str] = {}  # the texts of types
        self.lines: list[str] = []
        self.first: dict[Op, int] = {}  # the line of an op, from 1 on
        self.locations = locations

    def name(self, v: Value) -> str:
        found = self.names.get(v)
        if found is None:
            base = v.name or ""
            if base and base not in self.taken:
                self.taken[base] = 0
                found = f"%{base}"
            else:
                count = self.taken.get(base, 0)
                while True:
                    found = f"%{base}_{count}" if base else f"%{count}"
                    count += 1
                    if not base or found[1:] not in self.taken:
                        break
                self.taken[base] = count
                if base:
                    self.taken[found[1:]] = 0
            self.names[v] = found
        return found

    def typed(self, v: Value) -> str:
        text = self.types.get(v.type)
        if text is None:
            text = v.type.short
            if (known := self.layouts) is not None:
                text = _LAYOUT.sub(lambda m: known.setdefault(m[0], f"#{len(known)}"), text)
            self.types[v.type] = text
        return f"{self.name(v)}: {text}"

    def operands(self, op: Op) -> str:
        parts: list[str] = []
        for f in op.operand_fields:
            values = op.operands[op.segment(f.position)]
            if f.variadic:
                parts.append(f"[{', '.join(map(self.name, values))}]")
            else:
                parts.append(self.name(values[0]) if values else "_")
        return ", ".join(parts)

    def op(self, op: Op, indent: str) -> None:
        self.first[op] = len(self.lines) + 1
        defined = ", ".join(map(self.typed, op.results))
        text = f"{defined} = {op.opcode}" if defined else op.opcode
        if op.operand_fields:
            text += " " + self.operands(op)
        shown = _changed_attrs(op)
        if shown:
            text += " {" + ", ".join(f"{k}={format_attr(v)}" for k, v in shown.items()) + "}"
        place = f"  // {op.loc.short()}" if self.locations and op.loc is not None else ""
        if not op.regions:
            self.lines.append(indent + text + place)
            return
        for i, block in enumerate(op.regions):
            args = ", ".join(map(self.typed, block.args))
            self.lines.append(
                f"{indent}{text if i == 0 else '}'} ({args}) {{{place if i == 0 else ''}"
            )
            self.block(block, indent + "  ")
        self.lines.append(indent + "}")

    def block(self, block: Block, indent: str) -> None:
        for op in block:
            self.op(op, indent)


def _changed_attrs(op: Op) -> Attributes:
    """Return attributes that differ from their default; the parser adds the others."""
    defaults = {f.name: f.default for f in op.attr_fields}
    return {k: v for k, v in op.attrs.items() if not _same(v, defaults.get(k, ...))}


def _same(value: object, default: object) -> bool:
    return type(value) is type(default) and value == default


def print_module(module: Module, locations: bool = False, names: Names | None = None) -> str:
    """Return the module's text; `locations` adds comments with file, line and column; `names`: of earlier prints."""
    return _printed(module, locations, names)[0]


def print_with_lines(module: Module) -> tuple[str, dict[Op, int]]:
    """Return the module's text, and the line (from 1) of each op in it."""
    return _printed(module, locations=False)


def _printed(
    module: Module, locations: bool, known: Names | None = None
) -> tuple[str, dict[Op, int]]:
    names = known or Names()
    p = _Printer(locations, names)
    attrs = ", ".join(f"{k}={format_attr(v)}" for k, v in module.attrs.items())
    p.lines.append(f"module {{{attrs}}} {{")
    for f in module.body:
        if known is None:
            names.values.clear()
            names.taken.clear()
        p.op(f, "  ")
    p.lines.append("}")
    aliases = [f"{alias} = {layout}" for layout, alias in names.layouts.items()]
    first = {op: line + len(aliases) for op, line in p.first.items()}
    return "\n".join([*aliases, *p.lines]) + "\n", first


def print_op(op: Op) -> str:
    """Return one op's text, for messages and debugging."""
    p = _Printer()
    p.op(op, "")
    return "\n".join(p.lines)
