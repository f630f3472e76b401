"""Draws the pictures of the tutorials into docs/tutorials/images/: `python -m tools.site.figures [--check]`.

Pictures of what kernels do come from running them (`runs.py`), plots from the files of benchmarks/results/
(`measurements.py`). A test compares the files with what is drawn.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tools.site import measurements, runs

ROOT = Path(__file__).resolve().parents[2]
IMAGES = ROOT / "docs/tutorials/images"
FIGURES = {**runs.FIGURES, **measurements.FIGURES}


def main(args: list[str]) -> int:
    """Write all pictures, or with --check say which differ."""
    stale = 0
    IMAGES.mkdir(exist_ok=True)
    for name, draw in FIGURES.items():
        path, text = IMAGES / f"{name}.svg", draw().rendered()
        if "--check" not in args:
            path.write_text(text, encoding="utf-8")
        elif not path.is_file() or path.read_text("utf-8") != text:
            stale = 1
            print(f"{path.relative_to(ROOT)} is stale: run python -m tools.site.figures")
    return stale


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
