"""For scripts of cases: run each, and print a line of JSON with what it returned or how it failed."""

from __future__ import annotations

import json
import sys
import time
import traceback
from collections.abc import Mapping
from typing import Any


def main(scope: Mapping[str, Any]) -> None:
    """Run the functions `case_…` of `scope` that the command line names, or all."""
    wanted = sys.argv[1:]
    for name, function in list(scope.items()):
        if not name.startswith("case_") or (wanted and name[5:] not in wanted):
            continue
        row: dict[str, Any] = {"case": name[5:], "error": None, "value": None}
        start = time.perf_counter()
        try:
            row["value"] = function()
        except Exception as error:
            traceback.print_exc()
            row["error"] = f"{type(error).__name__}: {error}"[:2000]
        row["seconds"] = round(time.perf_counter() - start, 2)
        print(json.dumps(row), flush=True)
