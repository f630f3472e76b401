"""Writes the pages of docs/ that are generated from code: `python -m tessera.tools.pages [--check] [NAME ...]`.

Without names it writes all pages. With --check it writes none, prints those that differ, and returns 1 if any does.
"""

from __future__ import annotations

import argparse
import sys
from importlib import import_module
from pathlib import Path

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGES = {  # by page: the module whose `render()` gives its text, or the texts of a folder's pages by their names
    "errors": "tessera.tools.error_catalogue",
    "graph": "tessera.tools.graph_page",
    "host": "tessera.tools.host_reference",
    "knobs": "tessera.tools.knob_reference",
    "language": "tessera.tools.language_reference",
    "optimizations": "tessera.tools.optimization_reference",
    "pipeline": "tessera.tools.pipeline_page",
}
# Pages in folders of generated ones that are written by hand, or by benchmarks/tables.py.
WRITTEN = {"language/accuracy.md", "language/basics.md"}


def render(name: str) -> dict[str, str]:
    """Return the texts that `name` stands for, as they should be, by their paths below docs/."""
    made: str | dict[str, str] = import_module(PAGES[name]).render()
    if isinstance(made, str):
        return {f"{name}.md": made}
    return {f"{name}/{page}.md": text for page, text in made.items()}


def stale(name: str) -> list[str]:
    """Return the paths below docs/ that differ from what `name` renders; pages that nothing renders count."""
    made = render(name)
    there = {str(path.relative_to(DOCS)) for path in (DOCS / name).glob("*.md")} - WRITTEN
    wrong = [
        p for p in made if not (DOCS / p).is_file() or (DOCS / p).read_text("utf-8") != made[p]
    ]
    return sorted({*wrong, *(there - made.keys())})


def write(name: str) -> None:
    """Write what `name` renders."""
    for path, text in render(name).items():
        (DOCS / path).parent.mkdir(exist_ok=True)
        (DOCS / path).write_text(text, encoding="utf-8")


def main(args: list[str]) -> int:
    """Run the command."""
    parser = argparse.ArgumentParser("tessera.tools.pages", description="write pages of docs/")
    parser.add_argument("--check", action="store_true", help="only say which pages are stale")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"all of {', '.join(PAGES)}")
    given = parser.parse_args(args)
    if unknown := set(given.names) - set(PAGES):
        parser.error(f"no page {', '.join(sorted(unknown))}; there are: {', '.join(PAGES)}")
    found = False
    for name in given.names or PAGES:
        if not given.check:
            write(name)
            continue
        for path in stale(name):
            print(f"docs/{path} is stale: run python -m tessera.tools.pages {name}")
            found = True
    return int(found)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
