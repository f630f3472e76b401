"""Runs every example natively on this machine and prints one table: error against NumPy, speed beside NumPy or torch.

    python examples/run_all.py [--device auto|cpu|cuda] [--only 01,03] [--rep MS]

Exit status 1 if a result is wrong or an example fails.
"""

from __future__ import annotations

import sys
import time
import traceback
from pathlib import Path
from types import ModuleType

HERE = Path(__file__).resolve().parent
for folder in (HERE, HERE.parent):  # the examples' helpers; tessera itself from a checkout
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))

import common  # noqa: E402


def load(path: Path) -> ModuleType:
    """The checks of an example, with the names of the example beside their own."""
    checks = common.load(HERE / "checks" / path.name, "checks_" + path.stem.replace("-", "_"))
    for name, value in vars(common.example(path.name)).items():
        vars(checks).setdefault(name, value)
    return checks


def example_files(only: str = "") -> list[Path]:
    wanted = {number.strip().zfill(2) for number in only.split(",") if number.strip()}
    files = sorted(HERE.glob("[0-9][0-9]-*.py"))
    return [file for file in files if not wanted or file.name[:2] in wanted]


def main() -> int:
    args = common.parse_arguments()
    device = common.choose_device(args.device, args.rep)
    rows: list[common.Row] = []
    failed: list[str] = []
    start = time.perf_counter()
    for file in example_files(args.only):
        print(f"{file.name} ...", flush=True)
        try:
            rows += load(file).main(device)
        except Exception:
            traceback.print_exc()
            failed.append(file.name)
    common.print_rows(device, rows)
    wrong = [row.name for row in rows if not row.ok]
    seconds = time.perf_counter() - start
    print(f"{len(rows) - len(wrong)} of {len(rows)} results right, in {seconds:.0f} s")
    print("the kernels: examples/*.py; how they are compiled: docs/tour.md")
    if wrong:
        print("wrong:", ", ".join(wrong))
    if failed:
        print("failed:", ", ".join(failed))
    return 1 if wrong or failed else 0


if __name__ == "__main__":
    sys.exit(main())
