"""Prints a function of tile IR as a Python kernel: `print_kernel(module)`; for a compiled kernel `kernel.asm["py"]`.

    @tessera.jit
    def scale(x, n: tl.int32):
        i = 128 * tl.program_id(0) + tl.arange(0, 128)
        mask = i < n
        x0 = tl.load(x + i, mask)
        tl.store(x + i, x0 * 2.0, mask)

Values used once are written in place, others have names. The printed source compiles to the same operations
on the same elements; uniform tiles may have become scalars that the language broadcasts.
"""

from __future__ import annotations

import re

from tessera.compiler.printer.expressions import NoSource, Text, type_text, typed
from tessera.compiler.printer.functions import Function
from tessera.compiler.printer.statements import WRITERS
from tessera.dtypes import dtype, pointer_type
from tessera.ir import Block, Module, Type
from tessera.ops import arith, control

LIBRARY = "from tessera.language.extra import libdevice\n"
HEAD = f"import tessera\nimport tessera.language as tl\n{LIBRARY}"


class _Printer:
    """Writes a module: functions that combine elements first, then the kernel."""

    def __init__(self) -> None:
        self.functions: dict[tuple[str, ...], str] = {}

    def combine(self, block: Block) -> str:
        """Return the name of a function for a combine region; equal regions share one."""
        f = Function(WRITERS, self.combine, block)
        half = len(block.args) // 2
        stems = ["a", "b"] if half == 1 else [f"{x}{k}" for x in "ab" for k in range(half)]
        names = [f.name(s) for s in stems]
        f.texts.update((v, Text(n)) for v, n in zip(block.args, names, strict=True))
        f.block(block)
        ends = [typed(f.texts[v], v.type).text for v in block.terminator.operands]
        lines = (f"({', '.join(names)}):", *f.lines, f"    return {', '.join(ends)}")
        if lines not in self.functions:
            kinds = [x.opcode for x in block if not isinstance(x, control.YieldOp | arith.ConstOp)]
            stem = f"{kinds[0]}_of_two" if len(kinds) == 1 else "combine"
            used = self.functions.values()
            number = sum(re.fullmatch(rf"{stem}(_\d+)?", name) is not None for name in used)
            self.functions[lines] = f"{stem}_{number}" if number else stem
        return self.functions[lines]

    def kernel(self, function: control.FuncOp) -> str:
        body = function.body
        f = Function(WRITERS, self.combine, body)
        f.taken.add(function.name)
        parameters: list[str] = []
        for v in body.args:
            name = f.name(v.name or "p")
            f.texts[v] = Text(name)
            parameters.append(f"{name}{_annotation(v.type)}")
        f.block(body)
        text = "\n".join(f.lines or ["    pass"])
        return f"@tessera.jit\ndef {function.name}({', '.join(parameters)}):\n{text}\n"


def _annotation(t: Type) -> str:
    """Return the annotation that makes a launch pass exactly this type, for numbers and pointers."""
    if isinstance(t, pointer_type):
        return f': "{t.short}"'
    if not isinstance(t, dtype):
        raise NoSource(f"a kernel of the language takes no {t.short}")
    return f": {type_text(t)}"


def print_kernel(module: Module) -> str:
    """Return the source of a module with one kernel: imports, the functions that it reduces by, and the kernel.

    Raises NoSource, with the op's name, for ops without a form in the language: ops of later levels, calls, `while`."""
    (function,) = (f for f in module.body if isinstance(f, control.FuncOp) and f.kernel)
    p = _Printer()
    kernel = p.kernel(function)
    made = ["@tessera.jit\ndef " + name + "\n".join(lines) for lines, name in p.functions.items()]
    text = "\n\n\n".join([*made, kernel])
    head = HEAD if "libdevice." in text else HEAD.replace(LIBRARY, "")
    return head + "\n\n" + text
