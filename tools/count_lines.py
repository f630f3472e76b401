"""Counts the lines of a tree's `tessera/` by part and kind, as docs/review.md shows them.

    python -m tools.count_lines [ROOT]      # the checkout at ROOT, by default the one this file stands in

Of the kinds "code" is what is left after the others: signatures and decorators, imports, docstrings, comments that
have a line of their own, and empty lines.
"""

from __future__ import annotations

import ast
import sys
from collections import Counter
from pathlib import Path

KINDS = ("code", "signature", "import", "docstring", "comment", "empty")
Function = ast.FunctionDef | ast.AsyncFunctionDef


def kinds_of(text: str) -> list[str]:
    """The kind of each line of a module."""
    lines = [line.strip() for line in text.splitlines()]
    kinds = ["comment" if s.startswith("#") else "code" if s else "empty" for s in lines]
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            _mark(kinds, "import", node.lineno, node.end_lineno or node.lineno)
        if isinstance(node, Function):
            first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
            _mark(
                kinds, "signature", first, max(node.body[0].lineno - 1, node.lineno), over=("code",)
            )
        if isinstance(node, ast.Module | ast.ClassDef | Function) and ast.get_docstring(node):
            text_node = node.body[0]
            _mark(kinds, "docstring", text_node.lineno, text_node.end_lineno or text_node.lineno)
    return kinds


def _mark(kinds: list[str], kind: str, first: int, last: int, over: tuple[str, ...] = ()) -> None:
    for i in range(first - 1, last):
        if not over or kinds[i] in over:
            kinds[i] = kind


def counts(root: Path) -> dict[str, Counter[str]]:
    """Part of `tessera/` (a package, or a module at its top) → lines of each kind."""
    found: dict[str, Counter[str]] = {}
    for path in sorted((root / "tessera").rglob("*.py")):
        part = path.relative_to(root / "tessera").parts[0].removesuffix(".py")
        found.setdefault(part, Counter()).update(kinds_of(path.read_text()))
    return found


def main() -> None:
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parents[1]
    table = counts(root)
    graph = table.pop("graph", Counter[str]())
    rows = [
        *table.items(),
        ("all but graph", sum(table.values(), Counter[str]())),
        ("graph", graph),
    ]
    print(f"{'':14}", *(f"{kind:>10}" for kind in (*KINDS, "all")))
    for part, row in rows:
        print(f"{part:14}", *(f"{n:10,}" for n in (*(row[k] for k in KINDS), sum(row.values()))))


if __name__ == "__main__":
    main()
