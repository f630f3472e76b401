"""Writes the statements of a function: which values have names, where blocks begin and end."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tessera.compiler.printer.expressions import (
    ATOM,
    NoSource,
    Text,
    expression,
    literal,
    type_text,
    typed,
)
from tessera.ir import Block, Op, Value, elem_of, shape_of
from tessera.ops import arith, control, tile

LONGEST = 88  # characters of an expression inside another one
RESERVED = {"tl", "tessera", "libdevice", "range", "float"}
NAMES = {  # name of a value by the op that computes it
    "addptr": "at", "program_id": "pid", "num_programs": "programs", "arange": "i", "cmp": "mask", "load": "x",
    "reduce": "total", "scan": "prefix", "dot": "acc", "const": "c", "make_descriptor": "desc",
}  # fmt: skip
TRANSPARENT = (tile.SplatOp, tile.BroadcastOp)  # the language does these implicitly


Write = Callable[["Function", Any], None]  # takes an op of its class


class Function:
    """Writes the statements of one function. `writers`: by op class; `combine`: returns the name of a region's
    function."""

    def __init__(
        self, writers: Mapping[type[Op], Write], combine: Callable[[Block], str], block: Block
    ):
        self.writers, self.combine = writers, combine
        self.lines: list[str] = []
        self.indent = 1
        self.texts: dict[Value, Text] = {}
        self.taken = set(RESERVED)
        self.uses = counted(block)

    # --- text ---------------------------------------------------------------------------------------------
    def line(self, text: str) -> None:
        self.lines.append("    " * self.indent + text)

    def name(self, stem: str) -> str:
        """Return a new name: the stem, or the stem with a number."""
        stem = re.sub(r"\W", "_", stem) or "t"
        stem = stem if stem[0].isalpha() or stem[0] == "_" else f"v{stem}"
        found, n = stem, 0
        while found in self.taken:
            found, n = f"{stem}{'_' if stem[-1].isdigit() else ''}{n}", n + 1
        self.taken.add(found)
        return found

    def named(self, v: Value, text: Text, stem: str = "") -> Text:
        """Write a variable that holds an expression."""
        assert v.op is not None
        name = self.name(stem or v.name or NAMES.get(v.op.opcode, "t"))
        self.line(f"{name} = {text.text}")
        return Text(name, ATOM, text.shape)

    def whole(self, v: Value) -> Text:
        """Return a value in its own shape and type, as an argument that is not broadcast."""
        t = typed(self.texts[v], elem_of(v.type)) if not shape_of(v.type) else self.texts[v]
        shape = shape_of(v.type)
        if t.shape == shape:
            return t
        if t.number is not None:
            return Text(
                f"tl.full({list(shape)}, {t.text}, {type_text(elem_of(v.type))})", ATOM, shape
            )
        return Text(f"tl.broadcast_to({t.text}, {list(shape)})", ATOM, shape)

    # --- ops ----------------------------------------------------------------------------------------------
    def block(self, block: Block) -> None:
        """Write all statements of a block but its terminator."""
        for op in block:
            if isinstance(op, control.YieldOp | control.ReturnOp):
                return
            self.op(op)

    def op(self, op: Op) -> None:
        if isinstance(op, arith.ConstOp):
            self.texts[op.result] = literal(op.value, elem_of(op.result.type))
        elif isinstance(op, TRANSPARENT):
            self.texts[op.result] = self.texts[op.x]
        elif isinstance(op, arith.Elementwise):
            self.keep(op.result, expression(op, [self.texts[v] for v in op.operands]))
        else:
            write = self.writers.get(type(op))
            if write is None:
                raise NoSource(f"the op {op.opcode} has no form in the language")
            write(self, op)

    def keep(self, v: Value, text: Text, stem: str = "") -> None:
        """Keep the expression if it is short, pure and used once in this block; otherwise give it a name."""
        assert v.op is not None
        pure = not v.op.all_effects()
        short = pure and len(text.text) <= LONGEST
        once = self.uses.get(v, []) == [v.block]
        self.texts[v] = text if short and once else self.named(v, text, stem)

    def optional(self, v: Value | None, keyword: str) -> list[str]:
        return [] if v is None else [f"{keyword}={self.texts[v].text}"]

    # --- control flow ---------------------------------------------------------------------------------------
    def assign(self, names: Sequence[str], values: Sequence[Value]) -> None:
        """Assign values to names in one statement, except where the name already holds the value."""
        pairs = [
            (n, t.text)
            for n, v in zip(names, values, strict=True)
            if (t := typed(self.whole(v), elem_of(v.type))).text != n
        ]
        if pairs:
            self.line(f"{', '.join(n for n, _ in pairs)} = {', '.join(t for _, t in pairs)}")

    def carried(self, values: Sequence[Value], stem: str = "acc") -> list[str]:
        """Return names for values that control flow changes."""
        return [self.name(v.name or stem) for v in values]

    def nested(self, block: Block, names: Sequence[str]) -> None:
        """Write a block that assigns to `names` at its end."""
        self.indent += 1
        before = len(self.lines)
        self.block(block)
        self.assign(names, block.terminator.operands)
        if len(self.lines) == before:
            self.line("pass")
        self.indent -= 1


def counted(block: Block) -> dict[Value, list[Block | None]]:
    """Return the blocks in which each value is used, directly or through ops that need no text."""
    found: dict[Value, list[Block | None]] = {}

    def visit(v: Value) -> list[Block | None]:
        blocks: list[Block | None] = []
        for use in v.uses:
            op = use[0]
            if isinstance(op, TRANSPARENT):
                blocks += visit(op.result)
            else:
                blocks.append(op.parent)
        return blocks

    for op in block.walk():
        for v in op.results:
            found[v] = visit(v)
    return found
