"""How much of tessera/ the type checker does not see. The numbers here only go down: lower them with what you mend."""

from __future__ import annotations

import re
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[2] / "tessera"
MOST_ANY = {
    "graph": 247,
    "": 1530,  # with arrays of any library, metadata and hooks in `explain` and `profiler`
}  # the word in source files, imports included, by folder; "": all others
ANY, BASIC = re.compile(r"\bAny\b"), re.compile(r"^# pyright: basic", re.MULTILINE)


def sources() -> dict[str, str]:
    """Files by name, without those about torch: it gives most of its values no type."""
    files = [*PACKAGE.rglob("*.py")]
    for_torch = {PACKAGE / "torch.py", *(PACKAGE / "graph/torch").rglob("*.py")}
    return {str(p.relative_to(PACKAGE)): p.read_text() for p in files if p not in for_torch}


def test_any_only_goes_down():
    counts = {name: len(ANY.findall(text)) for name, text in sources().items()}
    for folder, most in MOST_ANY.items():
        others = [f"{name}/" for name in MOST_ANY if name and not folder]
        here = {
            name: count
            for name, count in counts.items()
            if name.startswith(f"{folder}/" if folder else "")
            and not name.startswith(tuple(others))
        }
        worst = sorted(here, key=here.__getitem__, reverse=True)[:5]
        assert sum(here.values()) <= most, f"most in {', '.join(worst)}"


def test_no_file_opts_down():
    found = [name for name, text in sources().items() if BASIC.search(text)]
    assert not found, "these opt down from strict"
