"""Checks the form of a commit message: `python tools/commit_message.py FILE`, as git's commit-msg hook calls it."""

from __future__ import annotations

import re
import sys
from pathlib import Path

LONGEST = 72
SUBJECT = re.compile(r"[\w./, -]+: (\([^)]*\) )?\S")
GENERATED = ("Merge ", "Revert ", "fixup! ", "squash! ")


def faults(message: str) -> list[str]:
    """What is wrong with the message, as sentences; comments of git are left out."""
    lines = [line.rstrip() for line in message.splitlines() if not line.startswith("#")]
    while lines and not lines[0]:
        lines.pop(0)
    if not lines:
        return ["The message is empty."]
    subject, found = lines[0], list[str]()
    if subject.startswith(GENERATED):
        return []
    if len(subject) > LONGEST:
        found.append(f"The subject has {len(subject)} characters; at most {LONGEST} are allowed.")
    if not SUBJECT.match(subject):
        found.append('The subject does not begin with an area, as in "passes: keep loads masked".')
    if subject.endswith("."):
        found.append("The subject ends with a full stop.")
    if len(lines) > 1 and lines[1]:
        found.append("An empty line must separate the subject from the body.")
    return found


if __name__ == "__main__":
    complaints = faults(Path(sys.argv[1]).read_text())
    print("\n".join(complaints), file=sys.stderr)
    sys.exit(bool(complaints))
