"""One kernel on some devices: for each of them what came of it."""

from __future__ import annotations

import re
import traceback
import warnings
from collections.abc import Callable, Iterator
from typing import Any

from tessera.errors import (
    CompilationError,
    CompilationTimeout,
    InternalError,
    LaunchError,
    NoDeviceError,
    OutOfResources,
    PTXASError,
)
from tests.fuzz import compare, devices
from tests.fuzz.case import Case

SAME, DIFFERENT, INTERNAL, REFUSED, INVALID, CRASH, HANG = (
    "same", "different", "internal", "refused", "invalid", "crash", "hang",
)  # fmt: skip
FAULTS = (DIFFERENT, INTERNAL, CRASH, HANG)
Result = tuple[str, str]


def check(
    case: Case, names: list[str], before: Callable[[str], None]
) -> Iterator[tuple[str, Result]]:
    """Results on each device, compared with the interpreter's; `before` is told which one begins. Where kernels are
    compiled only, the interpreter does not run."""
    warnings.simplefilter("ignore")
    before("interpreter")
    want = magnitudes = None
    try:
        if not names or any(map(devices.is_run, names)):
            want = devices.run(case, "interpreter")
            if case.bound:
                magnitudes = devices.run(case, "interpreter", twin=True)
    except Exception as error:
        state, text = failure(error)
        yield "interpreter", (INVALID if state == REFUSED else state, text)
        return
    for name in names:
        before(name)
        if case.hosts_only and not devices.on_host(name):
            yield name, (REFUSED, "warps of a program would race")
        else:
            yield name, _on(case, name, want, magnitudes)


def _on(case: Case, name: str, want: Any, magnitudes: Any) -> Result:
    try:
        got = devices.run(case, name)
    except devices.Unsteady as error:
        return DIFFERENT, str(error)
    except Exception as error:
        return failure(error)
    if not devices.is_run(name):
        return SAME, ""
    found = compare.difference(case, got, want, magnitudes)
    return (DIFFERENT, found) if found else (SAME, "")


def failure(error: Exception) -> Result:
    """Refusals say what to change; anything else is our mistake."""
    text = f"{type(error).__name__}: {error}"
    if isinstance(error, (InternalError, PTXASError)):
        return INTERNAL, text + "\n" + traceback.format_exc(limit=-4)
    if isinstance(error, CompilationTimeout):
        return HANG, text
    if isinstance(error, (OutOfResources, CompilationError, LaunchError, NoDeviceError)):
        return REFUSED, text
    return INTERNAL, text + "\n" + traceback.format_exc(limit=-6)


def signature(result: Result) -> str:
    """What tells one fault from another: the first line, without numbers and names of files."""
    line = next((x for x in result[1].splitlines() if x.strip()), "")
    line = re.sub(r"/\S+", "PATH", line)
    line = re.sub(r"[%@]\w+", "%", line)
    return re.sub(r"[-+]?[\d.]+(e[-+]?\d+)?", "#", line)[:160]
