"""Runs kernels that a parent process names, one JSON line each; the parent ends it when a kernel takes too long.

{"family": "dots", "seed": 3, "features": null, "devices": ["cpu"]}
-> {"at": "cpu"} …, {"done": {"cpu": ["same", ""]}}
"""

from __future__ import annotations

import faulthandler
import json
import os
import sys
from typing import Any

os.environ.setdefault("TESSERA_ALWAYS_COMPILE", "1")
os.environ.setdefault("TESSERA_VERIFY", "1")
os.environ.setdefault("TESSERA_STRICT", "1")
os.environ.setdefault("TESSERA_NUM_THREADS", "2")


def main() -> None:
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # kernels may print
    faulthandler.enable()

    def say(message: dict[str, Any]) -> None:
        answers.write(json.dumps(message) + "\n")

    from tests.fuzz import case, families, outcome

    say({"ready": True})
    for line in sys.stdin:
        task = json.loads(line)
        seed = task["seed"]
        chosen = task["features"] or families.drawn(task["family"], seed)
        built = families.built(task["family"], case.frozen_features(chosen), seed)
        done: dict[str, outcome.Result] = {}
        for name, result in outcome.check(built, task["devices"], lambda d: say({"at": d})):
            done[name] = result
        say({"done": done})
        if any("CUDA" in text for state, text in done.values() if state in outcome.FAULTS):
            os._exit(0)  # the context may be of no more use


if __name__ == "__main__":
    main()
