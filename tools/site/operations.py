"""Draws what an operation of the language does: operands and result of its example, as the interpreter gives them.

Nothing is drawn by hand: the example stands in the docstring, its operands are found in its syntax tree, and each is
run as an example of its own.
"""

from __future__ import annotations

import ast
import re
import warnings

import numpy as np

from tessera.errors import TesseraError
from tessera.tools import language_reference as reference
from tessera.tools.language_examples import inputs, parsed, run
from tools.site.svg import Picture, Tile, flow

# Examples of the docstrings that reduce what they show, so that it fits a line.
INSTEAD = {
    "dot": 'r = tl.dot(a, tl.trans(a), input_precision="ieee")',
    "randn": "r = tl.randn(42, i)",
}
WITHOUT = {
    "The target",
    "Debugging",
    "Loops and hints",
}  # sections whose operations change no elements
POINTERS = "XNAZF"
MOST = 256  # elements of a tile that is drawn


def drawn(name: str) -> Picture | None:
    """The picture of an operation; None if its example has a single element, or none."""
    statements = INSTEAD.get(name) or parsed(reference.operation(name)).statements
    if not statements or any(name in reference.SECTIONS[s] for s in WITHOUT):
        return None
    result = _tile(statements)
    call = _call(statements, name)
    if result is None or call is None:
        return None
    before = ast.unparse(ast.Module(ast.parse(statements).body[: call[0]], []))
    given = [t for node in _operands(call[1]) if (t := _operand(node, before))]
    shown = ast.unparse(ast.parse(statements).body[-1]).removeprefix("r = ")
    made = Tile(f"{shown}   {result.title}", result.values)
    return flow(f"{name}: {shown}", given, [made]) if result.values.size > 1 or given else None


def _call(statements: str, name: str) -> tuple[int, ast.Call] | None:
    """The call of the operation, and which statement it is in."""
    last = name.rpartition(".")[2]
    for k, statement in enumerate(ast.parse(statements).body):
        for node in ast.walk(statement):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and node.func.attr == last
            ):
                return k, node
    return None


def _operands(call: ast.Call) -> list[ast.expr]:
    owner = [call.func.value] if isinstance(call.func, ast.Attribute) else []
    flat: list[ast.expr] = []
    for node in [*owner, *call.args, *(k.value for k in call.keywords)]:
        flat += node.elts if isinstance(node, ast.Tuple) else [node]
    return [node for node in flat if not isinstance(node, (ast.Constant, ast.List, ast.UnaryOp))]


def _operand(node: ast.expr, before: str) -> Tile | None:
    text = ast.unparse(node)
    memory = [n.id for n in ast.walk(node) if isinstance(n, ast.Name) and n.id in POINTERS]
    if memory:
        return _memory(memory[0])
    found = _tile(f"{before}\nr = {text}")
    return found and Tile(f"{text}   {found.title}", found.values)


def _tile(statements: str) -> Tile | None:
    """The result of statements with its dtype and shape as a title; None for what is no tile or too large."""
    try:
        with warnings.catch_warnings(
            action="ignore"
        ):  # operations that are deprecated have pictures, too
            found = run(statements)
    except (TesseraError, TypeError, AttributeError):
        return None
    if not 0 < len(found.values) <= MOST or len(found.shape) > 3:
        return None
    return Tile(re.sub(r": .*", "", str(found)), found.values.reshape(found.shape or (1,)))


def _memory(name: str) -> Tile | None:
    array = inputs()[POINTERS.index(name)]
    if array.size > MOST or name == "F":
        return None
    return Tile(f"memory {name}", np.asarray(array[:8] if name == "Z" else array, float))
