"""Writes the pages of docs/ that are generated from code: `python -m tessera.tools.pages [--check] [NAME ...]`.

Without names it writes all pages. With --check it writes none, prints those that differ, and returns 1 if any does.
"""

from __future__ import annotations

import argparse
import sys
from importlib import import_module
from pathlib import Path

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGES = {  # by page: the module whose `render()` gives its text
    "errors": "tessera.tools.error_catalogue",
    "graph": "tessera.tools.graph_page",
    "host": "tessera.tools.host_reference",
    "knobs": "tessera.tools.knob_reference",
    "language": "tessera.tools.language_reference",
    "optimizations": "tessera.tools.optimization_reference",
    "pipeline": "tessera.tools.pipeline_page",
}


def render(name: str) -> str:
    """Return the text of docs/NAME.md, as it should be."""
    return import_module(PAGES[name]).render()


def main(args: list[str]) -> int:
    """Run the command."""
    parser = argparse.ArgumentParser("tessera.tools.pages", description="write pages of docs/")
    parser.add_argument("--check", action="store_true", help="only say which pages are stale")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"all of {', '.join(PAGES)}")
    given = parser.parse_args(args)
    if unknown := set(given.names) - set(PAGES):
        parser.error(f"no page {', '.join(sorted(unknown))}; there are: {', '.join(PAGES)}")
    stale = False
    for name in given.names or PAGES:
        path, text = DOCS / f"{name}.md", render(name)
        if given.check and path.read_text("utf-8") != text:
            print(f"docs/{name}.md is stale: run python -m tessera.tools.pages {name}")
            stale = True
        elif not given.check:
            path.write_text(text, encoding="utf-8")
    return int(stale)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
