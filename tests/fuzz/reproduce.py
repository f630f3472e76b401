"""What a reproducer calls: the kernel of its own file, on the interpreter and on the devices that it failed on."""

from __future__ import annotations

import json
from pathlib import Path

from tests.fuzz import outcome
from tests.fuzz.case import Case


def main(path: str, devices: list[str], data: str) -> None:
    """Print what comes of the kernel in the file `path` with the launch in `data`; 1 is the exit status of a fault."""
    text = Path(path).read_text().split('if __name__ == "__main__":')[0]
    case = Case.loads(json.dumps({**json.loads(data), "source": text}))
    worst = 0
    for name, (state, what) in outcome.check(case, devices, lambda d: None):
        print(f"{name}: {state} {what}")
        worst |= state in outcome.FAULTS
    raise SystemExit(worst)
