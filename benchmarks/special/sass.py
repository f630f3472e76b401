"""How many machine instructions a kernel has, by the unit that executes them; needs nvdisasm, and no GPU."""

from __future__ import annotations

import re
import subprocess
from collections import Counter
from pathlib import Path

LINE = re.compile(r"^\s+/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\d+ )?\s*([A-Z][A-Z0-9.]*)", re.M)
# Cycles that a scheduler's unit takes for a warp, beside one for issuing it (Hopper).
QUARTER = re.compile(r"MUFU|F2I|I2F|F2F|FRND|POPC|FLO|BREV")
DOUBLE = re.compile(r"D(ADD|MUL|FMA|SETP|MNMX)$")


def instructions(nvdisasm: str, cubin: str | Path) -> Counter[str]:
    """By opcode, without padding."""
    text = subprocess.run(
        [nvdisasm, "-c", str(cubin)], capture_output=True, text=True, check=True
    ).stdout
    found = Counter(name.split(".")[0] for name in LINE.findall(text))
    del found["NOP"]
    return found


def cycles(found: Counter[str]) -> float:
    """Of a scheduler for a warp, if all are executed once: the most of issuing, special functions and fp64."""
    quarter = sum(n for name, n in found.items() if QUARTER.match(name))
    double = sum(n for name, n in found.items() if DOUBLE.match(name))
    return max(sum(found.values()), 8 * quarter, 2 * double)
