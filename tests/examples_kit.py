"""The examples' folder, and the program that loads them."""

from __future__ import annotations

import sys
from pathlib import Path

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
sys.path.insert(0, str(EXAMPLES))

import run_all as run_all  # noqa: E402  the path is set before
